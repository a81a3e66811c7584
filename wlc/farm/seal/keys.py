"""Keys for a farm: where they come from, how they are written, and which keys readers and writers need.

A key is one word, `<kind>:<id>:<base64>`, of kind `encryption`, `signing` or `verify`. Its id is made from the key, so
that a damaged key is not taken for another one. A key file has one key per line and may have `#` comments; the first
key writes, and all keys read.

Keys are given with the options of the farm's file system (`encryption_key`, or `encryption_key_file` with the path of a
key file), or in the environment (`WLC_ENCRYPTION_KEY`, `WLC_ENCRYPTION_KEY_FILE`); likewise for the other kinds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import secrets
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import InvalidError
from wlc.farm.seal import cipher
from wlc.farm.typed_names import file_meant

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENCRYPTION, SIGNING, VERIFY = "encryption", "signing", "verify"
KINDS = (ENCRYPTION, SIGNING, VERIFY)
# Options that a master or a replica must remember.
ENCRYPTED, SIGNED = "encrypted", "signed"
ALLOW_UNENCRYPTED = "allow_unencrypted"
# File of a reader's witness; see `wlc.farm.database`.
WITNESS = "witness_file"
NAMES = {f"{kind}_key" for kind in KINDS} | {f"{kind}_key_file" for kind in KINDS}
NAMES |= {ENCRYPTED, SIGNED, ALLOW_UNENCRYPTED, WITNESS}
_WORD = re.compile(r"([a-z]+):([0-9a-f]{16}):([A-Za-z0-9+/]{43}=)")
_MAKE = "wlc farm key {kind} FILE makes one"
_KEPT = (
    "{meant}name the file with the farm's keys: --storage-option {kind}_key_file=FILE or WLC_{variable}_KEY_FILE; only"
    " for a new farm: wlc farm key {made_as} {file}"
)


@dataclass(frozen=True, slots=True)
class Key:
    """One key; its content is shown nowhere."""

    kind: str
    id: str
    content: bytes = field(repr=False)

    @property
    def word(self) -> str:
        """The key as it is written into files and variables."""
        return f"{self.kind}:{self.id}:{base64.b64encode(self.content).decode()}"


def new_key(kind: str) -> Key:
    """Make an encryption key or a signing key."""
    return _key(kind, secrets.token_bytes(cipher.KEY_BYTES))


def public_half(key: Key) -> Key:
    """Return the verifying half of a signing key; both have the same id."""
    return Key(VERIFY, key.id, cipher.public_of(key.content))


def read_keys(text: str, kind: str, where: str) -> tuple[Key, ...]:
    """Read keys of one kind.

    Args:
        text: Words between spaces, line ends or commas; the rest of a line after `#` is a comment.
        kind: The required kind.
        where: Where the text is from, for messages, which never repeat it.

    Raises:
        InvalidError: A word is not a key, or a key of another kind; or there are no words.
    """
    words = re.sub(r"#[^\n]*", "", text).replace(",", " ").split()
    found = tuple(_read(word, number, kind, where) for number, word in enumerate(words, start=1))
    if not found:
        raise InvalidError(f"{where} holds no key", hint=_MAKE.format(kind=_made_as(kind)))
    return found


def read_key_file(file: Path, kind: str) -> tuple[Key, ...]:
    """Read a key file; raises as `read_keys` does, and if the file cannot be read."""
    try:
        text = file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not a text"
        # A new key in its place could not read the files written with the missing key.
        made = shlex.quote(str(file).removesuffix(".pub"))
        hint = _KEPT.format(meant=_meant(file), kind=kind, variable=kind.upper(), made_as=_made_as(kind), file=made)
        raise InvalidError(f"key file {file} cannot be read: {cause}", hint=hint, path=str(file)) from error
    return read_keys(text, kind, f"key file {file}")


def _meant(file: Path) -> str:
    meant = file_meant(file.expanduser())
    return f"did you mean {meant}? Else " if meant and meant.is_file() else ""


def write_key_file(file: Path, keys: Iterable[Key], mode: int = 0o600) -> None:
    """Write a key file, all or nothing; other users cannot read it unless `mode` permits it."""
    text = "".join(f"{key.word}\n" for key in keys)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "w", encoding="utf-8") as handle:  # noqa: PTH123 - it has a descriptor already.
            handle.write(text)
            handle.flush()
            os.fsync(descriptor)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidError(f"key file {file} cannot be written: {error.strerror}", path=str(file)) from error


def add_key(file: Path, kind: str) -> Key:
    """Make a key and insert it at the start of a key file; the other keys stay, for reading older files.

    Raises:
        InvalidError: There is no such kind of key, or the file holds something else or cannot be written.
    """
    if kind not in (ENCRYPTION, SIGNING):
        raise InvalidError(f"a key of kind {kind!r} cannot be made", hint=f"Give {ENCRYPTION} or {SIGNING}.")
    made = new_key(kind)
    known = (made, *(read_key_file(file, kind) if file.exists() else ()))
    write_key_file(file, known)
    if kind == SIGNING:
        write_key_file(file.with_name(f"{file.name}.pub"), map(public_half, known), 0o644)
    return made


class Keys:
    """The keys that go with a farm's options; files and variables are read when a key is needed.

    Args:
        options: Options of the farm's file system; those that do not concern keys are ignored.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = {name: value for name, value in (options or {}).items() if name in NAMES}

    @property
    def encrypts(self) -> bool:
        """Whether objects are encrypted when they are written, and refused when they are not."""
        return bool(self._options.get(ENCRYPTED)) or self._is_given(ENCRYPTION)

    @property
    def signs(self) -> bool:
        """Whether log files and manifests are signed when they are published."""
        return bool(self._options.get(SIGNED)) or self._is_given(SIGNING)

    @property
    def allows_unencrypted(self) -> bool:
        """Whether objects from before the farm was encrypted are read."""
        return _is_true(self._options.get(ALLOW_UNENCRYPTED) or os.environ.get("WLC_ALLOW_UNENCRYPTED"))

    @cached_property
    def encryption(self) -> tuple[Key, ...]:
        """Encryption keys, the one that writes first.

        Raises:
            InvalidError: A key is missing, or a key file cannot be read.
        """
        return self._required(ENCRYPTION, "encrypted")

    @cached_property
    def signing(self) -> Key:
        """The key that signs; raises as `encryption` does."""
        return self._required(SIGNING, "signed")[0]

    @cached_property
    def verifying(self) -> tuple[Key, ...]:
        """Keys for verification: one of them must have signed each file. Empty if signatures are not verified."""
        return self._found(VERIFY) if self._is_given(VERIFY) else ()

    @cached_property
    def own(self) -> tuple[Key, ...]:
        """Keys that verify this process's signatures; empty if it signs nothing."""
        return tuple(map(public_half, self._required(SIGNING, "signed"))) if self.signs else ()

    def noted(self) -> dict[str, Any]:
        """Return the options that a master remembers: that it needs keys, and where their files are."""
        files = {f"{kind}_key_file": self._file(kind) for kind in KINDS}
        # Do not remember variables: the environment supplies them every time.
        noted: dict[str, Any] = {name: str(Path(file).expanduser().absolute()) for name, file in files.items() if file}
        needed = {ENCRYPTED: self.encrypts, SIGNED: self.signs}
        return noted | {name: True for name, is_needed in needed.items() if is_needed}

    def check(self) -> None:
        """Read the keys required for writing.

        Raises:
            InvalidError: A key is missing or cannot be read.
        """
        if self.encrypts:
            _ = self.encryption
        if self.signs:
            _ = self.signing

    def verify_words(self) -> str:
        """Return the keys that must have signed, as text; "" if signatures are not verified."""
        return _written(self.verifying)

    def _file(self, kind: str) -> str:
        return str(self._options.get(f"{kind}_key_file") or "")

    def _is_given(self, kind: str) -> bool:
        names = (f"{kind}_key", f"{kind}_key_file")
        return any(self._options.get(name) or os.environ.get(f"WLC_{name.upper()}") for name in names)

    def _required(self, kind: str, what: str) -> tuple[Key, ...]:
        if not self._is_given(kind):
            name = f"WLC_{kind.upper()}_KEY"
            hint = f"Set {name} or {name}_FILE, or add --storage-option {kind}_key_file=FILE."
            raise InvalidError(f"what this master publishes must be {what}, and no {kind} key is given", hint=hint)
        return self._found(kind)

    def _found(self, kind: str) -> tuple[Key, ...]:
        """The keys of a kind: those of the options before those of the environment, texts before files."""
        name = f"{kind}_key"
        variable = f"WLC_{name.upper()}"
        if text := self._options.get(name):
            return read_keys(str(text), kind, f"storage option {name}")
        if file := self._options.get(f"{name}_file"):
            return read_key_file(Path(str(file)), kind)
        if text := os.environ.get(variable):
            return read_keys(text, kind, f"variable {variable}")
        return read_key_file(Path(os.environ[f"{variable}_FILE"]), kind)


def options_to_remember(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a farm that a master remembers, so that later publishers do not forget that it has keys.

    The user must permit unencrypted older objects every time.
    """
    kept = {name: value for name, value in (options or {}).items() if name != ALLOW_UNENCRYPTED}
    return kept | Keys(options).noted()


def without_keys(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that are for the file system itself."""
    return {name: value for name, value in (options or {}).items() if name not in NAMES}


def for_tasks(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return options for remote processes that only read and have neither this machine's files nor its variables."""
    keys = Keys(options)
    passed = without_keys(options)
    if keys.encrypts:
        passed |= {"encryption_key": _written(keys.encryption), ALLOW_UNENCRYPTED: keys.allows_unencrypted}
    if keys.verifying:
        passed["verify_key"] = keys.verify_words()
    return passed


def _written(keys: Iterable[Key]) -> str:
    return " ".join(key.word for key in keys)


def _key(kind: str, content: bytes) -> Key:
    # Both halves of a signing key have the same id, which reveals nothing about the signing key.
    named = cipher.public_of(content) if kind == SIGNING else content
    spoken = VERIFY if kind == SIGNING else kind
    return Key(kind, hashlib.sha256(f"dbfarm {spoken} key".encode() + named).hexdigest()[:16], content)


def _read(word: str, number: int, kind: str, where: str) -> Key:
    found = _WORD.fullmatch(word)
    try:
        content = base64.b64decode(found[3], validate=True) if found else b""
    except binascii.Error:
        found = None
    if found is None or found[1] not in KINDS:
        raise InvalidError(f"{where}: word {number} is not a key", hint=_MAKE.format(kind=_made_as(kind)))
    if found[1] != kind:
        raise InvalidError(f"{where}: word {number} is a key of kind {found[1]}, not {kind}")
    if _key(kind, content).id != found[2]:
        raise InvalidError(f"{where}: key {found[2]} is damaged", hint="Take it from where it was kept.")
    return Key(kind, found[2], content)


def _made_as(kind: str) -> str:
    return SIGNING if kind == VERIFY else kind


def _is_true(value: object) -> bool:
    return value is True or str(value).lower() in ("1", "true", "yes")

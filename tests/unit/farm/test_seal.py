"""Keys: files, variables, ids; encrypted objects; signatures."""

from __future__ import annotations

import itertools
import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest

from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.seal import cipher, keys
from wlc.farm.seal.keys import Keys, add_key, for_tasks, new_key, public_half, read_key_file, read_keys, without_keys
from wlc.farm.store.encrypted import MAGIC, EncryptedStore
from wlc.farm.store.local import LocalStore
from wlc.farm.store.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [0, 1, 99, cipher.CHUNK_BYTES - 1, cipher.CHUNK_BYTES, cipher.CHUNK_BYTES + 1, 3 * cipher.CHUNK_BYTES]
CHUNK = cipher.CHUNK_BYTES + cipher.TAG_BYTES
HEADER = len(MAGIC) + 16 + cipher.SALT_BYTES


@pytest.fixture
def key() -> keys.Key:
    return new_key("encryption")


def store(key: keys.Key, objects: dict[str, bytes], place: str = "sales/", **options: Any) -> EncryptedStore:
    inner = MemoryStore("memory://farm", objects)
    return EncryptedStore(inner, place, Keys({"encryption_key": key.word, **options}))


# Keys


def test_words_say_all_and_repr_nothing(key: keys.Key) -> None:
    assert read_keys(key.word, "encryption", "x") == (key,)
    assert key.word.split(":")[2] not in repr(key)
    assert str(key.content) not in repr(key)


def test_public_half_has_the_same_id() -> None:
    made = new_key("signing")
    public = public_half(made)
    assert public.id == made.id
    assert read_keys(public.word, "verify", "x") == (public,)
    cipher.verify(public.content, cipher.sign(made.content, b"a"), b"a")
    with pytest.raises(cipher.ForgedError):
        cipher.verify(public.content, cipher.sign(made.content, b"a"), b"b")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "holds no key"),
        ("# only a comment", "holds no key"),
        ("hello", "word 1 is not a key"),
        ("other:0123456789abcdef:" + "A" * 43 + "=", "word 1 is not a key"),
        ("verify:0123456789abcdef:" + "A" * 43 + "=", "word 1 is a key of kind verify, not encryption"),
        ("encryption:0123456789abcdef:" + "A" * 43 + "=", "key 0123456789abcdef is damaged"),
        ("encryption:0123456789abcdef:" + "A" * 42 + "==", "word 1 is not a key"),
    ],
)
def test_what_is_no_key(text: str, message: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        read_keys(text, "encryption", "key file x")
    assert "AAAA" not in f"{caught.value}{caught.value.hint}"


def test_key_files(tmp_path: Path) -> None:
    file = tmp_path / "farm.key"
    old = add_key(file, "encryption")
    new = add_key(file, "encryption")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_key_file(file, "encryption") == (new, old)
    file.write_text(f"# of 2026\n{new.word} # writes\n\n{old.word},\n")
    assert read_key_file(file, "encryption") == (new, old)
    signing = tmp_path / "master.key"
    first, second = add_key(signing, "signing"), add_key(signing, "signing")
    public = tmp_path / "master.key.pub"
    assert [key.id for key in read_key_file(public, "verify")] == [second.id, first.id]
    assert list(tmp_path.glob(".*")) == []
    with pytest.raises(InvalidError, match="kind signing, not encryption"):
        add_key(signing, "encryption")
    with pytest.raises(InvalidError, match="cannot be made"):
        add_key(file, "verify")
    with pytest.raises(InvalidError, match=r"nowhere\.key cannot be read: No such file") as caught:
        read_key_file(tmp_path / "nowhere.key", "encryption")
    assert str(caught.value.hint).startswith(
        "name the file with the farm's keys: --storage-option encryption_key_file="
    )
    with pytest.raises(InvalidError) as caught:
        read_key_file(tmp_path / "mastre.key", "signing")
    assert str(caught.value.hint).startswith(f"did you mean {signing}? Else name the file")


def test_where_keys_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three, four = (new_key("encryption") for _ in range(4))
    for number, key in enumerate((two, four)):
        keys.write_key_file(tmp_path / str(number), [key])
    options: dict[str, Any] = {"key": "s3"}
    assert not Keys(options).encrypts
    monkeypatch.setenv("WLC_ENCRYPTION_KEY_FILE", str(tmp_path / "1"))
    assert Keys(options).encryption == (four,)
    monkeypatch.setenv("WLC_ENCRYPTION_KEY", three.word)
    assert Keys(options).encryption == (three,)
    options["encryption_key_file"] = str(tmp_path / "0")
    assert Keys(options).encryption == (two,)
    options["encryption_key"] = one.word
    assert Keys(options).encryption == (one,)
    assert without_keys(options) == {"key": "s3"}


def test_what_is_noted_holds_no_secret_and_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key("encryption")
    assert Keys({"encryption_key": key.word}).noted() == {"encrypted": True}
    monkeypatch.chdir(tmp_path)
    assert Keys({"signing_key_file": "a.key"}).noted() == {"signing_key_file": str(tmp_path / "a.key"), "signed": True}
    noted = Keys({"encrypted": True, "signed": True})
    assert (noted.encrypts, noted.signs) == (True, True)
    with pytest.raises(InvalidError, match="must be encrypted, and no encryption key is given"):
        _ = noted.encryption
    with pytest.raises(InvalidError, match="must be signed, and no signing key is given"):
        _ = noted.signing
    with pytest.raises(InvalidError, match="must be encrypted, and no encryption key is given"):
        noted.check()


def test_tasks_get_what_they_need_to_read(tmp_path: Path) -> None:
    add_key(tmp_path / "e", "encryption")
    add_key(tmp_path / "s", "signing")
    options = {"endpoint_url": "x", "encryption_key_file": str(tmp_path / "e")}
    options |= {"signing_key_file": str(tmp_path / "s"), "verify_key_file": str(tmp_path / "s.pub")}
    told = for_tasks(options)
    assert set(told) == {"endpoint_url", "encryption_key", "allow_unencrypted", "verify_key"}
    assert Keys(told).encryption == Keys(options).encryption
    assert Keys(told).verifying == Keys(options).verifying


def test_who_has_no_package_for_keys_is_told(monkeypatch: pytest.MonkeyPatch, key: keys.Key) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    cipher._require.cache_clear()
    with pytest.raises(InvalidError, match="keys need a package that is not installed") as caught:
        store(key, {}).create("a", b"x")
    assert caught.value.hint == "pip install 'dbfarm[crypto]'"
    cipher._require.cache_clear()


# Encrypted objects


@pytest.mark.parametrize("size", SIZES)
def test_objects_come_back(key: keys.Key, size: int, tmp_path: Path) -> None:
    objects: dict[str, bytes] = {}
    found, data = store(key, objects), bytes(itertools.islice(itertools.cycle(range(251)), size))
    file = tmp_path / "x"
    file.write_bytes(data)
    found.create("bytes", data)
    found.create("file", file)
    for path in ("bytes", "file"):
        assert found.read(path) == data
        local = found.fetch(path)
        assert local.read_bytes() == data
        assert stat.S_IMODE(local.stat().st_mode) == 0o600
        found.release(local)
        assert not local.exists()
        stored = objects[f"memory://farm/{path}"]
        assert len(stored) == HEADER + size + cipher.TAG_BYTES * max(1, -(-size // cipher.CHUNK_BYTES))
        assert size < 50 or data[:50] not in stored


def test_nothing_repeats(key: keys.Key) -> None:
    objects: dict[str, bytes] = {}
    found = store(key, objects)
    found.create("a", b"same")
    found.create("b", b"same")
    one, other = objects.values()
    assert one[:-20] != other[:-20]
    assert one[-20:] != other[-20:]


def forged(data: bytes) -> dict[str, bytes]:
    """The object as somebody without the key may leave it."""
    first, second = data[HEADER : HEADER + CHUNK], data[HEADER + CHUNK : HEADER + 2 * CHUNK]
    rest = data[HEADER + 2 * CHUNK :]
    changed = {f"bit {at}": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in (HEADER - 1, HEADER, -1)}
    return {
        **changed,
        "cut": data[:-1],
        "without the last chunk": data[: HEADER + 2 * CHUNK],
        "without the first chunk": data[:HEADER] + second + rest,
        "nothing but the header": data[:HEADER],
        "other order": data[:HEADER] + second + first + rest,
        "twice": data[:HEADER] + first + first + rest,
        "longer": data + b"\0",
        "a chunk more": data + data[-100:],
    }


def test_changes_are_found(key: keys.Key) -> None:
    objects: dict[str, bytes] = {}
    found = store(key, objects)
    found.create("a", bytes(2 * cipher.CHUNK_BYTES + 50))
    good = objects["memory://farm/a"]
    for data in forged(good).values():
        objects["memory://farm/a"] = data
        for read in (found.read, found.fetch):
            with pytest.raises(CorruptError, match="memory://farm/a cannot be decrypted"):
                read("a")
    objects["memory://farm/a"] = good
    assert len(found.read("a")) == 2 * cipher.CHUNK_BYTES + 50


def test_objects_are_bound_to_their_place(key: keys.Key) -> None:
    objects: dict[str, bytes] = {}
    found = store(key, objects)
    found.create("snapshots/000000000001/0.parquet", b"one")
    found.create("snapshots/000000000002/0.parquet", b"two")
    one, two = (f"memory://farm/snapshots/00000000000{number}/0.parquet" for number in (1, 2))
    objects[one], objects[two] = objects[two], objects[one]
    with pytest.raises(CorruptError, match="not what was published there"):
        found.read("snapshots/000000000001/0.parquet")
    with pytest.raises(CorruptError, match="not what was published there"):
        store(key, objects, "other/").read("snapshots/000000000002/0.parquet")


def test_wrong_and_missing_keys(key: keys.Key) -> None:
    objects: dict[str, bytes] = {}
    store(key, objects).create("a", b"x")
    other = new_key("encryption")
    with pytest.raises(
        InvalidError, match=rf"encrypted with key {key.id}, which is not among those given \({other.id}\)"
    ):
        store(other, objects).read("a")
    # The file of a rotation: the new one writes, the old one still reads.
    rotated = store(key, objects, encryption_key=f"{other.word} {key.word}")
    assert rotated.read("a") == b"x"
    rotated.create("b", b"y")
    assert store(other, objects).read("b") == b"y"


def test_what_is_not_encrypted_is_refused_unless_it_is_allowed(key: keys.Key, tmp_path: Path) -> None:
    objects = {"memory://farm/a": b"{}", "memory://farm/wlc.config": b"c", "memory://farm/replicas/x.json": b"r"}
    found = store(key, objects)
    for read in (found.read, found.fetch):
        with pytest.raises(CorruptError, match="must be encrypted, and is not") as caught:
            read("a")
        assert "allow_unencrypted" in str(caught.value.hint)
    assert (found.read("wlc.config"), found.read("replicas/x.json")) == (b"c", b"r")
    allowing = store(key, objects, allow_unencrypted="true")
    assert allowing.read("a") == b"{}"
    local = allowing.fetch("a")
    assert local.read_bytes() == b"{}"
    allowing.release(local)
    assert not local.exists()


def test_local_objects_stay_when_their_copies_go(key: keys.Key, tmp_path: Path) -> None:
    found = EncryptedStore(LocalStore(tmp_path), "sales/", Keys({"encryption_key": key.word}))
    found.create("a/b.parquet", b"x")
    local = found.fetch("a/b.parquet")
    found.release(local)
    assert found.read("a/b.parquet") == b"x"
    assert (tmp_path / "a/b.parquet").read_bytes().startswith(MAGIC)
    # Others may read the object as they might any other.
    (tmp_path / "plain").touch()
    assert (tmp_path / "a/b.parquet").stat().st_mode == (tmp_path / "plain").stat().st_mode

"""A directory behind SFTP as a store: exclusive creation by hard link, compare-and-swap below a lock that fences.

The server must know the extensions `hardlink@openssh.com` and `posix-rename@openssh.com`, as OpenSSH does.

A change takes a lock: a hidden folder beside the object, renamed into place with the new bytes inside it. The commit
moves the bytes out of that folder. A lock that stays the same for `LOCK_S` belongs to a process that died or is
suspended; the process that needs the lock moves the folder away. If the former holder continues, its bytes are gone,
and it changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
import secrets
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import asyncssh
from fsspec.asyn import get_loop, sync

from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm.paths import check_relative
from wlc.farm.retry import CONNECT_TIMEOUT_S, REQUEST_ATTEMPTS, longer
from wlc.farm.store.bucket import Downloads
from wlc.farm.store.contract import Store, StoredObject, StoredObjects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncssh import SFTPAttrs, SFTPClient

Answer = TypeVar("Answer")

LOCK_S = 30.0
_LOOK_S = 0.05
_CREDENTIALS = (
    "Put the key where ssh finds it (~/.ssh/config, ssh-agent), or add --storage-option client_keys=FILE"
    " or --storage-option password=… to the command."
)
_ABSENT = (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath)
_LOST = (asyncssh.ConnectionLost, asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection, ConnectionError, TimeoutError)


class SftpStore(Store):
    """Objects are files below one directory of a server; names that start with a dot are the store's own."""

    seeks = False
    is_remote = True

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts, port = urlsplit(url), None
        with suppress(ValueError):
            # The text in the port's place may be a password with a slash.
            port = parts.port or 0
        if port is None or parts.password is not None or parts.query:
            raise InvalidError("an SFTP URL must not hold a password or parameters", hint=_CREDENTIALS)
        self.root = unquote(parts.path).rstrip("/")
        if not parts.hostname or not self.root:
            raise InvalidError(f"{url!r} names no server and folder", hint="Write sftp://user@host/folder.")
        self.url = f"sftp://{parts.netloc}{parts.path.rstrip('/')}"
        self._options: dict[str, Any] = {
            "host": parts.hostname,
            "port": port or (),
            "username": unquote(parts.username or "") or options.get("username") or (),
            **{name: options[name] for name in ("password", "client_keys", "known_hosts") if name in options},
        }
        self._downloads = Downloads()
        self._opened: SFTPClient | None = None
        self._close: Callable[[], object] = lambda: None
        # All requests run in one event loop; the first requests must share one connection.
        self._opening = asyncio.Lock()
        self._was_there = False
        # Folders that were found to be no links.
        self._real: set[str] = set()

    def read(self, path: str) -> bytes:
        file = self._file(path)

        async def get(client: SFTPClient) -> bytes:
            self.refuse_oversized(path, (await self._look(client, path)).size or 0)
            async with client.open(file, "rb") as handle:
                data: bytes = await handle.read()
                return data

        data = self._do(path, get)
        self._was_there = True
        return data

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        data = self.read(path)
        return data, _version(data)

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        remote, file = self._file(path), self._downloads.new_file(path)

        async def get(client: SFTPClient) -> None:
            self.refuse_more(path, (await self._look(client, path)).size or 0, bytes_max)
            await client.get(remote, str(file))

        try:
            self._do(path, get)
        except FarmError:
            self._downloads.release(file)
            raise
        return file

    def release(self, file: Path) -> None:
        self._downloads.release(file)

    def list(self, prefix: str = "", *, recursive: bool = True, after: str = "") -> StoredObjects:
        folder = prefix.rpartition("/")[0]

        async def entries_of(client: SFTPClient) -> StoredObjects:
            await self._refuse_links(client, folder)
            return await _files(client, self.root, folder, prefix, recursive=recursive)

        entries = self._do("", entries_of)
        return sorted(entry for entry in entries if entry.path > after)

    def exists(self, path: str) -> bool:
        self._file(path)  # Refuses a path that cannot be one.

        async def look(client: SFTPClient) -> bool:
            self._was_there = self._was_there or await client.isdir(self.root)
            with suppress(*_ABSENT, asyncssh.SFTPPermissionDenied):
                return bool((await self._look(client, path)).type == asyncssh.FILEXFER_TYPE_REGULAR)
            return False

        return self._do(path, look)

    def create(self, path: str, data: bytes | Path) -> None:
        target = self._file(path)
        temporary = _beside(target)

        async def write(client: SFTPClient) -> None:
            await self._make_folder(client, posixpath.dirname(target))
            await _write(client, temporary, data)

        async def link(client: SFTPClient) -> None:
            async with client.open(temporary, "rb+") as handle:
                try:
                    await client.link(temporary, target)
                except asyncssh.SFTPOpUnsupported as error:
                    raise self.refusal("knows no hard links") from error
                except asyncssh.SFTPError as error:
                    if not await self._is_there(client, path):
                        raise
                    # An earlier attempt, whose answer was lost, may have made the link.
                    if not await _is_same_file(client, temporary, target):
                        raise self.already_exists(path) from error
                # In common file systems, fsync of a file makes its names durable, too.
                await handle.fsync()

        try:
            self._do(path, write)
            self._do(path, link)
        finally:
            self._remove(temporary)

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        if version is None:
            try:
                self.create(path, data)
            except FarmError as error:
                if self.exists(path):
                    raise self.conflict(path) from error
                raise
            return _version(data)
        with _Lock(self, path, data) as lock:
            try:
                present = _version(self.read(path))
            except InvalidError:
                present = None
            if present != version:
                raise self.conflict(path)
            lock.commit()
        return _version(data)

    def delete(self, path: str) -> None:
        # Without the lock, a change after its comparison could restore the object.
        if not self.exists(path):
            return
        file = self._file(path)

        async def remove(client: SFTPClient) -> None:
            with suppress(asyncssh.SFTPNoSuchFile):
                await client.remove(file)

        with _Lock(self, path, b""):
            self._do(path, remove)
        self._do("", lambda client: _remove_empty_folders(client, posixpath.dirname(file), self.root))

    def place(self) -> object:
        return self.url

    def prepare(self) -> None:
        self._do("", lambda client: client.makedirs(self.root, exist_ok=True))

    def sweep(self, age_s: float) -> None:
        before = time.time() - age_s
        self._do("", lambda client: _sweep(client, self.root, before))

    def _remove(self, temporary: str) -> None:
        async def remove(client: SFTPClient) -> None:
            with suppress(asyncssh.SFTPError):
                await client.remove(temporary)

        with suppress(FarmError):
            self._do("", remove)

    async def _make_folder(self, client: SFTPClient, folder: str) -> None:
        """Create a folder of the store, but never the store's own folder again: it was moved away."""
        if self._was_there and not await client.isdir(self.root):
            raise UnavailableError(f"there is no {self.url}", hint="Try again later.", path=self.url)
        await client.makedirs(folder, exist_ok=True)

    def _file(self, path: str) -> str:
        return f"{self.root}/{check_relative(path, self.url)}"

    def _do(self, path: str, ask: Callable[[SFTPClient], Awaitable[Answer]]) -> Answer:
        """Run `ask`; repeat it with a new connection when the last one is lost. `ask` must be idempotent."""
        wait_s = 0.0
        for attempt in range(1, REQUEST_ATTEMPTS + 1):
            try:
                answer: Answer = sync(get_loop(), self._asked, path, ask)
                return answer
            except FarmError:
                raise
            except _LOST as error:
                if attempt == REQUEST_ATTEMPTS:
                    raise self._translated(error, path) from error
            except (OSError, ValueError, asyncssh.Error) as error:
                raise self._translated(error, path) from error
            time.sleep(wait_s)
            wait_s = longer(wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _asked(self, path: str, ask: Callable[[SFTPClient], Awaitable[Answer]]) -> Answer:
        async with self._opening:
            client = self._opened = await self._connected() if self._opened is None else self._opened
        try:
            await self._refuse_links(client, posixpath.dirname(path))
            return await ask(client)
        except _LOST:
            if self._opened is client:
                self._opened = None
                self._close()
            raise

    async def _refuse_links(self, client: SFTPClient, folder: str) -> None:
        """Refuse a folder behind a symbolic link; folders are checked once, all in one round trip.

        The protocol opens only paths, not names within an open folder: it follows a link that is created later.
        """
        unknown: list[str] = []
        while folder and folder not in self._real:
            unknown.append(folder)
            folder = posixpath.dirname(folder)

        found = await asyncio.gather(*(self._is_there(client, one) for one in unknown)) if unknown else []
        self._real.update(one for one, is_real in zip(unknown, found, strict=True) if is_real)

    async def _is_there(self, client: SFTPClient, path: str) -> bool:
        with suppress(*_ABSENT, asyncssh.SFTPPermissionDenied):
            return bool(await self._look(client, path))
        return False

    async def _look(self, client: SFTPClient, path: str) -> SFTPAttrs:
        """Return the attributes of a file or a folder.

        Raises:
            CorruptError: It is a symbolic link.
        """
        file = f"{self.root}/{path}"
        found = await client.lstat(file)
        if found.type != asyncssh.FILEXFER_TYPE_SYMLINK:
            return found
        raise CorruptError(
            f"{self.url}/{path} is a symbolic link to {await client.readlink(file)};"
            " links inside of a farm or a lake are not followed",
            hint=f"On the server: rm {quote(file)}",
            path=f"{self.url}/{path}",
        )

    async def _connected(self) -> SFTPClient:
        """Open a connection, which is closed with the store: a long-running process opens many stores."""
        connection = await asyncssh.connect(
            **self._options, connect_timeout=CONNECT_TIMEOUT_S, keepalive_interval=CONNECT_TIMEOUT_S
        )
        # Any thread may be the last one that has the store.
        close = weakref.finalize(self, get_loop().call_soon_threadsafe, connection.abort)
        # The operating system closes connections when the process ends.
        close.atexit = False
        self._close = close
        return await connection.start_sftp_client()

    def _translated(self, error: Exception, path: str) -> FarmError:
        where = f"{self.url}/{path}" if path else self.url
        reason = type(error).__name__
        if isinstance(error, _ABSENT):
            return self.missing(path)
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            port = f"-p {self._options['port']} " if self._options["port"] else ""
            hint = f"Compare its key, then: ssh-keyscan {port}{self._options['host']} >> ~/.ssh/known_hosts"
            return InvalidError(f"the server of {self.url} is not known", hint=hint, path=where)
        if isinstance(error, (FileNotFoundError, PermissionError)) and error.filename:
            message = f"{self.url}: {error.filename} cannot be read: {error.strerror}"
            return InvalidError(message, hint=_CREDENTIALS, path=where)
        if isinstance(error, ValueError):
            # A key that asyncssh cannot read, or one with a passphrase.
            message = f"{self.url}: no login with this key or ~/.ssh/config ({reason})"
            return InvalidError(message, hint=_CREDENTIALS, path=where)
        if isinstance(error, asyncssh.PermissionDenied):
            return InvalidError(f"{self.url}: the server refuses the login", hint=_CREDENTIALS, path=where)
        if isinstance(error, asyncssh.SFTPPermissionDenied):
            return InvalidError(f"no permission for {where}", hint="Check owner and mode.", path=where)
        return UnavailableError(f"{where}: {reason}", hint="Check the network, then try again.", path=where)

    def refusal(self, defect: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.url} cannot hold a farm or a replica: its server {defect}",
            hint="Use OpenSSH's server and a file system with hard links, or a bucket.",
            path=self.url,
        )


class _Lock:
    """The right to change one object. The new bytes are written first, so that no other process waits for them."""

    def __init__(self, store: SftpStore, path: str, data: bytes) -> None:
        self._store, self._path, self._data = store, path, data
        self._target = store._file(path)
        self._folder = _beside(self._target, ending=f"{posixpath.basename(self._target)}.lock", token="")
        self._token = secrets.token_hex(16)

    def __enter__(self) -> _Lock:
        private = _beside(self._target)

        async def prepare(client: SFTPClient) -> None:
            await client.makedirs(private, exist_ok=True)
            await _write(client, f"{private}/{self._token}", self._data)

        async def take(client: SFTPClient) -> bool:
            with suppress(asyncssh.SFTPError):
                await client.rename(private, self._folder)
            return await client.exists(f"{self._folder}/{self._token}")

        self._store._do(self._path, prepare)
        holder, since = "", time.monotonic()
        while not self._store._do(self._path, take):
            present = self._store._do(self._path, self._holder)
            if present != holder:
                holder, since = present, time.monotonic()
            elif holder and time.monotonic() - since > LOCK_S:
                self._store._do(self._path, self._break)
            time.sleep(_LOOK_S)
        return self

    def commit(self) -> None:
        """Replace the object with the new bytes.

        Raises:
            ConflictError: The lock was taken away meanwhile.
        """

        async def move(client: SFTPClient) -> bool:
            try:
                await client.posix_rename(f"{self._folder}/{self._token}", self._target)
            except _ABSENT:
                return False
            async with client.open(self._target, "rb+") as handle:
                await handle.fsync()
            return True

        # The bytes are also missing if an attempt whose answer was lost has moved them.
        if not self._store._do(self._path, move) and self._store.read(self._path) != self._data:
            raise self._store.conflict(self._path)

    def __exit__(self, *_error: object) -> None:
        async def give_up(client: SFTPClient) -> None:
            with suppress(asyncssh.SFTPError):
                await client.remove(f"{self._folder}/{self._token}")
            # The folder is not empty if another process holds the lock by now.
            with suppress(asyncssh.SFTPError):
                await client.rmdir(self._folder)

        with suppress(FarmError):
            self._store._do(self._path, give_up)

    async def _holder(self, client: SFTPClient) -> str:
        with suppress(*_ABSENT):
            return "".join(name for name in await client.listdir(self._folder) if not name.startswith("."))
        return ""

    async def _break(self, client: SFTPClient) -> None:
        trash = _beside(self._target)
        with suppress(asyncssh.SFTPError):
            await client.rename(self._folder, trash)
            await client.rmtree(trash)


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _beside(target: str, ending: str = "tmp", token: str | None = None) -> str:
    """Return a hidden name in the folder of `target`; without `token` the name is unused."""
    unique = f"{secrets.token_hex(16)}." if token is None else token
    return f"{posixpath.dirname(target)}/.{unique}{ending}"


async def _write(client: SFTPClient, file: str, data: bytes | Path) -> None:
    if isinstance(data, Path):
        await client.put(str(data), file)
        async with client.open(file, "rb+") as handle:
            await handle.fsync()
        return
    async with client.open(file, "wb") as handle:
        await handle.write(data)
        await handle.fsync()


async def _is_same_file(client: SFTPClient, one: str, other: str) -> bool:
    """Say whether two names are one file: attributes set through one name appear under the other."""
    unlikely = secrets.randbelow(1 << 30)
    before = (await client.stat(one)).mtime or 0
    await client.utime(one, (unlikely, unlikely))
    is_same = (await client.stat(other)).mtime == unlikely
    await client.utime(one, (before, before))
    return is_same


async def _files(client: SFTPClient, root: str, folder: str, prefix: str, *, recursive: bool) -> StoredObjects:
    """Return the files below `folder` of the store whose path begins with `prefix`; hidden ones are the store's own."""
    found: StoredObjects = []
    with suppress(*_ABSENT):
        async for entry in client.scandir(f"{root}/{folder}" if folder else root):
            name = str(entry.filename)
            path = f"{folder}/{name}" if folder else name
            if name.startswith(".") or not (path.startswith(prefix) or prefix.startswith(f"{path}/")):
                continue
            if entry.attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY:
                if recursive:
                    found += await _files(client, root, path, prefix, recursive=True)
            else:
                arrived = datetime.fromtimestamp(entry.attrs.mtime or 0, UTC)
                found.append(StoredObject(path, entry.attrs.size or 0, arrived))
    return found


async def _remove_empty_folders(client: SFTPClient, folder: str, root: str) -> None:
    with suppress(asyncssh.SFTPError):
        while folder.startswith(f"{root}/"):
            await client.rmdir(folder)
            folder = posixpath.dirname(folder)


async def _sweep(client: SFTPClient, folder: str, before: float) -> None:
    with suppress(*_ABSENT):
        async for entry in client.scandir(folder):
            name, is_folder = str(entry.filename), entry.attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY
            if name.startswith(".") and name.endswith(".tmp"):
                if (entry.attrs.mtime or 0) < before:
                    await (client.rmtree if is_folder else client.remove)(f"{folder}/{name}")
            elif is_folder and not name.startswith("."):
                await _sweep(client, f"{folder}/{name}", before)

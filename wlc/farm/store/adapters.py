"""The store of a URL: the one table from scheme to class."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from wlc.farm.addresses import refuse_connection_string, without_password
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.seal.keys import without_keys
from wlc.farm.store.local import LocalStore
from wlc.farm.store.options import refuse_unknown, with_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wlc.farm.store.contract import Store


def open_store(url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Open the store at `url`; nothing is read or written yet.

    Args:
        url: A path, or a URL with scheme file, memory, s3, gs, az or sftp.
        storage_options: Options of the store, as docs/object_stores.md lists them; the usual environment variables of
            its service work without. For S3, what `s3fs.S3FileSystem` takes.

    Raises:
        InvalidError: The URL is not one of these, or holds credentials; or an option is unknown.
    """
    if not url or "\n" in url:
        raise InvalidError(f"{url!r} is not a farm URL", hint="Give a directory or s3://bucket/folder.")
    refuse_unknown(without_keys(storage_options))
    if "://" not in url:
        return LocalStore(local_path(url))
    scheme = url.partition("://")[0].lower()
    if scheme not in _SCHEMES:
        hint = "Use a directory, or a URL that begins with s3://, gs://, az:// or sftp://; for a replica also postgresql://."
        raise InvalidError(f"cannot use a store with scheme {scheme!r}", hint=hint)
    return _SCHEMES[scheme](url, with_paths(without_keys(storage_options)))


def _file(url: str, _options: dict[str, Any]) -> Store:
    return LocalStore(local_path(_file_path(url)))


def _memory(url: str, _options: dict[str, Any]) -> Store:
    from wlc.farm.store.memory import MemoryStore

    return MemoryStore(f"memory://{_location(url)}")


def _s3(url: str, options: dict[str, Any]) -> Store:
    location = _bucket(url, "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile.")
    # s3fs takes half a second to import; only users of S3 pay for it.
    from wlc.farm.store.s3 import S3Store

    return S3Store(location, options)


def _google(url: str, options: dict[str, Any]) -> Store:
    location = _bucket(url, "Set GOOGLE_APPLICATION_CREDENTIALS to a service account's file.")
    with _needing("google-auth", "gs"):
        from wlc.farm.store.google import GoogleStore

    return GoogleStore(location, options)


def _azure(url: str, options: dict[str, Any]) -> Store:
    location = _bucket(url, "Set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN.")
    with _needing("azure-storage-blob", "az"):
        from wlc.farm.store.azure import AzureStore

    return AzureStore(location, options)


def _sftp(url: str, options: dict[str, Any]) -> Store:
    with _needing("asyncssh", "sftp"):
        from wlc.farm.store.sftp import SftpStore

    return SftpStore(url, options)


@contextmanager
def _needing(library: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        hint = f"pip install 'dbfarm[{extra}]'"
        raise UnsupportedError(f"a store with {extra}:// needs {library}", hint=hint) from error


_SCHEMES: Mapping[str, Callable[[str, dict[str, Any]], Store]] = {
    "az": _azure,
    "file": _file,
    "gs": _google,
    "memory": _memory,
    "s3": _s3,
    "sftp": _sftp,
}


def _bucket(url: str, hint: str) -> str:
    """Return bucket and folder; URLs are shown and stored, so neither the URL nor the error may hold a secret."""
    location = _location(url)
    if any(letter in location.partition("/")[0] for letter in "@:") or "?" in location:
        scheme = url.partition("://")[0].lower()
        message = f"the URL of a store must not hold credentials or parameters: {scheme}://bucket/folder"
        raise InvalidError(message, hint=hint)
    return location


def _location(url: str) -> str:
    return url.partition("://")[2].strip("/")


def local_path(text: str) -> Path:
    """Return the absolute path that a user means, `~` and `~name` included.

    Raises:
        InvalidError: The text cannot be a path, or is a URL with one slash or none, as other programs write it.
    """
    refuse_connection_string(text)
    scheme, colon, rest = text.partition(":")
    if colon and scheme.lower() in _SCHEMES:
        hint = f"{scheme.lower()}://{rest.lstrip('/')}, or ./{text} for a folder here of that name"
        raise InvalidError(f"{text[:200]!r} is no URL: write two slashes after {scheme}:", hint=hint)
    try:
        if "\0" in text:
            raise ValueError("a path holds no zero byte")
        text.encode()
        return Path(text).expanduser().absolute()
    except (ValueError, RuntimeError) as error:
        raise InvalidError(f"{text[:200]!r} cannot be a path: {error}", hint="Choose another path.") from error


def _file_path(url: str) -> str:
    try:
        return unquote(urlsplit(url).path)
    except ValueError as error:
        raise InvalidError(
            f"{without_password(url)[:200]!r} is not a URL: {error}", hint="Give a directory or s3://bucket/folder."
        ) from error


def join_url(base: str, relative: str) -> str:
    """Return `relative` below `base`, or itself if it is a URL or an absolute path."""
    if "://" in relative or relative.startswith(("/", "~")):
        return relative
    return f"{base.rstrip('/')}/{relative}" if relative else base

"""Azure Blob Storage as a store: exclusive creation by If-None-Match, compare-and-swap by If-Match."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DeserializationError,
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.storage.blob import BlobPrefix, ContainerClient

from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlc.farm.retry import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, REQUEST_ATTEMPTS
from wlc.farm.store.bucket import STAMP, BucketStore, NoAnswerError, ObjectHead, reason_of
from wlc.farm.store.contract import StoredObject, StoredObjects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from azure.storage.blob import BlobProperties

# Names of metadata have to be identifiers here.
_STAMP = STAMP.replace("-", "_")
_AT_ONCE = 4
_CREDENTIALS = (
    "Set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or"
    " AZURE_STORAGE_SAS_TOKEN; with the name alone and azure-identity, the login of the machine or of `az` is used."
)
_LOGIN = ("connection_string", "account_name", "account_key", "sas_token")
_REQUEST = "x-ms-request-id"
_EXISTS = {"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"}


class AzureStore(BucketStore):
    """Blobs below one prefix of a container."""

    driver_errors = (AzureError, OSError, ValueError)

    def __init__(self, location: str, options: dict[str, Any]) -> None:
        super().__init__("az", location)
        self._options = options
        self._opened: ContainerClient | None = None

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        def get() -> tuple[bytes, str]:
            found = self._container.download_blob(self._key(path), max_concurrency=_AT_ONCE)
            self.refuse_oversized(path, found.size)
            return found.readall(), found.properties.etag

        return self._do(path, get)

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        file = self._downloads.new_file(path)

        def download() -> None:
            found = self._container.download_blob(self._key(path), max_concurrency=_AT_ONCE)
            self.refuse_more(path, found.size, bytes_max)
            with file.open("wb") as target:
                found.readinto(target)

        try:
            self._do(path, download)
        except FarmError:
            self._downloads.release(file)
            raise
        return file

    def delete(self, path: str) -> None:
        try:
            self._do(path, lambda: self._container.delete_blob(self._key(path)))
        except FarmError as error:
            if not isinstance(error.__cause__, ResourceNotFoundError):
                raise

    def place(self) -> object:
        return self.url, self._container.url

    def _listed(self, prefix: str, *, recursive: bool, after: str = "") -> tuple[StoredObjects, Sequence[str]]:
        wanted: dict[str, Any] = {"name_starts_with": self._below(prefix), "include": ["metadata"]}
        wanted |= {"start_from": self._below(after)} if after else {}

        def pages() -> tuple[StoredObjects, Sequence[str]]:
            listed = self._container.list_blobs if recursive else self._container.walk_blobs
            entries: StoredObjects = []
            folders: list[str] = []
            for item in listed(**wanted):
                if isinstance(item, BlobPrefix):
                    folders.append(item.name)
                elif (path := self._name(item.name)) > after and not path.endswith("/") and not _is_folder(item):
                    entries.append(StoredObject(path, item.size, item.last_modified))
            return entries, folders

        try:
            return self._do("", pages)
        except AttributeError:
            # The client accepts any XML as a listing.
            self._raise(NoAnswerError("", "XML", "a listing"), "")

    def _head(self, path: str) -> ObjectHead | None:
        try:
            found = self._container.get_blob_client(self._key(path)).get_blob_properties()
        except ResourceNotFoundError:
            return None
        except FarmError:
            raise
        except self.driver_errors as error:
            self._raise(error, path)
        return ObjectHead(found.etag, found.metadata.get(_STAMP, ""), found.size)

    def _put(self, path: str, data: bytes | Path, stamp: str, version: str | None) -> str:
        wanted: dict[str, Any] = {"overwrite": version is not None, "metadata": {_STAMP: stamp}}
        if version is not None:
            wanted |= {"etag": version, "match_condition": MatchConditions.IfNotModified}
        blob = self._container.get_blob_client(self._key(path))
        if isinstance(data, bytes):
            return str(blob.upload_blob(data, **wanted)["etag"])
        with data.open("rb") as file:
            return str(blob.upload_blob(file, length=data.stat().st_size, max_concurrency=_AT_ONCE, **wanted)["etag"])

    @property
    def _container(self) -> ContainerClient:
        if self._opened is None:
            self._opened = self._connect()
        return self._opened

    def _connect(self) -> ContainerClient:
        given = {name: self._setting(name) for name in _LOGIN}
        timing: dict[str, Any] = {
            "connection_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": READ_TIMEOUT_S,
            "retry_total": REQUEST_ATTEMPTS - 1,
            # The client's own pauses, 15 s and more, would let a command with a wrong endpoint wait for two minutes.
            "initial_backoff": 1,
            "increment_base": 2,
            "random_jitter_range": 1,
            "raw_response_hook": _prove,
        }
        if given["connection_string"]:
            return ContainerClient.from_connection_string(given["connection_string"], self.bucket, **timing)
        if not given["account_name"]:
            raise InvalidError(f"{self.url}: no storage account is named", hint=_CREDENTIALS, path=self.url)
        url = self._options.get("endpoint_url") or f"https://{given['account_name']}.blob.core.windows.net"
        if self._options.get("anon"):
            return ContainerClient(url, self.bucket, **timing)
        credential = given["account_key"] or given["sas_token"] or _login(self.url)
        if credential == given["account_key"]:
            credential = {"account_name": given["account_name"], "account_key": credential}
        return ContainerClient(url, self.bucket, credential=credential, **timing)

    def _setting(self, name: str) -> str:
        return str(self._options.get(name) or os.environ.get(f"AZURE_STORAGE_{name.upper()}", ""))

    def _is_no_bucket(self, error: Exception) -> bool:
        return _code(error) == "ContainerNotFound"

    def _status(self, error: Exception) -> str:
        # An existing blob gives 409, as does a competing write: reading the blob back distinguishes them.
        return "412" if _code(error) in _EXISTS else str(getattr(error, "status_code", None) or "")

    def _raise(self, error: Exception, path: str) -> NoReturn:
        where = f"{self.url}/{path}" if path else self.url
        status, code = self._status(error), _code(error) or reason_of(error)
        if self._is_no_bucket(error):
            hint = "Create it, or check its name and the account."
            raise InvalidError(f"there is no container {self.bucket!r}", hint=hint, path=where) from error
        if isinstance(error, ResourceNotFoundError):
            raise self.missing(path) from error
        is_login = isinstance(error, (ClientAuthenticationError, ValueError))
        is_login &= not isinstance(error, DeserializationError)
        if status in ("401", "403") or is_login or "Credential" in code or "Authentic" in code:
            self._opened = None  # Credentials are looked up again.
            raise InvalidError(f"no permission for {where} ({code})", hint=_CREDENTIALS, path=where) from error
        if status in self.refused:
            raise InvalidError(f"{where}: the request was refused ({code})", hint=_CREDENTIALS, path=where) from error
        message = f"{where}: no answer from the store ({code})"
        raise UnavailableError(message, hint="Check the network, then try again.", path=where) from error


def _prove(answer: Any) -> None:
    """Refuse an answer without the number that the service gives every request."""
    found = answer.http_response
    if _REQUEST not in found.headers:
        raise NoAnswerError(found.status_code, found.headers.get("Content-Type"), _REQUEST)


def _is_folder(item: BlobProperties) -> bool:
    """Accounts with a hierarchical namespace list folders as empty blobs, with this mark in their metadata."""
    return str((item.metadata or {}).get("hdi_isfolder", "")).lower() == "true"


def _code(error: Exception) -> str:
    code = getattr(error, "error_code", "") if isinstance(error, HttpResponseError) else ""
    return str(getattr(code, "value", code) or "")


def _login(url: str) -> Any:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise InvalidError(f"no credentials for {url}", hint=_CREDENTIALS, path=url) from error
    return DefaultAzureCredential()

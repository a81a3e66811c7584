"""S3 as a store: exclusive creation by If-None-Match, compare-and-swap by If-Match."""

from __future__ import annotations

import functools
import os
import threading
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from aiohttp import ClientError as ConnectionFailure
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from fsspec.asyn import sync, sync_wrapper
from fsspec.callbacks import Callback
from fsspec.utils import tokenize
from s3fs import S3FileSystem

from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlc.farm.retry import CLIENT_ATTEMPTS, CONNECT_TIMEOUT_S, READ_TIMEOUT_S, REQUEST_ATTEMPTS
from wlc.farm.store.bucket import STAMP, BucketStore, NoAnswerError, ObjectHead, reason_of
from wlc.farm.store.contract import StoredObject, StoredObjects
from wlc.farm.store.options import lay_over

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Exceptions of s3fs: its own OSErrors, botocore's and aiohttp's errors, and ValueError for a bad endpoint.
_DRIVER_ERRORS = (OSError, BotoCoreError, ClientError, ConnectionFailure, ResponseParserError, ValueError)
_CREDENTIALS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), and AWS_ENDPOINT_URL if it is not AWS;"
    " or add --storage-option key=… --storage-option secret=… to the command."
)
_ENDPOINT = "Give AWS_ENDPOINT_URL, or --storage-option endpoint_url=…, with its scheme, such as http://localhost:9000."
_PROFILE = "Check AWS_PROFILE, or --storage-option profile=…: aws configure list-profiles lists the profiles."
_REGION = (
    "export AWS_REGION={region} (or --storage-option client_kwargs.region_name={region}); AWS_ENDPOINT_URL, if set, has"
    " to be that region's, too."
)
_WRONG_REGION = {"PermanentRedirect", "TemporaryRedirect", "Redirect"} | {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}
_REDIRECTS = {"301", "307"}
_EXPIRED = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_file_systems: dict[str, S3FileSystem] = {}
_placed: dict[int, S3FileSystem] = {}
_opening = threading.Lock()


# Marks of the service's answer to each call; a deletion has no body and its own status.
_PROOFS: Mapping[str, tuple[str, ...]] = {
    "get_object": ("ETag", "ContentLength"),
    "head_object": ("ETag", "ContentLength"),
    "put_object": ("ETag",),
    "create_multipart_upload": ("UploadId",),
    "upload_part": ("ETag",),
    "complete_multipart_upload": ("ETag",),
    "list_objects_v2": ("IsTruncated",),
    "list_multipart_uploads": ("IsTruncated",),
}
_NO_CONTENT = {"delete_object", "abort_multipart_upload"}


class _ProvenFileSystem(S3FileSystem):  # type: ignore[misc] # s3fs has no types
    """Treats an answer without the service's marks as no answer."""

    async def _call_s3(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            answer = await super()._call_s3(method, *arguments, **options)
        except _DRIVER_ERRORS as error:
            _refuse_page(refusal := _response(error))
            # Only an answer to HEAD has no body that says why.
            if _status(error) == "404" and method != "head_object" and _code(error) in ("", "404"):
                raise _no_answer(refusal, "XML") from None
            raise
        except RecursionError:
            # The client asks for a bucket's region after each redirect that does not say it.
            raise NoAnswerError("a redirect", "", "a region") from None
        _refuse_page(answer)
        for name in _PROOFS.get(method, ()):
            # A strong one: many web servers give their pages a weak one.
            if name not in answer or (name == "ETag" and answer[name].startswith("W/")):
                raise _no_answer(answer, name)
        if method in _NO_CONTENT and answer["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.NO_CONTENT:
            raise _no_answer(answer, "the status 204")
        return answer

    call_s3 = sync_wrapper(_call_s3)


def _refuse_page(answer: dict[str, Any]) -> None:
    """Refuse an HTML page: the service never sends one, and no object of a farm is one."""
    if "html" in _header(answer, "content-type") and _header(answer, "content-length") not in ("", "0"):
        raise _no_answer(answer, "XML") from None


def _no_answer(answer: dict[str, Any], lacks: str) -> NoAnswerError:
    status = answer["ResponseMetadata"].get("HTTPStatusCode")
    return NoAnswerError(status, _header(answer, "content-type"), lacks)


def _header(answer: dict[str, Any], name: str) -> str:
    return str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(name, ""))


class S3Store(BucketStore):
    """Objects below one prefix of a bucket of S3, or of a server that speaks it."""

    driver_errors = _DRIVER_ERRORS

    def __init__(self, location: str, options: dict[str, Any]) -> None:
        super().__init__("s3", location)
        self._options = options
        self._opened: S3FileSystem | None = None
        self._opening = threading.Lock()

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        key = self._key(path)

        async def get(system: S3FileSystem) -> tuple[bytes, str]:
            answer = await system._call_s3("get_object", Bucket=self.bucket, Key=key)
            async with answer["Body"] as body:
                self.refuse_oversized(path, answer["ContentLength"])
                return await body.read(), answer["ETag"]

        found: tuple[bytes, str] = self._do(path, lambda: sync((system := self._fs).loop, get, system))
        return found

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        file = self._downloads.new_file(path)
        limits: dict[str, Any] = {}
        if bytes_max is not None and bytes_max > self._fs.default_block_size:
            # Parts of a large object are downloaded in parallel and compared too late.
            found = self._head(path)
            self.refuse_more(path, found.bytes if found else 0, bytes_max)
        elif bytes_max is not None:
            limits = {"callback": _Limit(self, path, bytes_max), "max_concurrency": 1}
        try:
            self._do(path, lambda: self._fs.get_file(f"{self.bucket}/{self._key(path)}", str(file), **limits))
        except FarmError:
            self._downloads.release(file)
            raise
        return file

    def _listed(self, prefix: str, *, recursive: bool, after: str = "") -> tuple[StoredObjects, Sequence[str]]:
        wanted: dict[str, Any] = {"Prefix": self._below(prefix)}
        wanted |= {} if recursive else {"Delimiter": "/"}
        wanted |= {"StartAfter": self._below(after)} if after else {}
        entries: StoredObjects = []
        folders: list[str] = []
        while True:
            page = self._do("", lambda: self._fs.call_s3("list_objects_v2", Bucket=self.bucket, **wanted))
            for item in page.get("Contents", ()):
                if not item["Key"].endswith("/"):
                    entries.append(StoredObject(self._name(item["Key"]), item["Size"], item["LastModified"]))
            folders += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return entries, folders
            wanted["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, path: str) -> None:
        key = self._key(path)
        self._do(path, lambda: self._fs.call_s3("delete_object", Bucket=self.bucket, Key=key))

    def place(self) -> object:
        # A bucket of the same name may exist on another server. The object kept here keeps its id.
        system = self._fs
        _placed[id(system)] = system
        return self.url, id(system)

    def sweep(self, age_s: float) -> None:
        before = utc_now() - timedelta(seconds=age_s)
        wanted = {"Bucket": self.bucket, "Prefix": self._below("")}
        page = self._do("", lambda: self._fs.call_s3("list_multipart_uploads", **wanted))
        for upload in page.get("Uploads", ()):
            if upload["Initiated"] < before:
                place = {"Bucket": self.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                self._do("", functools.partial(self._fs.call_s3, "abort_multipart_upload", **place))

    def _probe(self, path: str) -> None:
        super()._probe(path)
        # Large files are created in parts, and a server may honour the precondition for whole objects only.
        place = {"Bucket": self.bucket, "Key": self._key(path)}
        upload = self._do(path, lambda: self._fs.call_s3("create_multipart_upload", **place))
        place["UploadId"] = upload["UploadId"]
        part = self._do(path, lambda: self._fs.call_s3("upload_part", PartNumber=1, Body=b"fifth", **place))
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        try:
            self._fs.call_s3("complete_multipart_upload", MultipartUpload=parts, IfNoneMatch="*", **place)
        except _DRIVER_ERRORS as error:
            if _status(error) not in ("409", "412"):
                self._raise(error, path)
            # Without the right to abort it, the bucket's rule for incomplete uploads removes it.
            with suppress(InvalidError):
                self._do(path, lambda: self._fs.call_s3("abort_multipart_upload", **place))
            return
        raise self.refusal("overwrites an object that must be created exclusively, if it is uploaded in parts")

    @property
    def _fs(self) -> S3FileSystem:
        with self._opening:
            if self._opened is None:
                self._opened = _open_file_system(self._options)
            return self._opened

    def _put(self, path: str, data: bytes | Path, stamp: str, version: str | None) -> str:
        if isinstance(data, Path):
            # Only created objects come from files.
            target = f"{self.bucket}/{self._key(path)}"
            self._fs.put_file(str(data), target, mode="create", Metadata={STAMP: stamp})
            return ""
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        place = {"Bucket": self.bucket, "Key": self._key(path), "Metadata": {STAMP: stamp}}
        answer = self._fs.call_s3("put_object", Body=data, **place, **condition)
        return str(answer["ETag"])

    def _head(self, path: str) -> ObjectHead | None:
        key = self._key(path)
        try:
            found = self._fs.call_s3("head_object", Bucket=self.bucket, Key=key)
        except _DRIVER_ERRORS as error:
            if _status(error) == "404":
                return None
            self._raise(error, path)
        return ObjectHead(str(found["ETag"]), found["Metadata"].get(STAMP, ""), found["ContentLength"])

    def _status(self, error: Exception) -> str:
        return _status(error)

    def _is_no_bucket(self, error: Exception) -> bool:
        return _code(error) == "NoSuchBucket"

    def _raise(self, error: Exception, path: str) -> NoReturn:
        if isinstance(error, FarmError):
            raise error
        where = f"{self.url}/{path}" if path else self.url
        status, code = _status(error), _code(error)
        if code == "NoSuchBucket":
            hint = "Create it, or check its name, the credentials and AWS_ENDPOINT_URL."
            raise InvalidError(f"there is no bucket {self.bucket!r}", hint=hint, path=where) from error
        region = _region(error)
        if code in _WRONG_REGION or (code in _REDIRECTS and region):
            message = f"bucket {self.bucket!r} is in another region" + (f", {region}" if region else "")
            raise InvalidError(message, hint=_REGION.format(region=region or "…"), path=where) from error
        if status == "404" or isinstance(error, FileNotFoundError):
            raise self.missing(path) from error
        if status in ("401", "403") or code in _EXPIRED:
            # Credentials in files are renewed there: they are read anew before the next try.
            self._forget()
        raise _translated(error, where) from error

    def _forget(self) -> None:
        with self._opening, _opening:
            for key in [key for key, opened in _file_systems.items() if opened is self._opened]:
                del _file_systems[key]
            self._opened = None


class _Limit(Callback):  # type: ignore[misc] # fsspec has no types
    """Ends the download of an oversized object at its first excess bytes."""

    def __init__(self, store: S3Store, path: str, bytes_max: int) -> None:
        super().__init__()
        self._refuse = lambda size: store.refuse_more(path, size, bytes_max)

    def relative_update(self, inc: int = 1) -> None:
        super().relative_update(inc)
        self._refuse(max(self.size or 0, self.value))  # type: ignore[no-untyped-call]


def _translated(error: Exception, where: str) -> FarmError:
    status, code, kind = _status(error), _code(error), type(error).__name__
    if kind == "ProfileNotFound":
        return InvalidError(f"no credentials for {where}: there is no such profile", hint=_PROFILE, path=where)
    if kind == "ValueError":
        return InvalidError(f"{where}: the URL of the store's endpoint is invalid", hint=_ENDPOINT, path=where)
    if "Credential" in kind:
        return InvalidError(f"no credentials for {where} ({kind})", hint=_CREDENTIALS, path=where)
    if code == "RequestTimeTooSkewed":
        return InvalidError(f"{where}: this machine's clock is wrong ({code})", hint="Set the clock.", path=where)
    if code in _EXPIRED:
        return InvalidError(f"the credentials for {where} have expired ({code})", hint=_CREDENTIALS, path=where)
    if status in ("401", "403"):
        return InvalidError(f"no permission for {where} ({code})", hint=_CREDENTIALS, path=where)
    is_refused = status in S3Store.refused and code != "RequestTimeout"
    if is_refused or kind in ("ParamValidationError", "InvalidRegionError"):
        return InvalidError(f"{where}: the request was refused ({code or kind})", hint=_CREDENTIALS, path=where)
    hint = "Check the network and AWS_ENDPOINT_URL, then try again."
    message = f"{where}: no answer from the store{_endpoint(error)} ({code or reason_of(error)})"
    return UnavailableError(message, hint=hint, path=where)


def _endpoint(error: Exception) -> str:
    """Name the endpoint that could not be connected; a forgotten variable may have set it."""
    parts = urlsplit(getattr(error, "kwargs", {}).get("endpoint_url", ""))
    # User name and password are not shown.
    return f" at {parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


def _open_file_system(options: dict[str, Any]) -> S3FileSystem:
    """Open s3fs with the given options; botocore takes the rest from the usual AWS variables and files.

    File systems are cached, because creating one takes longer than a request. The cache key is the options, the AWS
    variables and the process: s3fs would continue with the first credentials.
    """
    options = _with_region(options)
    _refuse_login(options)
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    with _opening:
        key = tokenize(os.getpid(), options, variables)
        if key not in _file_systems:
            _file_systems[key] = _connect(options)
        return _file_systems[key]


def _connect(options: dict[str, Any]) -> S3FileSystem:
    retries: dict[str, Any] = {"mode": "standard"}
    retries |= {} if "AWS_MAX_ATTEMPTS" in os.environ else {"max_attempts": CLIENT_ATTEMPTS}
    timing: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "retries": retries,
    }
    try:
        timing = lay_over(timing, options.get("config_kwargs") or {})
        opened = _ProvenFileSystem(**options | {"config_kwargs": timing, "skip_instance_cache": True})
        opened.retries = REQUEST_ATTEMPTS - 1  # The default waits half a minute for an unreachable server.
        opened.connect()
    except (TypeError, KeyError, AttributeError) as error:
        given = ", ".join(sorted(options))
        hint = "See docs/object_stores.md for the options; region_name, for one, is client_kwargs.region_name."
        raise InvalidError(f"s3fs refuses the storage options {given}", hint=hint) from error
    return opened


def _with_region(options: dict[str, Any]) -> dict[str, Any]:
    """Add the region of AWS_REGION, a variable that botocore ignores."""
    region, client = os.environ.get("AWS_REGION"), options.get("client_kwargs") or {}
    if not region or not isinstance(client, dict) or "region_name" in client:
        return options
    return options | {"client_kwargs": client | {"region_name": region}}


def _refuse_login(options: dict[str, Any]) -> None:
    """Refuse an endpoint with a user or a password, which drivers repeat in their error messages."""
    client = options.get("client_kwargs")
    endpoints = [options.get("endpoint_url"), client.get("endpoint_url") if isinstance(client, dict) else None]
    endpoints += [os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")]
    if any("@" in str(endpoint) for endpoint in endpoints):
        raise InvalidError("the endpoint URL must not hold credentials", hint=_CREDENTIALS)


def _response(error: BaseException) -> dict[str, Any]:
    """Return the server's answer that led to `error`, {} if there was none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NoAnswerError):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return response
        cause = cause.__cause__
    return {}


def _status(error: BaseException) -> str:
    return str(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def _code(error: BaseException) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))


def _region(error: BaseException) -> str:
    """Return the bucket's region as the server reports it, empty if it does not."""
    response = _response(error)
    return str(_header(response, "x-amz-bucket-region") or response.get("Error", {}).get("Region") or "")

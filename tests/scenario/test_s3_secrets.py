"""What a store is opened with is found in no file of the farm, of a master or of a replica, and in no message."""

# ruff: noqa: F811 -- fixtures are imported, and then are arguments of the same name
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.oracle import file_contents
from tests.scenario.test_s3_access import CLOSED, run, source, users  # noqa: F401
from tests.scratch import attached

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenario.test_s3_access import Run
    from tests.users import User, Users

pytestmark = pytest.mark.slow


def as_options(user: User, **others: str) -> list[str]:
    return [f"--storage-option={name}={value}" for name, value in (user.options | others).items()]


def texts_in(path: Path) -> str:
    """The bytes of a database file, and what its tables say, which the file may hold compressed."""
    found = [path.read_bytes().decode("latin-1")]
    with attached(path) as connection:
        tables = connection.execute("SELECT database_name, schema_name, table_name FROM duckdb_tables()").fetchall()
        for names in tables:
            found += map(str, connection.execute("FROM " + ".".join(f'"{name}"' for name in names)).fetchall())
    return "\n".join(found)


def test_secrets_are_nowhere(source: Path, tmp_path: Path, s3_url: str, s3_server: str, users: Users, run: Run) -> None:
    session, wrong = users.session("writer", ["s3:*"]), "wr0ng-wr0ng-wr0ng"
    bucket, name = s3_url.split("/")[2], f"{s3_url}/sales"
    endpoint, here = f"--storage-option=endpoint_url={s3_server}", {"AWS_ENDPOINT_URL": s3_server}
    said = []

    def succeed(*command: str, **variables: str) -> None:
        done = run(*command, "--verbose", **variables)
        said.append(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr

    def fail(code: int, problem: str, *command: str, **variables: str) -> None:
        done = run(*command, "--verbose", **variables)
        said.append(done.stdout + done.stderr)
        assert done.returncode == code, done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert problem in errors[0]
        assert done.stderr.splitlines()[-1].startswith("hint: ")
        assert "Traceback" in done.stderr

    with users.enforced():
        options = [*as_options(session), endpoint]
        succeed("wlc", "master", str(source), "--farm", s3_url, *options)
        succeed("wlc", "sql", str(source), "INSERT INTO t VALUES (10)", *as_options(session))
        succeed("wlr", "replicate", str(source), "--into", "copy.duckdb", *as_options(session))
        succeed("wlc", "sql", str(source), "INSERT INTO t VALUES (11)", **session.variables)
        succeed("wlr", "replicate", "--into", "copy.duckdb", **session.variables, **here)

        bad_secret = as_options(session, secret=wrong)
        fail(2, "SignatureDoesNotMatch", "wlc", "flush", str(source), *bad_secret)
        fail(
            2,
            "InvalidAccessKeyId",
            "wlr",
            "replicate",
            "--into",
            "copy.duckdb",
            endpoint,
            *as_options(session, key=wrong),
        )
        fail(2, "InvalidToken", "wlc", "tick", name, **session.variables | here | {"AWS_SESSION_TOKEN": wrong})
        said_so = "the statements are committed and wait to be published, since no credentials for"
        fail(2, said_so, "wlc", "sql", str(source), "INSERT INTO t VALUES (12)")
        fail(2, "there is no bucket", "wlc", "tick", "s3://not-there/farm/sales", *options)
        fail(75, "no answer", "wlc", "flush", str(source), *as_options(session, endpoint_url=CLOSED))
        login = s3_server.replace("://", f"://ann:{wrong}@")
        fail(2, "must not hold credentials", "wlc", "tick", name, *as_options(session, endpoint_url=login))
        fail(2, "there is no storage option", "wlc", "tick", name, *options, f"--storage-option=secrte={wrong}")
        succeed("wlc", "flush", str(source), *as_options(session))
        succeed("wlr", "replicate", "--into", "copy.duckdb", *options)
        assert file_contents(tmp_path / "copy.duckdb") == file_contents(source)
        farm = users.objects(bucket)

    places = {"said": "\n".join(said), "master": texts_in(source), "replica": texts_in(tmp_path / "copy.duckdb")}
    places |= {path: content.decode("latin-1") for path, content in farm.items()}
    assert s3_server in places["master"], "what is no secret is remembered"
    assert any(path.endswith(".json") and "replicas/" in path for path in farm)
    for what in (session.key, session.secret, session.token, wrong):
        assert [place for place, text in places.items() if what in text] == []


def test_options_given_to_a_connection_hold_until_it_is_closed(
    source: Path, tmp_path: Path, s3_url: str, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = users.user("writer", ["s3:*"])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with users.enforced():
        wlc.master(source, farm=s3_url, storage_options=user.options)
        with wlc.connect(source, storage_options=user.options) as connection:
            connection.execute("INSERT INTO t VALUES (10)")
            assert wlc.flush(source).transactions == 1
            assert wlc.status(source).tick == wlc.tick(source) == 1
            connection.execute("INSERT INTO t VALUES (11)")
        with pytest.raises(wlc.farm.errors.InvalidError, match="no credentials"):
            wlc.tick(source)
        for ask in (wlc.tick, wlc.status, wlc.clock, wlc.beat, wlc.prune, wlc.resolve):
            assert ask(source, storage_options=user.options) is not None
        assert wlc.tick(source, storage_options=user.options) == 2
        into = tmp_path / "copy.duckdb"
        assert wlr.replicate(source, into=into, storage_options=user.options).tick == 2
        assert wlr.status(into, storage_options=user.options).lag_transactions == 0
        wlc.stop(source, storage_options=user.options)
        assert wlc.status(source, storage_options=user.options).state == "stopped"
        wlc.master(source, storage_options=user.options)
        assert wlc.snapshot(source, storage_options=user.options).position.tick == 4


def test_credentials_that_were_renewed_in_their_file_are_found(
    source: Path, tmp_path: Path, s3_url: str, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, file = users.user("writer", ["s3:*"]), tmp_path / "credentials"
    wlc.master(source, farm=s3_url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with users.enforced():
        file.write_text(f"[default]\naws_access_key_id = {user.key}\naws_secret_access_key = outdated\n")
        with wlc.connect(source) as connection:
            connection.execute("INSERT INTO t VALUES (10)")
            with pytest.raises(wlc.farm.errors.InvalidError, match="no permission"):
                wlc.flush(source)
            file.write_text(f"[default]\naws_access_key_id = {user.key}\naws_secret_access_key = {user.secret}\n")
            assert wlc.flush(source).transactions == 1

"""The commands as a person types them: the whole job, and every kind of wrong input."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import cli.wlc
import cli.wlr
import wlc
import wlr
from cli.command import run_app
from tests.new_master import new_master
from tests.scratch import attached
from tests.screen import told

APPS = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}
COMMANDS = Path(sys.executable).parent


class Shell:
    """Runs commands in this process and keeps what they printed."""

    def __init__(self, capsys) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, program: str, *arguments: object) -> int:
        self._capsys.readouterr()
        code = run_app(APPS[program], program, [str(argument) for argument in arguments])
        self.out, self.err = self._capsys.readouterr()
        return code

    def answer(self, program: str, *arguments: object):
        """Run a command that must succeed and return its answer, read from JSON."""
        code = self(program, *arguments, "--json")
        assert (code, self.err) == (0, "")
        return json.loads(self.out)


@pytest.fixture
def shell(capsys, monkeypatch, tmp_path) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WLC_FARM", raising=False)
    # A slow machine must not add lines about progress to what the commands answer.
    monkeypatch.setattr("cli.progress.PATIENCE_S", 3600.0)
    return Shell(capsys)


def make_sales(folder: Path) -> Path:
    """Make a master with three published transactions: a table, two rows, one of them changed."""
    path = folder / "sales.duckdb"
    with new_master(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR)")
        connection.execute("INSERT INTO orders VALUES (1, 'pen'), (2, 'ink')")
        connection.execute("UPDATE orders SET item = 'blue ink' WHERE id = 2")
    return path


@pytest.fixture
def sales(shell, tmp_path) -> Path:
    return make_sales(tmp_path)


def rows(path: Path, sql: str = "FROM orders ORDER BY ALL") -> list[tuple]:
    with attached(path) as connection:
        return connection.execute(sql).fetchall()


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with a digest of its bytes."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


# The main job


@pytest.mark.slow
def test_master_to_replica(shell, sales, tmp_path) -> None:
    status = shell.answer("wlc", "status", sales)
    assert (status["name"], status["tick"], status["unpublished"]) == ("sales", 3, 0)
    assert status["batches"] >= 1
    assert shell.answer("wlc", "tick", "sales", "--farm", tmp_path / "farm") == {"tick": 3}
    assert shell.answer("wlc", "clock", tmp_path / "farm" / "sales")["clock"].endswith("Z")

    result = shell.answer("wlr", "replicate", "sales", "--farm", tmp_path / "farm", "--into", "copy.duckdb")
    assert result["tick"] == 3
    assert rows(tmp_path / "copy.duckdb") == [(1, "pen"), (2, "blue ink")]

    shell("wlc", "sql", sales, "DELETE FROM orders WHERE id = 1")
    shell("wlc", "flush", sales)
    assert shell.answer("wlr", "status", "copy.duckdb")["lag_transactions"] == 1
    result = shell.answer("wlr", "replicate", "--into", "copy.duckdb")
    assert (result["tick"], result["transactions"]) == (4, 1)
    assert rows(tmp_path / "copy.duckdb") == rows(sales) == [(2, "blue ink")]

    assert shell.answer("wlr", "tick", "copy.duckdb") == {"tick": 4}
    assert shell.answer("wlr", "clock", "copy.duckdb") == shell.answer("wlc", "clock", sales)
    status = shell.answer("wlr", "status", "copy.duckdb")
    assert (status["tick"], status["lag_transactions"], status["failure"]) == (4, 0, None)


def test_stop_at_a_transaction_and_at_a_time(shell, sales, tmp_path) -> None:
    assert shell("wlr", "replicate", sales, "--into", "second.duckdb", "--tick", 2) == 0
    assert rows(tmp_path / "second.duckdb") == [(1, "pen"), (2, "ink")]
    clock = shell.answer("wlr", "clock", "second.duckdb")["clock"]
    assert shell("wlr", "replicate", sales, "--into", "until.duckdb", "--until", clock) == 0
    assert shell.answer("wlr", "tick", "until.duckdb") == {"tick": 2}
    assert shell("wlr", "replicate", "--into", "second.duckdb") == 0
    assert rows(tmp_path / "second.duckdb") == rows(sales)


def test_dry_run_says_what_it_would_do_and_does_nothing(shell, sales, tmp_path) -> None:
    before = tree(tmp_path)
    plan = shell.answer("wlr", "replicate", sales, "--into", "copy.duckdb", "--dry-run")
    assert plan["tick"] == 3
    assert tree(tmp_path) == before


def test_farm_comes_from_the_environment(shell, sales, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    assert shell.answer("wlc", "tick", "sales") == {"tick": 3}
    assert shell("wlr", "replicate", "sales", "--into", "copy.duckdb") == 0


@pytest.mark.slow
def test_a_source_knows_its_farm_whatever_the_environment_says(shell, sales, tmp_path, monkeypatch) -> None:
    duckdb.connect("young.duckdb").close()
    # Another database of the same name, which has published nothing yet.
    assert shell("wlc", "master", "young.duckdb", "--name", "sales", "--farm", str(tmp_path / "elsewhere")) == 0
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "elsewhere"))
    assert shell.answer("wlc", "tick", "sales") == {"tick": 0}
    assert shell.answer("wlc", "tick", "sales.duckdb") == {"tick": 3}
    assert shell.answer("wlc", "status", "sales.duckdb")["tick"] == 3


def test_farm_defaults_to_a_folder_beside_the_source(shell, tmp_path) -> None:
    duckdb.connect("small.duckdb").close()
    assert shell("wlc", "master", "small.duckdb", "--name", "tiny") == 0
    assert (tmp_path / "dbfarm" / "tiny" / "wlc.config").is_file()


@pytest.mark.slow
def test_sql_prints_a_table_or_json_and_reads_files(shell, sales, tmp_path) -> None:
    assert shell("wlc", "sql", sales, "SELECT id, item, NULL AS n FROM orders ORDER BY id") == 0
    assert shell.out.splitlines() == ["id  item      n", "1   pen       NULL", "2   blue ink  NULL"]
    assert shell.answer("wlc", "sql", sales, "SELECT id FROM orders ORDER BY id") == [{"id": 1}, {"id": 2}]
    (tmp_path / "three.sql").write_text("INSERT INTO orders VALUES (3, 'é');\nSELECT max(id) AS m FROM orders;")
    assert shell.answer("wlc", "sql", sales, "-f", "three.sql") == [{"m": 3}]
    assert shell("wlc", "sql", sales, "CREATE TABLE more (i INTEGER)") == 0
    assert shell.out == ""


def test_error_of_sql_changes_nothing(shell, sales) -> None:
    assert shell("wlc", "sql", sales, "INSERT INTO orders VALUES (1, 'twice')") == 1
    assert re.match(r"error: Constraint Error: .*\n", shell.err)
    assert "Traceback" not in shell.err
    assert rows(sales) == [(1, "pen"), (2, "blue ink")]
    assert shell.answer("wlc", "status", sales)["unpublished"] == 0


def test_log_shows_transactions_and_rows(shell, sales) -> None:
    lines = shell.answer("wlc", "log", sales)
    changes = [(line["tick"], line["what"], line["object"], line["added"], line["removed"]) for line in lines]
    assert (2, "change", "main.orders", 2, 0) in changes
    assert (3, "change", "main.orders", 1, 1) in changes
    assert any(line["tick"] == 1 and line["what"] == "CREATE TABLE" for line in lines)
    found = shell.answer("wlc", "log", sales, "--tick", "3", "--table", "orders", "--rows")
    assert [(row["weight"], row["row"]["item"]) for row in found] == [(-1, "ink"), (1, "blue ink")]
    assert shell.answer("wlc", "log", sales, "--batch", 1, "--tick", "9:") == []
    assert shell.answer("wlc", "log", sales, "--since", "10m ago", "--what", "CREATE", "--limit", 5) == lines[:1]
    assert shell.answer("wlc", "log", sales, "--since", "in 10m") == []


@pytest.mark.slow
def test_a_mistyped_table_is_named_with_the_one_that_may_be_meant(shell, sales) -> None:
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert shell("wlr", "replicate", sales, "--into", "lake") == 0
    meant = "Did you mean main.orders? There are: main.orders.\n"
    for command in (
        ("wlr", "verify", "copy.duckdb", "--table", "ordres"),
        ("wlr", "repair", "copy.duckdb", "--table", "main.order"),
        ("wlr", "lake", "files", "lake", "orderz"),
        ("wlr", "rows", "changes", sales, "--table", "ordres"),
        ("wlr", "replicate", sales, "--into", "part.duckdb", "--tables", "ordres*"),
        ("wlr", "feed", sales, "--table", "ordres", "--to", "x.jsonl"),
        ("wlc", "undo", sales, "--tick", 2, "--table", "ordres"),
    ):
        assert shell(*command) == 2, command
        assert shell.err.endswith(f"hint: {meant}"), command
    assert shell("wlc", "log", sales, "--table", "ordres") == 0
    assert shell.err == f"warning: no transaction names a table ordres. {meant}"
    assert shell("wlc", "log", sales, "--table", "orders", "--what", "DROP") == 0
    assert shell.err == ""


AGES = {"expect_every_s": 0, "sign_every_s": 60}


def test_beat_is_shown_and_set(shell, sales, tmp_path) -> None:
    assert shell.answer("wlc", "beat", sales) == {"beat_s": 300, **AGES}
    assert shell.answer("wlc", "beat", tmp_path / "farm" / "sales", 60) == {"beat_s": 60, **AGES}
    assert shell.answer("wlc", "beat", sales, "90s") == {"beat_s": 90, **AGES}
    ages = shell.answer("wlc", "beat", sales, "--expect-every", "1h", "--sign-every", "10m")
    assert ages == {"beat_s": 90, "expect_every_s": 3600, "sign_every_s": 600}
    assert shell("wlc", "beat", sales, "--expect-every", "soon") == 2
    assert shell("wlc", "beat", sales, "1x") == 2
    assert "'1x' is not a beat\nhint: Write seconds, such as 60, or a length of time, such as 90s or 5m." in shell.err
    assert shell.answer("wlc", "status", sales)["beat_s"] == 90
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert shell.answer("wlr", "beat", "copy.duckdb", "5s") == {"beat_s": 5}
    assert shell.answer("wlr", "beat", "copy.duckdb") == {"beat_s": 5}


@pytest.mark.slow
def test_what_cron_runs_says_nothing_unless_something_failed(shell, sales, tmp_path) -> None:
    farm, copy = tmp_path / "farm", tmp_path / "copy.duckdb"
    database = farm / "sales"
    for command in (
        ("wlr", "replicate", database, "--into", copy),
        ("wlr", "replicate", database, "--into", tmp_path / "lake"),
        ("wlc", "flush", sales),
        ("wlc", "snapshot", sales),
        ("wlc", "retention", database, "--keep", "30d"),
        ("wlc", "prune", database),
        ("wlc", "farm", "verify", database),
        ("wlr", "verify", copy),
        ("wlr", "replica", "drill", database),
        ("wlc", "tier", "ship", database, "--to", tmp_path / "relay"),
        ("wlr", "feed", database, "--to", tmp_path / "changes.jsonl"),
        ("wlc", "list", farm, "--check"),
        ("wlc", "doctor", database),
    ):
        assert (shell(*command, "--quiet"), shell.out, shell.err) == (0, "", ""), command
    damaged = next((farm / "sales" / "wlc_logs").glob("sales_000000000001"))
    damaged.chmod(0o600)
    damaged.write_bytes(b"")
    assert shell("wlc", "list", farm, "--check", "--quiet") == 9
    assert shell.out == ""
    assert shell.err.startswith("error: sales is damaged: ")


@pytest.mark.slow
def test_snapshot_stop_and_master_again(shell, sales, tmp_path) -> None:
    assert shell.answer("wlc", "snapshot", sales)["tick"] == 3
    history = shell.answer("wlc", "status", sales)["history"]
    shell("wlc", "sql", sales, "INSERT INTO orders VALUES (4, 'late')")
    assert shell.answer("wlc", "stop", sales)["tick"] == 4
    assert shell("wlc", "flush", sales) != 0
    assert shell("wlc", "master", sales) == 0, shell.err
    status = shell.answer("wlc", "status", sales)
    assert status["history"] != history
    shell("wlc", "sql", sales, "INSERT INTO orders VALUES (5, 'later')")
    shell("wlc", "flush", sales)
    assert shell.answer("wlc", "tick", sales)["tick"] > 4
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert rows(tmp_path / "copy.duckdb") == rows(sales)


def test_repair_publishes_what_was_written_without_capture(shell, sales, tmp_path) -> None:
    with duckdb.connect(str(sales)) as connection:
        connection.execute("INSERT INTO orders VALUES (7, 'smuggled'), (8, 'too')")
        connection.execute("DELETE FROM orders WHERE id = 1")
    shell("wlc", "flush", sales)
    assert "orders" in shell.err
    assert "wlc farm repair" in shell.err
    assert shell("wlc", "farm", "repair", sales) == 0, shell.err
    assert shell("wlc", "flush", sales) == 0, shell.err
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert rows(tmp_path / "copy.duckdb") == rows(sales) == [(2, "blue ink"), (7, "smuggled"), (8, "too")]


def test_what_changes_nothing_else_answers_in_a_sentence(shell, sales) -> None:
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    with wlc.connect(sales) as connection:
        connection.execute("INSERT INTO orders VALUES (8, 'new')")
    for command, said in {
        ("wlc", "flush", sales): "Nothing waited to be published; the last tick is 4.",
        ("wlc", "beat", sales, 90): "Each commit is published after 90s at the latest.",
        ("wlc", "beat", sales, 0): "Each commit is published at once.",
        ("wlr", "beat", "copy.duckdb", 60): "With --follow, {} looks for new log files every 1m.",
        (
            "wlr",
            "replica",
            "unlock",
            "copy.duckdb",
        ): "{} is unlocked: its replicated tables can be written directly until wlr replica lock.",
        ("wlr", "replica", "lock", "copy.duckdb"): "{} is locked: direct writes to its replicated tables are refused.",
        ("wlr", "replica", "pause", "copy.duckdb"): "{} is paused: it stays where it is until wlr replica resume.",
        ("wlr", "replica", "resume", "copy.duckdb"): "{} goes on with its next round.",
    }.items():
        assert shell(*command) == 0
        assert shell.out == said.format(Path("copy.duckdb").resolve()) + "\n"


def test_prune_says_first_and_deletes_then(shell, sales, tmp_path) -> None:
    logs = tmp_path / "farm" / "sales" / "wlc_logs"
    assert shell("wlc", "flush", sales) == 0
    with wlc.connect(sales) as connection:
        connection.execute("INSERT INTO orders VALUES (8, 'of the second batch')")
    assert shell("wlc", "snapshot", sales) == 0
    before = tree(tmp_path)
    planned = shell.answer("wlc", "prune", sales, "--keep-for", "0s", "--dry-run")
    assert tree(tmp_path) == before
    size_before = sum(file.stat().st_size for file in (tmp_path / "farm" / "sales").rglob("*") if file.is_file())
    assert shell("wlc", "prune", "sales", "--farm", "farm", "--keep-for", "0s") == 2
    assert tree(tmp_path) == before
    # The hint is the whole command, with what was typed.
    assert shell(*shlex.split(shell.err.rpartition("or agree: ")[2])) == 0, shell.err
    size = sum(file.stat().st_size for file in (tmp_path / "farm" / "sales").rglob("*") if file.is_file())
    assert planned["delete_bytes"] == size_before - size > 0
    # The batch that the snapshot lies in stays: the chain goes on from there.
    assert len([file for file in logs.iterdir() if file.is_file()]) == 1
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert rows(tmp_path / "copy.duckdb") == rows(sales)


@pytest.mark.slow
def test_prune_keeps_what_a_registered_replica_needs(shell, sales, tmp_path) -> None:
    assert shell("wlr", "replicate", sales, "--into", "slow.duckdb", "--tick", 1) == 0
    assert shell("wlc", "snapshot", sales) == 0
    assert shell("wlc", "prune", sales, "--keep-for", "0s", "--yes") == 0
    assert shell("wlr", "replicate", "--into", "slow.duckdb") == 0
    assert rows(tmp_path / "slow.duckdb") == rows(sales)


# Wrong input: one clear message, an exit code, nothing changed

NOT_THERE = [
    ("wlc", "master", "nope.duckdb"),
    ("wlc", "flush", "nope.duckdb"),
    ("wlc", "snapshot", "nope.duckdb"),
    ("wlc", "stop", "nope.duckdb"),
    ("wlc", "farm", "repair", "nope.duckdb"),
    ("wlc", "sql", "nope.duckdb", "SELECT 1"),
    ("wlc", "status", "nope.duckdb"),
    ("wlc", "log", "nope.duckdb"),
    ("wlc", "status", "nope"),
    ("wlc", "status", "nope", "--farm", "farm"),
    ("wlc", "tick", "nope", "--farm", "farm"),
    ("wlc", "clock", "nope", "--farm", "farm"),
    ("wlc", "beat", "nope", "5", "--farm", "farm"),
    ("wlc", "log", "nope", "--farm", "farm"),
    ("wlc", "prune", "nope", "--farm", "farm"),
    ("wlc", "status", "sales", "--farm", "no_such_farm"),
    ("wlr", "replicate", "nope", "--farm", "farm", "--into", "copy.duckdb"),
    ("wlr", "replicate", "--into", "copy.duckdb"),
    ("wlr", "replicate", "nope.duckdb", "--into", "copy.duckdb"),
    ("wlr", "status", "nope.duckdb"),
    ("wlr", "tick", "nope.duckdb"),
    ("wlr", "clock", "nope.duckdb"),
    ("wlr", "beat", "nope.duckdb"),
    ("wlr", "accept", "nope.duckdb"),
]
NOT_A_MASTER = [
    (program, *(word.replace("nope.duckdb", name) for word in rest))
    for name in ("text.duckdb", "plain.duckdb")
    for program, *rest in NOT_THERE
    if "nope.duckdb" in rest and not (name == "plain.duckdb" and rest[0] in ("master", "sql"))
]
WRONG_VALUES = [
    ("wlc", "beat", "sales.duckdb", "--", "-5"),
    ("wlc", "beat", "sales.duckdb", "nan"),
    ("wlc", "master", "plain.duckdb", "--beat", "-1"),
    ("wlc", "master", "plain.duckdb", "--beat", "soon"),
    ("wlc", "master", "plain.duckdb", "--farm", "gopher://farm"),
    ("wlc", "master", "plain.duckdb", "--name", "../up"),
    ("wlc", "master", "plain.duckdb", "--name", ""),
    ("wlc", "master", "plain.duckdb", "--storage-option", "secret"),
    ("wlc", "status", "sales", "--farm", "gopher://farm"),
    ("wlc", "log", "sales.duckdb", "--tick", "9:1"),
    ("wlc", "log", "sales.duckdb", "--tick", "many"),
    ("wlc", "log", "sales.duckdb", "--since", "soon"),
    ("wlc", "log", "sales.duckdb", "--limit", "1", "--rows"),
    ("wlc", "log", "sales.duckdb", "--batch", "99"),
    ("wlc", "log", "sales.duckdb", "--batch", "0"),
    ("wlc", "prune", "sales.duckdb", "--deadline", "-1"),
    ("wlc", "sql", "sales.duckdb"),
    ("wlc", "sql", "sales.duckdb", "SELECT 1", "-f", "text.duckdb"),
    ("wlc", "sql", "sales.duckdb", "-f", "no.sql"),
    ("wlr", "replicate", "sales.duckdb", "--into", "copy.duckdb", "--until", "tomorrowish"),
    ("wlr", "replicate", "sales.duckdb", "--into", "copy.duckdb", "--tick", "1", "--until", "now"),
    ("wlr", "replicate", "sales.duckdb", "--into", "sales.duckdb"),
    ("wlr", "replicate", "sales.duckdb", "--into", "plain.duckdb"),
    ("wlr", "replicate", "sales.duckdb", "--into", "text.duckdb"),
    ("wlr", "replicate", "sales.duckdb", "--into", "no_such_folder/copy.duckdb"),
    ("wlr", "status", "sales.duckdb"),
]


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory) -> Path:
    """A master and files that are none; one for all tests here, since none of them may change anything."""
    folder = tmp_path_factory.mktemp("refused")
    make_sales(folder)
    (folder / "text.duckdb").write_text("dear diary")
    with duckdb.connect(str(folder / "plain.duckdb")) as connection:
        connection.execute("CREATE TABLE mine (i INTEGER)")
    return folder


@pytest.fixture
def refused(shell, shared_folder, monkeypatch) -> Path:
    monkeypatch.chdir(shared_folder)
    return shared_folder


def check_refused(shell, tmp_path, command, codes=(2,)) -> None:
    before = tree(tmp_path)
    code = shell(*command)
    assert code in codes, shell.err
    messages = [line for line in shell.err.splitlines() if line.startswith("error: ")]
    assert len(messages) == 1
    assert "Traceback" not in shell.err
    assert "defect" not in shell.err
    assert shell.out == ""
    assert tree(tmp_path) == before


@pytest.mark.parametrize("command", NOT_THERE, ids=" ".join)
def test_what_is_not_there_is_named(shell, refused, command) -> None:
    check_refused(shell, refused, command)
    if "nope" in " ".join(command):
        assert "nope" in shell.err


@pytest.mark.parametrize("command", NOT_A_MASTER, ids=" ".join)
def test_what_is_no_master_is_named(shell, refused, command) -> None:
    check_refused(shell, refused, command)
    assert "text.duckdb" in shell.err or "plain.duckdb" in shell.err


@pytest.mark.parametrize("command", WRONG_VALUES, ids=" ".join)
def test_wrong_values_are_refused_with_a_hint(shell, refused, command) -> None:
    check_refused(shell, refused, command)
    assert "hint: " in shell.err


@pytest.mark.parametrize("stop", [("--tick", "99"), ("--until", "2999-01-01")], ids=["tick", "time"])
def test_stop_ahead_of_the_farm_is_refused(shell, refused, stop) -> None:
    command = ("wlr", "replicate", "sales.duckdb", "--into", "copy.duckdb", *stop)
    check_refused(shell, refused, command, codes=(2, 7))
    assert stop[1] in shell.err


def test_stop_before_the_first_snapshot_is_refused_and_the_nearest_is_named(shell, tmp_path) -> None:
    with duckdb.connect("old.duckdb") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS i")
    assert shell("wlc", "master", "old.duckdb") == 0
    command = ("wlr", "replicate", "old.duckdb", "--into", "copy.duckdb", "--until", "2001-01-01")
    check_refused(shell, tmp_path, command, codes=(2, 7))
    assert "tick 0" in shell.err


def test_farm_may_be_given_relative_to_where_one_is(shell, tmp_path, monkeypatch) -> None:
    duckdb.connect("s.duckdb").close()
    assert shell("wlc", "master", "s.duckdb", "--farm", "farm") == 0
    assert shell("wlr", "replicate", "s", "--farm", "farm", "--into", "copy.duckdb") == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shell("wlc", "status", "../s.duckdb") == 0, shell.err
    assert shell("wlc", "flush", "../s.duckdb") == 0, shell.err
    assert shell("wlr", "replicate", "--into", "../copy.duckdb") == 0, shell.err


@pytest.mark.slow
def test_stop_behind_the_replica_takes_it_back(shell, sales, tmp_path) -> None:
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert shell("wlr", "replicate", "--into", "copy.duckdb", "--tick", 1) == 0
    assert wlr.tick(tmp_path / "copy.duckdb") == 1


def test_a_second_master_of_the_same_name_is_refused(shell, refused) -> None:
    command = ("wlc", "master", "plain.duckdb", "--farm", "farm", "--name", "sales")
    check_refused(shell, refused, command, codes=(2, 4))


def damage(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert old in data
    file.chmod(0o644)
    file.write_bytes(data.replace(old, new, 1))


@pytest.mark.slow
@pytest.mark.parametrize("old, new", [(b'"format":1', b'"format":9'), (b'"user":', b'"uses":'), (b'"commit"', b'"com')])
def test_damaged_log_file_is_named_and_nothing_of_it_is_applied(shell, sales, tmp_path, old, new) -> None:
    damage(tmp_path / "farm" / "sales" / "wlc_logs" / "sales_000000000001", old, new)
    check_refused(shell, tmp_path, ("wlr", "replicate", sales, "--into", "copy.duckdb", "--dry-run"), codes=(6,))
    assert "sales_000000000001" in shell.err
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 6
    assert not Path("copy.duckdb").exists() or shell.answer("wlr", "tick", "copy.duckdb") == {"tick": 0}


@pytest.mark.slow
def test_damaged_data_file_is_named_and_what_came_before_it_is_there(shell, sales, tmp_path) -> None:
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert shell("wlc", "sql", sales, "DELETE FROM orders") == 0
    assert shell("wlc", "sql", sales, "INSERT INTO orders VALUES (1, 'paper')") == 0
    assert shell("wlc", "flush", sales) == 0
    file = max((tmp_path / "farm" / "sales" / "wlc_logs").glob("*.d/*"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.chmod(0o644)
    file.write_bytes(data)
    assert shell("wlr", "replicate", "--into", "copy.duckdb") == 6
    assert f"{file.parent.name}/{file.name}" in shell.err
    tick = shell.answer("wlr", "tick", "copy.duckdb")["tick"]
    assert (tick, rows(tmp_path / "copy.duckdb")) in [(3, [(1, "pen"), (2, "blue ink")]), (4, [])]


def test_damaged_config_is_named(shell, sales, tmp_path) -> None:
    damage(tmp_path / "farm" / "sales" / "wlc.config", b"format=1", b"format=9")
    check_refused(shell, tmp_path, ("wlc", "status", "sales", "--farm", "farm"), codes=(6,))
    assert "wlc.config" in shell.err


@pytest.mark.slow
def test_bucket_without_credentials_or_server_is_one_message(shell, tmp_path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path), "AWS_MAX_ATTEMPTS": "1"}
    command: list[str | Path] = [COMMANDS / "wlc", "status", "sales", "--farm", "s3://bucket/farm", "--storage-option"]
    done = subprocess.run(
        [*command, "endpoint_url=http://127.0.0.1:9"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (2, 75)
    assert re.match(r"error: .*\n", done.stderr)
    assert "Traceback" not in done.stderr


# Processes


@pytest.mark.slow
def test_locked_master_says_who_and_what_to_do(shell, sales, tmp_path) -> None:
    script = f"import wlc, sys; c = wlc.connect({str(sales)!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        assert shell("wlc", "sql", sales, "SELECT 1") == 75
        assert str(other.pid) in shell.err
        other.stdin.close()


@pytest.mark.slow
def test_second_replication_of_one_target_leaves_with_75_and_one_line(shell, sales, tmp_path) -> None:
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    with duckdb.connect("copy.duckdb"):
        done = subprocess.run(
            [COMMANDS / "wlr", "replicate", "--into", "copy.duckdb"], capture_output=True, text=True, cwd=tmp_path
        )
    assert done.returncode == 75
    assert [line.partition(":")[0] for line in told(done.stderr) if not line.startswith("hint")] == ["error"]


# A shell that starts a command in the background lets it ignore SIGINT.
BACKGROUND = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_goes_on_until_interrupted(shell, sales, tmp_path, number) -> None:
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    assert shell("wlr", "beat", "copy.duckdb", 0) == 0
    with subprocess.Popen(
        [*BACKGROUND, COMMANDS / "wlr", "replicate", "--into", "copy.duckdb", "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as follower:
        assert json.loads(follower.stdout.readline())["tick"] == 3
        assert shell("wlc", "sql", sales, "INSERT INTO orders VALUES (9, 'new')") == 0
        assert shell("wlc", "flush", sales) == 0
        while json.loads(follower.stdout.readline())["tick"] < 4:
            pass
        follower.send_signal(number)
        assert follower.wait(300) == 0
        assert not re.search("error|Traceback", follower.stderr.read())


@pytest.mark.slow
@pytest.mark.parametrize("number, code, by", [(signal.SIGINT, 130, ""), (signal.SIGTERM, 143, " by SIGTERM")])
def test_signal_ends_a_statement_that_runs(sales, tmp_path, number, code, by) -> None:
    """DuckDB reports it as an error of its own; what the transaction had done is rolled back."""
    endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 8"
    pipe = tmp_path / "statements"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [*BACKGROUND, COMMANDS / "wlc", "sql", sales, "--file", pipe], stderr=subprocess.PIPE, text=True
    ) as running:
        # It opens the pipe when its handlers are there.
        pipe.write_text(f"BEGIN; DELETE FROM orders; {endless}")
        running.send_signal(number)
        assert running.wait(300) == code
        assert [line for line in running.stderr if "…" not in line] == [
            f"error: interrupted{by}\n",
            "hint: nothing that was committed is lost; type the same command again\n",
        ]
    with wlc.connect(sales) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchall() != [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("wlc", "--help"), ("wlr", "--help"), ("wlr", "tick", "copy.duckdb")])
def test_quick_commands_load_nothing_that_is_slow(shell, sales, tmp_path, command) -> None:
    assert shell("wlr", "replicate", sales, "--into", "copy.duckdb") == 0
    program, *arguments = command
    script = (
        f"import sys\nfrom cli.{program} import app\nfrom cli.command import run_app\n"
        f"code = run_app(app, {program!r}, {arguments!r})\n"
        "sys.exit(code or any(name in sys.modules for name in ('pyspark', 's3fs', 'pyarrow', 'pandas', 'numpy')))"
    )
    sources = {**os.environ, "PYTHONPATH": str(Path(cli.wlc.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=sources)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_bash_completes_commands_and_options(tmp_path) -> None:
    script = """
        source <("$1/wlc" --show-completion bash)
        complete_it() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _wlc_completion "$1"; echo "${COMPREPLY[*]}"; }
        complete_it "$1/wlc" st
        complete_it "$1/wlc" prune --dr
        complete_it "$1/wlc" tier sh
        complete_it "$1/wlc" tier ship --pu
    """
    answer = subprocess.run(
        ["bash", "-c", script, "bash", COMMANDS], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True
    )
    assert answer.stdout.split("\n") == ["stop status", "--dry-run", "ship show", "--pushes", ""]

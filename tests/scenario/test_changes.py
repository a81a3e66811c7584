"""`wlr.changes` and `wlr rows changes` give what each transaction removed and added, and go on at any tick."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wlr
from cli.command import run_app
from cli.row_changes import ChangesRequest
from cli.wlr import app
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.scenario.test_reading import Model, sql
from wlc.farm.errors import UnavailableError
from wlc.farm.model import Clear, Name, TableFile
from wlc.farm.store import MissingError
from wlr.reading import change_feed
from wlr.reading.place import LocalCopies

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

T = Name("main", "t")
OWN = ("_tick", "_weight", "_committed", "_user")


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """(tick, weight, row) of all batches."""
    found = []
    for batch in batches:
        for row in batch.to_pylist():
            values = tuple(value for name, value in row.items() if name not in OWN)
            found.append((row["_tick"], row["_weight"], values))
    return found


@pytest.mark.parametrize("has_key", [True, False])
def test_changes_from_any_tick_lead_from_one_state_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    monkeypatch.setattr(change_feed, "BATCH_ROWS", 7)
    farm, model = HandmadeFarm(tmp_path), Model(5, has_key=has_key)
    farm.publish([f"CREATE TABLE t (k INTEGER {'PRIMARY KEY' if has_key else ''}, v VARCHAR, f DOUBLE)"])
    model.at[0] = model.at[1] = Counter()
    for batch in range(5):
        made: list[list[object]] = []
        for number in range(4):
            before = model.rows.total()
            if (batch, number) == (2, 1):
                # All rows go, and others come in the same transaction.
                model.rows = Counter([(row := (1, "anew", 0.5))])
                made.append([Clear(T, before), Rows("t", added=(sql(row),))])
            else:
                made.append([model.transaction()[0]])
            model.at[farm.tick + number + 1] = model.rows.copy()
        farm.publish(*made)
    draw = random.Random(1)
    ranges = [(0, farm.tick), *(sorted(draw.sample(range(farm.tick + 1), 2)) for _ in range(4))]
    for since, until in ranges:
        batches = list(wlr.changes(farm.url, "t", since=since, until=max(until, 1)))
        changes = rows_of(batches)
        total: Counter[tuple[Any, ...]] = model.at[since].copy()
        for _, weight, row in changes:
            total[row] += weight
        assert {row: count for row, count in total.items() if count} == model.at[max(until, 1)], (since, until)
        assert [c[:2] for c in changes] == sorted(c[:2] for c in changes)
        assert {weight for _, weight, _ in changes} <= {-1, 1}
        assert all(since < tick <= max(until, 1) for tick, _, _ in changes)
        # Batches are of whole transactions, unless one is larger.
        ends = [batch["_tick"][-1].as_py() for batch in batches]
        starts = [batch["_tick"][0].as_py() for batch in batches]
        large = {tick for tick, count in Counter(c[0] for c in changes).items() if count > 7}
        assert all(a < b or a in large for a, b in zip(ends, starts[1:], strict=False))
    middle = farm.tick // 2
    whole = rows_of(wlr.changes(farm.url, "t", since=middle, until=middle, snapshot=True))
    assert Counter(row for _, _, row in whole) == model.at[middle]
    assert {(tick, weight) for tick, weight, _ in whole} <= {(middle, 1)}
    assert Counter(row for _, _, row in rows_of(wlr.changes(farm.url, "t", snapshot=True))) == model.rows


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    made = HandmadeFarm(tmp_path)
    made.publish(
        ["CREATE TABLE t (i INTEGER, _user VARCHAR)", Rows("t", added=("1, 'a'", "2, NULL"))],
        [Rows("t", added=("3, ''",), removed=("1, 'a'",))],
    )
    made.publish(["ALTER TABLE t ADD COLUMN h HUGEINT"], [Rows("t", added=("4, chr(27) || chr(133) || ',', 5",))])
    return made


def test_columns_are_those_of_the_end_of_the_range(farm: HandmadeFarm) -> None:
    (batch,) = wlr.changes(farm.url, "t", since=1, until=time_of(2))
    assert batch.schema.names == ["i", "__user", *OWN]
    assert batch["_committed"].to_pylist() == [time_of(2)] * 2
    assert batch["_user"].to_pylist() == ["ann", "ann"]
    (batch,) = wlr.changes(farm.url, "t", since=1)
    assert batch.schema.names == ["i", "__user", "h", *OWN]
    assert batch["h"].to_pylist() == [None, None, 5]
    assert list(wlr.changes(farm.url, "t", since=4)) == []
    farm.publish(["ALTER TABLE t RENAME TO u"])
    with pytest.raises(wlr.UnsupportedError, match="transaction 5 renamed a table") as refused:
        wlr.changes(farm.url, "u")
    assert "up to tick 4 under the old name" in str(refused.value.hint)


def test_mistakes_are_refused_before_the_first_batch(farm: HandmadeFarm) -> None:
    for arguments, said, hint in (
        ({"since": 9}, "since: tick 9 is not published: the farm's last one is 4", "--since 4 (since=4)"),
        ({"until": -1}, "until: -1 is not a tick", "until=0"),
        ({"table": "tt"}, "there is no table tt", "Did you mean main.t?"),
    ):
        with pytest.raises(wlr.InvalidError, match=said) as refused:
            wlr.changes(farm.url, **{"table": "t", **arguments})  # type: ignore[arg-type]
        assert hint in str(refused.value.hint)
    wlr.snapshot_from_log(farm.url)
    farm.db.delete_batch(1)
    with pytest.raises(wlr.ExpiredError, match="before tick 3 was pruned") as expired:
        wlr.changes(farm.url, "t")
    assert "--since 2" in str(expired.value.hint)
    assert [tick for tick, _, _ in rows_of(wlr.changes(farm.url, "t", since=2))] == [4]


def run(*arguments: object) -> int:
    return run_app(app, "wlr", ["rows", "changes", *map(str, arguments)])


def test_the_command_writes_every_format(
    farm: HandmadeFarm, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    expected: list[list[object]] = [
        [1, 1, 1, "a", None],
        [1, 1, 2, None, None],
        [2, -1, 1, "a", None],
        [2, 1, 3, "", None],
    ]
    expected.append([4, 1, 4, "\x1b\x85,", "5"])
    assert run(farm.url, "--table", "t") == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.decode().split("\n")[:-1]]
    assert [[r["_tick"], r["_weight"], r["i"], r["__user"], r["h"]] for r in lines] == expected
    assert {(r["_committed"], r["_user"]) for r in lines if r["_tick"] == 2} == {("2026-01-01T00:00:02.000000Z", "ann")}
    assert run(farm.url, "--table", "t", "--format", "csv", "--since", 2) == 0
    header, row = csv.reader(capfdbinary.readouterr().out.decode().split("\n")[:-1])
    assert header == ["_tick", "_weight", "_committed", "_user", "i", "__user", "h"]
    assert row == ["4", "1", "2026-01-01T00:00:04.000000Z", "ann", "4", "\x1b\x85,", "5"]
    for form in ("parquet", "arrow"):
        file = tmp_path / f"changes.{form}"
        assert run(farm.url, "--table", "t", "--out", file) == 0
        table = pq.read_table(file) if form == "parquet" else pa.ipc.open_stream(file.read_bytes()).read_all()
        assert [[r["_tick"], r["_weight"], r["i"], r["__user"]] for r in table.to_pylist()] == [r[:4] for r in expected]
        assert b"last" in capfdbinary.readouterr().out
        # A file that is there stays as it is.
        assert run(farm.url, "--table", "t", "--out", file) == 2
        assert f"--out {tmp_path}/changes-2.{form}".encode() in capfdbinary.readouterr().err
        empty = tmp_path / f"empty.{form}"
        assert run(farm.url, "--table", "t", "--format", "jsonl", "--out", empty) == 2
        assert f"empty.{form} ends in .{form}, and --format is jsonl".encode() in capfdbinary.readouterr().err
        assert run(farm.url, "--table", "t", "--format", form, "--out", empty, "--since", 4) == 0
        table = pq.read_table(empty) if form == "parquet" else pa.ipc.open_stream(empty.read_bytes()).read_all()
        assert (table.num_rows, table.schema.names) == (0, ["i", "__user", "h", *OWN])


def test_a_terminal_is_not_commanded(
    farm: HandmadeFarm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    for form in ("jsonl", "csv"):
        assert run(farm.url, "--table", "t", "--format", form) == 0
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert "\x85" not in shown
    assert run(farm.url, "--table", "t", "--format", "arrow") == 2
    assert "--out changes.arrow" in capsys.readouterr().err


def test_following_goes_on_in_its_file_behind_whole_transactions(farm: HandmadeFarm, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    follow(farm, out, 5)
    whole = out.read_text(encoding="utf-8")
    # A process that was killed has left half of the last transaction.
    farm.publish([Rows("t", added=("6, 'x', NULL", "7, 'y', NULL"))])
    torn = whole + '{"_tick":5,"_weight":1,"_committed":"2026-01-01T00:00:05.000000Z","_user":"ann","i":6,"__us'
    out.write_text(torn, encoding="utf-8")
    follow(farm, out, 7)
    lines = out.read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["i"] for line in lines] == [1, 2, 1, 3, 4, 6, 7]
    assert "\n".join(lines[:5]) + "\n" == whole
    assert run(farm.url, "--table", "t", "--follow", "--out", out, "--since", 2) == 2


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_round_that_fails_anywhere_goes_on_where_it_was(
    farm: HandmadeFarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, is_whole: bool
) -> None:
    monkeypatch.setattr(change_feed, "BATCH_ROWS", 1)
    since = 2 if is_whole else None
    wanted, out = tmp_path / f"wanted.{form}", tmp_path / f"t.{form}"
    options = ["--since", "2", "--snapshot"] if is_whole else []
    assert run(farm.url, "--table", "t", "--out", wanted, *options) == 0
    calls, fetch = 0, LocalCopies.fetch_log

    def fail_first(copies: LocalCopies, files: Iterable[TableFile]) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise UnavailableError("the farm is away")
        fetch(copies, files)

    monkeypatch.setattr(LocalCopies, "fetch_log", fail_first)
    request = ChangesRequest(farm.url, "t", since, None, is_whole, form, str(out), True)
    with request.opened(None, None) as write_round:
        for _ in range(2 if is_whole else 3):
            with pytest.raises(UnavailableError):
                write_round()
        write_round()
    assert out.read_text(encoding="utf-8") == wanted.read_text(encoding="utf-8")


def test_a_run_that_found_no_farm_leaves_nothing_in_the_way(farm: HandmadeFarm, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    request = ChangesRequest(f"{tmp_path}/away/sales", "t", None, None, False, "jsonl", str(out), True)
    with request.opened(None, None) as write_round, pytest.raises(MissingError):
        write_round()
    follow(farm, out, 5)


def follow(farm: HandmadeFarm, out: Path, lines: int) -> None:
    """Do two rounds of `--follow`, of which the second finds nothing."""
    request = ChangesRequest(farm.url, "t", None, None, False, "jsonl", str(out), True)
    with request.opened(None, None) as write_round:
        assert write_round() is not None
        assert write_round() is None
    assert len(out.read_text(encoding="utf-8").split("\n")[:-1]) == lines


def test_since_a_time_before_the_table_was_created(tmp_path: Path) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish([], ["CREATE TABLE t (i INTEGER)", Rows("t", added=("1",))])
    for moment in ("2000-01-01", time_of(1)):
        assert rows_of(wlr.changes(farm.url, "t", since=moment)) == [(2, 1, (1,))]

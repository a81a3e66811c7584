"""`wlr feed`: a file has every change once, wherever the feed was killed, and says so in every format."""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlr import app
from tests.feed_oracle import flat, projection
from tests.handmade import HandmadeFarm, Rows
from wlc.dialect.duckdb import catalog as catalogs
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, ExpiredError, FencedError, InvalidError, UnavailableError
from wlc.farm.lease import Lease
from wlc.farm.model import Clear, Name
from wlc.farm.registry import FEED, replicas
from wlc.farm.seal import keys
from wlc.farm.store.local import LocalStore
from wlc.farm.store.memory import MemoryStore
from wlr.reading.feeds import feed_state
from wlr.reading.feeds import file as feed_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.feed_oracle import Record
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.reading.feeds.rendering import FeedPiece

_numbers = iter(range(10**6))


@dataclass
class Shop:
    """A master and its farm."""

    source: Path
    farm: str

    @property
    def database(self) -> FarmDatabase:
        return open_database("shop", self.farm)

    def write(self, *statements: str) -> None:
        with wlc.connect(self.source) as connection:
            for statement in statements:
                connection.execute(statement)

    def feed(self, to: Path, **options: Any) -> wlr.Fed:
        # Tests share the farm, and write files of the same name into folders of their own.
        named = {"name": f"feed{zlib.crc32(os.fsencode(to))}", **options}
        return wlr.feed("shop", farm=self.farm, to=str(to), **named)


def made(folder: Path) -> Shop:
    shop = Shop(folder / "shop.duckdb", f"memory://feeds{next(_numbers)}")
    wlc.master(shop.source, farm=shop.farm, beat_s=3600, create=True)
    return shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A farm with every kind of record, in three batches; tests do not write to it."""
    shop = made(tmp_path_factory.mktemp("feeds"))
    shop.write(
        "CREATE TABLE t (id INTEGER, part VARCHAR, v VARCHAR, PRIMARY KEY (part, id))",
        "CREATE TABLE bag (v VARCHAR)",
        "INSERT INTO t SELECT i, 'p' || i % 2, 'größe, \"' || i || '\"\n' FROM range(40) r(i)",
        "INSERT INTO bag VALUES ('a'), ('a'), (NULL), ('')",
        "UPDATE t SET v = NULL WHERE id % 3 = 0",
    )
    shop.write(
        "BEGIN; DELETE FROM bag WHERE v = 'a'; INSERT INTO bag VALUES ('a'), ('b');"
        " UPDATE t SET id = id + 100 WHERE id < 3; DELETE FROM t WHERE id = 5; COMMIT",
        "BEGIN; INSERT INTO t VALUES (1, 'x', 'before'); ALTER TABLE t ADD COLUMN w DOUBLE;"
        " UPDATE t SET w = 0.5 WHERE id = 7; COMMIT",
        "INSERT INTO t VALUES (1000, 'y', 'late', 'inf')",
    )
    shop.write("DELETE FROM bag", "CREATE TABLE other (x INTEGER)", "INSERT INTO t VALUES (1001, 'y', '', NULL)")
    return shop


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def as_records(said: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a JSON feed as the oracle's records."""

    def record(line: dict[str, Any]) -> Record:
        about = {"truncate": "rows", "schema": "statement"}.get(line["op"])
        images = (line[about], None) if about else (line["before"], line["after"])
        return (line["op"], line["table"], line["tick"], *images)

    numbers = [(line["tick"], line["n"]) for line in said]
    assert numbers == sorted(set(numbers)), "every record has a number of its own, and they rise"
    return flat([list(map(record, group)) for _, group in groupby(said, key=lambda line: line["tick"])])


def expected(shop: Shop, *patterns: str, after: int = 0) -> list[str]:
    records = flat(projection(shop.database, *patterns, after=after))
    # JSON has no infinity.
    return [record.replace(": inf", ": 'inf'") for record in records]


@pytest.mark.slow
def test_a_file_has_every_change_once_and_in_order(shop: Shop, tmp_path: Path):
    done = shop.feed(out := tmp_path / "all.jsonl")
    said = lines(out)
    assert as_records(said) == expected(shop)
    assert (done.records, done.bytes, done.tick) == (len(said), out.stat().st_size, wlc.tick("shop", farm=shop.farm))
    assert {line["history"] for line in said} == {shop.database.config().history}
    again = shop.feed(out)
    assert (again.records, again.tick) == (0, done.tick)
    assert lines(out) == said


def test_tables_are_chosen_by_patterns(shop: Shop, tmp_path: Path):
    shop.feed(out := tmp_path / "t.jsonl", tables=["main.t"])
    assert as_records(lines(out)) == expected(shop, "main.t")
    with pytest.raises(InvalidError, match="no table matches") as caught:
        shop.feed(tmp_path / "none.jsonl", tables=["nothing"])
    assert caught.value.hint is not None
    assert "main.t" in caught.value.hint
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize("first", [1, 4, 7, 11, 12])
def test_a_feed_begins_at_a_tick(shop: Shop, tmp_path: Path, first: int):
    shop.feed(out := tmp_path / "late.jsonl", start=str(first))
    assert as_records(lines(out)) == expected(shop, after=first - 1)


def test_a_feed_begins_at_a_time(shop: Shop, tmp_path: Path):
    (at,) = (t.committed for n in (1, 2, 3) for t in shop.database.read_batch(n)[0].transactions if t.tick == 6)
    shop.feed(out := tmp_path / "late.jsonl", start=at)
    assert as_records(lines(out)) == expected(shop, after=5)


# Crashes -------------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process was killed here."""


def dying_at(monkeypatch: pytest.MonkeyPatch, number: int, how: str) -> list[str]:
    """Let the process die at a call that makes something durable: before it, after it, or in the middle of a write."""
    calls: list[str] = []

    def breaking(name: str, effect: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if len(calls) > number:
                # A dead process does nothing any more.
                raise Died
            calls.append(name)
            if len(calls) <= number:
                return effect(*arguments)
            if how == "torn" and name == "write":
                effect(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            elif how == "after":
                effect(*arguments)
            raise Died

        return call

    class BreakingOs:
        def __getattr__(self, name: str) -> Any:
            found = getattr(os, name)
            return breaking(name, found) if name in ("write", "fsync", "ftruncate", "open") else found

    monkeypatch.setattr(feed_file, "os", BreakingOs())
    replace = LocalStore.replace
    monkeypatch.setattr(LocalStore, "replace", breaking("replace", replace))
    return calls


FORMATS = {"json": None, "debezium": None, "csv": ["main.t"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("form", FORMATS)
def test_killed_at_every_write_a_feed_goes_on_as_if_it_had_not_been(shop: Shop, tmp_path: Path, form: str, how: str):
    options = {"format": form, "tables": FORMATS[form], "max_bytes": 900, "rotate": 5_000}

    folder = tmp_path / "fed"

    def output() -> dict[str, bytes]:
        return {f.name: f.read_bytes() for f in folder.glob("out*") if not f.name.endswith(feed_state.POSITION)}

    def feed_anew(place: int) -> list[str]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch, suppress(Died):
            calls = dying_at(patch, place, how)
            shop.feed(folder / "out", **options)
        return calls

    calls = feed_anew(10**6)
    wanted = output()
    assert len(wanted) > 2
    places = [place for place, name in enumerate(calls) if how != "torn" or name == "write"]
    # A run of every day takes samples, in every way to die other ones.
    step = 1 if "DBFARM_DEEP" in os.environ else 14
    for place in places[(len(form) + len(how)) % step :: step]:
        feed_anew(place)
        shop.feed(folder / "out", **options)
        assert output() == wanted, f"died {how} call {place}, {calls[place]}"


# What is written -----------------------------------------------------------------------------------------------------


def test_debezium_has_its_envelope(shop: Shop, tmp_path: Path):
    shop.feed(plain := tmp_path / "plain.jsonl")
    shop.feed(out := tmp_path / "debezium.jsonl", format="debezium", name="orders-feed")
    operations = {"insert": "c", "update": "u", "delete": "d", "truncate": "t"}
    for flat_line, line in zip(lines(plain), lines(out), strict=True):
        source = line["source"]
        # A version that rose with dbfarm would make other bytes of a record that is written a second time.
        assert (source["version"], source["connector"], source["name"]) == ("1", "dbfarm", "orders-feed")
        assert source["db"] == "shop"
        assert f"{source['schema']}.{source['table']}" == flat_line["table"]
        assert (source["history"], source["tick"], source["n"]) == tuple(
            flat_line[name] for name in ("history", "tick", "n")
        )
        assert line["ts_ms"] == source["ts_ms"] == int(datetime.fromisoformat(flat_line["committed"]).timestamp() * 1e3)
        if flat_line["op"] == "schema":
            assert line["ddl"] == flat_line["statement"]
            columns = line["tableChanges"][0]["table"]["columns"]
            assert [column["name"] for column in columns] == [column["name"] for column in flat_line["columns"]]
        else:
            assert line["op"] == operations[flat_line["op"]]
            assert (line["before"], line["after"]) == (flat_line.get("before"), flat_line.get("after"))


def test_csv_has_the_columns_of_a_table_and_a_file_per_layout(shop: Shop, tmp_path: Path):
    shop.feed(plain := tmp_path / "plain.jsonl", tables=["main.t"])
    shop.feed(out := tmp_path / "t.csv", tables=["main.t"])
    files = sorted(f for f in tmp_path.glob("t.csv*") if not f.name.endswith(feed_state.POSITION))
    assert [file.name for file in files] == ["t.csv", "t.csv.000001"]
    rows = []
    for file in files:
        with file.open(encoding="utf-8", newline="") as handle:
            rows += list(csv.DictReader(handle, strict=True))
    assert None not in {name for row in rows for name in row}
    images = []
    for line in lines(plain):
        if line["op"] == "update":
            images += [("update_before", line["before"]), ("update_after", line["after"])]
        else:
            images.append((line["op"], line.get("after") or line.get("before")))
    for (operation, image), row in zip(images, rows, strict=True):
        assert row["_op"] == operation
        if image is not None:
            assert {name: "" if value is None else str(value) for name, value in image.items()} == {
                name: value for name, value in row.items() if not name.startswith("_")
            }
    assert out.read_text(encoding="utf-8").splitlines()[0] == "_op,_history,_tick,_n,_committed,_user,_note,id,part,v"
    # It goes on as it began, and says so to whoever asks for another format.
    assert shop.feed(out).records == 0
    with pytest.raises(InvalidError, match="has --format csv"):
        shop.feed(out, format="json")
    with pytest.raises(InvalidError, match="the columns of one table"):
        shop.feed(tmp_path / "all.csv")
    with pytest.raises(InvalidError, match="several schemas can have t") as caught:
        shop.feed(tmp_path / "all.csv", tables=["t"])
    assert caught.value.hint == "--table main.t"
    with pytest.raises(InvalidError, match=r"all.csv ends in .csv, and --format is debezium"):
        shop.feed(tmp_path / "all.csv", format="debezium")
    assert sorted(tmp_path.glob("all*")) == []


def test_each_file_of_csv_has_the_header_of_all_of_its_lines(tmp_path: Path):
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (a INTEGER)"], [Rows("t", ("1",))], [Clear(Name("main", "t"), 1)])
    farm.publish([Rows("t", ("2",))])
    # A layout of which no statement tells.
    farm._schema.execute("ALTER TABLE t ADD COLUMN b INTEGER")
    farm.layouts = catalogs.tables(farm._schema, farm.hand)
    farm.publish([Rows("t", ("3, 4",))])

    def cells(name: str, **options: Any) -> list[list[list[str]]]:
        wlr.feed(farm.url, to=str(tmp_path / name), tables=["main.t"], format="csv", **options)
        files = [tmp_path / name, *feed_file._numbered(tmp_path / name)]
        return [[[row[0], *row[6:]] for row in csv.reader(file.read_text().splitlines())] for file in files]

    head = ["_op", "_note"]
    assert cells("first-is-a-truncation.csv", start=3) == [
        [head, ["truncate", "1"]],
        [[*head, "a"], ["insert", "", "2"]],
        [[*head, "a", "b"], ["insert", "", "3", "4"]],
    ]
    newest = len((tmp_path / "first-is-a-truncation.csv.000002").read_bytes().splitlines(keepends=True)[1])
    said = "4 records up to here, from tick 1 on"
    assert cells("dropped.csv", max_bytes=newest, drop=True) == [
        [[*head, "a", "b"], ["dropped", said, "", ""], ["insert", "", "3", "4"]]
    ]
    assert cells("nothing.csv", max_bytes=1, drop=True) == [[head, ["dropped", said.replace("4", "5", 1)]]]


@pytest.mark.slow
def test_a_feed_can_begin_with_the_rows_of_a_snapshot(tmp_path: Path):
    shop = made(tmp_path)
    shop.write(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)", "INSERT INTO t SELECT i, 'v' FROM range(5000) r(i)"
    )
    wlc.snapshot(shop.source)
    shop.write("UPDATE t SET v = 'w' WHERE id = 7")
    done = shop.feed(out := tmp_path / "t.jsonl", start="snapshot", max_bytes=100_000)
    read, changed = lines(out)[:5000], lines(out)[5000:]
    assert {line["op"] for line in read} == {"read"}
    assert {line["tick"] for line in read} == {2}
    assert [line["n"] for line in read] == list(range(1, 5001))
    assert sorted(line["after"]["id"] for line in read) == list(range(5000))
    assert [(line["op"], line["before"]["v"], line["after"]["v"]) for line in changed] == [("update", "v", "w")]
    assert (done.tick, done.records) == (3, 5001)
    # The log goes: a feed that is behind says how to go on, and that works.
    shop.feed(behind := tmp_path / "behind.jsonl", name="behind")
    shop.write("INSERT INTO t VALUES (-1, 'x')")
    shop.write("DELETE FROM t WHERE id = -1")
    wlc.snapshot(shop.source)
    shop.write("INSERT INTO t VALUES (-2, 'x')")
    wlc.prune(shop.source, deadline=timedelta(0), keep_for=timedelta(0))
    options = {"secret": "SECRET", "client_kwargs": {"use_ssl": True}}
    with pytest.raises(ExpiredError) as caught:
        shop.feed(behind, name="behind", rotate=10**9, max_bytes=10**6, drop=True, storage_options=options)
    assert caught.value.hint is not None
    assert shlex.split(caught.value.hint.partition(" continues ")[0]) == [
        *("wlr", "feed", "shop", "--farm", shop.farm, "--to", str(behind), "--max-bytes", "1000000", "--drop"),
        *("--name", "behind", "--rotate", "1000000000", "--storage-option", "secret=…"),
        *("--storage-option", "client_kwargs.use_ssl=true", "--from", "snapshot"),
    ]
    before = len(lines(behind))
    assert shop.feed(behind, name="behind", start="snapshot").tick == 6
    added = lines(behind)[before:]
    assert [line["op"] for line in added] == ["read"] * 5000 + ["insert"]
    assert shop.feed(behind, name="behind", start="snapshot").records == 0, "it goes on from its position"
    with pytest.raises(ExpiredError, match="pruned"):
        shop.feed(tmp_path / "new.jsonl")


def test_defect_e_what_is_too_much_is_dropped_and_said(shop: Shop, tmp_path: Path):
    shop.feed(whole := tmp_path / "whole.jsonl")
    records = whole.read_bytes().splitlines(keepends=True)
    newest = records[-7:]
    done = shop.feed(out := tmp_path / "out.jsonl", max_bytes=sum(map(len, newest)), drop=True)
    said = out.read_bytes().splitlines(keepends=True)
    assert said[1:] == newest
    first, last = json.loads(records[0]), json.loads(records[-8])
    assert json.loads(said[0]) == {
        "dropped": len(records) - 7,
        "history": first["history"],
        "from": {"tick": first["tick"], "n": first["n"]},
        "to": {"tick": last["tick"], "n": last["n"]},
    }
    assert (done.records, done.dropped) == (7, len(records) - 7)
    # Comdb2's test: with room for nothing, everything is counted and nothing is written.
    done = shop.feed(out := tmp_path / "none.jsonl", max_bytes=1, drop=True)
    assert (done.records, done.dropped) == (0, len(records))
    assert [json.loads(line)["dropped"] for line in out.read_bytes().splitlines()] == [len(records)]
    assert shop.feed(out, max_bytes=1, drop=True).dropped == 0
    with pytest.raises(InvalidError, match="needs a bound"):
        shop.feed(tmp_path / "no.jsonl", max_bytes=0, drop=True)


def test_files_are_rotated_by_size(shop: Shop, tmp_path: Path):
    shop.feed(whole := tmp_path / "whole.jsonl", max_bytes=0)
    shop.feed(out := tmp_path / "out.jsonl", rotate=2_000)
    files = sorted(f for f in tmp_path.glob("out.jsonl*") if not f.name.endswith(feed_state.POSITION))
    assert files[0] == out
    assert [f.name for f in files[1:]] == [f"out.jsonl.{n:06d}" for n in range(1, len(files))]
    assert b"".join(f.read_bytes() for f in files) == whole.read_bytes()
    assert all(f.read_bytes().endswith(b"\n") for f in files)
    assert all(f.stat().st_size <= 2_000 for f in files)


# Refusals ------------------------------------------------------------------------------------------------------------


def test_what_belongs_to_something_else_is_left_alone(shop: Shop, tmp_path: Path):
    (other := tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InvalidError, match="no feed wrote it"):
        shop.feed(other)
    assert other.read_text() == "precious"
    shop.feed(out := tmp_path / "out.jsonl", name="one", tables=["main.t"])
    with pytest.raises(InvalidError, match="feed one of shop writes to"):
        shop.feed(tmp_path / "two.jsonl", name="one")
    for options in ({"name": "two"}, {"tables": ["main.bag"]}, {"format": "debezium"}):
        with pytest.raises(InvalidError, match=r"called one|has tables main.t|has --format json"):
            shop.feed(out, **{"name": "one", **options})
    with pytest.raises(InvalidError, match="cannot name a feed"):
        shop.feed(tmp_path / "x.jsonl", name="a b")
    with pytest.raises(InvalidError, match="is a folder"):
        shop.feed(tmp_path)
    for place in ("postgresql://u:SECRET@h/db", "s3://k:SE/CRET@h/x", "postgresql://h/db?password=SECRET"):
        with pytest.raises(InvalidError, match="neither a file nor a topic") as caught:
            wlr.feed("shop", farm=shop.farm, to=place)
        assert "CRET" not in f"{caught.value} {caught.value.hint}"
    with pytest.raises(InvalidError, match="does not identify the feed") as caught:
        wlr.feed_status("kafka://u:SECRET@h:9092/t")
    assert "SECRET" not in f"{caught.value} {caught.value.hint}"


def test_files_that_are_named_as_the_next_ones_of_a_feed_are_left_alone(shop: Shop, tmp_path: Path):
    def precious(name: str) -> Path:
        (file := tmp_path / name).write_text("precious")
        return file

    def refused(out: Path, file: Path, **options: Any) -> None:
        with pytest.raises(InvalidError, match=f"{file.name} exists, and no feed wrote it"):
            shop.feed(out, **options)
        assert file.read_text() == "precious"

    refused(out := tmp_path / "new.jsonl", precious("new.jsonl.000002"))
    assert not out.exists()
    assert not (tmp_path / f"new.jsonl{feed_state.POSITION}").exists()
    # A feed that has remembered where it begins, and has written nothing.
    with pytest.MonkeyPatch.context() as patch, suppress(Died):
        dying_at(patch, 1, "after")
        shop.feed(out := tmp_path / "begun.jsonl")
    assert (tmp_path / f"begun.jsonl{feed_state.POSITION}").exists()
    refused(out, precious("begun.jsonl.000001"))
    # A number that a feed comes to later, and the files before it when the last one is lost.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_file.OpenFile, "_repair", lambda _: precious("late.jsonl.000002"))
        refused(out := tmp_path / "late.jsonl", tmp_path / "late.jsonl.000002", rotate=2_000)
    shop.feed(out := tmp_path / "lost.jsonl", rotate=2_000)
    *complete, last = feed_file._numbered(out)
    assert len(complete) > 2
    last.unlink()
    out.rename(tmp_path / "archived")
    with pytest.raises(CorruptError, match="000") as caught:
        shop.feed(out, rotate=2_000)
    assert caught.value.hint is not None
    assert "delete" not in caught.value.hint
    (tmp_path / f"lost.jsonl{feed_state.POSITION}").unlink()
    with pytest.raises(InvalidError, match="no feed wrote it"):
        shop.feed(out)
    assert feed_file._numbered(out) == complete


def test_a_file_that_became_shorter_is_refused_without_news_too(shop: Shop, tmp_path: Path):
    shop.feed(out := tmp_path / "out.jsonl")
    with out.open("rb+") as handle:
        handle.truncate(7)
    with pytest.raises(CorruptError, match="has 7 bytes"):
        shop.feed(out)


def test_a_run_whose_lease_expired_keeps_its_file_to_itself(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A process that stood still for an hour goes on where it was, in the middle of a write."""
    seen: list[FeedPiece] = []
    write = feed_file.OpenFile.write

    def stopped(self: feed_file.OpenFile, piece: FeedPiece) -> None:
        monkeypatch.setattr(feed_file.OpenFile, "write", write)
        shop.database.store.delete("feeds/slow.lease")
        with pytest.raises(UnavailableError, match=r"another run is writing to .*out\.jsonl"):
            shop.feed(out, name="slow")
        seen.append(piece)
        self.write(piece)

    monkeypatch.setattr(feed_file.OpenFile, "write", stopped)
    with pytest.raises(FencedError):
        shop.feed(out := tmp_path / "out.jsonl", name="slow")
    assert seen
    shop.feed(out, name="slow")
    assert as_records(lines(out)) == expected(shop)


@pytest.mark.parametrize("how", ["appended to", "moved"])
def test_a_file_that_something_else_writes_to_is_not_durable(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    flush = feed_file.OpenFile.flush

    def disturbed(self: feed_file.OpenFile, state: FeedState) -> FeedState:
        if how == "moved":
            out.rename(tmp_path / "elsewhere")
        else:
            with out.open("ab") as handle:
                handle.write(b"mine")
        return flush(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(feed_file.OpenFile, "flush", disturbed)
        with pytest.raises(UnavailableError, match=r"was moved|bytes, and this run has made it"):
            shop.feed(out := tmp_path / "out.jsonl")
    shop.feed(out)
    assert as_records(lines(out)) == expected(shop)


def test_one_run_feeds_at_a_time(shop: Shop, tmp_path: Path):
    lease = Lease(shop.database.store, "feeds/busy.lease")
    try:
        with pytest.raises(UnavailableError, match="feed busy is in use by process"):
            shop.feed(tmp_path / "out.jsonl", name="busy")
    finally:
        lease.release()
    assert shop.feed(tmp_path / "out.jsonl", name="busy").records


def test_a_run_that_was_overtaken_cannot_move_the_position(shop: Shop, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    flush = feed_file.OpenFile.flush

    def overtaken(self: feed_file.OpenFile, state: FeedState) -> FeedState:
        memory = feed_state.position_of(out)
        memory.change(lambda there: replace(there, run="other") if there else state)
        return flush(self, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_file.OpenFile, "flush", overtaken)
        with pytest.raises(FencedError, match="taken over"):
            shop.feed(out)
    shop.feed(out)
    assert as_records(lines(out)) == expected(shop)


def test_pruning_waits_for_a_feed(tmp_path: Path):
    shop = made(tmp_path)
    shop.write("CREATE TABLE t (id INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    shop.feed(out := tmp_path / "t.jsonl", name="slow")
    (known,) = replicas(shop.database)
    assert (known.id, known.kind, known.target) == ("feed-slow", FEED, str(out))
    shop.write("INSERT INTO t VALUES (2)")
    shop.write("INSERT INTO t VALUES (3)")
    wlc.snapshot(shop.source)
    wlc.prune(shop.source)
    assert shop.database.batch_numbers() == [1, 2, 3]
    assert wlr.feed("shop", farm=shop.farm, to=str(out)).records == 2, "it knows its name"
    wlc.prune(shop.source)
    assert shop.database.batch_numbers() == [3]


@pytest.mark.slow
def test_pruning_does_not_wait_for_a_feed_that_cannot_go_on(tmp_path: Path):
    shop = made(tmp_path)
    shop.write("CREATE TABLE t (id INTEGER)")
    shop.feed(out := tmp_path / "t.jsonl")
    known = replicas(shop.database)
    wlc.stop(shop.source)
    wlc.master(shop.source, farm=shop.farm)

    def refused() -> None:
        with pytest.raises(ExpiredError):
            shop.feed(out)
        assert replicas(shop.database) == known, "it was not there"

    refused()
    shop.write("INSERT INTO t VALUES (1)")
    refused()
    wlc.snapshot(shop.source)
    wlc.prune(shop.source, deadline=timedelta(0), keep_for=timedelta(0))
    assert shop.database.batch_numbers() == [3]
    refused()
    shop.feed(out, start="snapshot")
    assert replicas(shop.database) != known


def test_the_command_feeds_and_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, farm, out = tmp_path / "shop.duckdb", str(tmp_path / "farm"), tmp_path / "t.jsonl"
    wlc.master(source, farm=farm, beat_s=3600, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO t VALUES (1), (2)")
    command = ["feed", "shop", "--farm", farm, "--table", "main.t", "--to", str(out)]
    assert run_app(app, "wlr", [*command, "--max-bytes", "1M", "--rotate", "1G", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 3
    with out.open("ab") as handle:
        handle.write(b"torn")
    (tmp_path / "t.jsonl.000001").write_bytes(b"torn, too")
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (3)")
    assert run_app(app, "wlr", command) == 0
    assert [line["n"] for line in lines(out)] == [1, 1, 2, 1], "the torn tail was cut"
    assert not (tmp_path / "t.jsonl.000001").exists(), "a file that was begun behind the position is gone"
    out.write_bytes(b"")
    with wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (4)")
    assert run_app(app, "wlr", command) == CorruptError.exit_code
    assert "Restore it" in capsys.readouterr().err
    assert run_app(app, "wlr", [*command, "--format", "xml"]) == InvalidError.exit_code
    assert "--format json or debezium or csv" in capsys.readouterr().err


def test_a_feed_is_paused_and_shows_where_it_stands(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    shop.feed(out := tmp_path / "out.jsonl", name="held", start=4, tables=["main.t"])
    status = wlr.feed_status(out)
    assert status is not None
    assert (status.name, status.tick, status.lag_transactions, status.is_paused) == ("held", 11, 0, False)
    assert run_app(app, "wlr", ["status", str(out)]) == 0
    assert "held" in capsys.readouterr().out
    flush = feed_file.OpenFile.flush

    def paused_meanwhile(self: feed_file.OpenFile, state: FeedState) -> FeedState:
        wlr.pause(tmp_path / "two.jsonl")
        return flush(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(feed_file.OpenFile, "flush", paused_meanwhile)
        assert shop.feed(tmp_path / "two.jsonl", max_bytes=900).records, "a run that is under way ends in order"
    done = shop.feed(tmp_path / "two.jsonl")
    assert (done.is_paused, done.records) == (True, 0)
    assert as_records(lines(tmp_path / "two.jsonl")) == expected(shop)
    wlr.resume(tmp_path / "two.jsonl")
    assert not shop.feed(tmp_path / "two.jsonl").is_paused


def test_encrypted_and_signed_farms_are_verified(tmp_path: Path):
    encryption, signing = keys.new_key(keys.ENCRYPTION), keys.new_key(keys.SIGNING)
    public = keys.public_half(signing)
    writing = {"encryption_key": encryption.word, "signing_key": signing.word}
    reading = {"encryption_key": encryption.word, "verify_key": public.word}
    source, farm = tmp_path / "shop.duckdb", f"memory://sealedfeed{next(_numbers)}"
    wlc.master(source, farm=farm, beat_s=3600, create=True, storage_options=writing)

    def write(statement: str) -> None:
        with wlc.connect(source, storage_options=writing) as connection:
            connection.execute(statement)

    def feed(options: dict[str, str]) -> wlr.Fed:
        return wlr.feed("shop", farm=farm, to=str(tmp_path / "out.jsonl"), storage_options=options)

    write("CREATE TABLE t AS SELECT 'secret' AS v")
    assert feed(reading).records == 2
    write("INSERT INTO t VALUES ('more')")
    # The key to verify is remembered, and what it does not fit is refused: nothing of it is written.
    store = open_database("shop", farm, reading).logs.raw
    path = "shop_000000000002"
    sound = store.read(path)
    with pytest.raises(InvalidError, match="no encryption key is given"):
        feed({})
    store.delete(path)
    store.create(path, sound[:-10] + b"0123456789")
    with pytest.raises(CorruptError):
        feed({"encryption_key": encryption.word})
    assert len(lines(tmp_path / "out.jsonl")) == 2
    store.delete(path)
    store.create(path, sound)
    assert feed({"encryption_key": encryption.word}).records == 1


# Values and images ---------------------------------------------------------------------------------------------------

# Column type, SQL of a value, and what JSON has of it.
VALUES = [
    ("BOOLEAN", "true", True),
    ("UBIGINT", "18446744073709551615", 18446744073709551615),
    ("HUGEINT", "170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
    ("DECIMAL(20,3)", "12345678901234567.890", "12345678901234567.890"),
    ("DOUBLE", "0.1", 0.1),
    ("DOUBLE", "'nan'", "nan"),
    ("FLOAT", "'-inf'", "-inf"),
    ("VARCHAR", "'ä\"\n\t\\' || chr(1)", 'ä"\n\t\\\x01'),
    ("JSON", """'{"a": 1.000000000000000000001}'""", '{"a": 1.000000000000000000001}'),
    ("UUID", "'00000000-0000-0000-0000-000000000001'", "00000000-0000-0000-0000-000000000001"),
    ("BLOB", "'\\x00\\xFF'", "AP8="),
    ("BLOB", "encode(repeat('xyz', 5462))", "eHl6" * 5462),
    ("DATE", "'infinity'", "infinity"),
    ("TIMESTAMP", "'2026-01-01 10:00:00.000001'", "2026-01-01 10:00:00.000001"),
    ("TIMESTAMP WITH TIME ZONE", "'2026-01-01 10:00:00+02'", "2026-01-01 08:00:00+00"),
    ("INTERVAL", "INTERVAL '1 month -2 days 3 microseconds'", "1 month -2 days 00:00:00.000003"),
    ("ENUM('a', 'b')", "'b'", "b"),
    ("DOUBLE[]", "[1.5::DOUBLE, 'inf', NULL]", [1.5, "inf", None]),
    ("INTEGER[2]", "[1, 2]", [1, 2]),
    ("STRUCT(a DECIMAL(4,1), b STRUCT(c BLOB))", "{'a': 1.5, 'b': {'c': 'x'}}", {"a": "1.5", "b": {"c": "eA=="}}),
    ("MAP(INTEGER, DATE)", "MAP {1: DATE '2026-01-01'}", [{"key": 1, "value": "2026-01-01"}]),
    ("UNION(n INTEGER, t VARCHAR)", "union_value(t := 'x')", "x"),
    ("BIT", "'0101'", "0101"),
]


def test_values_arrive_exactly_or_as_text(tmp_path: Path):
    farm = HandmadeFarm(tmp_path / "farm")
    columns = ", ".join(f"c{number} {kind}" for number, (kind, _, _) in enumerate(VALUES))
    selected = ", ".join(f"CAST({value} AS {kind})" for kind, value, _ in VALUES)
    nulls = ", ".join(["NULL"] * len(VALUES))
    # Names that data files or readers use for something else are names as any other.
    farm.publish([f'CREATE TABLE t ({columns}, _tick INTEGER, "file_row_number" INTEGER, "a ""b" INTEGER)'])
    farm.publish([Rows("t", (f"{selected}, 1, 2, 3", f"{nulls}, NULL, NULL, NULL"))])
    wlr.feed(farm.url, to=str(out := tmp_path / "t.jsonl"))
    _, whole, empty = lines(out)
    names = [*(f"c{number}" for number in range(len(VALUES))), "_tick", "file_row_number", 'a "b']
    assert whole["after"] == dict(zip(names, [*(said for _, _, said in VALUES), 1, 2, 3], strict=True))
    assert empty["after"] == dict.fromkeys(names)
    wlr.feed(farm.url, to=str(out := tmp_path / "t.csv"), tables=["main.t"], format="csv")
    with out.open(encoding="utf-8", newline="") as handle:
        _, cells, nothing = csv.DictReader(handle, strict=True)
    for name, value in whole["after"].items():
        is_text = isinstance(value, str)
        assert (cells[name] if is_text else json.loads(cells[name])) == value, name
        assert nothing[name] == ""


def test_images_that_cancel_each_other_out_are_no_records(tmp_path: Path):
    """A PostgreSQL master logs every statement of a transaction: a row that it changed twice has four images."""
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)"], ["CREATE TABLE bag (v INTEGER)"])
    farm.publish([Rows("t", ("1, 0", "2, 0")), Rows("bag", ("1", "1", "2"))])
    twice = Rows("t", added=("1, 5", "1, 6", "2, 7", "2, 0", "3, 1"), removed=("1, 0", "1, 5", "2, 0", "2, 7", "3, 1"))
    farm.publish([twice, Rows("bag", added=("1", "3"), removed=("1", "1"))])
    wlr.feed(farm.url, to=str(out := tmp_path / "out.jsonl"), start=4)
    said = [(line["table"], line["op"], line["before"], line["after"]) for line in lines(out)]
    assert said[0] == ("main.t", "update", {"id": 1, "v": 0}, {"id": 1, "v": 6})
    assert sorted(map(repr, said[1:])) == [
        repr(("main.bag", "delete", {"v": 1}, None)),
        repr(("main.bag", "insert", None, {"v": 3})),
    ]


def test_the_records_of_a_transaction_depend_on_nothing_but_it(tmp_path: Path):
    """A run that begins elsewhere, or after a kill, gives them the same numbers."""
    farm = HandmadeFarm(tmp_path / "farm")
    keyed = "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)"
    farm.publish([keyed], ["CREATE TABLE bag (v VARCHAR)"], [Rows("t", ("1, 0",)), Rows("bag", ("'old'",))])
    farm.publish(
        [Rows("bag", ("'new'",), ("'old'",))],
        [Rows("bag", ("FROM (SELECT 'v' || (i % 5) FROM range(30) r(i))",))],
        [Rows("t", ("2, 0", "3, 0"))],
        [Rows("t", ("1, 5", "1, 6"), ("1, 0", "1, 5")), Rows("bag", ("'v0'", "'x'", "'x'"), ("'v1'", "'v1'"))],
        [Rows("bag", (), ("'x'", "'v2'", "'x'", "'v2'")), Rows("t", ("4, 0",), ("3, 0",))],
    )
    wlr.feed(farm.url, to=str(out := tmp_path / "whole.jsonl"))
    whole = lines(out)
    assert as_records(whole) == flat(projection(farm.db))
    for start in (5, 6, 7, 8):
        wlr.feed(farm.url, to=str(out := tmp_path / f"from{start}.jsonl"), start=start)
        assert lines(out) == [line for line in whole if line["tick"] >= start]


def test_values_that_differ_behind_the_same_text_are_records(tmp_path: Path):
    farm = HandmadeFarm(tmp_path / "farm")
    cases = {
        "UNION(n INTEGER, t VARCHAR)": ("union_value(n := 1)", "union_value(t := '1')"),
        "VARIANT": ("1::VARIANT", "'1'::VARIANT"),
        "UNION(n INTEGER, t VARCHAR)[]": ("[union_value(n := 1)]", "[union_value(t := '1')]"),
        "INTERVAL": ("INTERVAL '30 days'", "INTERVAL '1 month'"),
        "DOUBLE": ("0.0", "'-0.0'"),
    }
    casts = {kind: [f"CAST({value} AS {kind})" for value in values] for kind, values in cases.items()}
    tables = {name: kind for number, kind in enumerate(cases) for name in (f"keyed{number}", f"bag{number}")}
    columns = {name: "id INTEGER PRIMARY KEY, v" if name.startswith("keyed") else "id INTEGER, v" for name in tables}
    farm.publish([f"CREATE TABLE {name} ({columns[name]} {kind})" for name, kind in tables.items()])
    farm.publish([Rows(name, (f"1, {casts[kind][0]}",)) for name, kind in tables.items()])
    farm.publish([Rows(name, (f"1, {casts[kind][1]}",), (f"1, {casts[kind][0]}",)) for name, kind in tables.items()])
    wlr.feed(farm.url, to=str(out := tmp_path / "out.jsonl"), start=3)
    for name, kind in tables.items():
        wanted = ["update"] if name.startswith("keyed") else ["delete", "insert"]
        said = [line["op"] for line in lines(out) if line["table"] == f"main.{name}"]
        assert sorted(said) == wanted, (name, kind)


def test_a_column_may_be_called_as_a_parameter_of_a_lambda(tmp_path: Path):
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE TABLE t (_0 VARCHAR, _1 INTEGER, m MAP(VARCHAR, MAP(VARCHAR, DOUBLE)), l DOUBLE[][])"])
    farm.publish([Rows("t", ("'x', 7, MAP {'a': MAP {'b': 1.5::DOUBLE}}, [[1.5::DOUBLE]]",))])
    wlr.feed(farm.url, to=str(out := tmp_path / "out.jsonl"), start=2)
    inner = [{"key": "b", "value": 1.5}]
    (said,) = lines(out)
    assert said["after"] == {"_0": "x", "_1": 7, "m": [{"key": "a", "value": inner}], "l": [[1.5]]}


def test_a_farm_of_another_past_is_refused_and_a_new_history_continued(tmp_path: Path):
    farm = HandmadeFarm(tmp_path / "one")
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY)"], [Rows("t", ("1",))])
    wlr.feed(farm.url, to=str(out := tmp_path / "out.jsonl"))
    other = HandmadeFarm(tmp_path / "two")
    other.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY)"], [Rows("t", ("2",))])
    other.publish([Rows("t", ("3",))])
    before = out.read_bytes()
    with pytest.raises(CorruptError):
        wlr.feed(other.url, to=str(out))
    assert out.read_bytes() == before
    other_name = HandmadeFarm(tmp_path / "two", name="else")
    with pytest.raises(InvalidError, match="reads .*, not "):
        wlr.feed(other_name.url, to=str(out))


@pytest.mark.slow
def test_a_feed_begins_where_a_history_begins(tmp_path: Path):
    """The history's first snapshot lies behind the last batch of the former one, which it names in its position."""
    shop = made(tmp_path)
    shop.write("CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    wlc.stop(shop.source)
    wlc.master(shop.source, farm=shop.farm)
    began = shop.database.config().tick
    done = shop.feed(rows := tmp_path / "rows.jsonl", start="snapshot")
    assert (done.tick, shop.feed(rows).records) == (began, 0)
    shop.write("INSERT INTO t VALUES (3)")
    shop.feed(rows)
    said = [(line["op"], line["after"]["id"], line["tick"]) for line in lines(rows)]
    assert said == [("read", 1, began), ("read", 2, began), ("insert", 3, began + 1)]
    shop.feed(changes := tmp_path / "changes.jsonl", start=began + 1)
    assert lines(changes) == lines(rows)[2:]
    # What was written between the two is in no log.
    for start in (began - 1, began):
        out = tmp_path / f"{start}.jsonl"
        with pytest.raises(ExpiredError, match=f"ended at tick {began - 1}") as caught:
            shop.feed(out, start=start)
        assert "--from snapshot continues" in str(caught.value.hint)
        assert shop.feed(out, start="snapshot").records == 3


def test_tables_that_are_renamed_or_dropped_leave_a_feed_with_a_record(tmp_path: Path):
    farm = HandmadeFarm(tmp_path / "farm")
    farm.publish(["CREATE SCHEMA s"], ["CREATE TABLE t (id INTEGER)"], ["CREATE TABLE s.t (id INTEGER)"])
    farm.publish(["CREATE VIEW v AS SELECT 1"], ["CREATE TABLE other (id INTEGER)"], [Rows("t", ("1",))])
    farm.publish(["ALTER TABLE t RENAME TO u"], [Rows("u", ("2",))], ["DROP SCHEMA s CASCADE"], ["DROP TABLE other"])
    wlr.feed(farm.url, to=str(out := tmp_path / "t.jsonl"), tables=["t"])
    said = [(line["op"], line["table"], line.get("kind"), line.get("object")) for line in lines(out)]
    assert said == [
        ("schema", "main.t", "CREATE TABLE", "main.t"),
        ("schema", "s.t", "CREATE TABLE", "s.t"),
        ("insert", "main.t", None, None),
        ("schema", "main.t", "ALTER TABLE", "main.u"),
        ("schema", "s.t", "DROP SCHEMA", "s.t"),
    ]


def test_a_round_without_news_costs_four_requests(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shop.feed(out := tmp_path / "out.jsonl")
    made: list[str] = []
    for name in ("read", "read_versioned", "list", "exists", "create", "replace", "delete", "fetch"):
        method = getattr(MemoryStore, name)

        def counted(
            self: MemoryStore, path: str = "", *rest: Any, _as: str = name, _do: Any = method, **how: Any
        ) -> Any:
            made.append(f"{_as} {path}")
            return _do(self, path, *rest, **how)

        monkeypatch.setattr(MemoryStore, name, counted)
    shop.feed(out)
    registration = f"replicas/feed-feed{zlib.crc32(os.fsencode(out))}.json"
    of_config = [call for call in made if call.endswith("wlc.config")]
    rest = [call for call in made if call not in of_config]
    # In memory, one request can be made of another one of the same object.
    assert {call.partition(" ")[2] for call in rest} == {"shop_000000000004", registration}
    assert sum(not call.startswith("read ") for call in made) == 4

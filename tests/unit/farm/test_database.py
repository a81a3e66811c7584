"""A database of a farm: batches, configuration, snapshots, names, and the witness of what a reader has seen."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import wlr
from tests.handmade import HandmadeFarm
from wlc.farm import newest_batches
from wlc.farm.config import encode_config, is_behind
from wlc.farm.database import FarmDatabase, Witness, describe_file, open_database, witness_of
from wlc.farm.errors import CorruptError, FencedError, GapError, InvalidError, UnsupportedError
from wlc.farm.model import (
    Batch,
    Change,
    Column,
    Config,
    DataFile,
    Layout,
    Manifest,
    Name,
    Origin,
    Position,
    RowsRead,
    SnapshotTable,
    TableFile,
    Transaction,
)
from wlc.farm.paths import data_path, snapshot_folder, with_stamp
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import AlreadyExistsError, MissingError, Store, StoredObject
from wlr.replay import log_reader

TIME = datetime(2026, 11, 20, 10, tzinfo=UTC)
TABLE = Name("main", "t")
LAYOUT = Layout((Column("id", "INTEGER"),), ("id",))
CONFIG = Config("", "wlc_logs", 1, 1, 60.0, None, "sales", "h1", 0)


@pytest.fixture
def database(tmp_path: Path) -> FarmDatabase:
    return open_database("sales", str(tmp_path / "farm"))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., tuple[Batch, dict[str, Path]]]:
    def build(
        number: int, previous: str = "", content: bytes = b"rows", history: str = "h1"
    ) -> tuple[Batch, dict[str, Path]]:
        """A batch of one transaction with tick 10 * number and one data file of `content`."""
        path, local = data_path("sales", number, 0), tmp_path / f"{number}-{checksum(content)[:8]}"
        local.write_bytes(content)
        tick = number * 10
        transaction = Transaction(tick, "ann", TIME, TIME, (Change(TABLE, path, 1, 0),))
        file = TableFile(describe_file(local, path, 1), TABLE, LAYOUT)
        batch = Batch("sales", number, history, tick, tick, previous, "sales", (transaction,), (file,), {history: tick})
        return batch, {path: local}

    return build


Make = Callable[..., tuple[Batch, dict[str, Path]]]


def publish_three(database: FarmDatabase, make: Make) -> list[str]:
    chains = [""]
    for number in (1, 2, 3):
        chains.append(database.publish(*make(number, chains[-1])))
    return chains


def test_what_is_published_is_read_by_others(database: FarmDatabase, make: Make) -> None:
    batch, files = make(1)
    chain = database.publish(batch, files)
    other = open_database(database.url)
    assert other.batch_numbers() == [1]
    assert other.read_batch(1, "") == (batch, chain)
    assert other.fetch(batch.files[0]).read_bytes() == b"rows"
    assert other.log_bytes() == sum(entry.bytes for entry in other.store.list("wlc_logs/"))


def test_what_is_published_has_a_number_a_chain_and_a_place(database: FarmDatabase, make: Make, tmp_path: Path) -> None:
    database.create_config(replace(CONFIG, logs=str(tmp_path / "other disk")))
    chains = publish_three(database, make)
    before = database.logs.list()
    assert database.publish(*make(1)) == chains[1], "to publish again changes nothing"
    assert database.logs.list() == before
    database.logs.create("sales_2_000000000009", b"of another database")
    assert [database.batch_numbers(after=number) for number in (0, 1, 3)] == [[1, 2, 3], [2, 3], []]
    assert (tmp_path / "other disk/sales_000000000001").is_file()
    (tmp_path / "farm").rename(tmp_path / "moved")
    moved = open_database("sales", str(tmp_path / "moved"))
    assert [moved.read_batch(number, chains[number - 1])[1] for number in (1, 2, 3)] == chains[1:]


def test_what_does_not_fit_the_log_is_named(database: FarmDatabase, make: Make) -> None:
    with pytest.raises(GapError, match="cannot publish batch 2 of sales: batch 1 is missing"):
        database.publish(*make(2))
    batch, files = make(1)
    next(iter(files.values())).write_bytes(b"longer than before")
    with pytest.raises(InvalidError, match="has 18 bytes"):
        database.publish(batch, files)
    assert database.store.list() == []
    chains = publish_three(database, make)
    with pytest.raises(CorruptError, match="the hash chain is broken"):
        database.read_batch(3, chains[1])
    with pytest.raises(MissingError, match="batch 4 of sales is not published"):
        database.read_batch(4)
    database.logs.create("sales_000000000004", database.logs.read("sales_000000000003"))
    with pytest.raises(CorruptError, match="sales_000000000004 is batch 3 of sales"):
        database.read_batch(4)
    database.delete_batch(2)
    with pytest.raises(GapError, match="batch 2 of sales is missing, batch 3 is there"):
        database.read_batch(2)
    with pytest.raises(CorruptError, match="not a path inside the farm"):
        database.fetch(DataFile("../../secret", 1, 1, "0" * 64))


def test_a_second_master_is_fenced_and_harms_nothing(database: FarmDatabase, make: Make) -> None:
    batch, files = make(1)
    database.publish(batch, files)
    other, other_files = make(1, content=b"others")
    with pytest.raises(FencedError, match="batch 1 of sales was published by another master"):
        open_database(database.url).publish(other, other_files)
    assert database.read_batch(1)[0] == batch
    assert database.fetch(batch.files[0]).read_bytes() == b"rows"


def test_leftovers_of_a_dead_attempt_do_not_hinder(database: FarmDatabase, make: Make) -> None:
    dead, dead_files = make(1, content=b"dead attempt")
    path = dead.files[0].file.path
    database.logs.create(path, dead_files[path])
    batch, files = make(1)
    chain = database.publish(batch, files)
    published, _ = database.read_batch(1)
    stamp = batch.files[0].file.sha256[:16]
    assert published.files[0].file.path == data_path("sales", 1, 0, stamp)
    assert database.fetch(published.files[0]).read_bytes() == b"rows"
    assert database.publish(batch, files) == chain


def test_a_leftover_with_the_same_bytes_is_used(database: FarmDatabase, make: Make) -> None:
    batch, files = make(1)
    database.logs.create(batch.files[0].file.path, files[batch.files[0].file.path])
    database.publish(batch, files)
    assert database.read_batch(1)[0] == batch


def test_rows_that_were_read_get_the_name_of_their_file_and_origins_stay(database: FarmDatabase, make: Make) -> None:
    dead, dead_files = make(1, content=b"dead attempt")
    database.logs.create(dead.files[0].file.path, dead_files[dead.files[0].file.path])
    batch, files = make(1)
    path = batch.files[0].file.path
    read = RowsRead(batch.files[0].table, path, batch.files[0].file.rows, exclusive=False)
    origin = Origin("elsewhere", 3, TIME)
    batch = replace(batch, transactions=(replace(batch.transactions[-1], records=(read,), origin=origin),))
    batch = replace(batch, first=batch.last)
    database.publish(batch, files)
    (transaction,) = database.read_batch(1)[0].transactions
    assert transaction.records == (replace(read, path=with_stamp(path, batch.files[0].file.sha256[:16])),)
    assert transaction.origin == origin


def test_of_masters_that_race_one_wins_whole(database: FarmDatabase, make: Make) -> None:
    for number in range(1, 11):
        previous = database.read_batch(number - 1)[1] if number > 1 else ""
        attempts = [make(number, previous, content=b"master %d" % index * 9999) for index in range(4)]
        ready = threading.Barrier(4)

        def attempt(pair: tuple[Batch, dict[str, Path]], ready: threading.Barrier = ready) -> str | None:
            ready.wait()
            try:
                return open_database(database.url).publish(*pair)
            except FencedError:
                return None

        with ThreadPoolExecutor(4) as pool:
            chains = list(pool.map(attempt, attempts))
        won = [index for index, chain in enumerate(chains) if chain]
        assert len(won) == 1
        batch, chain = database.read_batch(number, previous)
        assert chain == chains[won[0]]
        # The published data file is the winner's, whatever the losers wrote meanwhile.
        assert database.fetch(batch.files[0]).read_bytes() == b"master %d" % won[0] * 9999


class Dying:
    """A store that fails from its n-th write on, as a process that dies there."""

    def __init__(self, store: Store, writes: int) -> None:
        self.store, self.writes = store, writes

    def __getattr__(self, name: str) -> object:
        if name in ("create", "replace", "delete"):
            if self.writes == 0:
                raise KeyboardInterrupt
            self.writes -= 1
        return getattr(self.store, name)


def test_a_publication_that_dies_anywhere_is_not_there_or_whole(database: FarmDatabase, make: Make) -> None:
    batch, files = make(1)
    for writes in range(2):
        victim = open_database(database.url)
        victim._logs = Dying(victim.logs, writes)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            victim.publish(batch, files)
        assert database.batch_numbers() == []
    database.publish(batch, files)
    assert database.read_batch(1)[0] == batch


@pytest.mark.parametrize("named", [0, 3])
def test_the_newest_batch_is_found_where_listings_lag(
    database: FarmDatabase, make: Make, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    assert newest_batches.read_newest(database) is None
    publish_three(database, make)
    if named:
        database.delete_batch(1)
        database.create_config(replace(CONFIG, batches=named + 1))
    listed = [] if named else [1, 2]
    monkeypatch.setattr(FarmDatabase, "batch_numbers", lambda database, after=0: listed)
    newest = newest_batches.read_newest(database)
    assert newest is not None
    assert newest[0].number == 3


def test_batches_that_come_while_one_looks_are_no_gap(
    database: FarmDatabase, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers_after(found: FarmDatabase, missing: int) -> list[int]:
        publish_three(found, make)
        return later(found, missing)

    later = newest_batches.numbers_after
    monkeypatch.setattr(newest_batches, "numbers_after", numbers_after)
    assert database.read_batch(1)[0].number == 1


def test_damaged_and_missing_data_files_are_named(database: FarmDatabase, make: Make, tmp_path: Path) -> None:
    batch, files = make(1)
    database.publish(batch, files)
    path = tmp_path / "farm/sales/wlc_logs" / batch.files[0].file.path
    for content in (b"roww", b"row", b""):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match=r"data file .*/sales_000000000001.d/0.parquet is damaged"):
            database.fetch(batch.files[0])
    path.unlink()
    with pytest.raises(CorruptError, match=r"0.parquet is missing"):
        database.fetch(batch.files[0])


def test_deleting_a_batch_leaves_nothing_of_it(database: FarmDatabase, make: Make) -> None:
    publish_three(database, make)
    database.delete_batch(1)
    database.delete_batch(1)
    assert [entry.path for entry in database.logs.list("sales_000000000001")] == []
    assert database.batch_numbers() == [2, 3]
    # One that was cut short is found.
    database.logs.delete("sales_000000000002")
    database.logs.create("sales_000000000004.d/0.parquet", b"under way")
    assert database.leftover_numbers() == [2]


# Configuration


def test_config_is_created_once_and_changed(database: FarmDatabase) -> None:
    with pytest.raises(MissingError, match="there is no database 'sales' in the farm") as caught:
        database.config()
    assert "wlc master" in str(caught.value.hint)
    with pytest.raises(MissingError):
        database.rebuild_config()
    database.store.create("wlc.config", b"")
    with pytest.raises(CorruptError):
        database.config()
    database.store.delete("wlc.config")
    database.create_config(replace(CONFIG, name="other"))
    with pytest.raises(CorruptError, match="is of database 'other', not 'sales'"):
        database.config()
    database.store.delete("wlc.config")
    database.create_config(CONFIG)
    with pytest.raises(AlreadyExistsError):
        database.create_config(CONFIG)
    assert database.config() == CONFIG
    assert database.change_config(lambda config: replace(config, tick=5)) == database.config()
    assert database.config().tick == 5


@pytest.mark.parametrize("present", ["behind", "missing", "damaged"])
def test_config_is_rebuilt_from_the_log(database: FarmDatabase, make: Make, tmp_path: Path, present: str) -> None:
    if present != "missing":
        database.create_config(CONFIG)
    publish_three(database, make)
    if present == "damaged":
        (tmp_path / "farm/sales/wlc.config").write_bytes(b"tick=9")
    rebuilt = open_database(database.url).rebuild_config()
    beat_s = 60.0 if present == "behind" else 300.0
    assert rebuilt == replace(CONFIG, batches=4, tick=30, write=TIME, beat_s=beat_s)
    assert database.config() == rebuilt


@pytest.mark.parametrize("present", ["behind", "damaged"])
def test_a_config_that_another_process_replaces_meanwhile_is_rebuilt_all_the_same(
    database: FarmDatabase, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str
) -> None:
    database.create_config(CONFIG)
    publish_three(database, make)
    other = open_database(database.url)
    if present == "damaged":
        (tmp_path / "farm/sales/wlc.config").write_bytes(b"tick=9")
    rebuilt, others = FarmDatabase._rebuilt, iter([7.0, 8.0])

    def meanwhile(self: FarmDatabase, present: Config | None, known: Config | None) -> Config:
        found = rebuilt(self, present, known)
        for beat_s in itertools.islice(others, 1):
            data, version = encode_config(replace(CONFIG, beat_s=beat_s)), other.store.read_versioned("wlc.config")[1]
            other.store.replace("wlc.config", data, version)
        return found

    monkeypatch.setattr(FarmDatabase, "_rebuilt", meanwhile)
    assert database.rebuild_config() == replace(CONFIG, batches=4, tick=30, write=TIME, beat_s=8.0)


def test_a_config_that_is_not_behind_is_left_alone(database: FarmDatabase, make: Make) -> None:
    publish_three(database, make)
    config = replace(CONFIG, batches=4, tick=30, write=TIME, state=2, history="h2", parent=Origin("h1", 30))
    database.create_config(config)
    assert database.rebuild_config() == config


def test_a_snapshot_that_began_a_history_counts_more_than_the_batch_before(database: FarmDatabase, make: Make) -> None:
    chains = publish_three(database, make)
    database.publish_snapshot(manifest(Position("h2", 31, 3, chains[3])), {})
    rebuilt = database.rebuild_config()
    assert (rebuilt.history, rebuilt.tick, rebuilt.batches) == ("h2", 31, 4)
    assert rebuilt.snapshot == "snapshots/000000000031"


@pytest.mark.parametrize(
    "named, there, batches, expected",
    [
        (10, [10, 20], 4, 20),
        (None, [20], 4, 20),
        (20, [10, 20], 2, 20),
        # Only its name shows that it was lost.
        (30, [10, 20], 4, 30),
        (30, [10, 20], 2, 30),
        (10, [], 4, 10),
    ],
)
def test_whoever_finds_a_config_behind_brings_it_forward_and_never_back(
    database: FarmDatabase, make: Make, named: int | None, there: list[int], batches: int, expected: int
) -> None:
    chains = publish_three(database, make)
    for tick in there:
        database.publish_snapshot(manifest(Position("h1", tick, tick // 10, chains[tick // 10])), {})
    folder = snapshot_folder(named) if named is not None else ""
    database.create_config(replace(CONFIG, snapshot=folder, batches=batches, tick=10 * batches - 10, write=TIME))
    database.repair_config(database.batch_numbers(), database.snapshot_ticks())
    expected_config = replace(CONFIG, snapshot=snapshot_folder(expected), batches=4, tick=30, write=TIME)
    assert database.config() == expected_config
    assert not is_behind(database.config(), database.batch_numbers(), database.snapshot_ticks())


def test_a_config_that_may_not_be_written_stays_behind(
    database: FarmDatabase, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_three(database, make)
    database.create_config(CONFIG)

    def refused(*_: object) -> str:
        raise UnsupportedError("no right to write")

    monkeypatch.setattr(type(database.store), "replace", refused)
    database.repair_config([1, 2, 3], [])
    assert database.config() == CONFIG


# Snapshots


def manifest(position: Position, files: tuple[DataFile, ...] = ()) -> Manifest:
    return Manifest("sales", position, TIME, "sales", (), (), (SnapshotTable(TABLE, LAYOUT, files),))


def test_a_snapshot_is_read_by_others(database: FarmDatabase, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"rows")
    file = describe_file(local, "0.parquet", 1)
    taken = manifest(Position("h1", 30, 3, "c" * 64), (file,))
    assert database.publish_snapshot(taken, {"0.parquet": local}) == taken
    assert database.publish_snapshot(taken, {"0.parquet": local}) == taken
    other = open_database(database.url)
    assert other.snapshot_ticks() == [30]
    assert other.read_manifest(30) == taken
    assert other.fetch_snapshot(taken, file).read_bytes() == b"rows"
    other.delete_snapshot(30)
    assert other.store.list() == []
    with pytest.raises(MissingError):
        other.read_manifest(30)


@pytest.mark.parametrize("lists_older", [True, False])
def test_a_snapshot_that_a_listing_omits_is_found_by_its_name(
    database: FarmDatabase, monkeypatch: pytest.MonkeyPatch, lists_older: bool
) -> None:
    for tick in (0, 30):
        database.publish_snapshot(manifest(Position("h1", tick)), {})
    config = replace(CONFIG, snapshot="snapshots/000000000030")
    database.create_config(config)
    listing = type(database.store).list

    def lagging(store: Store, prefix: str = "", **options: Any) -> list[StoredObject]:
        found = listing(store, prefix, **options)
        return [entry for entry in found if lists_older and "snapshots/000000000030" not in entry.path]

    monkeypatch.setattr(type(database.store), "list", lagging)
    assert database.snapshot_ticks() == ([0, 30] if lists_older else [30])
    # What is not there is not named, either.
    database.store.delete("snapshots/000000000030/manifest.json")
    assert database.snapshot_ticks() == ([0] if lists_older else [])
    database.store.delete("wlc.config")
    database.store.create("wlc.config", b"damaged")
    assert database.snapshot_ticks() == ([0] if lists_older else [])


def test_a_snapshot_without_manifest_is_none(database: FarmDatabase, tmp_path: Path) -> None:
    database.store.create("snapshots/000000000030/0.parquet", b"of a dead attempt")
    assert database.snapshot_ticks() == []
    local = tmp_path / "local"
    local.write_bytes(b"rows")
    file = describe_file(local, "0.parquet", 1)
    taken = database.publish_snapshot(manifest(Position("h1", 30), (file,)), {"0.parquet": local})
    (published,) = taken.tables[0].files
    assert published.path == f"0-{file.sha256[:16]}.parquet"
    assert database.fetch_snapshot(taken, published).read_bytes() == b"rows"
    assert database.read_manifest(30) == taken


def test_a_snapshot_in_another_ones_place_is_refused(database: FarmDatabase) -> None:
    database.publish_snapshot(manifest(Position("h1", 30)), {})
    with pytest.raises(FencedError, match="another snapshot of sales at tick 30 of history h1"):
        database.publish_snapshot(manifest(Position("h2", 30)), {})
    written = database.store.read("snapshots/000000000030/manifest.json")
    database.store.create("snapshots/000000000040/manifest.json", written)
    with pytest.raises(CorruptError, match="is of sales at tick 30"):
        database.read_manifest(40)


# Names


def test_databases_are_opened_by_url_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WLC_FARM", raising=False)
    url = str(tmp_path / "farm/sales")
    for database in (open_database("sales", "farm"), open_database("farm/sales"), open_database(f"file://{url}/")):
        assert (database.name, database.url) == ("sales", url)
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    assert open_database("sales").url == url
    assert open_database("memory://farm/sales").url == "memory://farm/sales"


def test_a_bare_name_needs_a_farm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WLC_FARM", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError, match="no farm is given for database 'sales'") as caught:
        open_database("sales")
    assert "WLC_FARM" in str(caught.value.hint)
    with pytest.raises(InvalidError, match="cannot name a database"):
        open_database("sa les", "farm")


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return HandmadeFarm(tmp_path / "farm")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "witness"


def test_the_last_position_of_each_database_is_kept(file: Path) -> None:
    one, other = Witness(file, "s3://b/one"), Witness(file, "s3://b/other")
    assert one.seen() is None
    later = Position("h1", 7, 3, "c" * 64)
    for position in (Position("h1", 2, 1, "a" * 64), later, Position("h1", 5, 2, "b" * 64), Position("", 0)):
        one.note(position)
    other.note(Position("h2", 1))
    assert one.seen() == later
    assert other.seen() == Position("h2", 1)
    file.write_bytes(file.read_bytes().replace(b"h2", b"h3"))
    with pytest.raises(CorruptError, match=str(file)):
        one.seen()


def test_options_come_before_the_environment(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert witness_of({}, "s3://b/one") is None
    monkeypatch.setenv("WLC_WITNESS_FILE", str(file))
    monkeypatch.chdir(tmp_path)
    assert witness_of(None, "farm/one") == Witness(file, f"{tmp_path}/farm/one")
    assert witness_of({"witness_file": "mine"}, "s3://b/one") == Witness(tmp_path / "mine", "s3://b/one")
    with pytest.raises(InvalidError, match="no folder"):
        Witness(tmp_path / "none" / "witness", "s3://b/one").seen()


def reader(farm: HandmadeFarm, file: Path) -> FarmDatabase:
    return open_database(farm.url, storage_options={"witness_file": str(file)})


def check(database: FarmDatabase) -> None:
    numbers = database.batch_numbers()
    log_reader.refuse_rolled_back(database, numbers, log_reader.last_tick(database, numbers))


def test_a_farm_that_was_rolled_back_is_refused_to_readers_who_begin_anew(
    farm: HandmadeFarm, file: Path, tmp_path: Path
) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER)"])
    yesterday = shutil.copytree(farm.url, tmp_path / "yesterday")
    farm.publish(["CREATE TABLE u (id INTEGER)"])
    options = {"witness_file": str(file)}
    wlr.replicate(farm.url, into=tmp_path / "first.duckdb", storage_options=options)
    wlr.replicate(farm.url, into=tmp_path / "second.duckdb", storage_options=options, tick=1)
    assert reader(farm, file).witness.seen().tick == 2
    assert wlr.verify_farm(farm.url, storage_options=options).problems == ()
    farm.publish(["CREATE TABLE v (id INTEGER)"])
    check(reader(farm, file))
    shutil.rmtree(farm.url)
    shutil.copytree(yesterday, farm.url)
    with pytest.raises(CorruptError, match=r"ends at tick 1, but had reached tick 2: it was rolled back") as refused:
        wlr.replicate(farm.url, into=tmp_path / "third.duckdb", storage_options=options)
    assert str(file) in refused.value.message
    assert not (tmp_path / "third.duckdb").exists()
    (problem,) = wlr.verify_farm(farm.url, storage_options=options).problems
    assert "rolled back" in problem.problem
    assert wlr.replicate(farm.url, into=tmp_path / "third.duckdb").tick == 1, "without a witness nobody can know"


def test_a_farm_with_another_past_is_refused(farm: HandmadeFarm, file: Path) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER)"])
    database = reader(farm, file)
    assert database.witness is not None
    database.witness.note(Position("h1", 1, 1, "f" * 64))
    with pytest.raises(CorruptError, match="holds another batch 1"):
        check(database)


def test_what_was_pruned_is_not_missed(farm: HandmadeFarm, file: Path) -> None:
    for name in "tuv":
        farm.publish([f"CREATE TABLE {name} (id INTEGER)"])
    database = reader(farm, file)
    assert database.witness is not None
    database.witness.note(Position("h1", 1, 1, database.read_batch(1)[1]))
    database.delete_batch(1)
    check(database)

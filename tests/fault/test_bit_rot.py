"""Any byte, length, name or order of files is wrong: it is detected and named, or makes no difference; never applied.

Every damage is looked at through what reads all that a replication reads without writing (dry runs, batches with their
files, a dry prune); a sample of them through real replications as well, whose replicas are compared row by row.
DBFARM_EVERY=1 damages every byte and every length, and replicates for every hundredth of them.
"""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import any_file, version_of
from tests.oracle import file_contents, published
from wlc.farm.database import hash_file, open_database
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, GapError, InvalidError
from wlc.farm.model import Clear, Name, Origin, SequencePosition
from wlr.engine.adapters import target_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from tests.oracle import Contents

pytestmark = pytest.mark.slow

EVERY = int(os.environ.get("DBFARM_EVERY", "61"))
# Lengths come cheaper: what is cut off lacks its checksum.
EVERY_LENGTH = 1 if EVERY == 1 else 4 * EVERY + 1
REPLICATED = 100
KINDS = ("log file", "data file", "manifest", "snapshot's data file", "registration", "configuration")


@dataclass(frozen=True)
class Sound:
    """A farm without damage, replicas that were made from it, and what everybody read in it.

    Attributes:
        old: Replicas that stand at an early tick, by kind.
        contents: What the database contained after each tick.
    """

    folder: Path
    farm: Path
    old: dict[str, Path]
    contents: dict[int, Contents]
    seen: dict[str, Any]

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.farm.rglob("*") if path.is_file() and not path.name.startswith("."))

    @property
    def end(self) -> int:
        return max(self.contents)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    folder = tmp_path_factory.mktemp("sound", numbered=False)
    hand = write_farm(folder / "farm")
    old = {"duckdb": folder / "old.duckdb", "parquet": folder / "old_lake"}
    # From the beginning; then a snapshot comes into the middle of the log, and replicas that begin there.
    for path in old.values():
        wlr.replicate(hand.url, into=path, tick=2, engine="local", register=False)
    wlr.snapshot_from_log(hand.url, engine="local")
    wlr.replicate(hand.url, into=folder / "early.duckdb", tick=5, register=True)
    hand.publish([Rows("t", ("9, 'late'",))], [Rows("bag", ("'w'",))])
    hand.publish([Rows("t", ("10, 'last'",), ("9, 'late'",))])
    made = Sound(folder, folder / "farm" / "sales", old, {}, {})
    first = folder / "from the first batch" / "sales"
    shutil.copytree(made.farm, first)
    shutil.rmtree(first / "snapshots")
    made.contents.update({tick: published(str(first), tick) for tick in range(hand.tick + 1)})
    made.seen.update({name: look(made.farm) for name, look in LOOKS.items()})
    return made


def write_farm(folder: Path) -> HandmadeFarm:
    """Batches with schema changes, two tables, a transaction rolled back, a clear, a sequence, and a second history."""
    farm = HandmadeFarm(folder)
    farm.publish(
        ["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)", "CREATE SEQUENCE numbers"],
        [Rows("t", ("1, 'one'", "2, 'two'"))],
    )
    farm.publish(["CREATE TABLE bag (a VARCHAR)"], [Rows("bag", ("'x'", "'x'", "'y'")), Rows("t", ("3, 'x'",))], None)
    farm.parent, farm.history = Origin("h1", farm.tick), "h2"
    farm.publish(
        [Rows("t", ("2, 'new'",), ("2, 'two'",)), SequencePosition(Name("main", "numbers"), 5)],
        [Clear(Name("main", "bag"), 3), Rows("bag", ("'z'",))],
    )
    return farm


# Looking, without writing -------------------------------------------------------------------------------------------


def look_anew(farm: Path) -> object:
    result = wlr.replicate(str(farm), into=farm.parent / "no.duckdb", dry_run=True)
    return (result.tick, result.clock, result.transactions, result.rows, result.batches, result.snapshot)


def look_along_the_log(farm: Path) -> object:
    """A target before the snapshot, from the first batch on."""
    result = wlr.replicate(str(farm), into=farm.parent / "no.duckdb", tick=6, dry_run=True)
    return (result.tick, result.clock, result.transactions, result.rows, result.batches, result.snapshot)


def look_at_batches(farm: Path) -> object:
    database = open_database(str(farm))
    batches, chain = [], None
    for number in range(database.batch_numbers()[0], database.config().batches):
        batch, chain = database.read_batch(number, chain)
        for file in batch.files:
            database.fetch(file)
        batches.append((batch, chain))
    return batches


def look_at_snapshots(farm: Path) -> object:
    database = open_database(str(farm))
    manifests = [database.read_manifest(tick) for tick in database.snapshot_ticks()]
    for manifest in manifests:
        for table in manifest.tables:
            for file in table.files:
                database.fetch_snapshot(manifest, file)
    return manifests


def look_at_replicas(farm: Path) -> object:
    # How many bytes are held back, or would be deleted, is what the store lists, damaged or not.
    return replace(wlc.prune(str(farm), keep_for="0s", dry_run=True), held_bytes={}, delete_bytes=0)


def look_at_status(farm: Path) -> object:
    return open_database(str(farm)).config()


LOOKS: dict[str, Callable[[Path], object]] = {
    "new replica": look_anew,
    "along the log": look_along_the_log,
    "batches": look_at_batches,
    "snapshots": look_at_snapshots,
    "replicas": look_at_replicas,
    "configuration": look_at_status,
}


def look(sound: Sound, farm: Path, but_for: Collection[str] = ()) -> list[FarmError]:
    """Look in every way and return the refusals; what is not refused must be as it ever was.

    Args:
        but_for: Looks that may rightly find something else.
    """
    refused = []
    for name, glance in LOOKS.items():
        try:
            found = glance(farm)
        except FarmError as error:
            refused.append(error)
            continue
        assert name in but_for or found == sound.seen[name], f"{name}: other than before, and nobody noticed"
    return refused


def names_it(error: FarmError, *files: Path) -> bool:
    """Whether a refusal names one of the files: by its path, or a batch by its number."""
    said = f"{error} {error.path} "
    numbers = [file.name.removeprefix("sales_") for file in files]
    batches = [f"batch {int(number)} " for number in numbers if number.isdecimal()]
    return any(f"{file.parent.name}/{file.name}" in said for file in files) or any(name in said for name in batches)


# Damaging -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def farm(sound: Sound, tmp_path: Path) -> Path:
    """A copy to be damaged, whose files can be written to."""
    copied = tmp_path / "farm" / "sales"
    shutil.copytree(sound.farm, copied)
    return copied


def kind_of(path: str) -> str:
    if path == "wlc.config":
        return "configuration"
    if path.startswith("replicas/"):
        return "registration"
    if path.startswith("snapshots/"):
        return "manifest" if path.endswith("manifest.json") else "snapshot's data file"
    return "data file" if path.endswith(".parquet") else "log file"


def files_of(farm: Path, kind: str) -> list[Path]:
    files = sorted(p for p in farm.rglob("*") if p.is_file() and not p.name.startswith("."))
    return [path for path in files if kind_of(path.relative_to(farm).as_posix()) == kind]


def rot(file: Path, data: bytes) -> None:
    """Give a file other content; a disk that loses bits changes no times."""
    found = file.stat() if file.exists() else None
    file.write_bytes(data)
    if found is not None:
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every damage to the bytes of one file."""
    for number, at in enumerate(range(0, len(data), EVERY)):
        # One bit, another one, or all of them.
        mask = (1 << number % 8, 0xFF)[number % 3 == 0]
        yield f"flip {at} by {mask}", data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
    for length in {*range(0, len(data), EVERY_LENGTH), len(data) - 1}:
        yield f"cut at {length}", data[:length]
    for at in range(0, len(data), 512):
        if any(data[at : at + 512]):
            yield f"zeros from {at}", data[:at] + bytes(len(data[at : at + 512])) + data[at + 512 :]
    for more in (b"\0", b"\n", data, data[-67:]):
        yield f"{more[:8]!r} appended", data + more


@pytest.mark.parametrize("kind", KINDS)
def test_damage_inside_a_file_is_named(sound: Sound, farm: Path, kind: str) -> None:
    trials = 0
    for file in files_of(farm, kind):
        whole = file.read_bytes()
        for what, data in damages(whole):
            rot(file, data)
            refused = look(sound, farm)
            assert any(isinstance(error, CorruptError) for error in refused), f"{file}: {what} was not noticed"
            assert all(names_it(error, file) for error in refused), (file, what, refused)
            trials += 1
        rot(file, whole)
    assert look(sound, farm) == []
    assert trials > 10
    print(f"{kind}: {trials} damages")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_inside_a_file_is_never_applied(sound: Sound, farm: Path, kind: str, tmp_path: Path) -> None:
    found = [(file, what, data) for file in files_of(farm, kind) for what, data in damages(file.read_bytes())]
    for file, what, data in found[:: max(REPLICATED if EVERY == 1 else len(found) // 3, 1)]:
        with changed(file, data):
            replicate_all(sound, farm, tmp_path, what, file)


class changed:  # noqa: N801 -- reads as a function in a with statement
    """A file has other content for a while."""

    def __init__(self, file: Path, data: bytes | None) -> None:
        self.file, self.data, self.whole = file, data, file.read_bytes() if file.exists() else None

    def __enter__(self) -> None:
        self._put(self.data)

    def __exit__(self, *_: object) -> None:
        self._put(self.whole)

    def _put(self, data: bytes | None) -> None:
        if data is None:
            self.file.unlink()
        else:
            self.file.parent.mkdir(exist_ok=True)
            rot(self.file, data)


_turns = itertools.count()


def replicate_all(sound: Sound, farm: Path, folder: Path, what: str, *files: Path) -> None:
    """Replicate into every kind, anew or onwards by turns: to the right end, or to a right tick before the damage."""
    replicas = folder / "replicas"
    replicas.mkdir()
    turn = next(_turns)
    for number, (kind, old) in enumerate(sound.old.items()):
        onwards = replicas / old.name
        (shutil.copyfile if kind == "duckdb" else shutil.copytree)(old, onwards)
        anew = replicas / ("new.duckdb" if kind == "duckdb" else "new_lake")
        for into in (onwards, anew) if EVERY == 1 else ((onwards, anew)[(turn + number) % 2],):
            try:
                tick = wlr.replicate(str(farm), into=into, engine="local", register=False).tick
                assert tick == sound.end, f"{what} of {files}: {into} went to tick {tick} only"
            except FarmError as error:
                assert names_it(error, *files), (files, what, error)
                if target_at(into).find_state() is None:
                    continue
            check(sound, into)
    shutil.rmtree(replicas)


def check(sound: Sound, into: Path) -> None:
    held = file_contents(any_file(into))
    assert held == sound.contents[wlr.tick(into)], f"{into} is wrong at tick {wlr.tick(into)}"


# Files deleted, doubled, and in each other's place ------------------------------------------------------------------


def test_a_file_that_is_gone_is_named_or_not_missed(sound: Sound, farm: Path, tmp_path: Path) -> None:
    unnoticed = set()
    # The others of their kind go the same way.
    logs = files_of(farm, "log file")
    replicated = {files_of(farm, kind)[0] for kind in KINDS} | {*logs}
    for file in [file for kind in KINDS for file in files_of(farm, kind)]:
        with changed(file, None):
            # Without the first log files, a log is one that was pruned.
            is_first = file.name == "sales_000000000001"
            refused = look(sound, farm, ("new replica", "snapshots", "replicas", *(["batches"] if is_first else [])))
            assert all(names_it(error, file) or (is_first and isinstance(error, ExpiredError)) for error in refused)
            if file in logs[1:-1]:
                assert all(isinstance(error, GapError) for error in refused), refused
            if not refused:
                unnoticed.add(kind_of(file.relative_to(farm).as_posix()))
            if file in replicated or EVERY == 1:
                replicate_all(sound, farm, tmp_path, "deletion", file)
    # Without its manifest a snapshot is none, and a replica that is not registered is not waited for.
    assert unnoticed == {"manifest", "registration"}


def copies(farm: Path) -> Iterator[tuple[Path, Path]]:
    """Every file, and valid names under which nothing is."""
    number, tick = "sales_000000000009", f"{11:012}"
    for file in files_of(farm, "log file"):
        yield file, file.with_name(number)
    for file in files_of(farm, "data file"):
        yield file, file.with_name("7.parquet")
        yield file, file.with_name(f"0-{'a' * 16}.parquet")
        yield file, farm / "wlc_logs" / f"{number}.d" / "0.parquet"
    for file in files_of(farm, "manifest"):
        yield file, farm / "snapshots" / tick / "manifest.json"
    for file in files_of(farm, "snapshot's data file"):
        yield file, file.with_name("7.parquet")
    for file in files_of(farm, "registration"):
        yield file, file.with_name("abc.json")


def test_a_file_that_is_there_twice_is_named_or_not_read(sound: Sound, farm: Path, tmp_path: Path) -> None:
    for number, (file, other) in enumerate(copies(farm)):
        with changed(other, file.read_bytes()):
            # Only the log itself is read to its end; a prune that comes upon a foreign log file keeps it.
            refused = look(sound, farm, ("replicas",))
            assert all(names_it(error, other, file) for error in refused), (file, other, refused)
            # What no log file and no manifest names does not exist; everything else says whose it is.
            assert bool(refused) == (not other.name.endswith(".parquet")), (file, other, refused)
            if number % 5 == 0 or EVERY == 1:
                replicate_all(sound, farm, tmp_path, f"copy of {file.name}", other, file)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("registration", "configuration", "manifest")])
def test_files_in_each_others_place_are_named(sound: Sound, farm: Path, kind: str, tmp_path: Path) -> None:
    pairs = list(itertools.combinations(files_of(farm, kind), 2))
    assert pairs
    for number, (one, other) in enumerate(pairs):
        first, second = one.read_bytes(), other.read_bytes()
        if first == second:
            continue
        with changed(one, second), changed(other, first):
            refused = look(sound, farm)
            assert any(isinstance(error, CorruptError) for error in refused), (one, other)
            assert all(names_it(error, one, other) for error in refused), (one, other, refused)
            if number % 9 == 0:
                replicate_all(sound, farm, tmp_path, "swap", one, other)


def test_the_newest_batch_in_place_of_the_one_before_it_is_named(sound: Sound, farm: Path, tmp_path: Path) -> None:
    *_, before, newest = files_of(farm, "log file")
    with changed(before, newest.read_bytes()):
        refused = look(sound, farm)
        assert refused
        assert all(names_it(error, before) for error in refused), refused
        replicate_all(sound, farm, tmp_path, "replacement", before)


# A Parquet replica's own files --------------------------------------------------------------------------------------


def look_at_lake(lake: Path) -> object:
    found = [wlr.tick(lake), wlr.clock(lake)]
    for tick in (0, 1, 2, 3, 5):
        version = version_of(lake, tick)
        found += [(table.table, table.parts, wlr.files(lake, str(table.table), tick=tick)) for table in version.tables]
    return [*found, wlr.prune(lake, dry_run=True)]


@pytest.fixture
def lake(sound: Sound, tmp_path: Path) -> Path:
    """A Parquet replica at tick 5 that can be read at tick 2, too."""
    made = tmp_path / "lake"
    shutil.copytree(sound.old["parquet"], made)
    wlr.replicate(str(sound.farm), into=made, tick=5, engine="local", register=False)
    return made


def lake_files(lake: Path) -> list[Path]:
    return sorted(p for p in lake.rglob("*") if p.is_file() and not p.name.startswith("."))


def test_damage_to_a_parquet_replicas_own_files_is_named(lake: Path) -> None:
    before = look_at_lake(lake)
    for file in [file for file in lake_files(lake) if file.suffix != ".parquet"]:
        whole = file.read_bytes()
        for what, data in damages(whole):
            rot(file, data)
            with pytest.raises(CorruptError) as caught:
                look_at_lake(lake)
            assert file.name in f"{caught.value} {caught.value.path}", (file, what)
        rot(file, whole)
    assert look_at_lake(lake) == before


def test_a_parquet_replica_is_never_rolled_forward_from_damage(sound: Sound, lake: Path, tmp_path: Path) -> None:
    """A data file that a step rewrites is checked before; one that it does not read keeps its checksum in the manifest."""
    for number, file in enumerate(lake_files(lake)):
        whole = file.read_bytes()
        for what, data in [(what, data) for what, data in damages(whole)][number % 7 :: 97]:
            copied = tmp_path / "copied"
            shutil.copytree(lake, copied)
            damaged = copied / file.relative_to(lake)
            rot(damaged, data)
            try:
                wlr.replicate(str(sound.farm), into=copied, engine="local", register=False)
            except FarmError as error:
                assert isinstance(error, CorruptError), (file, what, error)
                assert file.name in f"{error} {error.path}", (file, what, error)
            else:
                check_but_for(sound, copied, damaged, whole)
            shutil.rmtree(copied)


def check_but_for(sound: Sound, lake: Path, damaged: Path, whole: bytes) -> None:
    """The replica is right, given that everybody can see that one file is not what its manifest says."""
    path = damaged.relative_to(lake).as_posix()
    named = [part.file for table in version_of(lake).tables for part in table.parts if part.file.path == path]
    for file in named:
        assert file.sha256 != hash_file(damaged)
    damaged.parent.mkdir(exist_ok=True, parents=True)
    if damaged.suffix == ".parquet":
        rot(damaged, whole)
    check(sound, lake)


def test_files_of_a_parquet_replica_that_are_gone_or_swapped_are_named(sound: Sound, lake: Path) -> None:
    pointer = lake / "wlr.pointer"
    with changed(pointer, None), pytest.raises(InvalidError, match="there is no replica"):
        wlr.tick(lake)
    manifests = {int(path.name[:12]): path for path in (lake / "manifests").iterdir()}
    early, current = manifests[2], manifests[5]
    with changed(current, None), pytest.raises(CorruptError, match=current.name):
        wlr.tick(lake)
    with changed(early, None), pytest.raises(ExpiredError, match="tick 2"):
        wlr.files(lake, "t", tick=2)
    with changed(current, early.read_bytes()), pytest.raises(CorruptError, match=current.name):
        wlr.tick(lake)
    # Another tick's files are not what was asked for.
    with changed(early, current.read_bytes()), pytest.raises(CorruptError, match=early.name):
        wlr.files(lake, "t", tick=2)
    with changed(early, current.read_bytes()), pytest.raises(CorruptError, match=early.name):
        wlr.prune(lake, keep="0")


# A DuckDB replica's file: its blocks have checksums of DuckDB's own ---------------------------------------------------


def test_a_duckdb_replica_with_damage_is_refused_or_right(sound: Sound, tmp_path: Path) -> None:
    whole = sound.old["duckdb"].read_bytes()
    places = range(0, len(whole), max(len(whole) // (40 if EVERY != 1 else 4000), 1))
    refused = 0
    for number, start in enumerate(places):
        # Most of the file is empty; what is not comes at the beginning of blocks.
        at = start + (7, 64, 200, 1000)[number % 4]
        copied = tmp_path / f"{number}.duckdb"
        rot(copied, whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] if at < len(whole) else whole[:-9])
        try:
            wlr.replicate(str(sound.farm), into=copied, register=False)
            held = file_contents(copied)
        except FarmError as error:
            # Never a transaction that is at fault, which might be accepted.
            assert isinstance(error, CorruptError), error
            assert str(copied) in f"{error} {error.path}"
            refused += 1
        else:
            assert held == sound.contents[sound.end]
        copied.unlink()
    assert refused > 2

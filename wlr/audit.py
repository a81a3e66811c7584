"""The farm itself, checked from end to end: every file there, as it was written, and all of it one story."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from wlc import digest, fields
from wlc.digest import EMPTY, Ledger, sum_images, sum_rows
from wlc.errors import CorruptError, FarmError
from wlc.log import digest as sha256
from wlc.manifest import encode_manifest
from wlc.model import Change, literal
from wlc.store import MissingError
from wlr.engine.parquet.connection import connect
from wlr.replica import database_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlc.farm import FarmDatabase
    from wlc.model import Batch, DataFile, Digest, Layout, Manifest, Name, TableFile

CACHE_VARIABLE = "DBFARM_CACHE"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written, and where."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class Audit:
    """What checking a farm's database gave.

    Attributes:
        batches: Log files that were read now; `verified_before`: those that an earlier run has read.
        files: Data files that were read now, of batches and snapshots; `bytes`: their size.
        snapshots: Snapshots that were read now.
        problems: All that was found, in the order in which it was; empty if all is well.
    """

    url: str
    tick: int
    batches: int
    verified_before: int
    snapshots: int
    files: int
    bytes: int
    rows: int
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Progress:
    """How far earlier runs have verified a database.

    Attributes:
        batch: Number of the last batch; `chain`: its hash.
        history: The history it belongs to.
        digests: What tables hold after it.
        snapshots: SHA-256 of every manifest that was verified with its files, by tick.
    """

    batch: int = 0
    chain: str = ""
    history: str = ""
    digests: dict[Name, Digest] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)


def verify_farm(
    db: str | os.PathLike[str],
    *,
    farm: str | None = None,
    full: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Audit:
    """Read a farm's database and check that every file is there, is what was written, and fits the others.

    Log files: checksums, chain, ticks, numbers. Data files: size, SHA-256, and that their rows are the changes which
    the log file lists and lead to the digests which it names. Snapshots: the same, and that they are what the log leads
    to. What an earlier run on this machine found to be right is not read again.

    Args:
        db: Name in the farm, URL of the database's folder there, or path of the master.
        farm: URL of the farm, for a bare name.
        full: Read everything again.
        storage_options: Options of the farm's file system.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        InvalidError: There is no such database.
        UnavailableError: The farm is out of reach: try again.
    """
    database = database_of(db, farm, storage_options)
    memory = _memory_of(database)
    found = _Progress() if full else _recall(memory)
    with tempfile.TemporaryDirectory(prefix="wlr-verify-") as work:
        connection = connect(Path(work))
        try:
            run = _Run(database, connection, found, progress)
            audit = run.all()
        finally:
            connection.close()
    if not audit.problems:
        _remember(memory, found)
    return audit


class _Run:
    def __init__(
        self,
        database: FarmDatabase,
        connection: duckdb.DuckDBPyConnection,
        found: _Progress,
        progress: Callable[[int, int, str], None] | None,
    ) -> None:
        self._database = database
        self._connection = connection
        self._found = found
        self._progress = progress
        self._problems: list[Problem] = []
        self._batches = self._files = self._bytes = self._rows = self._snapshots = 0

    def all(self) -> Audit:
        """Check everything that was not verified before."""
        database = self._database
        config = database.config()
        numbers, ticks = database.batch_numbers(), database.snapshot_ticks()
        before = self._known_start(numbers)
        todo = [number for number in numbers if number > before]
        for first, second in pairwise(numbers):
            if second != first + 1:
                self._note(database.logs.url, f"{_batches(first + 1, second - 1)} missing")
        manifests = {tick: manifest for tick in ticks if (manifest := self._manifest(tick))}
        last = config.tick
        for done, number in enumerate(todo):
            self._tell(done, len(todo) + len(ticks), f"batch {number}")
            batch = self._batch(number, manifests)
            if batch is not None:
                last = max(last, batch.last)
                self._compare_snapshots(batch, manifests)
        for done, (tick, manifest) in enumerate(manifests.items()):
            self._tell(len(todo) + done, len(todo) + len(ticks), f"snapshot {tick}")
            self._snapshot(manifest)
        if numbers and config.batches > numbers[-1] + 1:
            self._note(database.logs.url, f"{_batches(numbers[-1] + 1, config.batches - 1)} missing")
        if config.snapshot and not any(config.snapshot.endswith(f"{tick:012d}") for tick in ticks):
            self._note(f"{database.url}/{config.snapshot}", "wlc.config names this snapshot, and it is not there")
        return Audit(
            database.url,
            last,
            self._batches,
            len(numbers) - len(todo),
            self._snapshots,
            self._files,
            self._bytes,
            self._rows,
            tuple(self._problems),
        )

    def _known_start(self, numbers: list[int]) -> int:
        """Number of the last batch that need not be read again: it is still the one that was verified."""
        found = self._found
        if found.batch not in numbers:
            self._forget(0)
            return 0
        try:
            chain = self._database.read_batch(found.batch)[1]
        except FarmError as error:
            self._error(error)
            return found.batch
        if chain != found.chain:
            place = f"{self._database.logs.url}: batch {found.batch}"
            self._note(place, "is another one than the one that was verified before; --full reads all again")
        return found.batch

    # Batches

    def _batch(self, number: int, manifests: Mapping[int, Manifest]) -> Batch | None:
        """Check one log file and its data files; None where the log file itself is not right."""
        found = self._found
        # After a batch that is not right, the next one has nothing to follow.
        previous = found.chain or None if found.batch == number - 1 else None
        try:
            batch, chain = self._database.read_batch(number, previous)
        except FarmError as error:
            self._error(error)
            self._forget(number)
            return None
        self._batches += 1
        if batch.history != found.history:
            self._begin(batch, manifests)
        local: dict[str, Path] = {}
        try:
            # Every file is looked at, so that all that is damaged is named.
            told = _listed(batch)
            sound = [self._data_file(file, told.get(file.file.path, {}), local) for file in batch.files]
            if all(sound):
                self._follow(batch, local)
        except duckdb.Error as error:
            self._note(f"{self._database.logs.url}: batch {number}", _unreadable(error))
        finally:
            for file in local.values():
                self._database.release(file)
        found.digests = digest.after(found.digests, batch)
        found.batch, found.chain = number, chain
        return batch

    def _begin(self, batch: Batch, manifests: Mapping[int, Manifest]) -> None:
        """Start with what the tables held when the batch's history began, or what is the first of it that is left."""
        self._found.history, self._found.digests = batch.history, {}
        for manifest in manifests.values():
            position = manifest.position
            if position.history == batch.history and position.batch == batch.number - 1:
                self._found.digests = dict(manifest.digests)

    def _data_file(self, file: TableFile, told: Mapping[int, tuple[int, int]], fetched: dict[str, Path]) -> bool:
        """Check that the rows of a data file are those that its log file lists: for each tick, added and removed."""
        where = f"{self._database.logs.url}/{file.file.path}"
        try:
            local = fetched[file.file.path] = self._database.fetch(file)
        except FarmError as error:
            self._error(error)
            return False
        try:
            self._count(file.file)
            counted = self._connection.execute(
                "SELECT _tick, count(*) FILTER (_weight = 1), count(*) FILTER (_weight = -1), count(*)"
                f" FROM {_read(local)} GROUP BY _tick"
            ).fetchall()
        except duckdb.Error as error:
            self._note(where, _unreadable(error))
            return False
        rows = {tick: (added, removed) for tick, added, removed, count in counted if added + removed == count}
        if rows != told or len(rows) != len(counted):
            wrong = sorted(tick for tick in rows.keys() | told.keys() if rows.get(tick) != told.get(tick))
            self._note(where, f"its rows of transaction {wrong[0] if wrong else '?'} are not those of the log file")
            return False
        return True

    def _follow(self, batch: Batch, local: Mapping[str, Path]) -> None:
        """Check that the images of a batch lead to the digests that it names."""
        files = {file.file.path: file for file in batch.files}

        def total(path: str, first: int, last: int) -> int:
            source = f"{_read(local[path])} WHERE _tick BETWEEN {first} AND {last}"
            return sum_images(self._connection, files[path].layout, source)

        ledger = Ledger(self._found.digests, total)
        ledger.follow(transaction for transaction in batch.transactions if transaction.committed)
        followed = ledger.changed()
        for name, told in batch.digests.items():
            if (own := followed.get(name, told)) != told:
                where = f"{self._database.logs.url}: batch {batch.number}"
                self._note(where, f"its changes lead to {_shown(own)} in {name}, it says {_shown(told)}")

    def _forget(self, number: int) -> None:
        self._found.batch, self._found.chain, self._found.history = number, "", ""
        self._found.digests = {}

    # Snapshots

    def _manifest(self, tick: int) -> Manifest | None:
        try:
            return self._database.read_manifest(tick)
        except FarmError as error:
            self._error(error)
            return None

    def _compare_snapshots(self, batch: Batch, manifests: Mapping[int, Manifest]) -> None:
        """Check snapshots that lie at the end of a batch against the log, and learn from them what is not known."""
        manifest = manifests.get(batch.last)
        if manifest is None or manifest.position.history != batch.history:
            return
        where = f"{self._database.url}: snapshot {batch.last}"
        if (manifest.position.batch, manifest.position.chain) != (batch.number, self._found.chain):
            self._note(where, f"it belongs to another batch than {batch.number}, which ends with its transaction")
            return
        for name, told in manifest.digests.items():
            followed = self._found.digests.setdefault(name, told)
            if followed != told:
                self._note(where, f"{name} has {_shown(told)}, the log leads to {_shown(followed)}")

    def _snapshot(self, manifest: Manifest) -> None:
        """Check the files of a snapshot."""
        tick = manifest.position.tick
        stamp = sha256(encode_manifest(manifest))
        if self._found.snapshots.get(tick) == stamp:
            return
        self._snapshots += 1
        is_sound = True
        for table in manifest.tables:
            is_sound &= self._snapshot_table(manifest, table.table, table.layout, table.files)
        if is_sound:
            self._found.snapshots[tick] = stamp

    def _snapshot_table(self, manifest: Manifest, name: Name, layout: Layout, files: tuple[DataFile, ...]) -> bool:
        where = f"{self._database.url}: snapshot {manifest.position.tick}"
        total = EMPTY
        for file in files:
            try:
                local = self._database.fetch_snapshot(manifest, file)
            except FarmError as error:
                self._error(error)
                return False
            try:
                self._count(file)
                part = sum_rows(self._connection, layout, _read(local))
            except duckdb.Error as error:
                self._note(f"{where}: {file.path}", _unreadable(error))
                return False
            finally:
                self._database.release(local)
            if part.rows != file.rows:
                self._note(f"{where}: {file.path}", f"it has {part.rows} rows, the manifest says {file.rows}")
                return False
            total = digest.plus(total, part.rows, part.sum)
        told = manifest.digests.get(name, total)
        if told != total:
            self._note(where, f"{name} holds {_shown(total)}, the manifest says {_shown(told)}")
        return told == total

    # Telling

    def _count(self, file: DataFile) -> None:
        self._files += 1
        self._bytes += file.bytes
        self._rows += file.rows

    def _tell(self, done: int, total: int, text: str) -> None:
        if self._progress:
            self._progress(done, total, text)

    def _note(self, path: str, problem: str) -> None:
        self._problems.append(Problem(path, problem))

    def _error(self, error: FarmError) -> None:
        """Note what is wrong with a file; that the farm cannot be reached says nothing of it."""
        if not isinstance(error, CorruptError | MissingError):
            raise error
        self._note(error.path or self._database.url, error.message)


def _listed(batch: Batch) -> dict[str, dict[int, tuple[int, int]]]:
    """Rows added and removed by path of the data file and tick."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for transaction in batch.transactions:
        for record in transaction.records:
            if isinstance(record, Change):
                found.setdefault(record.path, {})[transaction.tick] = (record.added, record.removed)
    return found


def _batches(first: int, last: int) -> str:
    return f"batch {first} is" if first == last else f"batches {first} to {last} are"


def _unreadable(error: duckdb.Error) -> str:
    return f"it cannot be read: {str(error).splitlines()[0]}"


def _read(file: Path) -> str:
    return f"read_parquet({literal(str(file))}, hive_partitioning = false)"


def _shown(found: Digest) -> str:
    return f"{found.rows} rows with sum {found.sum:016x}"


# What was verified before ---------------------------------------------------------------------------------------------


def _memory_of(database: FarmDatabase) -> Path:
    """Where this machine remembers what it has verified of a database."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    base = Path(os.environ.get(CACHE_VARIABLE) or caches / "dbfarm")
    return base / f"verified-{hashlib.sha256(database.url.encode()).hexdigest()[:24]}.json"


def _recall(memory: Path) -> _Progress:
    """Read what is remembered; whatever is wrong with it, reading all again puts it right."""
    try:
        content = json.loads(memory.read_bytes())
        if content["format"] != _FORMAT:
            return _Progress()
        snapshots = {int(tick): str(stamp) for tick, stamp in content["snapshots"].items()}
        digests = fields.as_digests(content["digests"])
        return _Progress(int(content["batch"]), content["chain"], content["history"], digests, snapshots)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Progress()


def _remember(memory: Path, found: _Progress) -> None:
    content = {
        "format": _FORMAT,
        "batch": found.batch,
        "chain": found.chain,
        "history": found.history,
        "digests": fields.digests_json(found.digests),
        "snapshots": found.snapshots,
    }
    half = memory.with_suffix(f".{os.getpid()}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(json.dumps(content))
        half.replace(memory)
    except OSError:
        # Not to be able to remember only costs time.
        half.unlink(missing_ok=True)

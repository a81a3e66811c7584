"""Check a farm's database from end to end: every file exists, is unchanged, and fits the others.

The progress of earlier audits of a farm's database, remembered on this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

import wlc
from wlc.dialect.duckdb.digest_sql import sum_images, sum_rows
from wlc.dialect.duckdb.file_columns import refuse_other_columns
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.farm import digest
from wlc.farm.clock import parse_age, utc_now
from wlc.farm.digest import EMPTY, Ledger
from wlc.farm.errors import CorruptError, FarmError
from wlc.farm.health import note_proof, proof
from wlc.farm.human_form import Doing, ForPeople, Progress
from wlc.farm.manifest import encode_manifest
from wlc.farm.model import Change, Ddl, Position, RowsRead, RowsRefreshed
from wlc.farm.names import as_digests, digests_json
from wlc.farm.paths import parse_snapshot_folder
from wlc.farm.reachable_past import Window, read_window
from wlc.farm.schema_fold import touched_tables
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import MissingError
from wlc.tiers.same_past import is_made_up
from wlr.engine.calculator import connect
from wlr.replay import log_reader

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, DataFile, Digest, Layout, Manifest, Name, TableFile


@dataclass(frozen=True, slots=True)
class FarmProblem(ForPeople):
    """A problem of a file of the farm."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class FarmAudit(ForPeople):
    """The result of checking a farm's database.

    Attributes:
        batches: Log files that this run read; `verified_before`: log files that an earlier run had verified.
        files: Data files of batches and snapshots that this run read; `bytes`: their size.
        snapshots: Snapshots that this run read.
        problems: All problems, in the order of discovery; empty if the farm is sound.
        can_go_back_to: Oldest time from which every state can be restored, `can_go_back_to_tick`: its tick; None
            before the first publication, or if files are damaged.
        covers_window: Every state of the requested window can be restored, or nothing was ever deleted; None without a
            window.
    """

    url: str
    tick: int
    batches: int
    verified_before: int
    snapshots: int
    files: int
    bytes: int
    rows: int
    problems: tuple[FarmProblem, ...]
    can_go_back_to: datetime | None = None
    can_go_back_to_tick: int | None = None
    covers_window: bool | None = None


def verify_farm(
    db: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    full: bool = False,
    window: str | timedelta | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> FarmAudit:
    """Read a farm's database and check that every file exists, is unchanged, and fits the others.

    Log files: checksums, chain, ticks, numbers. Data files: size, checksum, and that their rows are the changes listed
    in the log file and lead to its digests. Snapshots: the same, and that they equal the state of the log. Files that
    an earlier run on this machine verified are not read again.

    Args:
        db: Name in the farm, URL of the database's folder there, or path of the master.
        farm: URL of the farm, for a bare name.
        full: Read everything again.
        window: Check that every state of this period can be restored, for example `30d`.
        storage_options: Options of the farm's file system.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        InvalidError: There is no such database.
        UnavailableError: The farm is unreachable: try again.

    Examples:
        >>> wlr.verify_farm("sales").problems
        ()
    """
    wanted = parse_age(window)
    database = wlc.resolve(db, farm, storage_options=storage_options)
    memory = progress_file(database)
    found = AuditProgress() if full else recall(memory)
    with tempfile.TemporaryDirectory(prefix="wlr-verify-") as work:
        connection = connect(Path(work))
        try:
            run = _AuditRun(database, connection, found, progress)
            audit = run.all()
        finally:
            connection.close()
    if not audit.problems:
        remember(memory, found)
    wrong = f"{audit.problems[0].path}: {audit.problems[0].problem}" if audit.problems else ""
    note_proof(database, verified=proof(audit.tick, wrong))
    return _with_window(audit, database, wanted)


def _with_window(audit: FarmAudit, database: FarmDatabase, wanted: timedelta | None) -> FarmAudit:
    try:
        found = read_window(database)
    except (CorruptError, MissingError):
        found = Window(None, None)
    covers = found.covers(wanted, utc_now()) if wanted is not None else None
    return replace(audit, can_go_back_to=found.clock, can_go_back_to_tick=found.tick, covers_window=covers)


class _AuditRun:
    def __init__(
        self,
        database: FarmDatabase,
        connection: duckdb.DuckDBPyConnection,
        found: AuditProgress,
        progress: Progress | None,
    ) -> None:
        self._database = database
        self._connection = connection
        self._found = found
        self._progress = progress
        self._problems: list[FarmProblem] = []
        self._batches = self._files = self._bytes = self._rows = self._snapshots = 0

    def all(self) -> FarmAudit:
        """Check all unverified files."""
        database = self._database
        config = database.config()
        numbers, ticks = database.batch_numbers(), database.snapshot_ticks()
        self._compare_witness(numbers)
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
            self._snapshot(manifest, numbers)
        if numbers and config.batches > numbers[-1] + 1:
            self._note(database.logs.url, f"{_batches(numbers[-1] + 1, config.batches - 1)} missing")
        named = parse_snapshot_folder(config.snapshot)
        # A missing snapshot older than the newest one was pruned.
        if named is not None and named > max(ticks, default=-1):
            self._note(f"{database.url}/{config.snapshot}", "wlc.config names this snapshot, which is missing")
        if not self._problems:
            database.repair_config(numbers, ticks)
        self._note_for_witness(numbers)
        return FarmAudit(
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

    def _compare_witness(self, numbers: list[int]) -> None:
        if self._database.witness is None:
            return
        try:
            log_reader.refuse_rolled_back(self._database, numbers, log_reader.last_tick(self._database, numbers))
        except (CorruptError, MissingError) as error:
            self._error(error)

    def _note_for_witness(self, numbers: list[int]) -> None:
        """Show the end of a sound farm to the reader's witness."""
        if self._database.witness is not None and numbers and not self._problems:
            batch, chain = self._database.read_batch(numbers[-1])
            self._database.witness.note(Position(batch.history, batch.last, batch.number, chain))

    def _known_start(self, numbers: list[int]) -> int:
        """Return the number of the last verified batch, after checking that it is unchanged."""
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
            self._note(place, "differs from the verified batch of that number; --full reads all files again")
        return found.batch

    # Batches

    def _batch(self, number: int, manifests: Mapping[int, Manifest]) -> Batch | None:
        """Check one log file and its data files; return None if the log file itself is damaged."""
        found = self._found
        # The chain after a damaged batch is unknown.
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
            # Every file is checked, so that every damaged one is named.
            listed = _listed(batch)
            sound = [self._data_file(file, listed.get(file.file.path, {}), local) for file in batch.files]
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
        """Start with the digests of the snapshot that the first remaining batch of a history follows."""
        self._found.history, self._found.digests = batch.history, {}
        for manifest in manifests.values():
            position = manifest.position
            if position.history == batch.history and position.batch == batch.number - 1:
                self._found.digests = dict(manifest.digests)

    def _data_file(self, file: TableFile, listed: Mapping[int, list[int]], fetched: dict[str, Path]) -> bool:
        """Check that the rows of a data file are those in its log file, per tick and weight."""
        where = f"{self._database.logs.url}/{file.file.path}"
        try:
            local = fetched[file.file.path] = self._database.fetch(file)
        except FarmError as error:
            self._error(error)
            return False
        try:
            self._count(file.file)
            refuse_other_columns(self._connection, file.layout, {str(local): where}, is_images=True)
            counted = self._connection.execute(
                "SELECT _tick, count(*) FILTER (_weight = 1), count(*) FILTER (_weight = -1),"
                " count(*) FILTER (_weight = 0), count(*)"
                f" FROM {rows_of(local)} GROUP BY _tick"
            ).fetchall()
        except CorruptError as error:
            self._error(error)
            return False
        except duckdb.Error as error:
            self._note(where, _unreadable(error))
            return False
        rows = {tick: counts for tick, *counts, count in counted if sum(counts) == count}
        if rows != listed or len(rows) != len(counted):
            wrong = sorted(tick for tick in rows.keys() | listed.keys() if rows.get(tick) != listed.get(tick))
            self._note(where, f"its rows of transaction {wrong[0] if wrong else '?'} differ from the log file")
            return False
        return True

    def _follow(self, batch: Batch, local: Mapping[str, Path]) -> None:
        """Check that the row images of a batch lead to its digests."""
        files = {file.file.path: file for file in batch.files}

        def total(path: str, first: int, last: int) -> int:
            source = f"{rows_of(local[path])} WHERE _tick BETWEEN {first} AND {last}"
            return sum_images(self._connection, files[path].layout, source)

        ledger = Ledger(self._found.digests, total)
        ledger.follow(batch.transactions)
        followed = ledger.changed()
        for name, named in batch.digests.items():
            if (own := followed.get(name, named)) != named:
                where = f"{self._database.logs.url}: batch {batch.number}"
                self._note(where, f"its changes lead to {_shown(own)} in {name}, it says {_shown(named)}")
        self._note_lost(batch, followed)

    def _note_lost(self, batch: Batch, followed: Collection[Name]) -> None:
        """Report a batch without digests of tables that had digests in the log: they cannot be verified."""
        changes = [record for found in batch.transactions for record in found.records if isinstance(record, Ddl)]
        altered = {name for ddl in changes for name in touched_tables(ddl)}
        known = self._found.digests.keys() - batch.digests.keys() - batch.undigested - altered
        if lost := sorted(str(name) for name in followed if name in known):
            where = f"{self._database.logs.url}: batch {batch.number}"
            self._note(where, f"it cannot be verified: it names no digest of {', '.join(lost)}, batches before it did")

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
        """Compare the snapshot at the end of a batch with the log, and adopt digests that the log lacks."""
        manifest = manifests.get(batch.last)
        if manifest is None or manifest.position.history != batch.history:
            return
        where = f"{self._database.url}: snapshot {batch.last}"
        if (manifest.position.batch, manifest.position.chain) != (batch.number, self._found.chain):
            return
        for name, named in manifest.digests.items():
            followed = self._found.digests.setdefault(name, named)
            if followed != named:
                self._note(where, f"{name} has {_shown(named)}, the log leads to {_shown(followed)}")

    def _is_made_up(self, manifest: Manifest, numbers: Sequence[int]) -> bool:
        try:
            found = is_made_up(self._database, manifest.position, numbers)
        except CorruptError:
            # The log file was reported.
            return True
        if found:
            where = f"{self._database.url}: snapshot {manifest.position.tick}"
            self._note(where, "the log has no such tick, so its master did not take it")
        return found

    def _snapshot(self, manifest: Manifest, numbers: Sequence[int]) -> None:
        """Check the moment of a snapshot, if the log still has it, and its files."""
        tick = manifest.position.tick
        stamp = checksum(encode_manifest(manifest))
        if self._found.snapshots.get(tick) == stamp:
            return
        self._snapshots += 1
        is_sound = not self._is_made_up(manifest, numbers)
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
                refuse_other_columns(self._connection, layout, {str(local): f"{where}: {file.path}"})
                part = sum_rows(self._connection, layout, rows_of(local))
            except CorruptError as error:
                self._error(error)
                return False
            except duckdb.Error as error:
                self._note(f"{where}: {file.path}", _unreadable(error))
                return False
            finally:
                self._database.release(local)
            if part.rows != file.rows:
                self._note(f"{where}: {file.path}", f"it has {part.rows} rows, the manifest says {file.rows}")
                return False
            total = digest.plus(total, part.rows, part.sum)
        named = manifest.digests.get(name, total)
        if named != total:
            self._note(where, f"{name} holds {_shown(total)}, the manifest says {_shown(named)}")
        return named == total

    # Reporting

    def _count(self, file: DataFile) -> None:
        self._files += 1
        self._bytes += file.bytes
        self._rows += file.rows

    def _tell(self, done: int, total: int, text: str) -> None:
        if self._progress:
            self._progress(done, total, Doing(text, self._rows, self._bytes))

    def _note(self, path: str, problem: str) -> None:
        self._problems.append(FarmProblem(path, problem))

    def _error(self, error: FarmError) -> None:
        """Report a problem of a file; raise any error that does not concern the file."""
        if not isinstance(error, CorruptError | MissingError):
            raise error
        self._note(error.path or self._database.url, error.message)


def _listed(batch: Batch) -> dict[str, dict[int, list[int]]]:
    """Return the numbers of rows of weight 1, -1 and 0, by path of the data file and tick."""
    found: dict[str, dict[int, list[int]]] = {}
    for transaction in batch.transactions:
        for record in transaction.records:
            if isinstance(record, Change):
                found.setdefault(record.path, {})[transaction.tick] = [record.added, record.removed, 0]
            elif isinstance(record, RowsRead | RowsRefreshed):
                found.setdefault(record.path, {})[transaction.tick] = [0, 0, record.rows]
    return found


def _batches(first: int, last: int) -> str:
    return f"batch {first} is" if first == last else f"batches {first} to {last} are"


def _unreadable(error: duckdb.Error) -> str:
    return f"it cannot be read: {str(error).splitlines()[0]}"


def _shown(found: Digest) -> str:
    return f"{found.rows} rows with sum {found.sum:016x}"


CACHE_VARIABLE = "DBFARM_CACHE"
_FORMAT = 1


@dataclass(slots=True)
class AuditProgress:
    """How far a database has been verified.

    Attributes:
        batch: Number of the last batch; `chain`: its hash.
        history: The history it belongs to.
        digests: Digests after it.
        snapshots: Checksum of every manifest verified with its files, by tick.
    """

    batch: int = 0
    chain: str = ""
    history: str = ""
    digests: dict[Name, Digest] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)


def cache_folder() -> Path:
    """Return this machine's cache folder."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(os.environ.get(CACHE_VARIABLE) or caches / "dbfarm")


def progress_file(database: FarmDatabase) -> Path:
    """Return the path of this machine's record of verified files of a database."""
    return cache_folder() / f"verified-{hashlib.sha256(database.url.encode()).hexdigest()[:24]}.json"


def recall(memory: Path) -> AuditProgress:
    """Read the record; an unreadable one counts as empty, so that everything is verified again."""
    try:
        content = json.loads(memory.read_bytes())
        if content["format"] != _FORMAT:
            return AuditProgress()
        snapshots = {int(tick): str(stamp) for tick, stamp in content["snapshots"].items()}
        digests = as_digests(content["digests"])
        return AuditProgress(int(content["batch"]), content["chain"], content["history"], digests, snapshots)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return AuditProgress()


def remember(memory: Path, found: AuditProgress) -> None:
    """Write the record; a failure only costs the next audit time."""
    content = {
        "format": _FORMAT,
        "batch": found.batch,
        "chain": found.chain,
        "history": found.history,
        "digests": digests_json(found.digests),
        "snapshots": found.snapshots,
    }
    half = memory.with_suffix(f".{os.getpid()}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(json.dumps(content))
        half.replace(memory)
    except OSError:
        half.unlink(missing_ok=True)

"""A replica compared with its master: by digests, then row by row with what the farm says, and put right."""

from __future__ import annotations

import glob
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.clock import utc_now
from wlc.digest import DIFFERS, compared, hash_sql
from wlc.errors import InvalidError, ReplayError, UnavailableError, UnsupportedError
from wlc.farm import describe_file
from wlc.model import WEIGHT, Change, Digest, Name, TableFile, Transaction, file_column, literal, quote
from wlr import engine as engines
from wlr import fold
from wlr.engine import StepError
from wlr.plan import Mark, Step
from wlr.replica import replicate

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from wlc.model import Layout
    from wlr.engine import State
    from wlr.engine.scan import Scan

# What comparing a replica's table can give besides what `wlc.digest.compared` says.
ACCEPTED, UNREADABLE = "accepted", "unreadable"
# Rows of so many numbers are looked at together; of a large table with few differences, nearly all are passed over.
_BUCKETS = 4096
_MOST_RANGES = 20


@dataclass(frozen=True, slots=True)
class Range:
    """Neighbouring rows that differ: from key `low` to key `high`; of a table without a key, one row, shown whole.

    Attributes:
        missing: Rows of the master that are not in the replica as they are there.
        surplus: Rows of the replica that are not in the master as they are here.
    """

    low: str
    high: str
    missing: int
    surplus: int


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What comparing one table gave.

    Attributes:
        outcome: "same"; "differs"; "accepted": a transaction that changed it was skipped, so that it is not compared;
            "unknown": the master does not say what it holds; "unreadable": it has columns that cannot be read back.
        rows: How many the replica has, None if the table is not there.
        expected: How many it should have, None where that is not known.
        missing: Rows that differ, as for `Range`; None where nobody looked.
        ranges: Where they are, the first ones.
    """

    table: str
    outcome: str
    rows: int | None
    expected: int | None
    missing: int | None = None
    surplus: int | None = None
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """What comparing a replica with its master gave."""

    tick: int
    tables: tuple[TableCheck, ...]

    @property
    def differing(self) -> tuple[TableCheck, ...]:
        """The tables that differ."""
        return tuple(table for table in self.tables if table.outcome == DIFFERS)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was changed in one table of a replica."""

    table: str
    added: int
    removed: int


def verify(
    into: str | os.PathLike[str],
    *,
    tables: Sequence[str] = (),
    locate: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Verified:
    """Read every row of a replica and compare what its tables hold with what the master's log says.

    Args:
        into: The replica.
        tables: `schema.table`, or `table` in schema main; all if there are none.
        locate: Say which rows differ: the differing tables are built anew from the farm beside, and compared.
        storage_options: Options of the file systems of replica and farm.
        progress: Called with tables done, tables in all, and what is being done.

    Raises:
        InvalidError: It is no replica, or has no such table.
        CorruptError: A file of the replica, or of the farm, is damaged.
    """
    place = engines.locate(into, storage_options)
    with (
        tempfile.TemporaryDirectory(prefix="wlr-verify-") as work,
        engines.scanned(place, Path(work), storage_options) as scan,
    ):
        wanted = _chosen(scan, tables)
        found = []
        for number, name in enumerate(wanted):
            if progress:
                progress(number, len(wanted), f"reading {name}")
            found.append(_check(scan, name))
        differing = [name for name, check in zip(wanted, found, strict=True) if check.outcome in (DIFFERS, ACCEPTED)]
        if locate and (present := [name for name in differing if name in scan.layouts]):
            with _reference(scan.state, present, Path(work), storage_options) as reference:
                located = {name: reference.locate(scan, name) for name in present}
            found = [
                _located(check, located[name]) if name in located else check
                for name, check in zip(wanted, found, strict=True)
            ]
        return Verified(scan.state.position.tick, tuple(found))


def repair(
    into: str | os.PathLike[str],
    tables: Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Repaired]:
    """Make tables of a replica what they are in the master at the replica's tick; only rows that differ are written.

    What an accepted transaction left out comes back, too.

    Args:
        into: The replica.
        tables: `schema.table`, or `table` in schema main.
        storage_options: Options of the file systems of replica and farm.

    Raises:
        InvalidError: It is no replica, or has no such table.
        ReplayError: The rows cannot be written; nothing was changed.
    """
    place = engines.locate(into, storage_options)
    with tempfile.TemporaryDirectory(prefix="wlr-repair-") as folder:
        work = Path(folder)
        with engines.scanned(place, work, storage_options) as scan:
            names = _chosen(scan, tables)
            if absent := [str(name) for name in names if name not in scan.layouts]:
                raise InvalidError(f"{place} has lost {', '.join(absent)}", hint="Make the replica anew.")
            with _reference(scan.state, names, work, storage_options) as reference:
                fixes = [reference.fix(scan, name, number) for number, name in enumerate(names)]
            state = scan.state
        step = _step(state, fixes)
        local = {fix.path: fix.local for fix in fixes}
        with engines.open_target(place, [work]) as target:
            if target.state.position != state.position:
                raise UnavailableError(f"{place} was rolled forward meanwhile", hint="try again", path=str(place))
            try:
                target.apply(step, lambda file: local[file.file.path])
            except StepError as error:
                hint = "Repair the tables that it refers to with it, or make the replica anew."
                raise ReplayError(f"{place} cannot be repaired: {error.cause}", hint=hint) from error
        return [Repaired(str(fix.table), fix.added, fix.removed) for fix in fixes]


def _chosen(scan: Scan, tables: Sequence[str]) -> list[Name]:
    """Tables that are there or should be, by what was asked for."""
    known = {str(name): name for name in sorted({*scan.layouts, *scan.state.digests})}
    if not tables:
        return list(known.values())
    chosen = []
    for text in tables:
        name = known.get(text) or known.get(f"main.{text}")
        if name is None:
            raise InvalidError(f"the replica has no table {text}", hint=f"Its tables: {', '.join(known) or 'none'}.")
        chosen.append(name)
    return chosen


def _check(scan: Scan, name: Name) -> TableCheck:
    told = scan.state.digests.get(name)
    expected = told.rows if told else None
    try:
        own = scan.digest(name) if name in scan.layouts else None
    except UnsupportedError:
        return TableCheck(str(name), UNREADABLE, None, expected)
    is_accepted = told is None and name in scan.state.digests
    return TableCheck(str(name), ACCEPTED if is_accepted else compared(own, told), own.rows if own else None, expected)


def _located(check: TableCheck, found: tuple[int, int, tuple[Range, ...]]) -> TableCheck:
    missing, surplus, ranges = found
    return replace(check, missing=missing, surplus=surplus, ranges=ranges)


def _step(state: State, fixes: Sequence[_Fix]) -> Step:
    """Make a step that changes rows and leaves the position as it is."""
    position = state.position
    records = tuple(Change(fix.table, fix.path, fix.added, fix.removed) for fix in fixes if fix.added or fix.removed)
    now = state.clock or utc_now()
    return Step(
        (Transaction(position.tick, "wlr repair", now, now, records),),
        {fix.path: fix.file for fix in fixes},
        (Mark(position.tick, position.history, position.batch, position.chain, state.batch_last),),
        state.catalog,
        digests={fix.table: fix.digest for fix in fixes},
        repaired=frozenset(fix.table for fix in fixes),
    )


@dataclass(frozen=True, slots=True)
class _Fix:
    """Images that turn a table of the replica into that of the master."""

    table: Name
    file: TableFile
    local: Path
    added: int
    removed: int
    digest: Digest

    @property
    def path(self) -> str:
        return self.file.file.path


@contextmanager
def _reference(
    state: State, names: Collection[Name], work: Path, storage_options: Mapping[str, Any] | None
) -> Iterator[_Reference]:
    """Make tables as the farm has them at a replica's position, in a DuckDB file beside."""
    file = work / "reference.duckdb"
    make = partial(replicate, into=file, tick=state.position.tick, storage_options=storage_options, register=False)
    try:
        make(state.master, tables=[glob.escape(str(name)) for name in names])
    except UnsupportedError:
        # A table that refers to another one cannot be made without it.
        file.unlink(missing_ok=True)
        make(state.master, tables=state.tables or None)
    with engines.scanned(engines.locate(file), work) as scan:
        yield _Reference(scan, work)


@dataclass(frozen=True, slots=True)
class _Reference:
    """Tables as the farm has them.

    Attributes:
        own: Reads them.
        work: Folder for files on their way.
    """

    own: Scan
    work: Path

    def locate(self, scan: Scan, name: Name) -> tuple[int, int, tuple[Range, ...]]:
        """Count the rows that differ, and say where the first of them are."""
        with scan.images(name) as images:
            self._compare(scan, name, images)
            missing, surplus = _counts(scan)
            return missing, surplus, _ranges(scan, name, images)

    def fix(self, scan: Scan, name: Name, number: int) -> _Fix:
        """Write the rows that differ as the data file of a change."""
        with scan.images(name) as images:
            self._compare(scan, name, images)
        added, removed = _counts(scan)
        file, tick = self.work / f"{number}.parquet", scan.state.position.tick
        spread = f"SELECT *, unnest(range(abs({WEIGHT}))) AS _copy FROM temp.difference"
        query = (
            f"SELECT CAST({tick} AS BIGINT) AS _tick, CAST(sign({WEIGHT}) AS TINYINT) AS {WEIGHT},"
            f" * EXCLUDE ({WEIGHT}, _copy) FROM ({spread})"
        )
        scan.connection.execute(f"COPY ({query}) TO {literal(str(file))} (FORMAT parquet)")
        described = describe_file(file, f"repair.d/{number}.parquet", added + removed)
        digest = self.own.digest(name)
        return _Fix(name, TableFile(described, name, scan.layouts[name]), file, added, removed, digest)

    def _compare(self, scan: Scan, name: Name, images: str) -> None:
        """Make a temporary table of the images that one side has more often: positive weights are missing here."""
        layout = scan.layouts[name]
        if self.own.layouts.get(name, layout).shape != layout.shape or name not in self.own.layouts:
            raise InvalidError(f"table {name} has other columns than in the master", hint="Make the replica anew.")
        reference = self._fetch(scan, name)
        number = hash_sql(layout)
        buckets = (
            f"SELECT h % {_BUCKETS} AS b FROM (SELECT {number} AS h, 1 AS w FROM ({reference}) UNION ALL"
            f" SELECT {number}, -1 FROM ({images})) GROUP BY b HAVING sum(w) <> 0 OR sum(CAST(h AS HUGEINT) * w) <> 0"
        )
        scan.connection.execute(f"CREATE OR REPLACE TEMP TABLE buckets AS {buckets}")
        some = f"WHERE {number} % {_BUCKETS} IN (SELECT b FROM temp.buckets)"
        raw = f"SELECT *, 1 AS {WEIGHT} FROM ({reference}) {some} UNION ALL SELECT *, -1 FROM ({images}) {some}"
        scan.connection.execute(f"CREATE OR REPLACE TEMP TABLE difference AS {fold.sum_sql(layout, raw)}")

    def _fetch(self, scan: Scan, name: Name) -> str:
        """Bring the farm's rows to the connection that sees the replica's."""
        file = self.work / "reference.parquet"
        with self.own.images(name) as images:
            self.own.connection.execute(f"COPY ({images}) TO {literal(str(file))} (FORMAT parquet)")
        columns = ", ".join(quote(file_column(column.name)) for column in scan.layouts[name].stored)
        return f"SELECT {columns} FROM read_parquet({literal(str(file))}, hive_partitioning = false)"


def _counts(scan: Scan) -> tuple[int, int]:
    """Rows that are missing, and those that are surplus."""
    sums = (f"coalesce(sum(abs({WEIGHT})) FILTER ({WEIGHT} {sign} 0), 0)" for sign in "><")
    missing, surplus = scan.connection.execute(f"SELECT {', '.join(sums)} FROM temp.difference").fetchall()[0]
    return int(missing), int(surplus)


def _ranges(scan: Scan, name: Name, images: str) -> tuple[Range, ...]:
    layout = scan.layouts[name]
    shown = _shown(layout)
    if not layout.primary_key:
        sides = f"greatest({WEIGHT}, 0), greatest(-{WEIGHT}, 0)"
        query = f"SELECT {shown}, {shown}, {sides} FROM temp.difference ORDER BY ALL LIMIT {_MOST_RANGES}"
    else:
        query = _islands_sql(layout, images, shown)
    return tuple(Range(str(a), str(b), int(c), int(d)) for a, b, c, d in scan.connection.execute(query).fetchall())


def _shown(layout: Layout) -> str:
    """Write a row's key, or the whole row of a table without one, as people read it."""
    columns = [c for c in layout.stored if c.name in layout.primary_key] or layout.stored
    values = (f"coalesce(CAST({quote(file_column(c.name))} AS VARCHAR), 'NULL')" for c in columns)
    return " || ', ' || ".join(values)


def _islands_sql(layout: Layout, images: str, shown: str) -> str:
    """Gather keys that differ and have no sound key between them."""
    key = ", ".join(quote(file_column(column)) for column in layout.primary_key)
    weight = WEIGHT
    differing = (
        f"SELECT {key}, {shown} AS s, sum(greatest({weight}, 0)) AS missing, sum(greatest(-{weight}, 0)) AS surplus"
        f" FROM temp.difference GROUP BY {key}, s"
    )
    sound = f"SELECT {key}, NULL, 0, 0 FROM ({images}) AS r ANTI JOIN temp.difference USING ({key})"
    numbered = (
        f"SELECT *, row_number() OVER (ORDER BY {key}) - row_number() OVER (PARTITION BY s IS NULL ORDER BY {key}) AS g"
        f" FROM ({differing} UNION ALL {sound})"
    )
    return (
        "SELECT first(s ORDER BY k), last(s ORDER BY k), sum(missing), sum(surplus)"
        f" FROM (SELECT *, row({key}) AS k FROM ({numbered}) WHERE s IS NOT NULL) GROUP BY g"
        f" ORDER BY min(k) LIMIT {_MOST_RANGES}"
    )

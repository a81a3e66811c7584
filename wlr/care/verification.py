"""Compares a replica with its master: by digests, then, where they differ, row by row with the farm.

Finds the differing rows of a replica's tables, by restoring the tables from the farm.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.digest_sql import numbered_sql
from wlc.dialect.duckdb.parquet_sql import PASSING, rows_of
from wlc.dialect.sql import literal, quote
from wlc.farm import typed_names
from wlc.farm.database import describe_file
from wlc.farm.digest import DIFFERS, compared
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.human_form import Doing, ForPeople, Progress
from wlc.farm.model import WEIGHT, Digest, Name, TableFile, file_column
from wlc.farm.typed_names import tables_meant
from wlr.engine.adapters import target_at
from wlr.replay.fold.tally import Uncompared
from wlr.replay.plan.patterns import exactly
from wlr.replay.request import replicate

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from wlc.farm.model import Layout
    from wlr.engine.contract import Scan
    from wlr.engine.replica_state import ReplicaState


# An outcome besides those of `wlc.farm.digest.compared` and `Uncompared`.
UNREADABLE = "unreadable"
# Folder for comparing rows with the farm's, if requested.
_LOCATED = (DIFFERS, *(why.value for why in Uncompared))


@dataclass(frozen=True, slots=True)
class TableCheck(ForPeople):
    """The result of comparing one table.

    Attributes:
        outcome: "same"; "differs"; "accepted": not compared, because a skipped transaction changed it; "unverifiable":
            the log named digests of it, but none after its last change; "unknown": the log has no digest of it;
            "unreadable": it has columns that cannot be read back.
        rows: Number of rows in the replica; None if the replica does not have the table.
        expected: Number of rows in the master; None if it is unknown.
        missing: Differing rows, as for `KeyRange`; None unless requested. `surplus` likewise.
        ranges: Places of the first of them.
    """

    table: str
    outcome: str
    rows: int | None
    expected: int | None
    missing: int | None = None
    surplus: int | None = None
    ranges: tuple[KeyRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified(ForPeople):
    """The result of comparing a replica with its master, whose folder in the farm has the URL `master`."""

    master: str
    tick: int
    tables: tuple[TableCheck, ...]

    @property
    def differing(self) -> tuple[TableCheck, ...]:
        """The tables that differ."""
        return tuple(table for table in self.tables if table.outcome == DIFFERS)

    @property
    def unverifiable(self) -> tuple[TableCheck, ...]:
        """The tables whose digests the log has lost."""
        return tuple(table for table in self.tables if table.outcome == Uncompared.LOST.value)


def verify(
    into: str | os.PathLike[str],
    *,
    tables: Sequence[str] = (),
    locate: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Read every row of a replica and compare its tables with the digests in the master's log.

    Args:
        into: The replica.
        tables: `schema.table`, or `table` in schema main; all tables if empty.
        locate: Find the differing rows: restore differing tables from the farm to a scratch place and compare.
        storage_options: Options of the file systems of replica and farm.
        progress: Called with tables done, tables in all, and what is being done.

    Raises:
        InvalidError: There is no replica, or it has no such table.
        CorruptError: A file of the replica, or of the farm, is damaged.

    Examples:
        >>> wlr.verify("copy.duckdb").differing
        ()
    """
    target = target_at(into, storage_options)
    with (
        tempfile.TemporaryDirectory(prefix="wlr-verify-") as work,
        target.scanned(Path(work), storage_options) as scan,
    ):
        wanted = chosen_tables(scan, tables)
        found: list[TableCheck] = []
        for number, name in enumerate(wanted):
            if progress:
                rows = sum(check.rows or 0 for check in found)
                progress(number, len(wanted), Doing(f"reading {name}", rows))
            found.append(_check(scan, name))
        differing = [name for name, check in zip(wanted, found, strict=True) if check.outcome in _LOCATED]
        if locate and (present := [name for name in differing if name in scan.layouts]):
            with opened_reference(scan.state, present, Path(work), storage_options) as reference:
                located = {name: reference.locate(scan, name) for name in present}
            found = [
                _located(check, located[name]) if name in located else check
                for name, check in zip(wanted, found, strict=True)
            ]
        return Verified(scan.state.master, scan.state.position.tick, tuple(found))


def _check(scan: Scan, name: Name) -> TableCheck:
    held = scan.state.digests.get(name)
    digest = held if isinstance(held, Digest) else None
    expected = digest.rows if digest else None
    try:
        own = scan.digest(name) if name in scan.layouts else None
    except UnsupportedError:
        return TableCheck(str(name), UNREADABLE, None, expected)
    outcome = held.value if isinstance(held, Uncompared) else compared(own, digest)
    return TableCheck(str(name), outcome, own.rows if own else None, expected)


def _located(check: TableCheck, found: tuple[int, int, tuple[KeyRange, ...]]) -> TableCheck:
    missing, surplus, ranges = found
    return replace(check, missing=missing, surplus=surplus, ranges=ranges)


# Rows are compared in this many buckets first, which skips nearly all rows of a table with few differences.
_BUCKETS = 4096
_MOST_RANGES = 20


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Neighbouring differing rows: from key `low` to key `high`; of a table without a key, one row, shown whole.

    Attributes:
        missing: Number of rows only in the master.
        surplus: Number of rows only in the replica.
    """

    low: str
    high: str
    missing: int
    surplus: int


@dataclass(frozen=True, slots=True)
class TableFix:
    """Row images that make a table of the replica equal to the master's."""

    table: Name
    file: TableFile
    local: Path
    added: int
    removed: int
    digest: Digest

    @property
    def path(self) -> str:
        """Path of the data file in the step."""
        return self.file.file.path


def chosen_tables(scan: Scan, tables: Sequence[str]) -> list[Name]:
    """Resolve tables that the user typed, among those that the replica has or should have; all without any."""
    known = sorted({*scan.layouts, *scan.state.digests})
    if not tables:
        return known
    chosen = []
    for text in tables:
        name = typed_names.find(text, known)
        if name is None:
            raise InvalidError(f"the replica has no table {text}", hint=tables_meant(text, known))
        chosen.append(name)
    return chosen


@contextmanager
def opened_reference(
    state: ReplicaState, names: Collection[Name], work: Path, storage_options: Mapping[str, Any] | None
) -> Iterator[RestoredTables]:
    """Restore tables from the farm, as of a replica's position, to a DuckDB file in the work folder."""
    file = work / "reference.duckdb"
    make = partial(replicate, into=file, tick=state.position.tick, storage_options=storage_options, register=False)
    try:
        tables = [exactly(name) for name in names]
        make(state.master, tables=tables, filters=state.filters.only(names) or None)
    except UnsupportedError:
        # A table cannot be created without the tables that it refers to.
        file.unlink(missing_ok=True)
        make(state.master, tables=state.tables or None, filters=state.filters or None)
    with target_at(file).scanned(work) as scan:
        yield RestoredTables(scan, work)


@dataclass(frozen=True, slots=True)
class RestoredTables:
    """Tables restored from the farm.

    Attributes:
        own: Reads the tables.
        work: Folder for temporary files.
    """

    own: Scan
    work: Path

    def locate(self, scan: Scan, name: Name) -> tuple[int, int, tuple[KeyRange, ...]]:
        """Count the missing and surplus rows, and return the places of the first of them."""
        with scan.images(name) as images:
            self._compare(scan, name, images)
            missing, surplus = _counts(scan)
            return missing, surplus, _ranges(scan, name, images)

    def fix(self, scan: Scan, name: Name, number: int) -> TableFix:
        """Write the differing rows as the data file of a change."""
        with scan.images(name) as images:
            self._compare(scan, name, images)
        added, removed = _counts(scan)
        file, tick = self.work / f"{number}.parquet", scan.state.position.tick
        spread = f"SELECT *, unnest(range(abs({WEIGHT}))) AS _copy FROM temp.difference"
        query = (
            f"SELECT CAST({tick} AS BIGINT) AS _tick, CAST(sign({WEIGHT}) AS TINYINT) AS {WEIGHT},"
            f" * EXCLUDE ({WEIGHT}, _copy) FROM ({spread})"
        )
        scan.connection.execute(f"COPY ({query}) TO {literal(str(file))} ({PASSING})")
        described = describe_file(file, f"repair.d/{number}.parquet", added + removed)
        digest = self.own.digest(name)
        return TableFix(name, TableFile(described, name, scan.layouts[name]), file, added, removed, digest)

    def _compare(self, scan: Scan, name: Name, images: str) -> None:
        """Make a temporary table of the images with different counts; rows with positive weights are missing here."""
        layout = scan.layouts[name]
        if self.own.layouts.get(name, layout).shape != layout.shape or name not in self.own.layouts:
            raise InvalidError(f"table {name} has other columns than in the master", hint="Rebuild the replica.")
        reference = self._fetch(scan, name)
        columns = [quote(file_column(column.name)) for column in layout.stored]
        kept = {f"c{index}": column for index, column in enumerate(columns)}
        ours, theirs = (numbered_sql(layout, f"({query})", None, **kept) for query in (reference, images))
        buckets = (
            f"SELECT h % {_BUCKETS} AS b FROM (SELECT h, 1 AS w FROM {ours} UNION ALL SELECT h, -1 FROM {theirs})"
            " GROUP BY b HAVING sum(w) <> 0 OR sum(CAST(h AS HUGEINT) * w) <> 0"
        )
        scan.connection.execute(f"CREATE OR REPLACE TEMP TABLE buckets AS {buckets}")
        some = f"WHERE h % {_BUCKETS} IN (SELECT b FROM temp.buckets)"
        rows = ", ".join(f"{name} AS {column}" for name, column in kept.items())
        raw = f"SELECT {rows}, 1 AS {WEIGHT} FROM {ours} {some} UNION ALL SELECT {rows}, -1 FROM {theirs} {some}"
        scan.connection.execute(f"CREATE OR REPLACE TEMP TABLE difference AS {fold.sum_sql(layout, raw)}")

    def _fetch(self, scan: Scan, name: Name) -> str:
        """Copy the farm's rows to files that the replica's connection can read."""
        file = self.work / "reference.parquet"
        with self.own.images(name) as images:
            self.own.connection.execute(f"COPY ({images}) TO {literal(str(file))} ({PASSING})")
        columns = ", ".join(quote(file_column(column.name)) for column in scan.layouts[name].stored)
        return f"SELECT {columns} FROM {rows_of(file)}"


def _counts(scan: Scan) -> tuple[int, int]:
    """Count the missing and the surplus rows."""
    sums = (f"coalesce(sum(abs({WEIGHT})) FILTER ({WEIGHT} {sign} 0), 0)" for sign in "><")
    missing, surplus = scan.connection.execute(f"SELECT {', '.join(sums)} FROM temp.difference").fetchall()[0]
    return int(missing), int(surplus)


def _ranges(scan: Scan, name: Name, images: str) -> tuple[KeyRange, ...]:
    layout = scan.layouts[name]
    shown = _shown(layout)
    if not layout.primary_key:
        sides = f"greatest({WEIGHT}, 0), greatest(-{WEIGHT}, 0)"
        query = f"SELECT {shown}, {shown}, {sides} FROM temp.difference ORDER BY ALL LIMIT {_MOST_RANGES}"
    else:
        query = _islands_sql(layout, images, shown)
    return tuple(KeyRange(str(a), str(b), int(c), int(d)) for a, b, c, d in scan.connection.execute(query).fetchall())


def _shown(layout: Layout) -> str:
    """Write a row's key, or the whole row without a key, for people."""
    columns = [c for c in layout.stored if c.name in layout.primary_key] or layout.stored
    values = (f"coalesce(CAST({quote(file_column(c.name))} AS VARCHAR), 'NULL')" for c in columns)
    return " || ', ' || ".join(values)


def _islands_sql(layout: Layout, images: str, shown: str) -> str:
    """Select ranges of differing keys without an equal key between them."""
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

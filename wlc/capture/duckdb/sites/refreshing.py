"""Refresh: the primary tells what rows are whose changes it rejected, and other sites make theirs equal."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from typing import TYPE_CHECKING

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import JournalledRefresh
from wlc.capture.duckdb.sites import rejection
from wlc.capture.duckdb.sites.conflict_window import key_value
from wlc.capture.duckdb.sites.rejection import IMAGES, KEYS, PRESENT
from wlc.capture.duckdb.sites.verdicts import key_names
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.types import load_sql

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.capture.duckdb.sites.verdicts import StepTable
    from wlc.farm.model import Name

# Rows of a table, whether they are absent, and their generation.
_Rows = tuple["Name", bool, int]
# Generations of absent rows are journalled under this tick and the next ones until they have theirs.
_GENERATIONS = -(2**40)


@dataclass(frozen=True, slots=True)
class Told:
    """What a refresh tells of a table.

    Attributes:
        tick: Under which its images are journalled as yet.
        generation: Of absent rows of a table that refers to itself: those of the generation before refer to them.
    """

    record: JournalledRefresh
    tick: int
    generation: int = 0

    @property
    def rows(self) -> _Rows:
        """Which rows these are."""
        return self.record.table, self.record.absent, self.generation


def journal_refresh(connection: duckdb.DuckDBPyConnection, place: int, step: StepTable, tick: int) -> list[Told]:
    """Journal what the rejected rows of one table, which are collected, are after the step that is not applied yet.

    Args:
        connection: In the transaction of the step.
        place: Of the table among the step's.
        step: The table.
        tick: Of the transaction that tells it.

    Returns:
        Records of that transaction; none if only rows were rejected that are removed on both sides.
    """
    table, wanted = step.table, rejection.after_sql(place)
    rejection.find_present(connection, step, wanted)
    keys = [f"k.{name}" if name in key_names(table) else "NULL" for name in table.columns]
    # DuckDB loses rows of a table whose first INSERT in a transaction adds none; see `images.unspoil`.
    absent = f"FROM {KEYS} AS k SEMI JOIN ({wanted}) AS w ON w.key = k.key ANTI JOIN {PRESENT} AS p ON p.key = k.key"
    there, gone = (
        bool(connection.execute(f"SELECT 1 {rows} LIMIT 1").fetchall()) for rows in (f"FROM {PRESENT}", absent)
    )
    # Two statements: as one with UNION ALL, DuckDB 2.0 has been seen to hang in it.
    if there:
        columns = ", ".join(table.columns)
        connection.execute(
            f"INSERT INTO {table.images} SELECT {tick}, {journal.REFRESHED}, NULL, NULL, {columns} FROM {PRESENT}"
        )
    if gone:
        connection.execute(
            f"INSERT INTO {table.images} SELECT {tick}, {journal.ABSENT}, NULL, NULL, {', '.join(keys)} {absent}"
        )
    if not (there or gone):
        return []
    ticks = [tick, *_generations(connection, table, tick)] if gone else [tick]
    counts = connection.execute(
        f"SELECT _tick, _weight, count(*) FROM {table.images} WHERE list_contains(?::BIGINT[], _tick) GROUP BY ALL"
        " ORDER BY ALL",
        [ticks],
    )
    return [
        Told(JournalledRefresh(table.name, table.id, rows, weight == journal.ABSENT), found, ticks.index(found))
        for found, weight, rows in counts.fetchall()
    ]


def _generations(connection: duckdb.DuckDBPyConnection, table: CapturedTable, tick: int) -> list[int]:
    """Move absent rows to which others refer that are absent, too, to ticks of their own, which are returned in order.

    Which row referred to which is in what was rejected of them, which is collected.
    """
    references = [
        key for key in duckdb_catalog.references(connection, table.catalog) if key.table == key.parent == table.name
    ]
    if not references:
        return []
    places = {column.name: place for place, column in enumerate(table.layout.stored)}
    refers = " OR ".join(
        " AND ".join(
            f"c.c{places[column]} = r.c{places[other]}" for column, other in zip(key.columns, key.referred, strict=True)
        )
        for key in references
    )
    images, keys = table.images, [f"c{place}" for place in table.layout.key_places]
    ticks = [tick]
    while True:
        this, following = ticks[-1], _GENERATIONS + len(ticks)
        absent = f"FROM {images} WHERE _tick = {this} AND _weight = {journal.ABSENT}"
        waiting = connection.execute(f"SELECT count(*) {absent}").fetchall()[0][0]
        is_referred = (
            f"SELECT 1 FROM {IMAGES} AS r JOIN {IMAGES} AS c ON ({refers}) AND c.key <> r.key JOIN ({absent}) AS b"
            f" ON {_same(keys, 'b', 'c')} WHERE r._weight = 1 AND c._weight = 1 AND {_same(keys, 'a', 'r')}"
        )
        moved = connection.execute(
            f"UPDATE {images} AS a SET _tick = {following} WHERE _tick = {this} AND _weight = {journal.ABSENT}"
            f" AND EXISTS ({is_referred})"
        ).fetchall()[0][0]
        if moved in (0, waiting):
            # None, or all of them, which refer to each other in a circle.
            connection.execute(f"UPDATE {images} SET _tick = {this} WHERE _tick = {following}")
            return ticks[1:]
        ticks.append(following)


def _same(columns: Sequence[str], one: str, other: str) -> str:
    return " AND ".join(f"{one}.{column} = {other}.{column}" for column in columns)


def uses_again(
    connection: duckdb.DuckDBPyConnection, step: StepTable, tick: int, unique: Sequence[Sequence[str]] | None
) -> bool:
    """Say whether a row of a table's refresh has unique values that one has which it says is absent.

    Args:
        connection: In the transaction of the step; the table's rejected rows are collected.
        step: The table.
        tick: Of the refresh.
        unique: Columns of its UNIQUE constraints; None if they are not known.
    """
    if unique is None:
        return True
    stored, images = step.table.layout.stored, step.table.images
    places = {column.name: place for place, column in enumerate(stored)}

    def values(alias: str, columns: Sequence[str]) -> str:
        found = (key_value(stored[n], load_sql(stored[n], f"{alias}.c{n}")) for n in (places[each] for each in columns))
        return f"({', '.join(found)})"

    there = f"(FROM {images} WHERE _tick = {tick} AND _weight = {journal.REFRESHED}) AS n"
    gone = f"(FROM {images} WHERE _tick < 0 AND _weight = {journal.ABSENT}) AS a"
    keys = [f"c{place}" for place in step.table.layout.key_places]
    same = " OR ".join(f"{values('i', columns)} = {values('n', columns)}" for columns in unique) or "false"
    query = f"SELECT 1 FROM {IMAGES} AS i JOIN {gone} ON {_same(keys, 'a', 'i')} JOIN {there} ON {same}"
    return bool(connection.execute(f"{query} WHERE i._weight = 1 LIMIT 1").fetchall())


# Why rows come before others in a refresh. What is named first in the order of `_WITHOUT` is given up first where not
# all can be kept: then its site may have to change a row by hand.
_GONE, _MOVED, _MOVED_AND_USED, _REFERRED, _USED_AGAIN, _CHANGED = range(6)
_WITHOUT = (
    (),
    (_CHANGED,),
    (_CHANGED, _MOVED_AND_USED),
    (_CHANGED, _USED_AGAIN),
    (_CHANGED, _USED_AGAIN, _REFERRED, _MOVED, _MOVED_AND_USED),
)


def divided(
    connection: duckdb.DuckDBPyConnection, catalog: str, told: Sequence[Told], used: Collection[Name], tick: int
) -> tuple[tuple[JournalledRefresh, ...], ...]:
    """Divide a refresh into transactions, and give the images of each the tick before that of the next one.

    Args:
        connection: In the transaction of the step.
        catalog: The database.
        told: The refresh.
        used: Tables where rows have unique values of others that are absent.
        tick: Of the last transaction.
    """
    if len(told) < 2 or not any(each.record.absent for each in told):
        return (tuple(each.record for each in told),) if told else ()
    parts = in_transactions(told, duckdb_catalog.foreign_keys(connection, catalog), used)
    for number, part in enumerate(parts, start=tick - len(parts) + 1):
        for each in part if number < tick else ():
            _move(connection, catalog, each, number)
    # These come last: a later generation may move to the tick that others have left.
    for each in parts[-1]:
        _move(connection, catalog, each, tick)
    return tuple(tuple(each.record for each in part) for part in parts)


def _move(connection: duckdb.DuckDBPyConnection, catalog: str, told: Told, tick: int) -> None:
    if told.tick != tick:
        images = journal.images_sql(catalog, told.record.layout)
        connection.execute(
            f"UPDATE {images} SET _tick = {tick} WHERE _tick = {told.tick} AND _weight = {told.record.weight}"
        )


def in_transactions(
    told: Sequence[Told], parents: Mapping[Name, Collection[Name]], used: Collection[Name]
) -> tuple[tuple[Told, ...], ...]:
    """Divide a refresh into transactions that a site can take one after the other.

    DuckDB does not remove a row in the transaction in which one that refers to it goes, or refers to another one.

    Args:
        told: The refresh.
        parents: For each table with foreign keys those that they refer to.
        used: Tables where rows have unique values of others that are absent.
    """
    reasons = [*_reasons([each.rows for each in told], parents, used)]
    for left_out in _WITHOUT:
        before: dict[_Rows, dict[_Rows, int]] = {each.rows: {} for each in told}
        for why, first, second in reasons:
            if why not in left_out:
                before[second][first] = 0 if why in (_REFERRED, _USED_AGAIN) else 1
        with suppress(CycleError):
            levels: dict[_Rows, int] = {}
            for rows in TopologicalSorter(before).static_order():
                levels[rows] = max((levels[other] + more for other, more in before[rows].items()), default=0)
            break
    parts: dict[int, list[Told]] = {}
    for each in told:
        parts.setdefault(levels[each.rows], []).append(each)
    return tuple(tuple(parts[each]) for each in sorted(parts))


def _reasons(
    told: Sequence[_Rows], parents: Mapping[Name, Collection[Name]], used: Collection[Name]
) -> Iterator[tuple[int, _Rows, _Rows]]:
    """Yield why rows come in a transaction before others, or at least in the same one."""
    there = {table for table, absent, _ in told if not absent}
    for first, second in permutations(told, 2):
        (child, is_gone, generation), (parent, goes, later) = first, second
        refers = parent in parents.get(child, ())
        if child == parent and is_gone and not goes and child in used:
            yield _USED_AGAIN, first, second
        elif child == parent and is_gone and goes and generation < later:
            yield _GONE, first, second
        elif child == parent and not is_gone and goes and refers:
            yield _MOVED_AND_USED if parent in used else _MOVED, first, second
        elif child != parent and refers and goes and is_gone:
            yield _GONE, first, second
        elif child != parent and refers and goes:
            yield _MOVED_AND_USED if parent in there and parent in used else _MOVED, first, second
        elif child != parent and refers and is_gone:
            # A change of an indexed column removes and adds a row.
            yield _CHANGED, first, second
        elif child != parent and refers:
            yield _REFERRED, second, first

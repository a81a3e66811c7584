"""Net changes written to a DuckDB target: removed rows of all tables first, then the added ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from wlc.digest import sum_images
from wlc.errors import CorruptError
from wlc.model import WEIGHT, Layout, literal
from wlr import fold
from wlr.engine import StepError, fit
from wlr.engine.duckdb import guard
from wlr.engine.duckdb.connection import applying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    import duckdb

    from wlc.model import Name
    from wlr.engine.duckdb.tables import Tables
    from wlr.engine.tally import Tally
    from wlr.fold import Source, TargetTable
    from wlr.plan import Fold, Read, TableChange


# Fewer images are added up sooner than a thread is there for them.
_ASIDE = 100_000
# Of a table that was only cleared, nothing but its name matters.
_NO_LAYOUT = Layout(())


@dataclass(frozen=True, slots=True)
class Net:
    """The net change of one table.

    Attributes:
        source: Temporary table, or query in parentheses, with the images and their weights.
        removed: Copies to remove for good; `added`: copies to add; `stays`: rows that take other values.
    """

    table: TargetTable
    change: TableChange
    source: str
    removed: int
    added: int
    stays: int = 0

    @property
    def is_temporary(self) -> bool:
        """Whether `source` is a table that has to be dropped."""
        return self.source.startswith("temp.")


class Describes(Protocol):
    """Knows a target's tables."""

    def describe(self, name: Name, layout: Layout) -> TargetTable:
        """Describe a table whose rows have a layout."""


class Folder(Protocol):
    """Folds large changes elsewhere."""

    def __call__(self, table: TargetTable, change: TableChange) -> list[str] | None:
        """Return local files with the net change of a table as `fold.net_sql` selects it, None to have it done here."""


def prepare(
    connection: duckdb.DuckDBPyConnection,
    tables: Describes,
    action: Fold,
    fetch: Callable[[Read], str],
    elsewhere: Folder | None = None,
) -> list[Net]:
    """Fold the changes of every table into its net change; the target is not read, and may be another database.

    Raises:
        CorruptError: Data files do not hold what the log file says.
    """
    nets = []
    for number, change in enumerate(action.changes):
        layouts = [read.file.layout for read in change.reads]
        table = tables.describe(change.table, layouts[-1] if layouts else _NO_LAYOUT)
        files = elsewhere(table, change) if elsewhere else None
        if files is None:
            nets.append(_net(connection, table, change, fetch, f'temp."net {number}"'))
        else:
            query = f"SELECT * FROM read_parquet([{', '.join(map(literal, files))}], hive_partitioning = false)"
            nets.append(_folded(connection, table, change, query, f'temp."net {number}"'))
    return nets


def _net(
    connection: duckdb.DuckDBPyConnection,
    table: TargetTable,
    change: TableChange,
    fetch: Callable[[Read], str],
    name: str,
) -> Net:
    found = sources(change, fetch)
    if not found:
        return Net(table, change, "", 0, 0)
    # What only adds, or only removes, can be read straight from the files: there is nothing to fold.
    raw = f"({fold.raw_sql(table.layout, found)})"
    if not change.removed and not table.references_itself:
        return Net(table, change, raw, 0, change.added)
    if not change.added and table.key and not table.keeps_rows:
        return Net(table, change, raw, change.removed, 0)
    return _folded(connection, table, change, fold.net_sql(table, fold.raw_sql(table.layout, found)), name)


def _folded(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, change: TableChange, query: str, name: str
) -> Net:
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name.removeprefix('temp.')} AS {query}")
    removed, added, stays, total = _counts(connection, table, name)
    fit.refuse_other_weight(change, 0, total)
    return Net(table, change, name, removed, added, stays)


def _counts(connection: duckdb.DuckDBPyConnection, table: TargetTable, net: str) -> tuple[int, int, int, int]:
    """Copies to remove, copies to add, rows that stay, and what all weights add up to."""
    weight, stays = WEIGHT, fold.STAYS if table.keeps_rows else "false"
    found = connection.execute(
        f"SELECT coalesce(sum(-{weight}) FILTER ({weight} < 0 AND NOT {stays}), 0),"
        f" coalesce(sum({weight}) FILTER ({weight} > 0 AND NOT {stays}), 0),"
        f" count(*) FILTER ({weight} > 0 AND {stays}), coalesce(sum({weight}), 0) FROM {net}"
    ).fetchall()[0]
    return int(found[0]), int(found[1]), int(found[2]), int(found[3])


def sources(change: TableChange, fetch: Callable[[Read], str]) -> list[Source]:
    """Read files together where one range of ticks fits all: every batch has one file, and ticks rise with batches."""
    if len({read.file.layout.shape for read in change.reads}) > 1:
        raise StepError("data files of one range have different columns", table=str(change.table))
    folders = {read.file.file.path.rpartition("/")[0] for read in change.reads}
    if len(folders) == len(change.reads) > 1:
        first, last = min(read.first for read in change.reads), max(read.last for read in change.reads)
        return [fold.Source(tuple(map(fetch, change.reads)), first, last)]
    return [fold.Source((fetch(read),), read.first, read.last) for read in change.reads]


# Writing -------------------------------------------------------------------------------------------------------------


def write(connection: duckdb.DuckDBPyConnection, tables: Tables, nets: list[Net], path: Path) -> None:
    """Apply net changes in the caller's transaction: deletes child before parent, the rest parent before child.

    Raises:
        StepError: A row to remove is not there, or a constraint does not hold.
    """
    order = {name: number for number, name in enumerate(tables.order)}
    ranked = sorted(nets, key=lambda net: order.get(net.change.table, len(order)))
    for net in ranked:
        if net.change.table not in order:
            raise fit.absent(net.change.table)
    for net in reversed(ranked):
        with _naming(net, path):
            _remove(connection, net)
    for net in ranked:
        with _naming(net, path):
            _add(connection, tables.catalog, net)


@contextmanager
def tallied(connection: duckdb.DuckDBPyConnection, nets: list[Net], into: Tally) -> Iterator[None]:
    """Take net changes into account once the body has written them.

    Large ones that are read straight from files are added up meanwhile, on a connection of their own: rows that are
    written to a table with a key keep one core busy.
    """
    aside = [
        net for net in nets if net.removed + net.added >= _ASIDE and not net.is_temporary and into.asks(net.change)
    ]
    totals: dict[Name, Future[int]] = {}
    with ExitStack() as stack:
        if aside:
            other = stack.enter_context(connection.cursor())
            pool = stack.enter_context(ThreadPoolExecutor(1, "wlr digests"))
            totals = {net.change.table: pool.submit(_total, other, net) for net in aside}
        try:
            yield
        except BaseException:
            if aside:
                pool.shutdown(wait=False, cancel_futures=True)
                other.interrupt()
            raise
        for net in nets:
            found = totals.get(net.change.table)
            into.fold(net.change, found.result if found else partial(_total, connection, net))


def _total(connection: duckdb.DuckDBPyConnection, net: Net) -> int:
    return sum_images(connection, net.table.layout, net.source) if net.source else 0


def drop(connection: duckdb.DuckDBPyConnection, nets: list[Net]) -> None:
    """Drop the temporary tables of net changes."""
    for net in nets:
        if net.is_temporary:
            connection.execute(f"DROP TABLE IF EXISTS {net.source}")


@contextmanager
def _naming(net: Net, path: Path) -> Iterator[None]:
    """Name the table in errors of statements about it."""
    try:
        with applying(path):
            yield
    except StepError as error:
        error.table = error.table or str(net.change.table)
        raise


def _remove(connection: duckdb.DuckDBPyConnection, net: Net) -> None:
    table, name = net.table, str(net.change.table)
    if net.change.cleared is not None:
        found = _run(connection, f"DELETE FROM {table.sql}")
        fit.refuse_other_count(net.change, found)
        if net.removed:
            raise StepError(f"{net.removed} rows were removed that were not there", table=name)
        return
    if not net.removed:
        return
    if table.key:
        found = _run(connection, fold.delete_keyed_sql(table, net.source))
    elif table.has_rowid:
        found = _run(connection, fold.delete_bag_sql(table, net.source))
    else:
        found = _remove_without_rowid(connection, net)
    if found != net.removed:
        raise fit.missing(net.change.table, net.removed - found, net.removed)


def _remove_without_rowid(connection: duckdb.DuckDBPyConnection, net: Net) -> int:
    left = 'temp."copies left"'
    query = fold.copies_left_sql(net.table, net.source)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {left.removeprefix('temp.')} AS {query}")
    missing = connection.execute(f"SELECT coalesce(sum(greatest(-{WEIGHT}, 0)), 0) FROM {left}").fetchall()[0][0]
    connection.execute(fold.delete_equal_sql(net.table, net.source))
    connection.execute(fold.insert_sql(net.table, left, copies=True))
    connection.execute(f"DROP TABLE {left}")
    return net.removed - int(missing)


def _add(connection: duckdb.DuckDBPyConnection, catalog: str, net: Net) -> None:
    if net.stays:
        with guard.off_for_update(connection, catalog, net.change.table):
            _update(connection, net)
    if net.added and (found := add(connection, net)) != net.added:
        raise CorruptError(
            f"table {net.change.table}: data files hold {found} rows to add, the log file says {net.added}"
        )


def add(connection: duckdb.DuckDBPyConnection, net: Net) -> int:
    """Insert what a net change adds, and return how many rows that is."""
    if net.table.references_itself:
        return _insert_in_generations(connection, net)
    if net.is_temporary:
        return _run(connection, fold.insert_new_sql(net.table, net.source))
    return _run(connection, fold.insert_sql(net.table, net.source))


def _update(connection: duckdb.DuckDBPyConnection, net: Net) -> None:
    """Change only the columns that differ: to set an indexed one is to delete the row, which a reference forbids."""
    flags = connection.execute(fold.changed_columns_sql(net.table, net.source)).fetchall()[0]
    changed = [column for column, differs in zip(fold.outside_key(net.table), flags, strict=True) if differs]
    found = _run(connection, fold.update_sql(net.table, net.source, changed))
    if found != net.stays:
        message = f"{net.stays - found} of {net.stays} rows to change are not in the replica as they were in the master"
        raise StepError(message, table=str(net.change.table))


def _insert_in_generations(connection: duckdb.DuckDBPyConnection, net: Net) -> int:
    """Insert rows of a table that refers to itself: those first whose reference is there before the statement."""
    waiting = 'temp."waiting"'
    query = f"SELECT * FROM {net.source} WHERE {WEIGHT} > 0"
    if net.is_temporary and net.table.keeps_rows:
        query += f" AND NOT {fold.STAYS}"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {waiting.removeprefix('temp.')} AS {query}")
    # Without `stays`: what is left has nothing of the kind.
    table = replace(net.table, is_referenced=False)
    total = 0
    condition = fold.ready_condition(table)
    ready = f"CREATE OR REPLACE TEMP TABLE ready AS SELECT n.rowid AS r FROM {waiting} AS n WHERE {condition}"
    while _run(connection, ready):
        chosen = f"(SELECT * FROM {waiting} WHERE rowid IN (SELECT r FROM temp.ready))"
        total += _run(connection, fold.insert_sql(table, chosen, copies=not table.key))
        _run(connection, f"DELETE FROM {waiting} WHERE rowid IN (SELECT r FROM temp.ready)")
    # What refers to nothing is left; inserting it says what it misses.
    total += _run(connection, fold.insert_sql(table, waiting, copies=not table.key))
    connection.execute(f"DROP TABLE {waiting}; DROP TABLE temp.ready")
    return total


def _run(connection: duckdb.DuckDBPyConnection, statement: str) -> int:
    """Run a statement that answers with a number of rows."""
    return int(connection.execute(statement).fetchall()[0][0])

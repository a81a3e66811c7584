"""The net change of each table of a step: DuckDB folds it from data files, for any target engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.digest_sql import sum_images
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.farm.model import WEIGHT, Layout
from wlr.replay.fold import unfit_changes
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    import duckdb

    from wlc.dialect.duckdb.fold import RowImages, TargetTable
    from wlc.farm.model import Name
    from wlr.replay.fold.tally import Tally
    from wlr.replay.plan.log_steps import Limits
    from wlr.replay.plan.step import Fold, Read, TableChange


# Adding up fewer images takes less time than starting a thread.
_ASIDE = 100_000
# Of a table that was only cleared, only its name matters.
_NO_LAYOUT = Layout(())


@dataclass(frozen=True, slots=True)
class NetChange:
    """The net change of one table.

    Attributes:
        source: Temporary table, or query in parentheses, with the images and their weights.
        removed: Copies to remove for good; `added`: copies to add; `stays`: rows that get other values.
        is_presumed: The images are not added up. They are the net change if the target has all rows to remove.
    """

    table: TargetTable
    change: TableChange
    source: str
    removed: int
    added: int
    stays: int = 0
    is_presumed: bool = False

    @property
    def is_temporary(self) -> bool:
        """Whether `source` is a temporary table, to be dropped."""
        return self.source.startswith("temp.")


class PresumedError(Exception):
    """A step with presumed net changes failed: retry it with images added up."""


def doubt(nets: Sequence[NetChange], error: BaseException) -> None:
    """Raise PresumedError if a step may have failed because its net changes were presumed."""
    if isinstance(error, StepError) and any(net.is_presumed for net in nets):
        raise PresumedError from error


class Describes(Protocol):
    """Knows a target's tables."""

    def describe(self, name: Name, layout: Layout) -> TargetTable:
        """Describe a table whose rows have a layout."""


class FoldsElsewhere(Protocol):
    """Folds large changes outside of this process.

    Attributes:
        limits: How much a step may hold.
    """

    @property
    def limits(self) -> Limits: ...

    def __call__(self, changes: Sequence[tuple[TargetTable, TableChange]]) -> list[list[str] | None]:
        """Return local files with each table's net change in the form of `fold.net_sql`, None to fold it here."""

    def close(self) -> None:
        """Release the resources of folding."""


def prepare(
    connection: duckdb.DuckDBPyConnection,
    tables: Describes,
    action: Fold,
    fetch: Callable[[Read], str],
    elsewhere: FoldsElsewhere | None = None,
    *,
    presumes: bool = False,
) -> list[NetChange]:
    """Fold the changes of every table into its net change, without reading the target, which may be another database.

    Args:
        connection: The connection that folds.
        tables: The target's tables.
        action: The changes to fold.
        fetch: Gives local files.
        elsewhere: Folds large changes.
        presumes: Take a transaction's images of a table with a primary key as its net change.

    Raises:
        CorruptError: Data files contradict the log file.
    """
    nets = []
    changes = [
        (tables.describe(change.table, change.reads[-1].file.layout if change.reads else _NO_LAYOUT), change)
        for change in action.changes
    ]
    folded = elsewhere(changes) if elsewhere else [None] * len(changes)
    for number, ((table, change), files) in enumerate(zip(changes, folded, strict=True)):
        if files is None:
            nets.append(_net(connection, table, change, fetch, f'temp."net {number}"', presumes=presumes))
        else:
            nets.append(_folded(connection, table, change, f"SELECT * FROM {rows_of(*files)}", f'temp."net {number}"'))
    return nets


def _net(
    connection: duckdb.DuckDBPyConnection,
    table: TargetTable,
    change: TableChange,
    fetch: Callable[[Read], str],
    name: str,
    *,
    presumes: bool,
) -> NetChange:
    found = sources(change, fetch)
    if not found:
        return NetChange(table, change, "", 0, 0)
    is_one = refuse_other_images(connection, change, found)
    # A change that only adds or only removes rows needs no folding: it is read straight from the files.
    raw = f"({fold.raw_sql(table.layout, found)})"
    if not change.removed and not table.references_itself:
        return NetChange(table, change, raw, 0, change.added)
    if not change.added and table.key and not table.keeps_rows:
        return NetChange(table, change, raw, change.removed, 0)
    # A transaction usually changes a row once. If the target has each row to remove exactly once, the result is the
    # same with or without adding images up. If not, fold and retry.
    if presumes and is_one and table.key and not (table.keeps_rows or table.references_itself):
        return NetChange(table, change, raw, change.removed, change.added, is_presumed=True)
    return _folded(connection, table, change, fold.net_sql(table, fold.raw_sql(table.layout, found)), name)


def _folded(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, change: TableChange, query: str, name: str
) -> NetChange:
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name.removeprefix('temp.')} AS {query}")
    net, total = _counted(connection, table, change, name)
    unfit_changes.refuse_other_weight(change, 0, total)
    return net


def folded(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, change: TableChange, raw: str, name: str
) -> NetChange:
    """Fold images, perhaps other ones than those of the change, into a net change.

    Args:
        connection: The connection that folds.
        table: The target's table.
        change: The change.
        raw: A query that selects images and weights.
        name: Name of the temporary table for the net change.
    """
    query = fold.net_sql(table, raw)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name.removeprefix('temp.')} AS {query}")
    return _counted(connection, table, change, name)[0]


def _counted(
    connection: duckdb.DuckDBPyConnection, table: TargetTable, change: TableChange, net: str
) -> tuple[NetChange, int]:
    """Return the net change in a temporary table, and the sum of all weights."""
    weight, stays = WEIGHT, fold.STAYS if table.keeps_rows else "false"
    found = connection.execute(
        f"SELECT coalesce(sum(-{weight}) FILTER ({weight} < 0 AND NOT {stays}), 0),"
        f" coalesce(sum({weight}) FILTER ({weight} > 0 AND NOT {stays}), 0),"
        f" count(*) FILTER ({weight} > 0 AND {stays}), coalesce(sum({weight}), 0) FROM {net}"
    ).fetchall()[0]
    removed, added, stayed, total = map(int, found)
    return NetChange(table, change, net, removed, added, stayed), total


def sources(change: TableChange, fetch: Callable[[Read], str]) -> list[RowImages]:
    """Read files together if one range of ticks fits all: every batch has one file, and ticks rise with batches."""
    if len({read.file.layout.shape for read in change.reads}) > 1:
        raise StepError("data files of one range have different columns", table=str(change.table))
    folders = {read.file.file.path.rpartition("/")[0] for read in change.reads}
    if len(folders) == len(change.reads) > 1:
        first, last = min(read.first for read in change.reads), max(read.last for read in change.reads)
        return [fold.RowImages(tuple(map(fetch, change.reads)), first, last)]
    return [fold.RowImages((fetch(read),), read.first, read.last) for read in change.reads]


class Totals:
    """The sums of the hashes of net changes; many are added up in the background.

    Args:
        connection: Holds the net changes.
        into: Decides which totals matter.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, into: Tally) -> None:
        self._connection = connection
        self._into = into
        self._found: dict[Name, Future[int]] = {}

    @contextmanager
    def aside(self, nets: Sequence[NetChange]) -> Iterator[None]:
        """Add up the changes read straight from files while the body writes them.

        This takes a separate connection: writing rows to a table with a key keeps one core busy.
        """
        chosen = [net for net in nets if not net.is_temporary and self._is_worth_it(net)]
        if not chosen:
            yield
            return
        with self._connection.cursor() as other, self._adding(other, chosen):
            yield

    @contextmanager
    def while_waiting(self, net: NetChange) -> Iterator[None]:
        """Add up a net change while the body waits for another database; the body must not use the connection."""
        if net.change.table in self._found or not self._is_worth_it(net):
            yield
            return
        with self._adding(self._connection, [net]):
            yield

    def find(self, net: NetChange) -> int:
        """Return the total of a net change."""
        found = self._found.get(net.change.table)
        return found.result() if found else _total(self._connection, net)

    def _is_worth_it(self, net: NetChange) -> bool:
        return net.removed + net.added + 2 * net.stays >= _ASIDE and self._into.asks(net.change)

    @contextmanager
    def _adding(self, connection: duckdb.DuckDBPyConnection, nets: Sequence[NetChange]) -> Iterator[None]:
        with ThreadPoolExecutor(1, "wlr digests") as pool:
            self._found |= {net.change.table: pool.submit(_total, connection, net) for net in nets}
            try:
                yield
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                connection.interrupt()
                raise


@contextmanager
def tallied(connection: duckdb.DuckDBPyConnection, nets: list[NetChange], into: Tally) -> Iterator[Totals]:
    """Take net changes into account once the body has written them."""
    totals = Totals(connection, into)
    with totals.aside(nets):
        yield totals
    for net in nets:
        into.fold(net.change, partial(totals.find, net))


def _total(connection: duckdb.DuckDBPyConnection, net: NetChange) -> int:
    return sum_images(connection, net.table.layout, net.source) if net.source else 0


def drop(connection: duckdb.DuckDBPyConnection, nets: list[NetChange]) -> None:
    """Drop the temporary tables of net changes."""
    for net in nets:
        if net.is_temporary:
            connection.execute(f"DROP TABLE IF EXISTS {net.source}")

"""Digests of a PostgreSQL master's tables, computed from the rows that its slot gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.digest_sql import keeps_rows, sum_images, sum_rows
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.farm.digest import EMPTY, Ledger, after, differing
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Change, Clear, Ddl, Name
from wlc.farm.schema_fold import table_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import duckdb

    from wlc.farm.log_columns import Transactions
    from wlc.farm.model import Batch, Digest, Layout, Record, TableFile


def noted(known: Mapping[Name, Digest], batch: Batch, tables: Collection[Name]) -> dict[Name, Digest]:
    """Return the state to store once a batch is published after which only `tables` exist."""
    return {name: digest for name, digest in after(known, batch).items() if name in tables}


def follow(
    transactions: Transactions,
    files: tuple[TableFile, ...],
    local: Mapping[str, Path],
    known: Mapping[Name, Digest],
    layouts: Mapping[Name, Layout],
    misfits: Collection[str],
    connection: duckdb.DuckDBPyConnection,
    look: ReadMoment | None = None,
) -> tuple[Transactions, dict[Name, Digest], frozenset[Name]]:
    """Return the digests of changed tables after transactions.

    Args:
        transactions: In commit order.
        files: Their data files.
        local: The local copy of each.
        known: Digests before them.
        layouts: Of the tables before them.
        misfits: Paths of the files that hold a column as text that has another type in the table: the digest afterwards
            is unknown.
        connection: Reads the files.
        look: The tables at a moment whose transactions are all among these, for digests that the log leaves unknown.

    Returns:
        The transactions, with digests in their schema changes; the digests of the changed tables; and the changed
        tables whose digest is unknown.
    """
    by_path = {file.file.path: file for file in files}

    def total(path: str, first: int, last: int) -> int:
        source = f"{rows_of(local[path])} WHERE _tick BETWEEN {first} AND {last}"
        return sum_images(connection, by_path[path].layout, source)

    follower = _Follower(Ledger(known, total), layouts, misfits)
    logged = transactions.with_records(follower.take)
    if look is not None:
        _settle(follower.ledger, transactions, look, follower.ledger.unknown() - follower.misfits)
    return logged, follower.ledger.changed(), follower.ledger.unknown()


class ReadMoment(Protocol):
    """A moment at which tables can be read."""

    def sees(self, xid: int) -> bool:
        """Say whether a transaction that is in the log had been committed then."""

    def digests(self, names: Collection[Name]) -> Mapping[Name, Digest]:
        """Return what tables held then, as far as they can be read."""


def _settle(ledger: Ledger, transactions: Transactions, look: ReadMoment, unknown: Collection[Name]) -> None:
    """Compute digests after transactions: those of a moment, plus the changes that the moment does not see."""
    unseen = [t for t in transactions if t.xid is not None and not look.sees(t.xid)]
    images = [(t.tick, record) for t in unseen for record in t.records if isinstance(record, Change)]
    others = {name for t in unseen for record in t.records if not isinstance(record, Change) for name in _names(record)}
    for name, digest in look.digests([name for name in unknown if name not in others]).items():
        ledger.set(name, digest)
        for tick, record in images:
            if record.table == name:
                ledger.take(record, tick, tick)
                # Images of the next one are another range of ticks.
                ledger.digest(name)


def _names(record: Record) -> tuple[Name, ...]:
    return (record.object,) if isinstance(record, Ddl) else (record.table,) if isinstance(record, Clear) else ()


class _Follower:
    """Follows transactions in a ledger.

    Attributes:
        misfits: Tables of which a file that was read holds a column as text, under their present names.
    """

    def __init__(self, ledger: Ledger, layouts: Mapping[Name, Layout], misfits: Collection[str]) -> None:
        self.ledger = ledger
        self.misfits: set[Name] = set()
        self._layouts = dict(layouts)
        self._paths = frozenset(misfits)

    def take(self, record: Record, first: int, last: int) -> Record:
        """Follow a record, and return it with a digest if it is a schema change; see `Transactions.with_records`."""
        logged = self._with_digest(record) if isinstance(record, Ddl) else record
        self.ledger.take(logged, first, last)
        if isinstance(record, Change) and record.path in self._paths:
            self.ledger.set(record.table, None)
            self.misfits.add(record.table)
        if isinstance(record, Ddl):
            self.misfits |= {
                t.after for t in table_names(record) if t.is_renamed and t.after and t.before in self.misfits
            }
        return logged

    def _with_digest(self, ddl: Ddl) -> Ddl:
        """Add the digest of the table to a statement that leaves its rows as they are."""
        for table in table_names(ddl) if ddl.kind == "ALTER TABLE" else ():
            if table.before is not None and table.after == ddl.object:
                old = self._layouts.get(table.before)
                # Layouts have no defaults here: only the statement gives the value of existing rows in an added column.
                is_known = ddl.layout is None or (old is not None and keeps_rows(old, ddl.layout))
                if is_known and not ("ADD COLUMN" in ddl.statement and "DEFAULT" in ddl.statement):
                    ddl = replace(ddl, digest=self.ledger.digest(table.before))
            if table.before != table.after and table.before is not None:
                self._layouts.pop(table.before, None)
        if ddl.layout is not None:
            self._layouts[ddl.object] = ddl.layout
        return ddl


def of_files(tables: Mapping[Name, tuple[Layout, list[Path]]]) -> dict[Name, Digest]:
    """Digest the rows of tables: layout and files of each table whose files have the columns of the table."""
    with engine.connect(config={"threads": "2"}) as connection:
        return {
            name: sum_rows(connection, layout, rows_of(*files)) if files else EMPTY
            for name, (layout, files) in tables.items()
        }


def refuse_changed(found: Mapping[Name, Digest], known: Mapping[Name, Digest], source: str) -> None:
    """Refuse tables that differ from the captured state.

    Raises:
        UnsupportedError: There are such tables.
    """
    if changed := differing(found, known):
        hint = f"wlc stop {source}, then wlc master {source}, starts a new history"
        raise UnsupportedError(f"rows of {', '.join(map(str, changed))} were changed without being captured", hint=hint)

"""Journalled transactions: they wait in the journal, are written to data files, and are deleted once published.

Journalled transactions that only changed rows of one table, as columns: a hundred thousand of them may be pending.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wlc.capture.duckdb import digests, journal, packed
from wlc.capture.duckdb.journal import (
    JournalEntry,
    JournalledImages,
    JournalledReads,
    JournalledRefresh,
    decode_entry,
    images_sql,
)
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb.parquet_sql import KEPT
from wlc.dialect.sql import literal, quote
from wlc.farm import digest, paths
from wlc.farm.database import describe_file
from wlc.farm.errors import UnavailableError
from wlc.farm.log_columns import Columns, Transactions
from wlc.farm.model import (
    AlteredObject,
    Change,
    Clear,
    CreatedObject,
    Ddl,
    Digest,
    FileRecord,
    Layout,
    Name,
    Record,
    RenamedObject,
    RowsRead,
    RowsRefreshed,
    TableFile,
    Transaction,
    file_column,
)
from wlc.farm.schema_fold import table_effects, table_names
from wlc.masters.contract import BatchContent
from wlc.masters.master_state import changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import duckdb

    from wlc.capture.duckdb.journal import JournalRecord
    from wlc.capture.duckdb.packed import PackedFile
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.digest import Ledger
    from wlc.farm.model import Batch
    from wlc.masters.master_state import MasterState


# The text before and after the user in a transaction's own data, if it holds nothing else; see
# `wlc.capture.duckdb.journal`. In LIKE, `_` is any character: times have 27.
_HEAD = '{"user": '
_TIME = "_" * 27
_TAIL = f', "started": "{_TIME}", "committed": "{_TIME}"}}'
_STARTED = len(', "started": "')
_COMMITTED = _STARTED + len(f'{_TIME}", "committed": "')


def read_run(
    connection: duckdb.DuckDBPyConnection, catalog: str, tables: Mapping[int, Name], wanted: str
) -> tuple[Transactions, list[JournalEntry]]:
    """Read the transactions whose own data is with their images.

    Args:
        connection: In a transaction.
        catalog: The master's database.
        tables: Number and table of each image table.
        wanted: Condition on ticks, such as `BETWEEN 1 AND 5`.

    Returns:
        Those that were first committed here, whose paths are the numbers of image tables; and the others.
    """
    import numpy as np

    users: dict[str, int] = {}
    others: list[JournalEntry] = []
    parts: list[dict[str, Any]] = []
    for place, (number, name) in enumerate(tables.items()):
        found = connection.execute(_query(images_sql(catalog, number), wanted)).fetchnumpy()
        metas = found.pop("meta")
        is_plain = np.ma.getmaskarray(metas)
        for at in np.flatnonzero(~is_plain).tolist():
            images = JournalledImages(name, number, int(found["added"][at]), int(found["removed"][at]))
            others.append(decode_entry(int(found["tick"][at]), metas[at], images))
        found = {column: values[is_plain] for column, values in found.items()}
        found["user"] = np.fromiter((users.setdefault(user, len(users)) for user in found["user"].tolist()), np.int64)
        parts.append({**found, "file": np.full(len(found["tick"]), place)})
    names = ("tick", "user", "started", "committed", "file", "added", "removed")
    columns = {name: np.concatenate([np.zeros(0, np.int64), *(part[name] for part in parts)]) for name in names}
    order = np.argsort(columns["tick"], kind="stable")
    columns = {name: np.asarray(column[order], np.int64) for name, column in columns.items()}
    run = Columns(
        ticks=columns["tick"],
        users=columns["user"],
        started=columns["started"],
        committed=columns["committed"],
        xids=np.full(len(order), -1),
        ends=np.arange(len(order) + 1),
        files=columns["file"],
        added=columns["added"],
        removed=columns["removed"],
        names=tuple(map(json.loads, users)),
        targets=tuple((name, str(number)) for number, name in tables.items()),
    )
    return Transactions(run), others


def _query(images: str, wanted: str) -> str:
    head, tail = len(_HEAD), len(_TAIL)
    started, committed = (
        f"epoch_us(TRY_CAST(substr(right(meta, {tail}), {at + 1}, {len(_TIME)}) AS TIMESTAMP))"
        for at in (_STARTED, _COMMITTED)
    )
    return f"""
        WITH found AS (
            SELECT _tick AS tick, max(_meta) AS meta, count(*) FILTER (_weight > 0) AS added,
                count(*) FILTER (_weight < 0) AS removed
            FROM {images} WHERE _tick {wanted} GROUP BY _tick
            -- The images of a transaction with an entry are listed in it.
            HAVING max(_meta) IS NOT NULL
        ), parsed AS (
            SELECT tick, added, removed, meta, substr(meta, {head + 1}, len(meta) - {head + tail}) AS who,
                {started} AS begun, {committed} AS ended,
                meta LIKE '{_HEAD}"%"{_TAIL}' AND begun IS NOT NULL AND ended IS NOT NULL AS is_plain
            FROM found
        )
        SELECT tick, added, removed, who AS "user", coalesce(begun, 0) AS started, coalesce(ended, 0) AS committed,
            CASE WHEN NOT is_plain THEN meta END AS meta
        FROM parsed
    """


def entry_of(transaction: Transaction) -> JournalEntry:
    """Return a transaction of `read_run` in the form of the journal."""
    (change,) = transaction.records
    images = JournalledImages(change.table, int(change.path), change.added, change.removed)  # type: ignore[union-attr]
    return JournalEntry(
        transaction.tick, transaction.user, transaction.started, transaction.committed, records=(images,)
    )


MOST_TRANSACTIONS = 100_000
# Fewer transactions are read as objects, without NumPy; in the log they are lines, too.
_RUN_LEAST = 1_000
# Stands for `wlc.entries` among the numbers of layouts.
_ENTRIES = -1


@dataclass(frozen=True, slots=True)
class Pending:
    """Journalled transactions in commit order, and every layout that has an image table.

    Attributes:
        logged: In the form of the log, but without digests, and with `_Images.path` as paths of data files.
        entries: Transactions with further records, rising, including all with packed images.
        filled: Layouts whose image tables hold rows.
        has_entries: Some of the transactions are in `wlc.entries`.
        held: What the tables held at the last published tick.
        extracted: Files of packed images that were extracted from the journal.
    """

    logged: Transactions
    entries: tuple[JournalEntry, ...]
    layouts: dict[int, tuple[Name, Layout]]
    filled: tuple[int, ...]
    has_entries: bool
    held: dict[Name, digests.Sums]
    extracted: dict[str, PackedFile] = field(default_factory=dict)

    @property
    def transactions(self) -> tuple[JournalEntry, ...]:
        """The single transactions, in the form of the journal."""
        found = {entry.tick: entry for entry in self.entries}
        return tuple(found.get(transaction.tick) or entry_of(transaction) for transaction in self.logged)


def pending(
    connection: duckdb.DuckDBPyConnection, catalog: str, most: int = MOST_TRANSACTIONS, *, after: int = 0
) -> Pending:
    """Read the journalled transactions, in the connection's transaction.

    Args:
        connection: In a transaction, for a consistent read.
        catalog: The master's database.
        most: Maximum number of transactions to read, the oldest first; it bounds the memory of a batch.
        after: Leave out transactions up to this tick.
    """
    layouts = journal.read_layouts(connection, catalog)
    schema = f"{quote(catalog)}.wlc"
    # Most image tables are empty, and a query takes time for each of them.
    counts = _count_rows(connection, schema, layouts)
    in_entries = counts.pop(_ENTRIES)
    tables = {number: layouts[number][0] for number, rows in counts.items() if rows}
    run, wanted = Transactions(), f"> {after}"
    is_run = False
    if in_entries + sum(counts.values()) >= _RUN_LEAST:
        count, last = _oldest(connection, schema, tables, after, most)
        is_run, wanted = count >= _RUN_LEAST, f"BETWEEN {after + 1} AND {last}"
    if is_run:
        run, others = read_run(connection, catalog, tables, wanted)
    else:
        others = _read_entries(connection, schema, tables, wanted)
    found = {entry.tick: entry for entry in others}
    if in_entries:
        listed = connection.execute(f"SELECT tick, entry FROM {schema}.entries WHERE tick {wanted}").fetchall()
        found.update((tick, journal.decode_entry(tick, entry)) for tick, entry in listed)
    entries = tuple(found[tick] for tick in sorted(found)[:most])
    logged = run.woven(tuple(map(_transaction, entries)))
    return Pending(logged, entries, layouts, tuple(tables), in_entries > 0, digests.read(connection, catalog))


def _read_entries(
    connection: duckdb.DuckDBPyConnection, schema: str, tables: Mapping[int, Name], wanted: str
) -> list[JournalEntry]:
    """Read the transactions whose own data is with their images; see `read_run`, which needs NumPy."""
    found = []
    for number, name in tables.items():
        rows = connection.execute(
            "SELECT _tick, max(_meta), count(*) FILTER (_weight > 0), count(*) FILTER (_weight < 0)"
            f" FROM {schema}.j{number} WHERE _tick {wanted} GROUP BY _tick"
        ).fetchall()
        # An entry lists the images of its transaction; images without an entry are transactions of their own.
        found += [
            journal.decode_entry(tick, meta, JournalledImages(name, number, added, removed))
            for tick, meta, added, removed in rows
            if meta is not None
        ]
    return found


def _count_rows(
    connection: duckdb.DuckDBPyConnection, schema: str, layouts: Mapping[int, tuple[Name, Layout]]
) -> dict[int, int]:
    """Count the rows of `wlc.entries` and of each image table, by layout.

    Raises:
        UnavailableError: DuckDB counts other rows of an image table than it shows.
    """
    images = {number: f"FROM {schema}.j{number}" for number in layouts}
    # DuckDB computes count(*), and the count of a column without NULL, without reading rows. No weight is 0.
    counts = [f"SELECT {number}, 'counted', count(*) {table}" for number, table in images.items()]
    signs = [f"SELECT {number}, 'shown', sum(abs(sign(_weight)))::BIGINT {table}" for number, table in images.items()]
    counts.append(f"SELECT {_ENTRIES}, 'counted', count(*) FROM {schema}.entries")
    found = {(number, how): rows or 0 for number, how, rows in duckdb_catalog.united(connection, [*counts, *signs])}
    for number, (name, _) in layouts.items():
        if (counted := found[number, "counted"]) != (rows := found[number, "shown"]):
            raise UnavailableError(
                f"of {counted} journalled rows of table {name} DuckDB shows {rows}",
                hint="close all connections to the database and run wlc flush; report this",
            )
    return {number: found[number, "counted"] for number in (*layouts, _ENTRIES)}


def count_pending(connection: duckdb.DuckDBPyConnection, catalog: str) -> int:
    """Return how many transactions are journalled."""
    ticks = _ticks(f"{quote(catalog)}.wlc", journal.read_layouts(connection, catalog))
    return int(connection.execute(f"SELECT count(DISTINCT tick) FROM ({ticks})").fetchall()[0][0])


def _oldest(
    connection: duckdb.DuckDBPyConnection, schema: str, layouts: Iterable[int], after: int, most: int
) -> tuple[int, int]:
    """Number of the `most` oldest transactions after a tick, and tick of the last of them, 0 if there is none."""
    oldest = f"SELECT DISTINCT tick FROM ({_ticks(schema, layouts)}) WHERE tick > {after} ORDER BY tick LIMIT {most}"
    count, last = connection.execute(f"SELECT count(*), coalesce(max(tick), 0) FROM ({oldest})").fetchall()[0]
    return count, last


def _ticks(schema: str, layouts: Iterable[int]) -> str:
    sources = [f"SELECT tick FROM {schema}.entries", *(f"SELECT _tick FROM {schema}.j{number}" for number in layouts)]
    return " UNION ALL ".join(sources)


def is_empty(connection: duckdb.DuckDBPyConnection, catalog: str) -> bool:
    """Say whether nothing is journalled."""
    schema = f"{quote(catalog)}.wlc"
    layouts = [number for (number,) in connection.execute(f"SELECT id FROM {schema}.layouts").fetchall()]
    return not connection.execute(f"{_ticks(schema, layouts)} LIMIT 1").fetchall()


def write_batch(
    connection: duckdb.DuckDBPyConnection, catalog: str, waiting: Pending, folder: Path, state: MasterState
) -> BatchContent:
    """Write the data files of a batch.

    Args:
        connection: In the transaction in which `waiting` was read.
        catalog: The master's database.
        waiting: Content of the batch.
        folder: The target folder.
        state: The master's state.
    """
    ticks = waiting.logged[0].tick, waiting.logged[-1].tick
    packed.extract(connection, catalog, waiting.entries, folder, waiting.extracted)
    paths_of = {record.path for *_, record in waiting.logged.records() if isinstance(record, FileRecord)}
    files, local, where = list[TableFile](), dict[str, Path](), dict[str, str]()
    for index, images in enumerate(sorted(map(_Images.of, paths_of))):
        name, layout = waiting.layouts[images.layout]
        path = paths.data_path(state.name, state.batch + 1, index)
        if images.tick:
            target = waiting.extracted[images.path].path
            rows = packed.count(connection, target)
        else:
            target = folder / f"{index}.parquet"
            rows = _write_file(connection, catalog, images, layout, ticks, target)
        files.append(TableFile(describe_file(target, path, rows), name, layout))
        local[path], where[images.path] = target, path
    ledger = digests.ledger(connection, catalog, waiting.layouts, waiting.held, waiting.extracted)
    transactions = _followed(waiting.logged, ledger).with_paths(where)
    taken = tuple(entry.proof for entry in waiting.entries if entry.proof)
    return BatchContent(catalog, transactions, tuple(files), local, ledger.changed(), ledger.unknown(), taken=taken)


def acknowledge(
    connection: duckdb.DuckDBPyConnection, shared: Shared, waiting: Pending, batch: Batch, chain: str, folder: Path
) -> None:
    """Delete published transactions from the journal, and store the new position, in one transaction.

    Args:
        connection: A connection of the master.
        shared: The master.
        waiting: The journalled transactions.
        batch: The batch that consists of the oldest of them.
        chain: Its chain hash.
        folder: Folder for files.
    """
    catalog, schema = shared.catalog, f"{quote(shared.catalog)}.wlc"
    published = [entry for entry in waiting.entries if entry.tick <= batch.last]
    # Published transactions stay journalled until they are deleted here, so no commit waits for these queries.
    packed.extract(connection, catalog, published, folder, waiting.extracted)
    before = digests.known_quick(waiting.held)
    quick = digests.quick_after(connection, catalog, waiting.layouts, before, batch, waiting.extracted)
    with shared.commit_lock:
        connection.execute("BEGIN")
        for number in waiting.filled:
            connection.execute(f"DELETE FROM {schema}.j{number} WHERE _tick <= {batch.last}")
        if waiting.has_entries:
            connection.execute(f"DELETE FROM {schema}.entries WHERE tick <= {batch.last}")
        if waiting.extracted:
            packed.forget(connection, catalog, batch.last)
        rows = count_pending_rows(digests.rows_of(waiting.held), waiting, batch.last)
        held = digest.after(digests.known(waiting.held), batch)
        digests.write(connection, catalog, waiting.held, rows, held, quick)
        state = shared.require_state().after(batch, chain)
        journal.write_state(connection, catalog, changes(shared.state, state))
        is_tidy = shared.tidied == shared.generation or _drop_outdated(connection, catalog)
        connection.execute("COMMIT")
        shared.state, shared.emptied = state, batch.last
        shared.tidied = shared.generation if is_tidy else None


class _Images(NamedTuple):
    """Images of one data file: of one layout and kind.

    Attributes:
        weight: 0 for images that change rows, else their special weight.
        tick: The transaction that has packed them; 0 for images in the image table.
    """

    layout: int
    weight: int = 0
    tick: int = 0

    @classmethod
    def of(cls, path: str) -> _Images:
        """Return those with a path."""
        number, _, tick = path.partition("@")
        layout, _, weight = number.partition("*")
        return cls(int(layout), int(weight or 0), int(tick or 0))

    @property
    def path(self) -> str:
        """The path of their data file while they are in the journal."""
        if self.tick:
            return packed.file_name(self.layout, self.tick)
        return f"{self.layout}*{self.weight}" if self.weight else str(self.layout)


def matches(waiting: Pending, batch: Batch) -> bool:
    """Say whether a published batch consists of exactly the oldest journalled transactions."""
    ours = {entry.tick: entry for entry in waiting.transactions}
    ticks = [transaction.tick for transaction in batch.transactions]
    if ticks != waiting.logged.ticks[: len(ticks)]:
        return False
    return all(is_same(ours[transaction.tick], transaction) for transaction in batch.transactions)


def count_pending_rows(counts: dict[Name, int], waiting: Pending, last: int = sys.maxsize) -> dict[Name, int]:
    """Return the number of rows of every table after the journalled transactions up to a tick."""
    chosen = waiting.logged[: waiting.logged.place(last + 1)]
    return _counted(counts, (record for *_, record in chosen.records()))


def count_rows(counts: dict[Name, int], entries: Iterable[JournalEntry]) -> dict[Name, int]:
    """Return the number of rows of every table after journalled transactions."""
    return _counted(counts, (record for entry in entries for record in entry.records))


def _counted(counts: dict[Name, int], records: Iterable[Record | JournalRecord]) -> dict[Name, int]:
    found = dict(counts)
    for record in records:
        match record:
            case Change(table, _, added, removed) | JournalledImages(table, _, added, removed):
                found[table] = found.get(table, 0) + added - removed
            case Clear(table, removed):
                found[table] = found.get(table, 0) - removed
            case Ddl():
                _count_after(found, record)
    return found


def _count_after(counts: dict[Name, int], ddl: Ddl) -> None:
    for effect in table_effects(ddl):
        before = counts.pop(effect.object.name, 0) if not isinstance(effect, AlteredObject) else 0
        if isinstance(effect, RenamedObject):
            counts[effect.to] = before
        if isinstance(effect, CreatedObject):
            counts[effect.object.name] = 0


def expected_digests(
    connection: duckdb.DuckDBPyConnection, catalog: str, work: Path | None = None
) -> dict[Name, Digest]:
    """Return the expected digests of the tables according to the capture: published, or journalled since.

    Args:
        connection: In the transaction in which the tables are read.
        catalog: The master's database.
        work: Folder for files; a temporary one if None.
    """
    waiting = pending(connection, catalog, sys.maxsize)
    with tempfile.TemporaryDirectory(prefix="wlc-", dir=work) as folder:
        packed.extract(connection, catalog, waiting.entries, Path(folder), waiting.extracted)
        ledger = digests.ledger(connection, catalog, waiting.layouts, waiting.held, waiting.extracted)
        _followed(waiting.logged, ledger)
        return ledger.all()


def reset_counts(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Count the rows of every table when a master begins. The first snapshot adds the digests."""
    found = duckdb_catalog.row_counts(connection, catalog, duckdb_catalog.tables(connection, catalog))
    digests.write(connection, catalog, digests.read(connection, catalog), found, {}, {})


def _drop_outdated(connection: duckdb.DuckDBPyConnection, catalog: str) -> bool:
    """Drop the empty image tables of outdated layouts, and return whether no outdated layout is left."""
    schema = f"{quote(catalog)}.wlc"
    layouts = journal.read_layouts(connection, catalog)
    newest = {name: number for number, (name, _) in layouts.items()}
    present = duckdb_catalog.table_names(connection, catalog)
    needed = packed.layouts(connection, catalog)
    outdated = {number for number, (name, _) in layouts.items() if newest[name] != number or name not in present}
    for number in sorted(outdated - needed):
        if not connection.execute(f"SELECT count(*) FROM {schema}.j{number}").fetchall()[0][0]:
            connection.execute(f"DROP TABLE {schema}.j{number}")
            connection.execute(f"DELETE FROM {schema}.layouts WHERE id = {number}")
            outdated.remove(number)
    return not outdated


def _write_file(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    chosen: _Images,
    layout: Layout,
    ticks: tuple[int, int],
    target: Path,
) -> int:
    number, weight, _ = chosen
    stored = ", ".join(f"c{index} AS {quote(file_column(column.name))}" for index, column in enumerate(layout.stored))
    written = "CAST(0 AS TINYINT) AS _weight" if weight else "_weight"
    listed = f"_tick, {written}, {stored}" if stored else f"_tick, {written}"
    wanted = f"_weight = {weight}" if weight else "abs(_weight) = 1"
    # Images are in the order of commits, that is of ticks, unless the session disabled insertion order.
    keeps_order = connection.execute("SELECT current_setting('preserve_insertion_order')").fetchall()[0][0]
    order = "" if keeps_order else " ORDER BY _tick"
    images = f"{quote(catalog)}.wlc.j{number} WHERE _tick BETWEEN {ticks[0]} AND {ticks[1]} AND {wanted}{order}"
    rows = connection.execute(f"COPY (SELECT {listed} FROM {images}) TO {literal(str(target))} ({KEPT})").fetchall()
    return int(rows[0][0])


def _transaction(entry: JournalEntry) -> Transaction:
    records = tuple(_record(record, entry.tick) for record in entry.records)
    return Transaction(entry.tick, entry.user, entry.started, entry.committed, records, entry.origin, after=entry.after)


def _record(record: JournalRecord, tick: int) -> Record:
    match record:
        case JournalledImages(table, layout, added, removed, file_bytes):
            return Change(table, _Images(layout, tick=tick if file_bytes else 0).path, added, removed)
        case JournalledReads(table, layout, rows, exclusive):
            return RowsRead(table, _Images(layout, record.weight).path, rows, exclusive)
        case JournalledRefresh(table, layout, rows, absent, kept):
            return RowsRefreshed(table, _Images(layout, record.weight).path, rows, absent, kept)
        case _:
            return record


def _followed(transactions: Transactions, ledger: Ledger) -> Transactions:
    """Return transactions with the digests of altered tables after schema changes, and follow their digests."""

    def follow(record: Record, first: int, last: int) -> Record:
        logged = _with_digest(record, ledger) if isinstance(record, Ddl) else record
        ledger.take(logged, first, last)
        return logged

    return transactions.with_records(follow)


def _with_digest(ddl: Ddl, ledger: Ledger) -> Ddl:
    table = next((table for table in table_names(ddl) if table.after == ddl.object), None)
    if ddl.digest is None and ddl.layout is not None and table is not None and not table.is_created and table.before:
        return replace(ddl, digest=ledger.digest(table.before))
    return ddl


def is_same(entry: JournalEntry, published: Transaction) -> bool:
    """Say whether a journalled transaction is the published one of the same tick."""
    ours = (entry.user, entry.started, entry.committed, len(entry.records))
    return ours == (published.user, published.started, published.committed, len(published.records))

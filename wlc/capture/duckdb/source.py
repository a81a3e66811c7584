"""DuckDB as a source of batches: what is journalled, written to data files, and emptied once it is published."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc import catalog as duckdb_catalog
from wlc import digest, ownership, paths
from wlc.capture.duckdb import digests, journal
from wlc.clock import read_time
from wlc.errors import UnavailableError
from wlc.farm import describe_file
from wlc.fields import as_ddl, as_name, as_origin, as_sequence
from wlc.model import (
    Batch,
    Change,
    Clear,
    Ddl,
    Digest,
    Layout,
    Name,
    Record,
    TableFile,
    Transaction,
    file_column,
    literal,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import duckdb

    from wlc.capture.duckdb.shared import Shared
    from wlc.digest import Ledger

MOST_TRANSACTIONS = 100_000


@dataclass(frozen=True, slots=True)
class Pending:
    """Journalled transactions in commit order, and per image table what a batch takes from it."""

    transactions: tuple[dict[str, Any], ...]
    layouts: dict[int, tuple[Name, Layout]]

    @property
    def ticks(self) -> list[int]:
        """Ticks of the transactions, rising."""
        return [transaction["tick"] for transaction in self.transactions]


def pending(connection: duckdb.DuckDBPyConnection, catalog: str, most: int = MOST_TRANSACTIONS) -> Pending:
    """Read what is journalled, in the connection's transaction.

    Args:
        connection: Stands in a transaction, so that all is read as of one moment.
        catalog: The master's database.
        most: Take at most so many transactions, the oldest; bounds the memory that a batch takes.
    """
    layouts = journal.read_layouts(connection, catalog)
    schema = f"{quote(catalog)}.wlc"
    last = _last_tick(connection, schema, layouts, most)
    found: dict[int, dict[str, Any]] = {}
    for number, (name, _) in layouts.items():
        _refuse_unreadable(connection, f"{schema}.j{number}", name)
        rows = connection.execute(
            "SELECT _tick, max(_meta), count(*) FILTER (_weight > 0), count(*) FILTER (_weight < 0)"
            f" FROM {schema}.j{number} WHERE _tick <= {last} GROUP BY _tick"
        ).fetchall()
        for tick, meta, added, removed in rows:
            # The images of a transaction with an entry are listed in it; these stand for themselves.
            if meta is not None:
                change = {"id": number, "table": [name.schema, name.name], "added": added, "removed": removed}
                found[tick] = {"tick": tick, **json.loads(meta), "records": [{"change": change}]}
    for tick, entry in connection.execute(f"SELECT tick, entry FROM {schema}.entries WHERE tick <= {last}").fetchall():
        found[tick] = {"tick": tick, **json.loads(entry)}
    return Pending(tuple(found[tick] for tick in sorted(found)), layouts)


def _refuse_unreadable(connection: duckdb.DuckDBPyConnection, images: str, name: Name) -> None:
    """Refuse to publish where DuckDB counts more images than it shows, or fewer."""
    # A count of rows, or of a column without NULL, it gives without looking at them; every weight is 1 or -1.
    counts = f"SELECT (SELECT count(*) FROM {images}), (SELECT coalesce(sum(abs(_weight)), 0)::BIGINT FROM {images})"
    counted, read = connection.execute(counts).fetchall()[0]
    if counted != read:
        raise UnavailableError(
            f"of {counted} journalled rows of table {name} DuckDB shows {read}",
            hint="close all connections to the database and run wlc flush; report this",
        )


def count_pending(connection: duckdb.DuckDBPyConnection, catalog: str) -> int:
    """How many transactions are journalled."""
    ticks = _ticks(f"{quote(catalog)}.wlc", journal.read_layouts(connection, catalog))
    return int(connection.execute(f"SELECT count(DISTINCT tick) FROM ({ticks})").fetchall()[0][0])


def _last_tick(connection: duckdb.DuckDBPyConnection, schema: str, layouts: Iterable[int], most: int) -> int:
    """Tick of the last of the `most` oldest transactions, 0 if nothing is journalled."""
    oldest = f"SELECT DISTINCT tick FROM ({_ticks(schema, layouts)}) ORDER BY tick LIMIT {most}"
    return int(connection.execute(f"SELECT coalesce(max(tick), 0) FROM ({oldest})").fetchall()[0][0])


def _ticks(schema: str, layouts: Iterable[int]) -> str:
    sources = [f"SELECT tick FROM {schema}.entries", *(f"SELECT _tick FROM {schema}.j{number}" for number in layouts)]
    return " UNION ALL ".join(sources)


def write_batch(
    connection: duckdb.DuckDBPyConnection, shared: Shared, waiting: Pending, folder: Path, header: dict[str, Any]
) -> tuple[Batch, dict[str, Path]]:
    """Write the data files of a batch into `folder`.

    Args:
        connection: Stands in the transaction that `waiting` was read in.
        shared: The master.
        waiting: What the batch consists of.
        folder: Where to write.
        header: Batch fields that do not come from the journal: database, number, history, previous, vector, parent.

    Returns:
        The batch, and for each of its data files' paths the local file.
    """
    first, last = waiting.ticks[0], waiting.ticks[-1]
    numbers = sorted(
        {record["change"]["id"] for transaction in waiting.transactions for record in _changes(transaction)}
    )
    files, local, where = [], {}, {}
    for index, number in enumerate(numbers):
        name, layout = waiting.layouts[number]
        path = paths.data_path(header["database"], header["number"], index)
        target = folder / f"{index}.parquet"
        rows = _write_file(connection, shared.catalog, number, layout, (first, last), target)
        files.append(TableFile(describe_file(target, path, rows), name, layout))
        local[path], where[number] = target, path
    ledger = digests.ledger(connection, shared.catalog, waiting.layouts)
    transactions = tuple(_transaction(found, where, ledger) for found in waiting.transactions)
    vector = {**header["vector"], header["history"]: last}
    batch = Batch(
        header["database"],
        header["number"],
        header["history"],
        first,
        last,
        header["previous"],
        shared.catalog,
        transactions,
        tuple(files),
        vector,
        header["parent"],
        ledger.changed(),
    )
    return batch, local


def acknowledge(
    connection: duckdb.DuckDBPyConnection, shared: Shared, waiting: Pending, batch: Batch, chain: str
) -> None:
    """Empty the journal of what a batch has published and note the new position, in one transaction."""
    schema = f"{quote(shared.catalog)}.wlc"
    # What was published is journalled until we empty it, so that no commit has to wait for this.
    quick = digests.quick_after(connection, shared.catalog, waiting.layouts, batch)
    with shared.commit_lock:
        layouts = journal.read_layouts(connection, shared.catalog)
        counts = _counts(connection, shared.catalog)
        connection.execute("BEGIN")
        for number in layouts:
            connection.execute(f"DELETE FROM {schema}.j{number} WHERE _tick <= {batch.last}")
        connection.execute(f"DELETE FROM {schema}.entries WHERE tick <= {batch.last}")
        after = count_rows(counts, (entry for entry in waiting.transactions if entry["tick"] <= batch.last))
        held = digest.after(digests.read(connection, shared.catalog), batch)
        _write_counts(connection, shared.catalog, after, held, quick)
        state = ownership.after(batch, chain)
        journal.write_state(connection, shared.catalog, state)
        _drop_dead(connection, shared.catalog, layouts)
        connection.execute("COMMIT")
        shared.state.update(state)


def matches(waiting: Pending, batch: Batch) -> bool:
    """Whether a published batch consists of exactly the oldest journalled transactions: our own, answer lost."""
    ours = {entry["tick"]: entry for entry in waiting.transactions}
    ticks = [transaction.tick for transaction in batch.transactions]
    if ticks != waiting.ticks[: len(ticks)]:
        return False
    return all(_same(ours[transaction.tick], transaction) for transaction in batch.transactions)


def count_rows(counts: dict[Name, int], transactions: Iterable[dict[str, Any]]) -> dict[Name, int]:
    """Rows of every table after journalled transactions; pure."""
    found = dict(counts)
    for record in (record for entry in transactions for record in entry.get("records", ())):
        if "ddl" in record:
            for old, new in record.get("renamed", ()):
                found[as_name(new)] = found.pop(as_name(old), 0)
            for name in record.get("dropped", ()):
                found.pop(as_name(name), None)
            for name in record.get("created", ()):
                found[as_name(name)] = 0
        elif "change" in record:
            change = record["change"]
            name = as_name(change["table"])
            found[name] = found.get(name, 0) + change["added"] - change["removed"]
        elif "clear" in record:
            name = as_name(record["clear"]["table"])
            found[name] = found.get(name, 0) - record["clear"]["removed"]
    return found


def bypassed(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, str]:
    """Tables that were changed without the capture, and how that shows; empty if none are known to be."""
    actual = duckdb_catalog.tables(connection, catalog)
    expected_layouts: dict[Name, Layout] = dict(journal.read_layouts(connection, catalog).values())
    journalled = pending(connection, catalog, sys.maxsize).transactions
    expected = count_rows(_counts(connection, catalog), journalled)
    problems: dict[Name, str] = {}
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            problems[name] = "was dropped"
        elif name not in expected:
            problems[name] = "was created"
        elif actual[name] != expected_layouts.get(name):
            problems[name] = "was altered"
        else:
            rows = connection.execute(f"SELECT count(*) FROM {quote(catalog)}.{name.sql}").fetchall()[0][0]
            if rows != expected[name]:
                problems[name] = f"has {rows} rows instead of {expected[name]}"
    return problems


def _counts(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, int]:
    rows = connection.execute(f"SELECT schema_name, table_name, rows FROM {quote(catalog)}.wlc.counts").fetchall()
    return {Name(schema, table): count for schema, table, count in rows}


def _write_counts(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    counts: dict[Name, int],
    held: Mapping[Name, Digest],
    quick: Mapping[Name, int],
) -> None:
    connection.execute(f"DELETE FROM {quote(catalog)}.wlc.counts")
    if counts:
        sums = {name: found.sum for name, found in held.items()}
        connection.executemany(
            f"INSERT INTO {quote(catalog)}.wlc.counts VALUES (?, ?, ?, ?, ?)",
            [[name.schema, name.name, count, sums.get(name), quick.get(name)] for name, count in counts.items()],
        )


def write_digests(
    connection: duckdb.DuckDBPyConnection, catalog: str, held: Mapping[Name, Digest], quick: Mapping[Name, int]
) -> None:
    """Note what the tables hold at the last published tick, in the caller's transaction; see `wlc.snapshot.Known`."""
    _write_counts(connection, catalog, _counts(connection, catalog), held, quick)


def expected_digests(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[Name, Digest]:
    """What the tables must hold now by what was captured: published, or journalled since."""
    waiting = pending(connection, catalog, sys.maxsize)
    ledger = digests.ledger(connection, catalog, waiting.layouts)
    for entry in waiting.transactions:
        _transaction(entry, dict.fromkeys(waiting.layouts, ""), ledger)
    return ledger.all()


def reset_counts(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Take the tables as they are for what is published: a master begins. What they hold the first snapshot tells."""
    found = {}
    for name in duckdb_catalog.tables(connection, catalog):
        found[name] = connection.execute(f"SELECT count(*) FROM {quote(catalog)}.{name.sql}").fetchall()[0][0]
    _write_counts(connection, catalog, found, {}, {})


def _drop_dead(connection: duckdb.DuckDBPyConnection, catalog: str, layouts: dict[int, tuple[Name, Layout]]) -> None:
    """Drop empty image tables of layouts that no table has any more."""
    schema = f"{quote(catalog)}.wlc"
    newest = {name: number for number, (name, _) in layouts.items()}
    present = duckdb_catalog.tables(connection, catalog)
    for number, (name, _) in layouts.items():
        is_dead = newest[name] != number or name not in present
        if is_dead and not connection.execute(f"SELECT count(*) FROM {schema}.j{number}").fetchall()[0][0]:
            connection.execute(f"DROP TABLE {schema}.j{number}")
            connection.execute(f"DELETE FROM {schema}.layouts WHERE id = {number}")


def _write_file(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    number: int,
    layout: Layout,
    ticks: tuple[int, int],
    target: Path,
) -> int:
    stored = ", ".join(f"c{index} AS {quote(file_column(column.name))}" for index, column in enumerate(layout.stored))
    listed = f"_tick, _weight, {stored}" if stored else "_tick, _weight"
    # Images lie in the order of commits, that is of ticks, unless the session gave up insertion order.
    keeps_order = connection.execute("SELECT current_setting('preserve_insertion_order')").fetchall()[0][0]
    order = "" if keeps_order else " ORDER BY _tick"
    images = f"{quote(catalog)}.wlc.j{number} WHERE _tick BETWEEN {ticks[0]} AND {ticks[1]}{order}"
    rows = connection.execute(
        f"COPY (SELECT {listed} FROM {images}) TO {literal(str(target))} (FORMAT parquet, COMPRESSION zstd)"
    ).fetchall()
    return int(rows[0][0])


def _changes(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (record for record in entry.get("records", ()) if "change" in record)


def _transaction(entry: dict[str, Any], where: dict[int, str], ledger: Ledger) -> Transaction:
    committed = read_time(entry["committed"]) if entry.get("committed") else None
    records = tuple(_record(record, entry["tick"], where, ledger) for record in entry.get("records", ()))
    origin = as_origin(entry.get("origin"))
    return Transaction(entry["tick"], entry["user"], read_time(entry["started"]), committed, records, origin)


def _record(record: dict[str, Any], tick: int, where: dict[int, str], ledger: Ledger) -> Record:
    if "ddl" in record:
        return _ddl(record, ledger)
    if "clear" in record:
        table = as_name(record["clear"]["table"])
        ledger.set(table, digest.EMPTY)
        return Clear(table, record["clear"]["removed"])
    if "sequence" in record:
        return as_sequence(record["sequence"])
    change = record["change"]
    table = as_name(change["table"])
    ledger.change(table, str(change["id"]), tick, change["added"] - change["removed"])
    return Change(table, where[change["id"]], change["added"], change["removed"])


def _ddl(record: dict[str, Any], ledger: Ledger) -> Ddl:
    """A schema change, with what an altered table holds after it."""
    ddl = as_ddl(record["ddl"])
    for old, new in record.get("renamed", ()):
        ledger.set(as_name(new), ledger.digest(as_name(old)))
    for name in record.get("dropped", ()):
        ledger.drop(as_name(name))
    for name in record.get("created", ()):
        ledger.set(as_name(name), digest.EMPTY)
    if ddl.digest is None and ddl.layout is not None and not record.get("created"):
        ddl = replace(ddl, digest=ledger.digest(ddl.object))
    ledger.alter(ddl)
    return ddl


def _same(entry: dict[str, Any], published: Transaction) -> bool:
    if entry["user"] != published.user or read_time(entry["started"]) != published.started:
        return False
    committed = read_time(entry["committed"]) if entry.get("committed") else None
    return committed == published.committed and len(entry.get("records", ())) == len(published.records)

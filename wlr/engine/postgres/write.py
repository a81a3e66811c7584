"""Writes net changes to PostgreSQL: rows to remove, rows to change in place, rows to add.

Images of rows to remove and to change are copied into a staging table. Its columns have the target's own types, so
PostgreSQL itself parses text. The operator `*=` compares images with the rows of the table. It is true for identical
values only, not for -0.0 and 0.0, 1.0 and 1.00, or two texts that are equal in a collation.

A statement changes the table's own rows only (`ONLY`): its child tables are replicated themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import psycopg

from wlc.dialect.duckdb import fold
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import parse
from wlc.farm.errors import CorruptError
from wlc.farm.model import WEIGHT, file_column
from wlr.engine.postgres import duckdb_folding, expressions
from wlr.engine.postgres.replica_connection import cause, fetch, run
from wlr.replay.fold import unfit_changes
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.model import Column
    from wlr.engine.postgres.duckdb_folding import Workshop
    from wlr.replay.fold.net_changes import NetChange, Totals

_STAGING = "pg_temp.wlr_staging"
# Two images of so many columns fit into one row of the staging table.
_WIDE = 400
# Integer keys of a change are dense if they fill at least one in so many numbers of their range.
_SPARSE = 4
# Columns that an UPDATE must not write, and columns of indexes that refuse equal rows while a statement runs; all
# columns if such an index is on an expression.
_FIXED = """
    SELECT a.attname FROM pg_attribute a WHERE a.attrelid = to_regclass({table}) AND a.attnum > 0
        AND NOT a.attisdropped AND (a.attidentity = 'a' OR EXISTS (SELECT FROM pg_index i
            WHERE i.indrelid = a.attrelid AND (i.indisunique OR i.indisexclusion)
            AND (a.attnum = ANY(i.indkey) OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)))
"""


_TYPES = """
    SELECT attname, atttypid::bigint, atttypmod FROM pg_attribute
    WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped
"""
# Querying the types of a table's columns takes as long as reading some thousand rows.
_BINARY_ROWS = 10_000
# Each one nests the expression of a row deeper, which DuckDB limits.
_BINARY_COLUMNS = 100


class Form(Enum):
    """How rows pass to the server: the format that COPY reads."""

    TEXT = "csv"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class StagingColumn:
    """A column of a staging table: column number `number` of the table, from image `alias`."""

    alias: str
    number: int

    @property
    def name(self) -> str:
        """Its name, unique in the staging table."""
        return f"{self.alias}{self.number}"


def write(
    connection: Connection, workshop: Workshop, net: NetChange, cleared_before: int | None, totals: Totals
) -> None:
    """Apply the net change of one table in the caller's transaction.

    Args:
        connection: Connection in a transaction with the role of a replica.
        workshop: Holds the net change.
        net: The change.
        cleared_before: Number of rows removed before a schema change that rewrote the table, None without one.
        totals: Adds up the net change while the server works.

    Raises:
        StepError: A row to remove is missing, or a constraint does not hold.
    """
    if net.change.cleared is not None:
        _clear(connection, net, cleared_before or 0)
    stays, changed = _staying(connection, workshop, net)
    if net.removed - stays:
        _remove(connection, workshop, net, net.removed - stays, totals, keeps=stays > 0)
    if stays:
        _update(connection, workshop, net, stays, changed, totals)
    if net.added - stays:
        _add(connection, workshop, net, net.added - stays, keeps=stays > 0)


def _clear(connection: Connection, net: NetChange, cleared_before: int) -> None:
    # TRUNCATE would hide the rows from readers with older snapshots.
    found = run(connection, f"DELETE FROM ONLY {net.table.sql}")
    unfit_changes.refuse_other_count(net.change, found + cleared_before)
    if net.removed:
        raise StepError(f"{net.removed} removed rows did not exist")


def _staying(connection: Connection, workshop: Workshop, net: NetChange) -> tuple[int, list[Column]]:
    """Return the number of rows that keep their key and can be updated, and the changed columns.

    The result is empty if rows must be removed and added instead.
    """
    table = net.table
    nothing: tuple[int, list[Column]] = (0, [])
    if not (net.removed and net.added and table.key):
        return nothing
    # An UPDATE does not change a key to an equal value that is not identical.
    if any(parse(column.type).row.has_equal_twins for column in table.key):
        return nothing
    outside = fold.outside_key(table)
    flags = "".join(f", coalesce(bool_or({_differs(column)}), false)" for column in outside)
    found = workshop.duckdb.execute(f"SELECT count(*){flags} FROM {_pairs(net)}").fetchall()[0]
    stays, changed = int(found[0]), [column for column, differs in zip(outside, found[1:], strict=True) if differs]
    # Two images of one key on the same side are a conflict, which removing detects.
    if not changed or stays > min(net.removed, net.added) or len(table.layout.stored) + len(changed) > _WIDE:
        return nothing
    # PostgreSQL refuses an UPDATE with duplicate values in between, even if they are gone at its end.
    fixed = {name for (name,) in fetch(connection, _FIXED.format(table=literal(table.sql)))}
    return nothing if any(column.name in fixed for column in changed) else (stays, changed)


def _differs(column: Column) -> str:
    old, new = (f"{alias}.{quote(file_column(column.name))}" for alias in "on")
    distinctions = fold.distinguishing_sql(column, old)
    exact = f" OR {distinctions} IS DISTINCT FROM {fold.distinguishing_sql(column, new)}" if distinctions else ""
    return f"{old} IS DISTINCT FROM {new}{exact}"


def _pairs(net: NetChange) -> str:
    """Select both images of rows that keep their key, `o` and `n`."""
    return f"{_images(net, '<')} AS o JOIN {_images(net, '>')} AS n USING ({_keys(net)})"


def _images(net: NetChange, sign: str) -> str:
    return f"(SELECT * FROM {net.source} WHERE {WEIGHT} {sign} 0)"


def _keys(net: NetChange, alias: str = "") -> str:
    return ", ".join(f"{alias}{quote(file_column(column.name))}" for column in net.table.key)


def _remove(
    connection: Connection, workshop: Workshop, net: NetChange, removed: int, totals: Totals, *, keeps: bool
) -> None:
    stage_removed(connection, workshop, net, keeps=keeps)
    table, stored = net.table, range(len(net.table.layout.stored))
    same = f"{_row('t', _names(table))} *= {_row('s', [StagingColumn('o', number).name for number in stored])}"
    if table.key:
        match = f"{_same_key(table)}{_in_range(workshop, net)} AND {same}"
        statement = f"DELETE FROM ONLY {table.sql} AS t USING {_STAGING} AS s WHERE {match}"
    else:
        statement = _delete_copies_sql(table, same)
    with totals.while_waiting(net):
        found = run(connection, statement)
    _drop(connection)
    if found != removed:
        raise unfit_changes.missing(net.change.table, removed - found, removed)


def _delete_copies_sql(table: TargetTable, same: str) -> str:
    """Delete as many copies of each image as its weight."""
    parts = [StagingColumn("o", number).name for number in range(len(table.layout.stored))]
    as_text = f"CAST({_row('t', _names(table))} AS text) = CAST({_row('s', parts)} AS text)"
    return (
        f"DELETE FROM ONLY {table.sql} WHERE ctid IN (SELECT r FROM (SELECT t.ctid AS r, s.w,"
        f" row_number() OVER (PARTITION BY s.n) AS copy FROM ONLY {table.sql} AS t JOIN {_STAGING} AS s"
        f" ON {as_text} AND {same}) AS found WHERE copy <= w)"
    )


def stage_removed(connection: Connection, workshop: Workshop, net: NetChange, *, keeps: bool) -> None:
    """Copy the images of rows to remove into the staging table, with numbers and counts of copies.

    Args:
        connection: Connection in a transaction.
        workshop: Holds the net change.
        net: The change.
        keeps: Leave out the rows that stay.
    """
    stored = net.table.layout.stored
    parts = [StagingColumn("o", number) for number in range(len(stored))]
    _create(connection, net.table, parts, "0::bigint AS w, 0::bigint AS n")
    # Rows without a key are identified by their text.
    form = _form(connection, net.table, net.removed) if net.table.key else Form.TEXT
    moved = f" ANTI JOIN {_images(net, '>')} AS n USING ({_keys(net)})" if keeps else ""
    texts = _values(net.table, parts, form)
    weight, grouped = f"CAST(-o.{WEIGHT} AS BIGINT)", ""
    if not net.table.key:
        # Two values with the same text in PostgreSQL would match the same rows.
        weight, grouped = (
            f"CAST(sum(-o.{WEIGHT}) AS BIGINT)",
            f" GROUP BY {', '.join(part.name for part in parts)}",
        )
    query = (
        f"SELECT {texts}, {weight} AS w, row_number() OVER () AS n FROM {net.source} AS o{moved}"
        f" WHERE o.{WEIGHT} < 0{grouped}"
    )
    if net.table.key:
        query += f" ORDER BY {_keys(net, 'o.')}"
    _fill(connection, workshop, net.table, parts, query, form, ("w", "n"))


def missing(connection: Connection, net: NetChange) -> str | None:
    """Name an image of the staging table with too few copies in the target; None if all match."""
    table, parts = net.table, [StagingColumn("o", number).name for number in range(len(net.table.layout.stored))]
    names = _names(table)
    shown = " || ', ' || ".join(
        f"{literal(name + ' = ')} || coalesce(CAST(s.{part} AS text), 'NULL')"
        for name, part in zip(names, parts, strict=True)
        if not table.key or name in table.layout.primary_key
    )
    same = f"{_row('t', names)} *= {_row('s', parts)}"
    match = f"{_same_key(table)} AND {same}" if table.key else same
    count = f"(SELECT count(*) FROM ONLY {table.sql} AS t WHERE {match})"
    found = fetch(connection, f"SELECT {shown} FROM {_STAGING} AS s WHERE s.w > {count} ORDER BY 1 LIMIT 1")
    return str(found[0][0]) if found else None


def _update(
    connection: Connection, workshop: Workshop, net: NetChange, stays: int, changed: list[Column], totals: Totals
) -> None:
    """Update rows in one statement; a row of the staging table holds both images."""
    table = net.table
    stored = table.layout.stored
    old = [StagingColumn("o", number) for number in range(len(stored))]
    new = [StagingColumn("n", number) for number, column in enumerate(stored) if column in changed]
    _create(connection, table, [*old, *new])
    # Rows are stored roughly in key order, so the server reads each page once.
    form = _form(connection, table, stays)
    query = f"SELECT {_values(table, [*old, *new], form)} FROM {_pairs(net)} ORDER BY {_keys(net, 'o.')}"
    _fill(connection, workshop, table, [*old, *new], query, form)
    values = ", ".join(f"{quote(stored[part.number].name)} = s.{part.name}" for part in new)
    same = f"{_row('t', _names(table))} *= {_row('s', [part.name for part in old])}"
    match = f"{_same_key(table)}{_in_range(workshop, net)} AND {same}"
    with totals.while_waiting(net):
        found = run(connection, f"UPDATE ONLY {table.sql} AS t SET {values} FROM {_STAGING} AS s WHERE {match}")
    _drop(connection)
    if found != stays:
        message = f"{stays - found} of {stays} rows to change are not in the replica as they were in the master"
        raise StepError(message)


def _add(connection: Connection, workshop: Workshop, net: NetChange, added: int, *, keeps: bool) -> None:
    table = net.table
    moved = f" ANTI JOIN {_images(net, '<')} AS o USING ({_keys(net)})" if keeps else ""
    query = f"{{}} FROM {net.source} AS n{{}}{moved} WHERE n.{WEIGHT} > 0"
    found = add(connection, workshop, table, query, added, is_folded=net.is_temporary)
    if found != added:
        raise CorruptError(f"table {net.change.table}: data files hold {found} rows to add, the log file says {added}")


def add(
    connection: Connection,
    workshop: Workshop,
    table: TargetTable,
    query: str,
    expected: int,
    *,
    is_folded: bool,
    freezes: bool = False,
) -> int:
    """Copy images `n` into the table itself, and return their number.

    Args:
        connection: Connection in a transaction.
        workshop: Reads the images.
        table: The table.
        query: `{} FROM … AS n{} WHERE …`, with places for the columns and for another table.
        expected: Approximate number of images.
        is_folded: Images are unordered and may have several copies.
        freezes: The table was created in this transaction, so VACUUM need not visit the rows.
    """
    parts = [StagingColumn("n", number) for number in range(len(table.layout.stored))]
    copies = f", range(n.{WEIGHT})" if is_folded and not table.key else ""
    form = _form(connection, table, expected)
    selected = "SELECT " + query.format(_values(table, parts, form), copies)
    # Folding leaves images unordered; sorted by key they are added to the index faster.
    order = ", ".join(f"n.{quote(file_column(column.name))}" for column in table.key)
    if is_folded and order:
        selected += f" ORDER BY {order}"
    columns = ", ".join(map(quote, _names(table)))
    frozen = ", FREEZE" if freezes else ""
    into = f"COPY {table.sql} ({columns}) FROM STDIN (FORMAT {form.value}{frozen})"
    return _bring(connection, workshop, table, parts, selected, into, form)


# Staging -------------------------------------------------------------------------------------------------------------


def _create(connection: Connection, table: TargetTable, parts: Iterable[StagingColumn], more: str = "") -> None:
    names = _names(table)
    columns = [f"{quote(names[part.number])} AS {part.name}" for part in parts] + ([more] if more else [])
    select = f"SELECT {', '.join(columns)} FROM {table.sql}"
    run(connection, f"CREATE TEMP TABLE wlr_staging ON COMMIT DROP AS {select} WITH NO DATA")


def _fill(
    connection: Connection,
    workshop: Workshop,
    table: TargetTable,
    parts: list[StagingColumn],
    query: str,
    form: Form,
    more: tuple[str, ...] = (),
) -> None:
    names = ", ".join([*(part.name for part in parts), *more])
    into = f"COPY {_STAGING} ({names}) FROM STDIN (FORMAT {form.value})"
    _bring(connection, workshop, table, parts, query, into, form, more)
    # Without statistics, PostgreSQL expects a small table, and looks up half a million rows one by one. With a key,
    # only its statistics matter.
    keys = ", ".join(f"o{number}" for number in _key_numbers(table))
    run(connection, f"ANALYZE {_STAGING}{f' ({keys})' if keys else ''}")


def _bring(
    connection: Connection,
    workshop: Workshop,
    table: TargetTable,
    parts: list[StagingColumn],
    query: str,
    into: str,
    form: Form,
    more: tuple[str, ...] = (),
) -> int:
    names, quoted = _names(table), _quoted(table, parts)
    try:
        if form is Form.BINARY:
            columns = [(part.name, table.layout.stored[part.number].type) for part in parts]
            rows = duckdb_folding.rows_sql([*columns, *((name, "BIGINT") for name in more)], query)
            return workshop.bring_bytes(connection, rows, into)
        return workshop.bring(connection, query, quoted, into)
    except psycopg.errors.CharacterNotInRepertoire as error:
        # Only PostgreSQL refuses the character 0 in text, and its message does not name the column.
        flags = ", ".join(f"bool_or(contains({part}, chr(0)))" for part in quoted)
        found = workshop.duckdb.execute(f"SELECT {flags} FROM ({query})").fetchall()[0] if quoted else ()
        first = next((part for part, has_zero in zip(quoted, found, strict=True) if has_zero), "")
        column = next((f"; column {names[part.number]}" for part in parts if part.name == first), "")
        raise StepError(cause(error) + column) from error
    except psycopg.DataError as error:
        raise StepError(cause(error, {part.name: names[part.number] for part in parts})) from error


def _drop(connection: Connection) -> None:
    run(connection, f"DROP TABLE {_STAGING}")


def _form(connection: Connection, table: TargetTable, rows: int) -> Form:
    """Choose the faster form to read so many rows of a table."""
    if rows < _BINARY_ROWS or len(table.layout.stored) > _BINARY_COLUMNS:
        return Form.TEXT
    own = {name: (oid, modifier) for name, oid, modifier in fetch(connection, _TYPES.format(literal(table.sql)))}
    known = (duckdb_folding.has_bytes(column.type, *own.get(column.name, (0, -1))) for column in table.layout.stored)
    return Form.BINARY if all(known) else Form.TEXT


def _values(table: TargetTable, parts: Iterable[StagingColumn], form: Form) -> str:
    """Select the values of parts, in text form as text."""
    stored, selected = table.layout.stored, []
    for part in parts:
        column = stored[part.number]
        value = f"{part.alias}.{quote(file_column(column.name))}"
        selected.append(f"{value if form is Form.BINARY else expressions.to_text_sql(column, value)} AS {part.name}")
    return ", ".join(selected)


def _quoted(table: TargetTable, parts: Iterable[StagingColumn]) -> list[str]:
    return [part.name for part in parts if expressions.is_text(table.layout.stored[part.number])]


def _names(table: TargetTable) -> list[str]:
    return [column.name for column in table.layout.stored]


def _row(alias: str, names: Iterable[str]) -> str:
    """Write an image as one value; without the cast, PostgreSQL would search `*=` for every column's type."""
    return f"CAST(ROW({', '.join(f'{alias}.{quote(name)}' for name in names)}) AS record)"


def _same_key(table: TargetTable) -> str:
    names = _names(table)
    return " AND ".join(f"t.{quote(names[number])} = s.o{number}" for number in _key_numbers(table))


def _key_numbers(table: TargetTable) -> list[int]:
    stored = list(table.layout.stored)
    return [stored.index(column) for column in table.key]


def _in_range(workshop: Workshop, net: NetChange) -> str:
    """Limit the join to the range of dense keys, so that the server skips other rows."""
    key = net.table.key
    if len(key) != 1 or not parse(key[0].type).row.is_integer:
        return ""
    column = _keys(net)
    query = f"SELECT min({column}), max({column}), count(*) FROM {_images(net, '<')}"
    low, high, count = workshop.duckdb.execute(query).fetchall()[0]
    if high - low > count * _SPARSE:
        return ""
    return f" AND t.{quote(key[0].name)} BETWEEN {low} AND {high}"

"""Net changes written to PostgreSQL: rows to remove, rows that stay and change, rows to add.

Images of rows to remove and to change come into a staging table whose columns have the target's own types, so that
PostgreSQL itself reads text as a value. They are compared with the rows that are there by `*=`, which takes nothing for
equal that is not identical: not -0.0 and 0.0, not 1.0 and 1.00, not two texts that a collation takes for the same.

A table's rows are its own (`ONLY`): tables that inherit from it are replicated themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from wlc.errors import CorruptError
from wlc.model import WEIGHT, file_column, literal, quote
from wlr import fold
from wlr.engine import StepError, fit
from wlr.engine.postgres import types
from wlr.engine.postgres.connection import cause, fetch, run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.model import Column
    from wlr.engine.duckdb.changes import Net
    from wlr.engine.postgres.connection import Connection
    from wlr.engine.postgres.workshop import Workshop
    from wlr.fold import TargetTable

_STAGING = "pg_temp.wlr_staging"
# So many columns surely fit into a page of the server side by side, twice.
_WIDE = 400
# Two values of these types may be equal and not identical, so that an UPDATE would leave a key as it was.
_INEXACT_KEYS = frozenset({"FLOAT", "REAL", "DOUBLE"})
# Keys of these types lie side by side where one in so many numbers, or more, is looked for.
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})
_SPARSE = 4
# Columns of indexes that refuse equal rows, while a statement runs already; all where an index is on an expression. And
# columns that an UPDATE must not write.
_FIXED = """
    SELECT a.attname FROM pg_attribute a WHERE a.attrelid = to_regclass({table}) AND a.attnum > 0
        AND NOT a.attisdropped AND (a.attidentity = 'a' OR EXISTS (SELECT FROM pg_index i
            WHERE i.indrelid = a.attrelid AND (i.indisunique OR i.indisexclusion)
            AND (a.attnum = ANY(i.indkey) OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL)))
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A column of a staging table: column number `number` of the table, from image `alias`."""

    alias: str
    number: int

    @property
    def name(self) -> str:
        """A name that no table's column can collide with, because staging has none of theirs."""
        return f"{self.alias}{self.number}"


def write(connection: Connection, workshop: Workshop, net: Net, cleared_before: int | None) -> None:
    """Apply the net change of one table in the caller's transaction.

    Args:
        connection: In a transaction as a replica.
        workshop: Holds the net change.
        net: The change.
        cleared_before: Rows that were removed ahead of a schema change that rewrote the table, None if none were.

    Raises:
        StepError: A row to remove is not there, or a constraint does not hold.
    """
    if net.change.cleared is not None:
        _clear(connection, net, cleared_before or 0)
    stays, changed = _staying(connection, workshop, net)
    if net.removed - stays:
        _remove(connection, workshop, net, net.removed - stays, keeps=stays > 0)
    if stays:
        _update(connection, workshop, net, stays, changed)
    if net.added - stays:
        _add(connection, workshop, net, net.added - stays, keeps=stays > 0)


def _clear(connection: Connection, net: Net, cleared_before: int) -> None:
    # TRUNCATE would take the rows from readers at once that began before the step's end.
    found = run(connection, f"DELETE FROM ONLY {net.table.sql}")
    fit.refuse_other_count(net.change, found + cleared_before)
    if net.removed:
        raise StepError(f"{net.removed} rows were removed that were not there")


def _staying(connection: Connection, workshop: Workshop, net: Net) -> tuple[int, list[Column]]:
    """Return how many rows keep their key and can be updated, and the columns that they change.

    There are none where rows are to be removed and added instead.
    """
    table = net.table
    nothing: tuple[int, list[Column]] = (0, [])
    if not (net.removed and net.added and table.key) or any(c.type in _INEXACT_KEYS for c in table.key):
        return nothing
    outside = fold.outside_key(table)
    flags = "".join(f", coalesce(bool_or({_differs(column)}), false)" for column in outside)
    found = workshop.duckdb.execute(f"SELECT count(*){flags} FROM {_pairs(net)}").fetchall()[0]
    stays, changed = int(found[0]), [column for column, differs in zip(outside, found[1:], strict=True) if differs]
    # Two images of a key on one side are a conflict, which removing finds.
    if not changed or stays > min(net.removed, net.added) or len(table.layout.stored) + len(changed) > _WIDE:
        return nothing
    # An UPDATE meets equal values on its way that are gone at its end, and PostgreSQL would refuse it.
    fixed = {name for (name,) in fetch(connection, _FIXED.format(table=literal(table.sql)))}
    return nothing if any(column.name in fixed for column in changed) else (stays, changed)


def _differs(column: Column) -> str:
    old, new = (f"{alias}.{quote(file_column(column.name))}" for alias in "on")
    told_apart = fold.tell_apart(column, old)
    exact = f" OR {told_apart} IS DISTINCT FROM {fold.tell_apart(column, new)}" if told_apart else ""
    return f"{old} IS DISTINCT FROM {new}{exact}"


def _pairs(net: Net) -> str:
    """Both images of rows that keep their key, `o` and `n`."""
    return f"{_images(net, '<')} AS o JOIN {_images(net, '>')} AS n USING ({_keys(net)})"


def _images(net: Net, sign: str) -> str:
    return f"(SELECT * FROM {net.source} WHERE {WEIGHT} {sign} 0)"


def _keys(net: Net, alias: str = "") -> str:
    return ", ".join(f"{alias}{quote(file_column(column.name))}" for column in net.table.key)


def _remove(connection: Connection, workshop: Workshop, net: Net, removed: int, *, keeps: bool) -> None:
    stage_removed(connection, workshop, net, keeps=keeps)
    table, stored = net.table, range(len(net.table.layout.stored))
    same = f"{_row('t', _names(table))} *= {_row('s', [Part('o', number).name for number in stored])}"
    if table.key:
        match = f"{_same_key(table)}{_in_range(workshop, net)} AND {same}"
        found = run(connection, f"DELETE FROM ONLY {table.sql} AS t USING {_STAGING} AS s WHERE {match}")
    else:
        found = run(connection, _delete_copies_sql(table, same))
    _drop(connection)
    if found != removed:
        raise fit.missing(net.change.table, removed - found, removed)


def _delete_copies_sql(table: TargetTable, same: str) -> str:
    """Delete as many copies of each image as its weight says, and no more."""
    parts = [Part("o", number).name for number in range(len(table.layout.stored))]
    as_text = f"CAST({_row('t', _names(table))} AS text) = CAST({_row('s', parts)} AS text)"
    return (
        f"DELETE FROM ONLY {table.sql} WHERE ctid IN (SELECT r FROM (SELECT t.ctid AS r, s.w,"
        f" row_number() OVER (PARTITION BY s.n) AS copy FROM ONLY {table.sql} AS t JOIN {_STAGING} AS s"
        f" ON {as_text} AND {same}) AS found WHERE copy <= w)"
    )


def stage_removed(connection: Connection, workshop: Workshop, net: Net, *, keeps: bool) -> None:
    """Bring the images of rows to remove into the staging table, each with its number and how many copies there are.

    Args:
        connection: In a transaction.
        workshop: Holds the net change.
        net: The change.
        keeps: Leave out the rows that stay.
    """
    stored = net.table.layout.stored
    parts = [Part("o", number) for number in range(len(stored))]
    _create(connection, net.table, parts, "0::bigint AS w, 0::bigint AS n")
    moved = f" ANTI JOIN {_images(net, '>')} AS n USING ({_keys(net)})" if keeps else ""
    texts = _texts(net.table, parts)
    weight, grouped = f"-o.{WEIGHT}", ""
    if not net.table.key:
        # Two values that are one in PostgreSQL's text would each find the same rows.
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
    _fill(connection, workshop, net.table, parts, query, ", w, n")


def missing(connection: Connection, net: Net) -> str | None:
    """Name an image in the staging table that the target does not have, or not so often; None if it has all."""
    table, parts = net.table, [Part("o", number).name for number in range(len(net.table.layout.stored))]
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


def _update(connection: Connection, workshop: Workshop, net: Net, stays: int, changed: list[Column]) -> None:
    """Change rows that stay in one statement; both images lie side by side in a row of the staging table."""
    table = net.table
    stored = table.layout.stored
    old = [Part("o", number) for number in range(len(stored))]
    new = [Part("n", number) for number, column in enumerate(stored) if column in changed]
    _create(connection, table, [*old, *new])
    # Rows lie about in the order of their keys, so that the server goes through its pages once.
    query = f"SELECT {_texts(table, [*old, *new])} FROM {_pairs(net)} ORDER BY {_keys(net, 'o.')}"
    _fill(connection, workshop, table, [*old, *new], query)
    values = ", ".join(f"{quote(stored[part.number].name)} = s.{part.name}" for part in new)
    same = f"{_row('t', _names(table))} *= {_row('s', [part.name for part in old])}"
    match = f"{_same_key(table)}{_in_range(workshop, net)} AND {same}"
    found = run(connection, f"UPDATE ONLY {table.sql} AS t SET {values} FROM {_STAGING} AS s WHERE {match}")
    _drop(connection)
    if found != stays:
        message = f"{stays - found} of {stays} rows to change are not in the replica as they were in the master"
        raise StepError(message)


def _add(connection: Connection, workshop: Workshop, net: Net, added: int, *, keeps: bool) -> None:
    table = net.table
    moved = f" ANTI JOIN {_images(net, '<')} AS o USING ({_keys(net)})" if keeps else ""
    query = f"{{}} FROM {net.source} AS n{{}}{moved} WHERE n.{WEIGHT} > 0"
    found = add(connection, workshop, table, query, is_folded=net.is_temporary)
    if found != added:
        raise CorruptError(f"table {net.change.table}: data files hold {found} rows to add, the log file says {added}")


def add(
    connection: Connection,
    workshop: Workshop,
    table: TargetTable,
    query: str,
    *,
    is_folded: bool,
    freezes: bool = False,
) -> int:
    """Copy images `n` into the table itself, and return how many.

    Args:
        connection: In a transaction.
        workshop: Reads the images.
        table: Where.
        query: `{} FROM … AS n{} WHERE …`, with gaps for the columns and for another table.
        is_folded: Images are in no order and may stand for several copies.
        freezes: The table was made in this transaction: rows need no second look by VACUUM.
    """
    parts = [Part("n", number) for number in range(len(table.layout.stored))]
    copies = f", range(n.{WEIGHT})" if is_folded and not table.key else ""
    selected = "SELECT " + query.format(_texts(table, parts), copies)
    # Folding leaves images in no order; by their key they go faster into the index.
    order = ", ".join(f"n.{quote(file_column(column.name))}" for column in table.key)
    if is_folded and order:
        selected += f" ORDER BY {order}"
    columns = ", ".join(map(quote, _names(table)))
    frozen = ", FREEZE" if freezes else ""
    into = f"COPY {table.sql} ({columns}) FROM STDIN (FORMAT csv{frozen})"
    return _bring(connection, workshop, table, parts, selected, into)


# Staging -------------------------------------------------------------------------------------------------------------


def _create(connection: Connection, table: TargetTable, parts: Iterable[Part], more: str = "") -> None:
    names = _names(table)
    columns = [f"{quote(names[part.number])} AS {part.name}" for part in parts] + ([more] if more else [])
    select = f"SELECT {', '.join(columns)} FROM {table.sql}"
    run(connection, f"CREATE TEMP TABLE wlr_staging ON COMMIT DROP AS {select} WITH NO DATA")


def _fill(
    connection: Connection, workshop: Workshop, table: TargetTable, parts: list[Part], query: str, more: str = ""
) -> None:
    names = ", ".join(part.name for part in parts)
    into = f"COPY {_STAGING} ({names}{more}) FROM STDIN (FORMAT csv)"
    _bring(connection, workshop, table, parts, query, into)
    # Without statistics PostgreSQL takes it for small, and looks up half a million rows one by one. Of a table with a
    # key nothing else matters.
    keys = ", ".join(f"o{number}" for number in _key_numbers(table))
    run(connection, f"ANALYZE {_STAGING}{f' ({keys})' if keys else ''}")


def _bring(
    connection: Connection, workshop: Workshop, table: TargetTable, parts: list[Part], query: str, into: str
) -> int:
    names, quoted = _names(table), _quoted(table, parts)
    try:
        return workshop.bring(connection, query, quoted, into)
    except psycopg.errors.CharacterNotInRepertoire as error:
        # Text may hold the character 0 everywhere but in PostgreSQL, which does not say where it found it.
        flags = ", ".join(f"bool_or(contains({part}, chr(0)))" for part in quoted)
        found = workshop.duckdb.execute(f"SELECT {flags} FROM ({query})").fetchall()[0] if quoted else ()
        first = next((part for part, has_zero in zip(quoted, found, strict=True) if has_zero), "")
        column = next((f"; column {names[part.number]}" for part in parts if part.name == first), "")
        raise StepError(cause(error) + column) from error
    except psycopg.DataError as error:
        raise StepError(cause(error, {part.name: names[part.number] for part in parts})) from error


def _drop(connection: Connection) -> None:
    run(connection, f"DROP TABLE {_STAGING}")


def _texts(table: TargetTable, parts: Iterable[Part]) -> str:
    stored = table.layout.stored
    return ", ".join(
        f"{types.to_text_sql(column, f'{part.alias}.{quote(file_column(column.name))}')} AS {part.name}"
        for part in parts
        for column in (stored[part.number],)
    )


def _quoted(table: TargetTable, parts: Iterable[Part]) -> list[str]:
    return [part.name for part in parts if types.is_text(table.layout.stored[part.number])]


def _names(table: TargetTable) -> list[str]:
    return [column.name for column in table.layout.stored]


def _row(alias: str, names: Iterable[str]) -> str:
    """An image as one value; without the cast PostgreSQL would look for `*=` of every column's type."""
    return f"CAST(ROW({', '.join(f'{alias}.{quote(name)}' for name in names)}) AS record)"


def _same_key(table: TargetTable) -> str:
    names = _names(table)
    return " AND ".join(f"t.{quote(names[number])} = s.o{number}" for number in _key_numbers(table))


def _key_numbers(table: TargetTable) -> list[int]:
    stored = list(table.layout.stored)
    return [stored.index(column) for column in table.key]


def _in_range(workshop: Workshop, net: Net) -> str:
    """Where the rows of a change lie side by side, keep the server from joining them with the whole table."""
    key = net.table.key
    if len(key) != 1 or key[0].type not in _INTEGERS:
        return ""
    column = _keys(net)
    query = f"SELECT min({column}), max({column}), count(*) FROM {_images(net, '<')}"
    low, high, count = workshop.duckdb.execute(query).fetchall()[0]
    if high - low > count * _SPARSE:
        return ""
    return f" AND t.{quote(key[0].name)} BETWEEN {low} AND {high}"

"""The SQL that folds changes into one net change and applies it, for targets that speak DuckDB's SQL.

Row images carry weights, so folding is adding: images whose sum is zero were undone inside the range, rows with a
negative sum must be in the target and are removed, rows with a positive sum are added. Folding needs no order and no
key. (Picking the first -1 and the last +1 image of each key costs the same, and is wrong if a transaction holds a pair
of images that cancels.)

Adding is only right if equal means identical, which SQL's `=` does not guarantee: -0.0 = 0.0, and texts under a
collation. Images are therefore compared in their storage types, where intervals, zoned times and the like are text, and
with the sign of floats beside them.

Everything here builds text; only `updates` asks the database what differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.catalog import replaced_columns
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import load_sql, parse, storage_type, store_sql
from wlc.farm.model import WEIGHT, Column, Name, file_column

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import duckdb

    from wlc.farm.model import Layout

# Data files call no column of a table `_tick`, and a net change has no ticks, so the name is free for a mark: the image
# has a counterpart with the same key, so that the row stays and is updated; or the image's number.
STAYS = NUMBER = "_tick"
# For a list of REPLACE: images with negated weights undo a change.
NEGATED = f"-{WEIGHT} AS {WEIGHT}"


@dataclass(frozen=True, slots=True)
class RowImages:
    """Local files of one layout, and the range of ticks to read, `first` and `last` included.

    Attributes:
        values: For a table that was altered after the files were written, the SQL that computes each stored column from
            a file's row; empty if the files have the table's columns.
    """

    files: tuple[str, ...]
    first: int
    last: int
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table of the target with its special properties.

    Attributes:
        sql: Its full name as SQL text.
        is_collated: Some column may have a collation, so texts are compared as bytes.
        is_referenced: Foreign keys refer to it, so a row whose key stays must stay.
        references_itself: (columns, referred columns) of its foreign keys to itself.
        has_rowid: False if a column called rowid hides DuckDB's.
    """

    name: Name
    sql: str
    layout: Layout
    is_collated: bool = False
    is_referenced: bool = False
    references_itself: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    has_rowid: bool = True

    @property
    def key(self) -> tuple[Column, ...]:
        """The columns of its primary key; empty if it has none."""
        by_name = {column.name: column for column in self.layout.columns}
        return tuple(by_name[name] for name in self.layout.primary_key)

    @property
    def keeps_rows(self) -> bool:
        """Whether a row whose key stays is updated in place instead of deleted and inserted."""
        return self.is_referenced and bool(self.key)


# Folding -------------------------------------------------------------------------------------------------------------


def raw_sql(layout: Layout, sources: Sequence[RowImages]) -> str:
    """Select all row images of the files: columns in storage types, and the weight."""
    columns = stored_columns(layout)
    return " UNION ALL ".join(
        f"SELECT {named_values_sql(source.values or columns, columns)}, {WEIGHT} FROM {rows_of(*source.files)}"
        f" WHERE _tick BETWEEN {source.first} AND {source.last}"
        for source in sources
    )


def stored_columns(layout: Layout) -> tuple[str, ...]:
    """Return the names that a table's stored columns have in its files, quoted."""
    return tuple(quote(file_column(column.name)) for column in layout.stored)


def named_values_sql(values: Sequence[str], names: Sequence[str]) -> str:
    """Write a select list of values under their names; an unchanged column is only named."""
    return ", ".join(name if value == name else f"{value} AS {name}" for value, name in zip(values, names, strict=True))


def sum_sql(layout: Layout, raw: str) -> str:
    """Select images whose weights do not sum to zero, with the sum as their weight.

    Args:
        layout: Layout of the images.
        raw: A query that selects images and weights, such as `raw_sql`.
    """
    columns = [quote(file_column(column.name)) for column in layout.stored]
    distinguishing = (distinguishing_sql(c, quote(file_column(c.name))) for c in layout.stored)
    return (
        f"SELECT {', '.join(columns)}, CAST(sum({WEIGHT}) AS BIGINT) AS {WEIGHT} FROM ({raw})"
        f" GROUP BY {', '.join([*columns, *filter(None, distinguishing)])} HAVING sum({WEIGHT}) <> 0"
    )


def same_stored_sql(layout: Layout, one: str, other: str) -> str:
    """SQL condition: two images in storage types, given by alias, are identical."""
    tests = (_identical(column, _stored(column, one), _stored(column, other)) for column in layout.stored)
    return " AND ".join(tests) or "true"


def net_sql(table: TargetTable, raw: str) -> str:
    """Select the net change of a target's table; for updated rows, mark the images of rows that stay.

    Args:
        table: The table.
        raw: A query that selects images and weights, such as `raw_sql`.
    """
    net = sum_sql(table.layout, raw)
    if not table.keeps_rows:
        return net
    keys = ", ".join(quote(file_column(column.name)) for column in table.key)
    stays = f"count(*) FILTER ({WEIGHT} < 0) OVER k > 0 AND count(*) FILTER ({WEIGHT} > 0) OVER k > 0"
    twins = (column for column in outside_key(table) if parse(column.type).row.has_equal_twins)
    stays += "".join(f" AND NOT ({_is_elided(column)})" for column in twins)
    return f"SELECT *, {stays} AS {STAYS} FROM ({net}) WINDOW k AS (PARTITION BY {keys})"


def _is_elided(column: Column) -> str:
    """SQL condition on both images of a key: an UPDATE leaves the column unchanged. DuckDB skips equal values."""
    stored = quote(file_column(column.name))
    value, exact = load_sql(column, stored), stored
    if distinguishing := distinguishing_sql(column, stored):
        exact = f"CAST({distinguishing} AS TINYINT)"
    return (
        f"min({value}) OVER k IS NOT DISTINCT FROM max({value}) OVER k"
        f" AND min({exact}) OVER k IS DISTINCT FROM max({exact}) OVER k"
    )


def distinguishing_sql(column: Column, stored: str) -> str:
    """Return the expression that distinguishes values that SQL considers equal, "" if SQL is exact for the type."""
    storage = parse(storage_type(column.type))
    if storage.row.is_float:
        return f"signbit({stored})"
    return f"CAST({stored} AS VARCHAR)" if storage.holds(lambda row: row.is_float) else ""


# Applying: `t` is the target's row, `n` an image ----------------------------------------------------------------------


def delete_keyed_sql(table: TargetTable, net: str) -> str:
    """Delete the rows of a keyed table whose image, key and all, has a negative weight."""
    match = f"{_same_key(table, 'n')} AND {_same_image(table, 'n')}"
    return f"DELETE FROM {table.sql} AS t USING {_gone(table, net)} AS n WHERE {match}"


def delete_bag_sql(table: TargetTable, net: str) -> str:
    """Delete exactly as many copies of each image as its negative weight says."""
    return f"DELETE FROM {table.sql} WHERE rowid IN ({bag_rowids_sql(table, net)})"


def bag_rowids_sql(table: TargetTable, net: str) -> str:
    """Select the row ids that `delete_bag_sql` deletes, the first ones of equal copies."""
    return (
        f"SELECT r FROM (SELECT t.rowid AS r, n.{WEIGHT} AS w,"
        f" row_number() OVER (PARTITION BY n.{NUMBER}) AS copy FROM {table.sql} AS t"
        f" JOIN {_numbered(net)} AS n ON {_same_image(table, 'n')}) WHERE copy <= -w"
    )


def present_sql(table: TargetTable, net: str) -> str:
    """Select the rows of a keyed table whose key occurs in an image, in storage types, without weight."""
    values = (store_sql(column, f"t.{quote(column.name)}") for column in table.layout.stored)
    named = named_values_sql(list(values), stored_columns(table.layout))
    return f"SELECT {named} FROM {table.sql} AS t SEMI JOIN {net} AS n ON {_same_key(table, 'n')}"


def same_stored_key_sql(table: TargetTable, one: str, other: str) -> str:
    """SQL condition: two images in storage types, given by alias, have the same primary key."""
    return " AND ".join(f"{_stored(column, one)} = {_stored(column, other)}" for column in table.key)


def copies_left_sql(table: TargetTable, net: str) -> str:
    """Select images to remove, each weighted with the copies that the target keeps; negative if it has too few.

    For tables whose rows `rowid` cannot identify: all copies are deleted, and the remaining ones are inserted again.
    """
    return _copies_left(table.layout, net, table.sql, _same_image(table, "n"))


def stored_copies_left_sql(layout: Layout, net: str, rows: str) -> str:
    """Do the same as `copies_left_sql` for `rows`, a query in parentheses with columns in storage types."""
    return _copies_left(layout, net, rows, same_stored_sql(layout, "t", "n"))


def _copies_left(layout: Layout, net: str, rows: str, match: str) -> str:
    columns = ", ".join(f"n.{column}" for column in stored_columns(layout))
    return (
        f"SELECT {columns}, n.{WEIGHT} + count(t.there) AS {WEIGHT} FROM {_numbered(net)} AS n"
        f" LEFT JOIN (SELECT *, true AS there FROM {rows}) AS t ON {match}"
        f" GROUP BY {columns}, n.{NUMBER}, n.{WEIGHT}"
    )


def delete_equal_sql(table: TargetTable, net: str) -> str:
    """Delete every row that is identical to an image to remove, however many copies there are."""
    return f"DELETE FROM {table.sql} AS t USING {_gone(table, net)} AS n WHERE {_same_image(table, 'n')}"


def updates(connection: duckdb.DuckDBPyConnection, catalog: str, table: TargetTable, net: str) -> Iterator[str]:
    """Yield the statements that update the rows that stay, without violating foreign keys that refer to them.

    Setting an indexed column or a list, even to its present value, removes the row and adds another, which a foreign
    key forbids: rows in which none of these differs are updated only in the other columns. Rows in which one differs
    are updated in one statement, because unique values may move among them.
    """
    columns = outside_key(table)
    if not columns:
        return
    flags = ", ".join(f"coalesce(bool_or({_differs(column)}), false)" for column in columns)
    both = f"{_old_and_new(net)} WHERE {_same_stored_key(table)}"
    found = connection.execute(f"SELECT {flags} FROM {both}").fetchall()[0]
    changed = [column for column, differs in zip(columns, found, strict=True) if differs]
    match = f"{_same_key(table, 'o')} AND {_same_image(table, 'o')}"

    def setting(some: Sequence[Column], condition: str) -> str:
        values = ", ".join(f"{quote(column.name)} = {_loaded(column, 'n')}" for column in some)
        return f"UPDATE {table.sql} AS t SET {values} FROM {both} AND {match}{condition}"

    if len(changed) < 2:
        yield from (setting(changed, "") for _ in changed)
        return
    replaced = replaced_columns(connection, catalog, table.name, table.layout)
    moving = [each for each in changed if each.name in replaced]
    plain = [each for each in changed if each not in moving]
    moves = " OR ".join(f"({_differs(column)})" for column in moving)
    if plain:
        yield setting(plain, f" AND NOT coalesce({moves}, false)" if moves else "")
    if moves:
        yield setting(changed, f" AND coalesce({moves}, false)" if plain else "")


def moved_sql(table: TargetTable, net: str, replaced: Collection[str]) -> str:
    """Select the images of rows that do not stay, or that differ in columns that DuckDB does not update in place."""
    gone = f"SELECT * FROM {_gone(table, net)}"
    differs = [_differs(column) for column in outside_key(table) if column.name in replaced]
    if not (table.keeps_rows and differs):
        return gone
    both = f"{_old_and_new(net)} WHERE {_same_stored_key(table)}"
    return f"{gone} UNION ALL SELECT o.* FROM {both} AND ({' OR '.join(differs)})"


def _differs(column: Column) -> str:
    """SQL condition on both images of a row that stays: a column differs."""
    old, new = _stored(column, "o"), _stored(column, "n")
    different = f"{old} IS DISTINCT FROM {new}"
    if distinguishing := distinguishing_sql(column, old):
        different += f" OR {distinguishing} IS DISTINCT FROM {distinguishing_sql(column, new)}"
    return different


def outside_key(table: TargetTable) -> list[Column]:
    """Stored columns that are not part of the primary key, in declared order."""
    return [column for column in table.layout.stored if column.name not in table.layout.primary_key]


def insert_sql(table: TargetTable, source: str, *, copies: bool = False, where: str = "true") -> str:
    """Insert images with a positive weight.

    Args:
        table: The table.
        source: A table, or a query in parentheses.
        copies: Insert an image as many times as its weight says instead of once.
        where: A condition on images `n`.
    """
    values = ", ".join(_loaded(column, "n") for column in table.layout.stored)
    once = f"{_insert_into(table)} SELECT {values} FROM {source} AS n WHERE n.{WEIGHT} > 0 AND {where}"
    if not copies:
        return once
    return f"{once} UNION ALL SELECT {values} FROM {source} AS n, range(1, n.{WEIGHT}) WHERE n.{WEIGHT} > 1 AND {where}"


def insert_new_sql(table: TargetTable, net: str) -> str:
    """Insert the added rows of a net change, without the new images of rows that stay.

    Folding and the threads of a large UPDATE leave images unordered. Rows are inserted in the order of their key: the
    index inserts, deletes and writes them faster.
    """
    where = f"NOT n.{STAYS}" if table.keeps_rows else "true"
    order = ", ".join(_loaded(column, "n") for column in table.key)
    insert = insert_sql(table, net, copies=not table.key, where=where)
    return f"{insert} ORDER BY {order}" if order else insert


def rows_sql(layout: Layout, files: Sequence[str]) -> str:
    """Select all rows of a snapshot's files as added images."""
    columns = ", ".join(quote(file_column(column.name)) for column in layout.stored)
    return f"SELECT {columns}, 1 AS {WEIGHT} FROM {rows_of(*files)}"


def ready_condition(table: TargetTable) -> str:
    """SQL condition: the rows of its own table to which image `n` refers exist; an image must not refer to itself."""
    columns = {column.name: column for column in table.layout.stored}
    conditions = []
    for referring, referred in table.references_itself:
        pairs = [(columns[a], columns[b]) for a, b in zip(referring, referred, strict=True)]
        is_none = " OR ".join(f"{_stored(a, 'n')} IS NULL" for a, _ in pairs)
        is_there = " AND ".join(f"p.{quote(b.name)} = {_loaded(a, 'n')}" for a, b in pairs)
        conditions.append(f"({is_none} OR EXISTS (SELECT 1 FROM {table.sql} AS p WHERE {is_there}))")
    return " AND ".join(conditions) or "true"


def missing_sql(table: TargetTable, net: str) -> str:
    """Select as text the key, or whole image, of one image to remove that is missing in the target; can be empty."""
    shown = " || ', ' || ".join(
        f"{literal(column.name + ' = ')} || coalesce(CAST({_stored(column, 'n')} AS VARCHAR), 'NULL')"
        for column in table.key or table.layout.stored
    )
    match = f"{_same_key(table, 'n')} AND {_same_image(table, 'n')}" if table.key else _same_image(table, "n")
    return (
        f"SELECT {shown} FROM (SELECT * FROM {net} WHERE {WEIGHT} < 0) AS n WHERE -n.{WEIGHT} >"
        f" (SELECT count(*) FROM {table.sql} AS t WHERE {match}) ORDER BY ALL LIMIT 1"
    )


# Parts of statements -------------------------------------------------------------------------------------------------


def _insert_into(table: TargetTable) -> str:
    return f"INSERT INTO {table.sql} ({', '.join(quote(column.name) for column in table.layout.stored)})"


def _gone(table: TargetTable, net: str) -> str:
    """The images of rows that do not stay."""
    stays = f" AND NOT {STAYS}" if table.keeps_rows else ""
    return f"(SELECT * FROM {net} WHERE {WEIGHT} < 0{stays})"


def _numbered(net: str) -> str:
    return f"(SELECT *, row_number() OVER () AS {NUMBER} FROM {net} WHERE {WEIGHT} < 0)"


def _old_and_new(net: str) -> str:
    """Both images of rows that stay."""
    old, new = (f"(SELECT * FROM {net} WHERE {STAYS} AND {WEIGHT} {sign} 0)" for sign in "<>")
    return f"{old} AS o, {new} AS n"


def _same_key(table: TargetTable, alias: str) -> str:
    """Join by key in the key's own types, so that the target's indexes and zone maps apply."""
    tests = (f"{_target_value(table, column)} = {_loaded(column, alias)}" for column in table.key)
    return " AND ".join(tests)


def _same_stored_key(table: TargetTable) -> str:
    return same_stored_key_sql(table, "o", "n")


def _same_image(table: TargetTable, alias: str) -> str:
    """Compare all columns in storage types, in which equal means identical except for the sign of zero."""
    tests = []
    for column in table.layout.stored:
        if column.name in table.layout.primary_key and _is_exact(column):
            continue
        here, there = store_sql(column, _target_value(table, column)), _stored(column, alias)
        tests.append(_identical(column, here, there))
    return " AND ".join(tests) or "true"


def _is_exact(column: Column) -> bool:
    """Say whether equal values of a key are identical, so that comparing keys suffices."""
    return storage_type(column.type) == column.type and not distinguishing_sql(column, "")


def _identical(column: Column, here: str, there: str) -> str:
    """SQL condition: two values of a column in its storage type are identical."""
    test = f"{here} IS NOT DISTINCT FROM {there}"
    if distinguishing := distinguishing_sql(column, here):
        test += f" AND {distinguishing} IS NOT DISTINCT FROM {distinguishing_sql(column, there)}"
    return test


def _target_value(table: TargetTable, column: Column) -> str:
    value = f"t.{quote(column.name)}"
    return f'({value} COLLATE "binary")' if table.is_collated and column.type == "VARCHAR" else value


def _stored(column: Column, alias: str) -> str:
    return f"{alias}.{quote(file_column(column.name))}"


def _loaded(column: Column, alias: str) -> str:
    return load_sql(column, _stored(column, alias))

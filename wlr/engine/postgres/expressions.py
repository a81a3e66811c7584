"""DuckDB's expressions and views in PostgreSQL's dialect.

The PostgreSQL types of a DuckDB master's columns, and the SQL that writes values for PostgreSQL.

A value is exact or refused: text that PostgreSQL does not accept fails the step, by table and column. A type without a
counterpart becomes text in DuckDB's own form. docs/types.md lists all types.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import ErrorLevel, exp

from wlc.dialect.sql import quote
from wlc.dialect.types import PostgresText, load_sql, parse
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Column
from wlr.engine.postgres.catalog import is_own

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wlc.dialect.types import ColumnType
    from wlc.farm.model import Name

    Resolve = Callable[[tuple[str, ...]], Name]


_TEXT = "text"
_BC = "' (BC)'"


def postgres_type(type_text: str) -> str:
    """Return the PostgreSQL type for values of a DuckDB type.

    Raises:
        UnsupportedError: DuckDB has no such type.
    """
    return _type_sql(parse(type_text))


def column_type(type_text: str) -> str:
    """Return the declaration of a column of a DuckDB type; raises as `postgres_type` does."""
    found = postgres_type(type_text)
    # DuckDB orders texts by their bytes.
    return f'{found} COLLATE "C"' if found.startswith(_TEXT) else found


def to_text_sql(column: Column, value: str) -> str:
    """Return the DuckDB expression that writes a stored value for PostgreSQL's CSV.

    Args:
        column: The column as declared.
        value: SQL that yields the value in its storage type.
    """
    return _text(parse(column.type), value, 0)


def is_text(column: Column) -> bool:
    """Return whether the value may be an empty text, which COPY must quote so that it differs from NULL."""
    return _type_sql(parse(column.type)).startswith((_TEXT, "bytea", "bit varying", "json"))


def _type_sql(parsed: ColumnType) -> str:
    if parsed.row.postgres is not None:
        return parsed.row.postgres.format(parsed.parameters)
    if _is_array(parsed):
        return _type_sql(parsed.fields[0][1]) + "[]"
    return "json" if _is_exact_in_json(parsed) else _TEXT


def _is_array(parsed: ColumnType) -> bool:
    """Return whether PostgreSQL has the same list: of one dimension, of values without fields."""
    return parsed.kind in ("LIST", "ARRAY") and parsed.fields[0][1].row.postgres is not None


def _is_exact_in_json(parsed: ColumnType) -> bool:
    match parsed.kind:
        case "LIST" | "ARRAY" | "STRUCT":
            return all(_is_exact_in_json(member) for _, member in parsed.fields)
        case "MAP":
            return parsed.fields[0][1].kind in ("VARCHAR", "ENUM") and _is_exact_in_json(parsed.fields[1][1])
        case _:
            return parsed.row.is_exact_in_json


def _text(parsed: ColumnType, value: str, depth: int) -> str:
    if _is_array(parsed):
        return _array_text(parsed.fields[0][1], value, depth)
    if parsed.row.postgres is None:
        return _nested_text(parsed, value)
    match parsed.row.postgres_text:
        case PostgresText.HEX:
            return f"('\\x' || hex({value}))"
        case PostgresText.DATE:
            return f"replace(CAST({value} AS VARCHAR), {_BC}, ' BC')"
        case PostgresText.MOMENT:
            text = f"CAST({value} AS VARCHAR)"
            return f"CASE WHEN contains({text}, {_BC}) THEN replace({text}, {_BC}, '') || ' BC' ELSE {text} END"
        case _:
            return f"CAST({value} AS VARCHAR)" if parsed.row.postgres == _TEXT else value


def _array_text(element: ColumnType, value: str, depth: int) -> str:
    """Write an array literal. Every element is quoted, so that none of its characters is syntax."""
    item = f"_e{depth}"
    text = f"CAST({_text(element, item, depth + 1)} AS VARCHAR)"
    quoted = f"""'"' || replace(replace({text}, '\\', '\\\\'), '"', '\\"') || '"'"""
    items = f"list_transform({value}, lambda {item}: coalesce({quoted}, 'NULL'))"
    return f"('{{' || array_to_string({items}, ',') || '}}')"


def _nested_text(parsed: ColumnType, value: str) -> str:
    loaded = load_sql(Column("value", parsed.text), value)
    if _is_exact_in_json(parsed):
        return f"CASE WHEN {value} IS NOT NULL THEN CAST(to_json({loaded}) AS VARCHAR) END"
    return f"CAST({loaded} AS VARCHAR)"


_SEQUENCES = ("nextval", "currval")
_SAME = ("now", "sign", "date_part")
_RENAMED = {"strlen": "octet_length"}
# DuckDB writes INTERVAL 3 DAY as to_days(3).
_UNITS = {f"to_{unit}s": unit for unit in ("year", "month", "week", "day", "hour", "minute", "second")}
# sqlglot's names of DuckDB's widest integers.
_WIDE = {"INT128": "HUGEINT", "UINT128": "UHUGEINT"}
_DEFERRED = re.compile(r" WITH \(DEFER_BINDING = true\)", re.IGNORECASE)


def expression_sql(text: str, spelling: Mapping[str, str], resolve: Resolve) -> str:
    """Translate an expression over the columns of one table.

    Args:
        text: Text in DuckDB's dialect.
        spelling: Spelling of columns, by their names in lower case.
        resolve: Finds a sequence.

    Raises:
        UnsupportedError: It has no counterpart.
    """
    return _written(_translated(_parsed(text), lambda _, column: spelling.get(column.lower()), {}, resolve))


def view_sql(text: str, columns: Mapping[Name, Sequence[str]], resolve: Resolve, made: Name) -> str:
    """Translate `CREATE VIEW`; the result creates the view under a name that is free.

    Args:
        text: Text in DuckDB's dialect.
        columns: Columns of all tables and views.
        resolve: Finds a table, view or sequence.
        made: Name of the view.

    Raises:
        UnsupportedError: It has no counterpart.
    """
    tree = _parsed(_DEFERRED.sub("", text))
    query = tree.expression if isinstance(tree, exp.Create) and tree.args.get("kind") == "VIEW" else None
    if query is None:
        raise UnsupportedError("not a view")
    sources = _qualified(query, resolve)

    def spell(qualifier: str, column: str) -> str | None:
        tables = [sources[qualifier]] if qualifier in sources else list(sources.values())
        spelt = (name for _, table in tables for name in columns.get(table, ()) if name.lower() == column.lower())
        return next(spelt, None)

    aliases = {alias: written for alias, (written, _) in sources.items()}
    listed = [column.name for column in tree.this.expressions] if isinstance(tree.this, exp.Schema) else []
    names = f" ({', '.join(map(quote, listed))})" if listed else ""
    return f"CREATE VIEW {made.sql}{names} AS {_written(_translated(query, spell, aliases, resolve))}"


def _qualified(query: exp.Expr, resolve: Resolve) -> dict[str, tuple[str, Name]]:
    """Give every table of a query its full name.

    Returns:
        By the query's lower-case name of a table: that name in PostgreSQL's spelling, and the table's name.

    Raises:
        UnsupportedError: The query reads something other than a table.
    """
    sources: dict[str, tuple[str, Name]] = {}
    common = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    for table in list(query.find_all(exp.Table)):
        if not isinstance(table.this, exp.Identifier):
            raise UnsupportedError(f"{table.sql('duckdb')} has no counterpart")
        if table.name.lower() in common and not table.db:
            continue
        found = resolve(tuple(part.name for part in table.parts))
        if is_own(found.schema):
            raise UnsupportedError(f"{found} must not be read")
        alias = table.args.get("alias")
        written = _plain(alias.this) if alias is not None and alias.this is not None else found.name
        sources[(table.alias or table.name).lower()] = (written, found)
        table.set("this", exp.to_identifier(found.name, quoted=True))
        table.set("db", exp.to_identifier(found.schema, quoted=True))
        table.set("catalog", None)
    return sources


def _parsed(text: str) -> exp.Expr:
    try:
        found = sqlglot.parse(text, read="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise UnsupportedError(f"{text} cannot be understood") from error
    if len(found) != 1 or found[0] is None or isinstance(found[0], exp.Command):
        raise UnsupportedError(f"{text} cannot be understood")
    return found[0]


def _translated(
    tree: exp.Expr, spell: Callable[[str, str], str | None], aliases: Mapping[str, str], resolve: Resolve
) -> exp.Expr:
    """Write identifiers in the replica's spelling, and types as `types.postgres_type` does."""
    _spell_columns(tree, spell, aliases)
    for identifier in list(tree.find_all(exp.Identifier)):
        if not isinstance(identifier.parent, exp.Column | exp.Table | exp.Anonymous | exp.Dot):
            identifier.set("this", _plain(identifier))
            identifier.set("quoted", True)
    for declared in list(tree.find_all(exp.DataType)):
        if not isinstance(declared.parent, exp.DataType):
            declared.replace(exp.DataType.build(_type(declared), udt=True))
    for call in list(tree.find_all(exp.Anonymous, exp.ToDays, exp.Count)):
        _translate_call(call, resolve)
    return tree


def _spell_columns(tree: exp.Expr, spell: Callable[[str, str], str | None], aliases: Mapping[str, str]) -> None:
    for column in list(tree.find_all(exp.Column)):
        qualifier = column.table.lower()
        if isinstance(column.this, exp.Identifier):
            name = spell(qualifier, column.name) or _plain(column.this)
            column.set("this", exp.to_identifier(name, quoted=True))
        if qualifier:
            written = aliases.get(qualifier) or _plain(column.args["table"])
            column.set("table", exp.to_identifier(written, quoted=True))
            column.set("db", None)
            column.set("catalog", None)


def _translate_call(call: exp.Expr, resolve: Resolve) -> None:
    """Translate the call of a function.

    Raises:
        UnsupportedError: The function may differ between both databases. It may be a macro, or a function of PostgreSQL
            that reads outside the database.
    """
    name = "to_days" if isinstance(call, exp.ToDays) else call.name.lower()
    if isinstance(call, exp.Count):
        if call.this is None:
            call.set("this", exp.Star())
    elif name == "count_star" and not call.expressions:
        # DuckDB stores count(*) of a view in this form.
        call.replace(exp.Count(this=exp.Star()))
    elif unit := _UNITS.get(name):
        amount = call.this if isinstance(call, exp.ToDays) else call.expressions[0]
        one = exp.cast(exp.Literal.string(f"1 {unit}"), "INTERVAL")
        call.replace(exp.paren(exp.Mul(this=exp.paren(amount), expression=one)))
    elif name in _RENAMED:
        call.set("this", _RENAMED[name])
    elif name in _SEQUENCES and call.expressions:
        call.set("expressions", [exp.Literal.string(resolve(_path(call.expressions[0].name)).sql)])
    elif name not in _SAME:
        raise UnsupportedError(f"function {call.name} has no counterpart")


def _plain(identifier: exp.Expr) -> str:
    """Return a name that the statement defines, in lower case if unquoted, as in PostgreSQL."""
    return identifier.name if identifier.args.get("quoted") else identifier.name.lower()


def _type(declared: exp.DataType) -> str:
    text = declared.sql("duckdb")
    return postgres_type(_WIDE.get(text.upper(), text))


def _path(text: str) -> tuple[str, ...]:
    return tuple(part.replace('""', '"').strip('"') for part in re.findall(r'"(?:[^"]|"")*"|[^.]+', text))


def _written(tree: exp.Expr) -> str:
    try:
        return tree.sql("postgres", unsupported_level=ErrorLevel.RAISE)
    except sqlglot.errors.SqlglotError as error:
        raise UnsupportedError(f"{tree.sql('duckdb')} has no counterpart: {error}") from error

"""The master refuses schema changes that replicas cannot follow, before they are committed.

CHECK constraints and index keys must give the same result in every session, because replicas compute them again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import engine, expressions, permitted_ddl
from wlc.dialect.duckdb.lexer import words
from wlc.dialect.duckdb.permitted_ddl import (
    OutsideStatementError,
    StatementError,
    refuse_hostile,
    refuse_hostile_macro,
    refuse_oversized,
    relations_read,
    understanding,
)
from wlc.dialect.duckdb.schema import schema_statements
from wlc.dialect.duckdb.settings import held, is_locked, without_row_settings
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import duckdb

    from wlc.farm.model import Ddl, Settings


# Zones that differ in the hour, in the minute and in the day of most moments.
_ZONES = ("Etc/GMT+12", "Pacific/Kiritimati", "Asia/Kathmandu")
# A zoned time as text with its zone has the same meaning everywhere.
_WITH_ZONE = re.compile(r":\d\d(\.\d+)? ?([+-]\d\d(:?\d\d)?|Z|UTC)$")
# Functions that inspect a value without computing with it.
_LOOKS = re.compile(r"COMPARE_\w+|OPERATOR_IS_(NOT_)?NULL|OPERATOR_(NOT_)?IN")
_IN_ZONE = "it computes with a time with time zone, which depends on the setting TimeZone"
_UNTRIED = "it may compute with a time with time zone, and other zones cannot be tried while lock_configuration is set"
_ZONED = re.compile(r"TIMESTAMPTZ|TIMETZ|WITH TIME ZONE", re.IGNORECASE)
_NOT_ALONE = "{} does not depend on the row alone"
# Functions that end the statement in every session.
_WITHOUT_ANSWER = frozenset({"error"})
_MACROS = """
    SELECT lower(function_name), macro_definition, parameters FROM duckdb_functions()
    WHERE NOT internal AND database_name IN ($1, 'temp') AND function_type = 'macro'
"""
_RULES = """
    SELECT schema_name, table_name, 'CHECK', expression FROM duckdb_constraints()
    WHERE database_name = $1 AND schema_name <> 'wlc' AND constraint_type = 'CHECK'
    UNION ALL
    SELECT schema_name, table_name, if(is_unique, 'UNIQUE INDEX', 'INDEX'), unnest(CAST(expressions AS VARCHAR[]))
    FROM duckdb_indexes() WHERE database_name = $1 AND schema_name <> 'wlc' AND sql <> ''
"""


@dataclass(frozen=True, slots=True)
class RowRule:
    """An expression that DuckDB computes for every written row: a CHECK constraint or an index key.

    Attributes:
        kind: CHECK, UNIQUE INDEX or INDEX.
    """

    table: Name
    kind: str
    expression: str


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro of the user's; `parameters` are in lower case."""

    definition: str
    parameters: frozenset[str]


def read_rules(connection: duckdb.DuckDBPyConnection, catalog: str) -> frozenset[RowRule]:
    """Read the rules of all tables, without index keys that are plain columns."""
    rows = connection.execute(_RULES, [catalog]).fetchall()
    return frozenset(
        RowRule(Name(schema, table), kind, expression)
        for schema, table, kind, expression in rows
        if kind == "CHECK" or not duckdb_catalog.PLAIN_COLUMN.fullmatch(expression)
    )


def refuse_unstable(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    rules: Iterable[RowRule],
) -> None:
    """Refuse rules that may give another result elsewhere.

    Args:
        connection: Sees the tables.
        catalog: Name of the database.
        rules: Of these tables. A key of a non-unique index never rejects a row.

    Raises:
        UnsupportedError: A rule depends, or may depend, on the time, on randomness or on settings of the session.
    """
    decisive = sorted((r for r in rules if r.kind != "INDEX"), key=lambda rule: (rule.table, rule.expression))
    macros = macros_of(connection, catalog) if decisive else {}
    for rule in decisive:
        for cause in causes(connection, catalog, rule, macros):
            raise _refusal(rule, cause)
    if decisive and is_locked(connection):
        for rule in (rule for rule in decisive if _may_make_zoned(connection, catalog, rule, macros)):
            raise _refusal(rule, _UNTRIED)
    else:
        for rule in _differing_by_zone(connection, catalog, decisive):
            raise _refusal(rule, _IN_ZONE)


def _refusal(rule: RowRule, cause: str) -> UnsupportedError:
    return UnsupportedError(
        f"{rule.kind} ({rule.expression}) of table {rule.table} cannot be captured: it may give another result on a "
        f"replica, because {cause}",
        hint="leave it out, or compute with values that name their time zone",
    )


def refuse_unlike(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    rules: Collection[RowRule],
    written: Mapping[Name, Collection[str]],
    changed: Settings,
) -> None:
    """Refuse rows that a replica, with DuckDB's default settings, would refuse.

    Args:
        connection: Sees the rows.
        catalog: Name of the database.
        rules: Rules of the written tables.
        written: Conditions on these tables; one of them holds for each written row.
        changed: Settings that were in force meanwhile and differ from DuckDB's default.

    Raises:
        UnsupportedError: There is such a row.
    """
    if not changed:
        return
    with without_row_settings(connection):
        for rule in rules:
            if any(_count_refused(connection, catalog, rule, condition) for condition in written[rule.table]):
                named = ", ".join(f"{name} = {value!r}" for name, value in changed)
                raise UnsupportedError(
                    f"{rule.kind} ({rule.expression}) of table {rule.table} accepts a row only with {named}; replicas "
                    "have DuckDB's default settings and would refuse it",
                    hint=f"RESET {changed[0][0]}",
                )


def refuse_present_checks(connection: duckdb.DuckDBPyConnection, catalog: str, rules: Iterable[RowRule]) -> None:
    """Refuse tables with rows that a replica would refuse.

    Raises:
        UnsupportedError: There are such rows.
    """
    with without_row_settings(connection):
        for rule in rules:
            if count := _count_refused(connection, catalog, rule):
                raise UnsupportedError(
                    f"table {rule.table} has {count} rows that violate its {rule.kind} ({rule.expression}) with "
                    "DuckDB's default settings, so replicas would refuse them",
                    hint="change the rows, or the constraint",
                )


def _count_refused(connection: duckdb.DuckDBPyConnection, catalog: str, rule: RowRule, written: str = "true") -> int:
    # An error would end the transaction.
    accepted = f"CASE WHEN ({rule.expression}) THEN 1 WHEN ({rule.expression}) IS NULL THEN 1 ELSE 0 END"
    is_taken = f"TRY({accepted}) = 1" if rule.kind == "CHECK" else f"TRY(hash({rule.expression})) IS NOT NULL"
    is_refused = f"coalesce({is_taken}, false) = false"
    query = f"SELECT count(*) FROM {quote(catalog)}.{rule.table.sql} WHERE {written} AND {is_refused}"
    return int(connection.execute(query).fetchall()[0][0])


def causes(
    connection: duckdb.DuckDBPyConnection, catalog: str, rule: RowRule, macros: Mapping[str, Sequence[Macro]]
) -> Iterator[str]:
    """Yield the causes for which a rule depends on more than the row, as far as names and types show it.

    Args:
        connection: Sees the table.
        catalog: Name of the database.
        rule: Of the table.
        macros: Macros that the rule may call, by lower-case name.
    """
    for written in sorted(set(_written(connection, catalog, rule, macros))):
        if expressions.varies(written.name, written.count) and written.name not in _WITHOUT_ANSWER:
            yield _NOT_ALONE.format(written.text)
    bound = _bound(connection, catalog, rule)
    if bound is None:
        yield "it cannot be analysed"
        return
    for call in expressions.bound_calls(bound):
        if not call.meant:
            yield f"{call.name}() is no function of DuckDB's own"
        elif not call.is_consistent_in_zone and call.name not in _WITHOUT_ANSWER:
            yield _NOT_ALONE.format(f"{call.name}()")
        elif call.name in engine.ORDERED_BY_SETTINGS:
            yield f"{call.name}() depends on default_order and default_null_order"
        elif call.depends_on_zone:
            yield _IN_ZONE
    if any(_computes_in_zone(node) for node in expressions.nodes(bound)):
        yield _IN_ZONE


def macros_of(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[str, list[Macro]]:
    """Return the macros of a database, by lower-case name."""
    found: dict[str, list[Macro]] = {}
    for name, definition, parameters in connection.execute(_MACROS, [catalog]).fetchall():
        found.setdefault(name, []).append(Macro(definition, frozenset(map(str.lower, parameters))))
    return found


def _written(
    connection: duckdb.DuckDBPyConnection, catalog: str, rule: RowRule, macros: Mapping[str, Sequence[Macro]]
) -> Iterator[expressions.WrittenCall]:
    """Yield the calls in a rule's text and in the macros that it calls.

    DuckDB's bound expression has only the value of a call that depends on no column.
    """
    described = connection.execute(f"DESCRIBE {quote(catalog)}.{rule.table.sql}").fetchall()
    columns = frozenset(str(name).lower() for name, *_ in described)
    pending, known = list(expressions.calls_in(connection, rule.expression, columns)), set[str]()
    while pending:
        call = pending.pop()
        yield call
        if call.name not in known:
            known.add(call.name)
            for macro in macros.get(call.name, ()):
                pending += expressions.calls_in(connection, macro.definition, columns | macro.parameters)


def _bound(connection: duckdb.DuckDBPyConnection, catalog: str, rule: RowRule) -> Any:
    """The bound expression, with names and types resolved; None if DuckDB does not return it."""
    query = literal(f"SELECT {rule.expression} FROM {quote(catalog)}.{rule.table.sql}")
    plan = connection.execute(f"SELECT json_serialize_plan({query}, optimize := false)").fetchall()[0][0]
    found = json.loads(plan)
    return None if found["error"] else found["plans"][0]["expressions"]


def _differing_by_zone(
    connection: duckdb.DuckDBPyConnection, catalog: str, rules: Collection[RowRule]
) -> Iterator[RowRule]:
    """Yield rules with a part that depends on the setting TimeZone and on no column.

    DuckDB replaces such a part with its value, so no other check finds it.
    """
    if not rules:
        return
    found = []
    with held(connection, {"TimeZone": _ZONES[0]}):
        for zone in _ZONES:
            connection.execute(f"SET SESSION TimeZone = {literal(zone)}")
            found.append([_bound(connection, catalog, rule) for rule in rules])
    yield from (rule for rule, one, *others in zip(rules, *found, strict=True) if any(other != one for other in others))


def _may_make_zoned(
    connection: duckdb.DuckDBPyConnection, catalog: str, rule: RowRule, macros: Mapping[str, Sequence[Macro]]
) -> bool:
    """Whether a time with time zone may come from another source than a column."""
    calls = set(_written(connection, catalog, rule, macros))
    texts = [rule.expression, *(macro.definition for call in calls for macro in macros.get(call.name, ()))]
    return any(_ZONED.search(text) for text in texts) or any(
        engine.is_zoned([overload.returned]) and not engine.is_zoned(overload.parameters)
        for call in calls
        for overload in engine.computing(call.name)
    )


def _computes_in_zone(node: dict[str, Any]) -> bool:
    children = node.get("children") if "expression_class" in node else None
    if not isinstance(children, list) or not children:
        return False
    types = [_type_of(child) for child in children] + [_type_of(node)]
    return engine.is_zoned(types) and not _is_certain(node, children, types)


def _is_certain(tree: dict[str, Any], children: list[dict[str, Any]], types: list[str]) -> bool:
    kind = str(tree.get("type", ""))
    if kind == "OPERATOR_CAST":
        text = str(children[0].get("value", {}).get("value", ""))
        return types[0] == types[-1] or _WITH_ZONE.search(text) is not None
    return _LOOKS.fullmatch(kind) is not None and len(set(types[:-1])) == 1


def _type_of(node: dict[str, Any]) -> str:
    return json.dumps(node.get("return_type") or node.get("value", {}).get("type"))


_INSIDE = "create it with TEMP, or in another database that is attached; docs/security.md says what replicas may read"


def refuse_hiding(text: str) -> None:
    """Refuse, before it runs, a statement that creates a macro or type hiding one that the capture itself uses.

    Raises:
        UnsupportedError: It does.
    """
    try:
        permitted_ddl.refuse_hiding(text)
    except StatementError as error:
        raise UnsupportedError(f"the statement cannot be captured: {error}", hint="choose another name") from error


def refuse_untaken(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    """Refuse a statement that every replica would refuse.

    Args:
        connection: Has run it, in a transaction that is still open.
        catalog: Name of the database.
        ddl: The record of it.

    Raises:
        UnsupportedError: It calls functions that replicas refuse, or is too long or nested too deeply.
    """
    if ddl.kind.endswith("TRIGGER"):
        # Replicas have no triggers: their effects arrive as rows.
        return
    try:
        _refuse(connection, catalog, ddl)
    except StatementError as error:
        raise UnsupportedError(f"{ddl.kind} {ddl.object} cannot be captured: {error}", hint=_INSIDE) from error


def refuse_present(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Refuse a database with an object that replicas would refuse.

    A view that reads files is allowed: replicas get a view that raises an explaining error in its place.

    Raises:
        UnsupportedError: There is such an object.
    """
    for ddl in (ddl for part in schema_statements(connection, catalog) for ddl in part):
        try:
            _refuse(connection, catalog, ddl)
        except OutsideStatementError as error:
            if ddl.kind != "CREATE VIEW":
                raise _untaken(ddl, error) from error
        except StatementError as error:
            raise _untaken(ddl, error) from error


def _untaken(ddl: Ddl, error: StatementError) -> UnsupportedError:
    message = f"the database has {ddl.object}, which replicas refuse: {error}"
    return UnsupportedError(message, hint="drop it; docs/security.md says what replicas may read and call")


def _refuse(connection: duckdb.DuckDBPyConnection, catalog: str, ddl: Ddl) -> None:
    with understanding(ddl.statement):
        refuse_oversized(ddl.statement)
        refuse_hostile(connection, catalog, ddl.statement)
        refuse_hostile_macro(connection, catalog, ddl.statement)
        _refuse_others(connection, catalog, ddl.statement)


def _refuse_others(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a view or macro over temporary tables, or tables of other databases."""
    read = relations_read(connection, catalog, statement)
    if not read:
        return
    databases, schemas, temporary = connection.execute(
        "SELECT (SELECT list(lower(database_name)) FROM duckdb_databases()),"
        " (SELECT list(lower(schema_name)) FROM duckdb_schemas() WHERE database_name = $1),"
        " (SELECT coalesce(list(lower(name)), []) FROM (SELECT table_name AS name FROM duckdb_tables() WHERE temporary"
        " UNION ALL SELECT view_name FROM duckdb_views() WHERE temporary AND NOT internal))",
        [catalog],
    ).fetchall()[0]
    others = {*databases} - {*schemas, catalog.lower(), "system"}
    for path in read:
        if (len(path) > 1 and path[0].lower() in others) or (len(path) == 1 and path[0].lower() in temporary):
            raise StatementError(f"{'.'.join(path)} lies outside the database")


def macro_definitions(connection: duckdb.DuckDBPyConnection, catalog: str) -> tuple[str, ...]:
    """Return the definitions of a database's macros. DuckDB reads its thousands of functions for that."""
    query = "SELECT macro_definition FROM duckdb_functions() WHERE database_name = ? AND NOT internal"
    return tuple(text for (text,) in connection.execute(query, [catalog]).fetchall())


def refuse_broken_macros(
    connection: duckdb.DuckDBPyConnection, catalog: str, changed: frozenset[Name], macros: Iterable[str]
) -> None:
    """Refuse to leave a macro over a dropped object: no replica and no snapshot could create it.

    Args:
        connection: In a transaction that is about to be committed.
        catalog: Name of the database.
        changed: Objects that the transaction dropped, altered or renamed, under their old names.
        macros: Definitions of the macros.

    Raises:
        UnsupportedError: There is such a macro.
    """
    names = {name.name.lower() for name in changed}
    if not any(names & words(text) for text in macros):
        return
    try:
        schema_statements(connection, catalog)
    except UnsupportedError as error:
        raise UnsupportedError(
            "the change cannot be captured, because replicas could not create a macro that depends on it: "
            f"{error.message}",
            hint="drop or replace the macro in the same transaction, or before",
        ) from error

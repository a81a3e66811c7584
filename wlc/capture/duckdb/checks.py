"""CHECK constraints and keys of indexes must give the same answer in every session: replicas compute them again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb.settings import row_settings_changed, without_row_settings
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    import duckdb

    from wlc.farm.model import Settings

_ZONED = "WITH TIME ZONE"
# A text of a zoned time that names its zone means the same everywhere.
_WITH_ZONE = re.compile(r":\d\d(\.\d+)? ?([+-]\d\d(:?\d\d)?|Z|UTC)$")
# They order values by default_order and default_null_order.
_ORDERED_BY_SETTINGS = re.compile(r"(list|array)_(reverse_)?sort|(list_|array_)?grade_up")
# They look at a value and do not compute with it.
_LOOKS = re.compile(r"COMPARE_\w+|OPERATOR_IS_(NOT_)?NULL|OPERATOR_(NOT_)?IN")
_RULES = """
    SELECT schema_name, table_name, 'CHECK', expression FROM duckdb_constraints()
    WHERE database_name = $1 AND schema_name <> 'wlc' AND constraint_type = 'CHECK'
    UNION ALL
    SELECT schema_name, table_name, if(is_unique, 'UNIQUE INDEX', 'INDEX'), unnest(CAST(expressions AS VARCHAR[]))
    FROM duckdb_indexes() WHERE database_name = $1 AND schema_name <> 'wlc' AND sql <> ''
"""


@dataclass(frozen=True, slots=True)
class RowRule:
    """An expression that DuckDB computes for every row that is written: a CHECK constraint, or a key of an index.

    Attributes:
        kind: CHECK, UNIQUE INDEX or INDEX.
    """

    table: Name
    kind: str
    expression: str


def read_rules(connection: duckdb.DuckDBPyConnection, catalog: str) -> frozenset[RowRule]:
    """Read the rules of all tables; keys of indexes that are columns are left out."""
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
    functions: Callable[[], Mapping[str, str]],
) -> None:
    """Refuse rules that may give another answer elsewhere.

    Args:
        connection: Sees the tables.
        catalog: Name of the database.
        rules: Of these tables. A key of an index that is not unique cannot keep a row out.
        functions: Returns DuckDB's word for how stable each of its functions is, by lower-case names.

    Raises:
        UnsupportedError: A rule depends on the time, on chance or on settings of the session, or may do so.
    """
    decisive = sorted((r for r in rules if r.kind != "INDEX"), key=lambda rule: (rule.table, rule.expression))
    stability = functions() if decisive else {}
    for rule in decisive:
        query = literal(f"SELECT {rule.expression} FROM {quote(catalog)}.{rule.table.sql}")
        plan = connection.execute(f"SELECT json_serialize_plan({query}, optimize := false)").fetchall()[0][0]
        found = json.loads(plan)
        causes = ["it cannot be analysed"] if found["error"] else _causes(found["plans"][0]["expressions"], stability)
        for cause in causes:
            raise UnsupportedError(
                f"{rule.kind} ({rule.expression}) of table {rule.table} cannot be captured: it may give another answer"
                f" on a replica, because {cause}",
                hint="leave it out, or compute with values that name their time zone",
            )


def refuse_unlike(
    connection: duckdb.DuckDBPyConnection,
    catalog: str,
    rules: Collection[RowRule],
    written: Mapping[Name, Collection[str]],
    changed: Settings,
) -> None:
    """Refuse rows that a replica would refuse, because it has DuckDB's default settings.

    Args:
        connection: Sees the rows.
        catalog: Name of the database.
        rules: Of the tables that were written.
        written: Conditions on these tables; one of them holds for each row that was written.
        changed: Settings that were in force meanwhile, where they are not DuckDB's default.

    Raises:
        UnsupportedError: There is such a row.
    """
    if not changed:
        return
    with without_row_settings(connection, row_settings_changed(connection)):
        for rule in rules:
            if any(_count_refused(connection, catalog, rule, condition) for condition in written[rule.table]):
                named = ", ".join(f"{name} = {value!r}" for name, value in changed)
                raise UnsupportedError(
                    f"{rule.kind} ({rule.expression}) of table {rule.table} takes a row only with {named};"
                    " replicas have DuckDB's default settings, and would refuse it",
                    hint=f"RESET {changed[0][0]}",
                )


def refuse_present(connection: duckdb.DuckDBPyConnection, catalog: str, rules: Iterable[RowRule]) -> None:
    """Refuse tables with rows that a replica would refuse.

    Raises:
        UnsupportedError: There are such rows.
    """
    with without_row_settings(connection, row_settings_changed(connection)):
        for rule in rules:
            if count := _count_refused(connection, catalog, rule):
                raise UnsupportedError(
                    f"table {rule.table} has {count} rows that do not fulfil its {rule.kind} ({rule.expression}) with"
                    " DuckDB's default settings, so that replicas would refuse them",
                    hint="change the rows, or the constraint",
                )


def _count_refused(connection: duckdb.DuckDBPyConnection, catalog: str, rule: RowRule, written: str = "true") -> int:
    # An error would end the transaction.
    accepted = f"CASE WHEN ({rule.expression}) THEN 1 WHEN ({rule.expression}) IS NULL THEN 1 ELSE 0 END"
    is_taken = f"TRY({accepted}) = 1" if rule.kind == "CHECK" else f"TRY(hash({rule.expression})) IS NOT NULL"
    is_refused = f"coalesce({is_taken}, false) = false"
    query = f"SELECT count(*) FROM {quote(catalog)}.{rule.table.sql} WHERE {written} AND {is_refused}"
    return int(connection.execute(query).fetchall()[0][0])


def _causes(tree: Any, stability: Mapping[str, str]) -> Iterator[str]:
    """What makes a bound expression depend on more than its operands."""
    if isinstance(tree, list):
        for child in tree:
            yield from _causes(child, stability)
        return
    if not isinstance(tree, dict):
        return
    path = tree.get("qname", {}).get("path") or [tree.get("function_name", "")]
    name = str(path[-1]).lower()
    children = tree.get("children", [])
    if stability.get(name, "CONSISTENT") != "CONSISTENT" and name != "error":
        yield f"{name}() does not depend on the row alone"
    if _ORDERED_BY_SETTINGS.fullmatch(name):
        yield f"{name}() depends on default_order and default_null_order"
    types = [_type_of(child) for child in children] + [_type_of(tree)]
    if children and any(_ZONED in text for text in types) and not _is_certain(tree, children, types):
        yield "it computes with a time with time zone, which depends on the setting TimeZone"
    yield from _causes(children, stability)


def _is_certain(tree: dict[str, Any], children: list[dict[str, Any]], types: list[str]) -> bool:
    kind = str(tree.get("type", ""))
    if kind == "OPERATOR_CAST":
        text = str(children[0].get("value", {}).get("value", ""))
        return types[0] == types[-1] or _WITH_ZONE.search(text) is not None
    return _LOOKS.fullmatch(kind) is not None and len(set(types[:-1])) == 1


def _type_of(node: dict[str, Any]) -> str:
    return json.dumps(node.get("return_type") or node.get("value", {}).get("type"))

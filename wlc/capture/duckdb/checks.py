"""CHECK constraints must give the same answer in every session, because replicas check each row again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb

    from wlc.farm.model import Name

_ZONED = "WITH TIME ZONE"
# A text of a zoned time that names its zone means the same everywhere.
_WITH_ZONE = re.compile(r":\d\d(\.\d+)? ?([+-]\d\d(:?\d\d)?|Z|UTC)$")
# They order values by default_order and default_null_order.
_ORDERED_BY_SETTINGS = re.compile(r"(list|array)_(reverse_)?sort|(list_|array_)?grade_up")
# They look at a value and do not compute with it.
_LOOKS = re.compile(r"COMPARE_\w+|OPERATOR_IS_(NOT_)?NULL|OPERATOR_(NOT_)?IN")


def refuse_unstable(
    connection: duckdb.DuckDBPyConnection, catalog: str, table: Name, stability: Mapping[str, str]
) -> None:
    """Refuse a table whose CHECK constraints may give another answer elsewhere.

    Args:
        connection: Sees the table.
        catalog: Name of the database.
        table: The table.
        stability: DuckDB's word for each of its functions, by lower-case names.

    Raises:
        UnsupportedError: A constraint depends on the time, on chance or on settings of the session, or may do so.
    """
    checks = connection.execute(
        "SELECT expression FROM duckdb_constraints() WHERE database_name = ? AND schema_name = ? AND table_name = ?"
        " AND constraint_type = 'CHECK'",
        [catalog, table.schema, table.name],
    ).fetchall()
    for (expression,) in checks:
        query = literal(f"SELECT {expression} FROM {quote(catalog)}.{table.sql}")
        plan = connection.execute(f"SELECT json_serialize_plan({query}, optimize := false)").fetchall()[0][0]
        found = json.loads(plan)
        causes = ["it cannot be analysed"] if found["error"] else _causes(found["plans"][0]["expressions"], stability)
        for cause in causes:
            raise UnsupportedError(
                f"CREATE TABLE {table} cannot be captured: CHECK {expression} may give another answer on a replica,"
                f" because {cause}",
                hint="leave the constraint out, or compare with values that name their time zone",
            )


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

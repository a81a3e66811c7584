"""Listings of the catalog without what is dbfarm's own in a master's file, so that the rest can be compared."""

from __future__ import annotations

import re
from functools import partial

_FUNCTIONS = ("columns", "constraints", "functions", "indexes", "schemas", "sequences", "tables", "triggers", "types")
# Where each listing names the schema of an object.
_SCHEMA_COLUMNS = {
    **{f"duckdb_{what}": "schema_name" for what in (*_FUNCTIONS, "views")},
    "information_schema.columns": "table_schema",
    "information_schema.schemata": "schema_name",
    "information_schema.tables": "table_schema",
    "pg_catalog.pg_namespace": "nspname",
    "pg_catalog.pg_tables": "schemaname",
}
_NAMES = "|".join(map(re.escape, _SCHEMA_COLUMNS))
# Behind a comma there may be a column of that name; a call is a listing.
_LISTINGS = re.compile(rf"(\b(?:FROM|JOIN)\s+)({_NAMES})\b(\s*\(\s*\))?|(,\s*)({_NAMES})(\s*\(\s*\))", re.IGNORECASE)
_SHOWN = re.compile(r"\s*(SHOW\s+SCHEMAS|(?:SHOW|DESC|DESCRIBE)(?:\s+ALL)?(?:\s+TABLES)?)\s*;?\s*", re.IGNORECASE)
# A name behind a listing is its alias, unless the query goes on with it.
_GOES_ON = r"(?:WHERE|JOIN|LEFT|RIGHT|INNER|CROSS|USING|ON|ORDER|GROUP|HAVING|LIMIT|UNION|EXCEPT|INTERSECT|SELECT)\b"
_ALIAS = re.compile(rf"\s+(?!{_GOES_ON})(?:AS\s+)?[\w\"]", re.IGNORECASE)
_READS = re.compile(r"\s*(?:SELECT|FROM|WITH|SHOW|DESC|DESCRIBE)\b", re.IGNORECASE)


def without_own(sql: str) -> list[str]:
    """Return queries whose listings leave out dbfarm's schema: with and without the numbers that DuckDB gives to objects.

    Returns:
        Nothing for a statement that has no listing, or is no query.
    """
    if _SHOWN.fullmatch(sql) and not re.fullmatch(r"\s*SHOW\s+TABLES\s*;?\s*", sql, re.IGNORECASE):
        is_schemas = "SCHEMAS" in sql.upper()
        return [f"FROM (SHOW {'SCHEMAS' if is_schemas else 'ALL TABLES'}) WHERE schema{'_name' * is_schemas} <> 'wlc'"]
    if not _READS.match(sql) or not _LISTINGS.search(sql):
        return []
    return [_LISTINGS.sub(partial(_filtered, columns), sql) for columns in ("*", "* NOT LIKE '%oid'")]


def _filtered(columns: str, found: re.Match[str]) -> str:
    before, name, call = found.groups()[:3] if found[2] else found.groups()[3:]
    column = _SCHEMA_COLUMNS[name.lower()]
    alias = "" if _ALIAS.match(found.string, found.end()) else f" AS {name.rpartition('.')[2]}"
    return f"{before}(SELECT {columns} FROM {name}{call or ''} WHERE {column} IS DISTINCT FROM 'wlc'){alias}"

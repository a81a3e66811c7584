"""SQL that reads PostgreSQL's text form of values, from its log and COPY, as DuckDB's types."""

from __future__ import annotations

from wlc.dialect.sql import literal
from wlc.dialect.types import PostgresText, parse

# An array's text in parts: quoted elements, and elements that need no quotes.
_ELEMENT = r'"(?:[^"\\]|\\.)*"|[^,]+'
# Text that DuckDB can cast to the type; unchanged for all other forms.
_READ = {
    PostgresText.HEX: "unhex(substr({0}, 3))",
    PostgresText.INTERVAL: "replace({0}, '+', '')",
    # Years before Christ: PostgreSQL writes BC at the end, DuckDB expects it after the date.
    **dict.fromkeys(
        (PostgresText.DATE, PostgresText.MOMENT),
        "CASE WHEN ends_with({0}, 'BC') THEN regexp_replace({0}, '^(\\S+)(.*) BC$', '\\1 (BC)\\2') ELSE {0} END",
    ),
}


def read_text_sql(declared: str, text: str) -> str:
    """Return the expression that reads PostgreSQL's text form; NULL if the value does not fit.

    Args:
        declared: The DuckDB type of the result.
        text: SQL that yields the text.
    """
    if declared.endswith("[]"):
        return _read_array(declared.removesuffix("[]"), text)
    form = parse(declared).row.postgres_text
    if form is PostgresText.TEXT:
        return text
    return f"TRY_CAST({_READ.get(form, '{0}').format(text)} AS {declared})"


def _read_array(element: str, text: str) -> str:
    """Read an array of one dimension that starts at 1, the usual form."""
    fits = (
        f"len(list_filter({_texts_sql(text)}, lambda x: x IS NOT NULL))"
        f" = len(list_filter({_values_sql(element, text)}, lambda x: x IS NOT NULL))"
    )
    is_flat = f"starts_with({text}, '{{') AND NOT starts_with({text}, '{{{{')"
    return f"CASE WHEN {is_flat} AND {fits} THEN {_values_sql(element, text)} END"


def _texts_sql(text: str) -> str:
    """The texts of an array's elements."""
    parts = f"regexp_extract_all(substr({text}, 2, length({text}) - 2), {literal(_ELEMENT)})"
    unescaped = "regexp_replace(substr(e, 2, length(e) - 2), '\\\\(.)', '\\1', 'gs')"
    value = f"CASE WHEN e = 'NULL' THEN NULL WHEN starts_with(e, '\"') THEN {unescaped} ELSE e END"
    return f"list_transform({parts}, lambda e: {value})"


def _values_sql(element: str, text: str) -> str:
    return f"list_transform({_texts_sql(text)}, lambda x: {read_text_sql(element, 'x')})"

"""Which constraints a table has beside its primary key, as far as published schema statements say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.farm.model import Ddl, Name


def beside_key(statements: Iterable[Ddl], table: Name) -> str | None:
    """Return a constraint of a table that could not be kept if each row were decided by itself, None if it has none.

    Args:
        statements: All that made the schema, in their order.
        table: The table.
    """
    tables: dict[Name, str] = {}
    indexes: dict[Name, str] = {}
    for ddl in statements:
        if ddl.kind.startswith("CREATE TABLE"):
            tables[ddl.object] = ddl.statement
        elif ddl.kind.startswith("CREATE INDEX"):
            indexes[ddl.object] = ddl.statement
        elif ddl.kind == "DROP INDEX":
            indexes.pop(ddl.object, None)
        elif ddl.kind == "DROP TABLE":
            tables.pop(ddl.object, None)
            indexes = {name: text for name, text in indexes.items() if not _follows(text, "ON", ddl.object)}
    own = [token.word for token in tokens(tables.get(table, ""))]
    if "UNIQUE" in own:
        return "a UNIQUE constraint"
    if "REFERENCES" in own or any(_follows(text, "REFERENCES", table) for text in tables.values()):
        return "a FOREIGN KEY"
    if any("UNIQUE" in (t.word for t in tokens(text)) and _follows(text, "ON", table) for text in indexes.values()):
        return "a UNIQUE index"
    return None


def has_check(statements: Iterable[Ddl], table: Name) -> bool:
    """Say whether a table has a CHECK constraint, as far as the statements that made the schema say."""
    texts = [ddl.statement for ddl in statements if ddl.kind.startswith("CREATE TABLE") and ddl.object == table]
    return bool(texts) and "CHECK" in (token.word for token in tokens(texts[-1]))


def _follows(statement: str, word: str, table: Name) -> bool:
    """Say whether a keyword of a statement is followed by the name of a table."""
    found = tokens(statement)
    for place in (place for place, token in enumerate(found) if token.word == word):
        last = place + 1
        while last + 2 < len(found) and found[last + 1].text == ".":
            last += 2
        if last < len(found) and found[last].name.lower() == table.name.lower():
            return True
    return False

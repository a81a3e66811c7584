"""Which table a recorded ALTER TABLE or DROP TABLE is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import path_at, tokens
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wlc.dialect.duckdb.lexer import Token
    from wlc.farm.model import Ddl


@dataclass(frozen=True, slots=True)
class TableStatement:
    """A statement about one existing table.

    Attributes:
        table: Its name before the statement; letters may be in another case than the table's own.
        renamed: Its name afterwards, None unless the statement changes it.
        is_drop: The statement drops the table.
    """

    table: Name
    renamed: Name | None = None
    is_drop: bool = False


def about_table(ddl: Ddl) -> TableStatement | None:
    """Read which table ALTER TABLE or DROP TABLE is about; None for any other statement."""
    listed = tokens(ddl.statement)
    verb, noun = ([token.word for token in listed[:2]] + ["", ""])[:2]
    if verb not in ("ALTER", "DROP") or noun != "TABLE":
        return None
    at = 2
    while at < len(listed) and listed[at].word in ("IF", "EXISTS"):
        at += 1
    path, at = path_at(listed, at)
    # A statement may name the database or leave the schema out. Renaming keeps the schema.
    table = Name(ddl.object.schema, path[-1] if path else "")
    if verb == "DROP":
        return TableStatement(table, is_drop=True)
    if [token.word for token in listed[at : at + 2]] == ["RENAME", "TO"] and len(listed) > at + 2:
        return TableStatement(table, Name(ddl.object.schema, listed[at + 2].name))
    return TableStatement(table)


def referred(ddl: Ddl, schema: str) -> Iterator[Name]:
    """Return the tables that a statement's foreign keys refer to; `schema` is where names without one are looked up."""
    for text in filter(None, (ddl.statement, ddl.original)):
        listed = tokens(text)
        for at, token in enumerate(listed):
            if token.word == "REFERENCES":
                yield named_at(listed, at + 1, schema)


def named_at(listed: Sequence[Token], at: int, schema: str) -> Name:
    """Return the table that is named at a place."""
    said, _ = path_at(listed, at)
    return Name(said[-2] if len(said) > 1 else schema, said[-1] if said else "")

"""IMPORT DATABASE into a master: an export of a master holds the journal, which is not what its user wants back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

from wlc.dialect.duckdb.lexer import Token, tokens
from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterator

_JOURNAL = "wlc"


def statements(connection: duckdb.DuckDBPyConnection, text: str) -> list[str]:
    """Return what to run for a statement: itself, or the script of an export without the parts of the schema `wlc`.

    Args:
        connection: Reads the export, which may lie in a bucket.
        text: Any statement.
    """
    parts = tokens(text)
    folder = next((token.name for token in parts if token.is_string), None)
    if parts[0].word != "IMPORT" or folder is None:
        return [text]
    try:
        found = [list(_read(connection, folder, file)) for file in ("schema.sql", "load.sql")]
    except duckdb.Error:
        # DuckDB reports what is wrong with the export.
        return [text]
    kept = [statement for script in found for statement in script if not _is_of_journal(tokens(statement))]
    if len(kept) == sum(map(len, found)):
        return [text]
    return [_from_folder(statement, folder) for statement in kept]


def _read(connection: duckdb.DuckDBPyConnection, folder: str, file: str) -> Iterator[str]:
    ((script,),) = connection.execute("SELECT content FROM read_text(?)", [f"{folder}/{file}"]).fetchall()
    return (statement.query for statement in connection.extract_statements(script))


def _is_of_journal(parts: list[Token]) -> bool:
    """Say whether a statement of an export makes the schema or one of its tables, or fills one."""
    match [token.word or token.text for token in parts[:5]]:
        case ["CREATE", "SCHEMA", *_]:
            return parts[2].name.lower() == _JOURNAL
        case ["CREATE", "TABLE", _, ".", *_]:
            return parts[2].name.lower() == _JOURNAL
        case ["COPY", _, ".", *_]:
            return parts[1].name.lower() == _JOURNAL
    return False


def _from_folder(statement: str, folder: str) -> str:
    """Return a COPY that reads from the folder of the export, wherever that was written; anything else as it is."""
    parts = tokens(statement)
    if parts[0].word != "COPY":
        return statement
    file = next(token for token in parts if token.is_string)
    place = literal(f"{folder}/{file.name.rpartition('/')[2]}")
    return statement[: file.start] + place + statement[file.end :]

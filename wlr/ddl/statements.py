"""What `wlc.dialect.duckdb.statements` refuses, as failures of a step."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import statements
from wlc.dialect.duckdb.statements import OWN as OWN
from wlc.dialect.duckdb.statements import short as short
from wlr.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb


class OutsideError(StepError):
    """A view or macro reads something outside the database."""


@contextmanager
def _judging() -> Iterator[None]:
    try:
        yield
    except statements.OutsideStatementError as error:
        raise OutsideError(str(error)) from error
    except statements.StatementError as error:
        raise StepError(str(error)) from error


@contextmanager
def understanding(statement: str) -> Iterator[None]:
    """Turn an error of our own about a statement from the farm into a failure of it, so that it can be accepted."""
    with _judging(), statements.understanding(statement):
        yield


def refuse_oversized(statement: str) -> None:
    """Refuse a statement that a parser could take too much memory or stack for."""
    with _judging():
        statements.refuse_oversized(statement)


def refuse_hostile(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse what no schema change needs; see `wlc.dialect.duckdb.statements`."""
    with _judging():
        statements.refuse_hostile(connection, catalog, statement)


def refuse_hostile_macro(connection: duckdb.DuckDBPyConnection, catalog: str, statement: str) -> None:
    """Refuse a macro that was just created, and not called yet, if it reads something outside the database."""
    with _judging():
        statements.refuse_hostile_macro(connection, catalog, statement)

"""How long a statement from the farm may run: whoever can write to the farm can write one that never ends."""

from __future__ import annotations

import math
import os
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from wlc.farm.errors import InvalidError
from wlr.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_VARIABLE = "WLR_STATEMENT_LIMIT_S"
LIMIT_S = 60.0
# For statements that read or rewrite the rows of a table.
LIMIT_OF_ROWS_S = 3600.0
_OF_ROWS = re.compile(
    r"\s*(ALTER\s+(MATERIALIZED|TABLE)|CREATE\s+(UNIQUE\s+)?INDEX|CREATE\s+MATERIALIZED|REFRESH)\b", re.IGNORECASE
)


def limit_s(statement: str) -> float:
    """Return the limit of a statement in seconds, more than 0.

    Raises:
        InvalidError: The environment has another value than such a number.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return LIMIT_OF_ROWS_S if _OF_ROWS.match(statement) else LIMIT_S
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < threading.TIMEOUT_MAX:
        message = f"{LIMIT_VARIABLE}={text} is not a number of seconds"
        raise InvalidError(message, hint=f"export {LIMIT_VARIABLE}={LIMIT_OF_ROWS_S:g}")
    return found


def overrun(seconds: float) -> StepError:
    """Build the error for a statement that was stopped."""
    more = f"export {LIMIT_VARIABLE}={seconds * 10:g} allows more"
    return StepError(f"the statement was stopped after {seconds:g} seconds; {more}")


@contextmanager
def limited(connection: duckdb.DuckDBPyConnection, statement: str) -> Iterator[None]:
    """Stop what a connection does in the body with a statement once it has taken too long.

    DuckDB looks whether it should stop between two vectors of rows and between two parts of a plan.

    Raises:
        StepError: It was stopped.
    """
    seconds, is_over = limit_s(statement), threading.Event()

    def stop() -> None:
        is_over.set()
        connection.interrupt()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except duckdb.InterruptException as error:
        if is_over.is_set():
            raise overrun(seconds) from error
        raise
    finally:
        timer.cancel()

"""One call at a time on a connection: the call of another thread is refused, as DuckDB refuses it."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import duckdb

if TYPE_CHECKING:
    from collections.abc import Callable

_Method = TypeVar("_Method", bound="Callable[..., Any]")


def exclusive(method: _Method) -> _Method:
    """Make a method of a connection refuse to run while another thread runs one.

    Capture of a statement takes several calls of DuckDB. A call in between them would write without capture.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise duckdb.ResourceInUseException(
                "Resource In Use Error: connection is busy with another call; it refuses instead of waiting, so use a"
                " separate connection from cursor()"
            )
        try:
            return method(self, *args, **kwargs)
        finally:
            self._busy.release()

    return cast("_Method", call)

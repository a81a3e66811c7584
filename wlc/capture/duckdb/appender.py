"""DuckDB's appender with captured flushes; an appender of DuckDB writes when it is flushed, never before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from wlc.capture.duckdb.connection import Connection
    from wlc.capture.duckdb.statement import Effect


class Appender:
    """DuckDB's appender with captured flushes."""

    def __init__(self, connection: Connection, raw: Any, effect: Effect) -> None:
        self._connection, self._raw, self._effect = connection, raw, effect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.flush()
        else:
            self._raw.clear()

    def flush(self) -> None:
        """Write the buffered rows, captured."""
        self._connection._write(self._effect, self._raw.flush)

"""DuckDB's appender with captured flushes. DuckDB's own writes when it is flushed, and never before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class CapturedAppender:
    """DuckDB's appender with captured flushes.

    Args:
        raw: DuckDB's appender.
        capture: Runs a call that writes, captured.
    """

    def __init__(self, raw: Any, capture: Callable[[Callable[[], None]], object]) -> None:
        self._raw, self._capture = raw, capture

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.flush()
        else:
            self.clear()

    def append_row(self, *args: Any, **kwargs: Any) -> Any:
        """Buffer one row."""
        return self._raw.append_row(*args, **kwargs)

    def append_rows(self, *args: Any, **kwargs: Any) -> Any:
        """Buffer rows."""
        return self._raw.append_rows(*args, **kwargs)

    def clear(self) -> None:
        """Forget the buffered rows."""
        self._raw.clear()

    def flush(self) -> None:
        """Write the buffered rows, captured."""
        self._capture(self._raw.flush)

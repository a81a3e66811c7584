"""Relations of a captured connection: DuckDB reads them by name in SQL, and their statements are captured.

A relation keeps its connection. DuckDB itself accepts a relation in a statement only if this is an object of its own
class, so that a relation shows DuckDB's connection, and functions that run a statement find the captured one.
"""

from __future__ import annotations

import weakref
from functools import wraps
from typing import TYPE_CHECKING, Any

from duckdb import DuckDBPyRelation, _seam

if TYPE_CHECKING:
    from collections.abc import Callable

_captured: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def know(connection: Any) -> None:
    """Remember whose connection of DuckDB this captured connection uses."""
    _captured[id(connection._raw)] = connection


class _KeptConnection:
    """The attribute of relations that holds their connection, and so keeps it open."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, relation: Any, owner: object = None) -> Any:
        kept = self._slot.__get__(relation)
        return kept._raw if type(kept) in _classes else kept

    def __set__(self, relation: Any, connection: Any) -> None:
        self._slot.__set__(relation, _captured.get(id(connection), connection))


_classes: set[type[Any]] = set()


def accept(captured: type[Any]) -> None:
    """Let relations belong to captured connections from now on; `captured` is their class."""
    _classes.add(captured)
    setattr(DuckDBPyRelation, "_con", _KeptConnection(DuckDBPyRelation.__dict__["_con"]))  # noqa: B010 -- a slot
    for name in ("submit", "prepare_script_parsed", "create_view"):
        setattr(_seam, name, _captured_call(getattr(_seam, name)))


def _captured_call(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(connection: Any, *args: Any, **kwargs: Any) -> Any:
        return function(_captured.get(id(connection), connection), *args, **kwargs)

    return call

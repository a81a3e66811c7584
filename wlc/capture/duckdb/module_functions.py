"""Functions of the module `duckdb` with a captured connection as their argument `connection`.

Those that are written in C accept objects of DuckDB's own class only. So they are replaced by functions that call the
method of a captured connection, and pass all other calls on. Those that are written in Python call methods anyway.
"""

from __future__ import annotations

import sys
from functools import wraps
from inspect import unwrap
from types import ModuleType
from typing import TYPE_CHECKING, Any

import duckdb
from duckdb import _relation

from wlc.dialect.duckdb import engine
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def accept(captured: type[Any]) -> None:
    """Let DuckDB's functions accept captured connections from now on; `captured` is their class.

    They are replaced in all modules: a program may have imported their names from `duckdb` before.
    """
    written_in_c = type(engine.connect)
    functions = {id(each): each for module in (duckdb, _relation) for each in vars(module).values()}
    replaced = {
        place: _calling_the_method(function, captured)
        for place, function in functions.items()
        if isinstance(unwrap(function), written_in_c) and hasattr(captured, function.__name__)
    }
    replaced[id(duckdb.set_default_connection)] = _refusing(duckdb.set_default_connection, captured)
    replace_in_modules(replaced)


def replace_in_modules(by: Mapping[int, Any]) -> list[tuple[dict[str, object], str, object]]:
    """Replace objects in the names of every loaded module; a module that is loaded on first use stays as it is.

    Args:
        by: What takes the place of an object, by the object's id.

    Returns:
        What was replaced: the names of a module, the name, and the object.
    """
    replaced = []
    for place, module in list(sys.modules.items()):
        # Programs put objects there that pretend to be modules. In DuckDB's library and here, all stays as it is.
        if issubclass(type(module), ModuleType) and place.partition(".")[0] not in ("_duckdb", "wlc"):
            names: dict[str, object] = object.__getattribute__(module, "__dict__")
            found = [(names, name, value) for name, value in list(names.items()) if id(value) in by]
            names.update({name: by[id(value)] for _, name, value in found})
            replaced += found
    return replaced


def _calling_the_method(function: Callable[..., Any], captured: type[Any]) -> Callable[..., Any]:
    name = function.__name__
    is_property = isinstance(getattr(captured, name), property)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        connection = kwargs.get("connection")
        if type(connection) is not captured:
            return function(*args, **kwargs)
        del kwargs["connection"]
        found = getattr(connection, name)
        return found if is_property else found(*args, **kwargs)

    return call


def _refusing(function: Callable[..., None], captured: type[Any]) -> Callable[..., None]:
    @wraps(function)
    def call(connection: Any) -> None:
        if type(connection) is captured:
            # Functions that the program keeps outside of modules would use another default connection.
            raise InvalidError(
                f"the captured connection to {connection._shared.path} cannot be DuckDB's default connection",
                hint="give it to each call: duckdb.sql(query, connection=connection)",
            )
        function(connection)

    return call

"""Functions of the module `duckdb` with a captured connection as their argument `connection`.

Those that are written in C accept objects of DuckDB's own class only. So they are replaced by functions that call the
method of a captured connection, and pass all other calls on. Those that are written in Python call methods anyway.
"""

from __future__ import annotations

import builtins
import sys
from functools import wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import duckdb
from duckdb import _relation, _seam

from wlc.dialect.duckdb import engine
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def accept(captured: type[Any]) -> None:
    """Let DuckDB's functions accept captured connections from now on; `captured` is their class.

    They are replaced in all modules: a program may have imported their names from `duckdb` before.
    """
    written_in_c = type(engine.connect)
    functions = {id(each): each for module in (duckdb, _relation) for each in vars(module).values()}
    replaced = {
        place: _calling_the_method(function, captured)
        for place, function in functions.items()
        if isinstance(function, written_in_c) and hasattr(captured, function.__name__)
    }
    replaced[id(duckdb.set_default_connection)] = _refusing(duckdb.set_default_connection, captured)
    for names in _names_of_modules():
        names.update({name: replaced[id(value)] for name, value in list(names.items()) if id(value) in replaced})
    _seam.arrow_schema = _with_the_raw_connection(_seam.arrow_schema, captured)


def _names_of_modules() -> Iterator[dict[str, Any]]:
    """Yield the names of every loaded module; a module that is loaded on first use stays as it is."""
    for name, module in list(sys.modules.items()):
        # Programs put objects there that pretend to be modules. In DuckDB's own library, all stays as it is.
        if issubclass(type(module), ModuleType) and name != "_duckdb":
            yield object.__getattribute__(module, "__dict__")


def _calling_the_method(function: Callable[..., Any], captured: type[Any]) -> Callable[..., Any]:
    name = function.__name__
    is_property = isinstance(getattr(captured, name), property)

    def call(*args: Any, **kwargs: Any) -> Any:
        connection = kwargs.get("connection")
        if type(connection) is not captured:
            return function(*args, **kwargs)
        del kwargs["connection"]
        found = getattr(connection, name)
        return found if is_property else found(*args, **kwargs)

    return _unseen(call, function)


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


def _with_the_raw_connection(function: Callable[..., Any], captured: type[Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(connection: Any, *args: Any) -> Any:
        return function(connection._raw if type(connection) is captured else connection, *args)

    return call


def _unseen(call: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """DuckDB looks for a program's variables in the nearest frame that is not of its own package."""
    names = {"__name__": "duckdb", "__builtins__": builtins}
    copy = FunctionType(call.__code__, names, call.__name__, call.__defaults__, call.__closure__)
    return wraps(function)(copy)

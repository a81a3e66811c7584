"""Functions of the module `duckdb` with a captured connection as their argument `connection`.

Those that are written in C accept objects of DuckDB's own class only. So they are replaced by functions that call the
method of a captured connection, and pass all other calls on. Those that are written in Python call methods anyway.
"""

from __future__ import annotations

from functools import wraps
from inspect import unwrap
from typing import TYPE_CHECKING, Any

import duckdb
from duckdb import _relation

from wlc.capture.duckdb.interception.hook import unseen
from wlc.dialect.duckdb import engine
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable


def accept(captured: type[Any]) -> None:
    """Let DuckDB's functions accept captured connections from now on; `captured` is their class.

    A name that a program imported from `duckdb` before is DuckDB's own function, which refuses such a connection.
    """
    written_in_c = type(engine.connect)
    for module in (duckdb, _relation):
        for place, function in list(vars(module).items()):
            if isinstance(unwrap(function), written_in_c) and hasattr(captured, function.__name__):
                setattr(module, place, _calling_the_method(function, captured))
    duckdb.set_default_connection = _refusing(duckdb.set_default_connection, captured)


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

    return unseen(call, function)


def _refusing(function: Callable[..., None], captured: type[Any]) -> Callable[..., None]:
    @wraps(function)
    def call(connection: Any) -> None:
        if type(connection) is captured:
            # Functions that the program imported before would use another default connection.
            raise InvalidError(
                f"the captured connection to {connection._shared.path} cannot be DuckDB's default connection",
                hint="give it to each call: duckdb.sql(query, connection=connection)",
            )
        function(connection)

    return call

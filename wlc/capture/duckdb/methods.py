"""Methods of DuckDB's connection that ours passes on: those that fetch a result, and those that make relations."""

from __future__ import annotations

from typing import Any

import duckdb
from duckdb import _relation

_RESULTS = (
    "df",
    "fetchdf",
    "fetch_df",
    "fetch_df_chunk",
    "fetchnumpy",
    "torch",
    "tf",
    "to_arrow_table",
    "to_arrow_reader",
    "arrow",
    "pl",
    "fetch_arrow_table",
    "fetch_record_batch",
    "complete",
    "abort",
)


def install(connection: type) -> None:
    """Give a class every such method that it does not define itself."""
    for name in _RESULTS:
        if hasattr(duckdb.DuckDBPyConnection, name):
            setattr(connection, name, _result_method(name))
    for name in _relation.CONNECTION_METHODS:
        if not hasattr(connection, name):
            setattr(connection, name, _relation_method(name))


def _relation_method(name: str) -> Any:
    method = _relation.CONNECTION_METHODS[name]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def _result_method(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._settled(), name)(*args, **kwargs)

    call.__name__ = name
    return call

"""Methods of DuckDB's connection that ours hands on as they are. `Connection` itself defines those that it captures.

A method that writes rows must be captured. So there is no general way to the raw connection: each method is in a list
here or defined by `Connection`, and a test compares both with what DuckDB has.
"""

from __future__ import annotations

from typing import Any

import duckdb
from duckdb import _relation

# They fetch the last result. `_settled` puts it back on the raw connection first.
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
    "complete",
    "abort",
    "_result_as_arrow",
)
# They write no rows: they read the catalog, bind or parse, register what statements may read, or make types.
_PASSED_ON = (
    "_bind",
    "_catalog_version",
    "_check_text",
    "_name_scope",
    "_own_sources",
    "_register_arrow_source",
    "_register_collection",
    "_register_declared",
    "_register_filelike",
    "_register_map",
    "_register_source",
    "_register_values",
    "_statement_count",
    "_table_kind",
    "array_type",
    "checkpoint",
    "create_function",
    "decimal_type",
    "disable_profiling",
    "dtype",
    "enable_profiling",
    "enum_type",
    "extract_statements",
    "filesystem_is_registered",
    "get_profiling_information",
    "get_table_names",
    "install_extension",
    "interrupt",
    "list_filesystems",
    "list_type",
    "load_extension",
    "map_type",
    "query_progress",
    "register",
    "register_filesystem",
    "remove_function",
    "row_type",
    "sqltype",
    "string_type",
    "struct_type",
    "type",
    "union_type",
    "unregister",
    "unregister_filesystem",
)


def install(connection: type) -> None:
    """Give a class all these methods, and those that make relations, unless it defines them itself."""
    for name in _RESULTS:
        setattr(connection, name, _result_method(name))
    for name in _PASSED_ON:
        setattr(connection, name, _passed_on_method(name))
    for name in _relation.CONNECTION_METHODS:
        if not hasattr(connection, name):
            setattr(connection, name, _relation_method(name))


def _relation_method(name: str) -> Any:
    # A relation runs its statement by `_submit` of the connection that it was made with: ours.
    method = _relation.CONNECTION_METHODS[name]

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    return _named(call, name)


def _result_method(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._settled(), name)(*args, **kwargs)

    return _named(call, name)


def _passed_on_method(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        returned = getattr(self._raw, name)(*args, **kwargs)
        # Some return the raw connection, for chained calls. What it runs would not be captured.
        return self if isinstance(returned, duckdb.DuckDBPyConnection) else returned

    return _named(call, name)


def _named(call: Any, name: str) -> Any:
    call.__name__, call.__doc__ = name, getattr(getattr(duckdb.DuckDBPyConnection, name, None), "__doc__", None)
    return call

"""SQLAlchemy's dialect `wlc`, as in `wlc:///sales.duckdb`: that of duckdb-engine, with captured connections."""

from __future__ import annotations

from typing import Any

from wlc.connecting import connect

try:
    import duckdb_engine
    from sqlalchemy import text
except ImportError as error:
    message = f"{error}; SQLAlchemy's dialect needs more packages: pip install 'dbfarm[sqlalchemy]'"
    raise ImportError(message) from error

_OWN_SCHEMA = "wlc"


class Dialect(duckdb_engine.Dialect):  # type: ignore[misc] # without types
    """Connects by `wlc.connect`; keyword arguments of that may stand in `connect_args`.

    Its name stays `duckdb`, by which other packages know how to write SQL.
    """

    driver = "wlc"
    supports_statement_cache = False

    def connect(self, *_: Any, **cparams: Any) -> Any:
        config = {**cparams.pop("config", {}), **cparams.pop("url_config", {})}
        extensions, filesystems = cparams.pop("preload_extensions", []), cparams.pop("register_filesystems", [])
        later = {name: config.pop(name) for name in config.keys() - duckdb_engine.get_core_config()}
        connection = connect(config=config, **cparams)
        for extension in extensions:
            connection.load_extension(extension)
        for filesystem in filesystems:
            connection.register_filesystem(filesystem)
        duckdb_engine.apply_config(self, connection, later)
        return duckdb_engine.ConnectionWrapper(connection)

    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        return [name for name in super().get_schema_names(connection, **kw) if name.rpartition(".")[2] != _OWN_SCHEMA]

    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        if schema is not None:
            return list(super().get_table_names(connection, schema, **kw))
        # duckdb-engine lists the tables of all schemas.
        query = text("SELECT table_name FROM duckdb_tables() WHERE schema_name <> :own")
        return list(connection.execute(query, {"own": _OWN_SCHEMA}).scalars())

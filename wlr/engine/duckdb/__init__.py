"""DuckDB as a target: one database file, with the replica's state in its schema `wlr`."""

"""Connections that the kernel works with, in the process of a replay or in a Spark task."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import duckdb

from wlc.model import literal
from wlr.engine import MEMORY_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path


def connect(work: Path, *, threads: int | None = None, memory: str | None = None) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that spills into a folder.

    Args:
        work: Where to put what does not fit into memory.
        threads: Most threads; all that the machine has if omitted.
        memory: Most memory, such as "2GB", unless the environment says otherwise; DuckDB's own default if omitted.
    """
    connection = duckdb.connect(config={"python_enable_replacements": "false"})
    connection.execute(f"SET temp_directory = {literal(str(work / 'spill'))}")
    # Keys are kept as text, and text of a zoned time depends on where it is written.
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    if threads:
        connection.execute(f"SET threads = {threads}")
    if limit := os.environ.get(MEMORY_VARIABLE) or memory:
        connection.execute(f"SET memory_limit = {literal(limit)}")
    return connection

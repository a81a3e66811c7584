"""SQL text that reads rows of Parquet files, and COPY options that write them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from os import PathLike

# COPY's options for a durable file that readers other than DuckDB may read. Some readers fail at encodings of version
# 2, docs/decisions/0006-parquet-replicas.md.
KEPT = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v1"
# COPY's options for a file for dbfarm only.
PASSING = "FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION v2"


def rows_of(*files: str | PathLike[str], options: str = "") -> str:
    """Return FROM text for the rows of local files, as one relation.

    By default, DuckDB would interpret a folder such as `id=7` in a path as a column that overrides the file's own.

    Args:
        files: At least one.
        options: More options of `read_parquet`, as in "file_row_number = true".
    """
    listed = ", ".join(literal(os.fspath(file)) for file in files)
    return f"read_parquet([{listed}], hive_partitioning = false{', ' if options else ''}{options})"

"""How SQL text names the rows of Parquet files, and how it writes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wlc.dialect.sql import literal

if TYPE_CHECKING:
    from os import PathLike

# COPY's options for a file that is kept, and that readers other than DuckDB may read. Version 2 has encodings at which
# some of them fail, docs/decisions/0006-parquet-replicas.md.
KEPT = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v1"
# COPY's options for a file that only dbfarm reads.
PASSING = "FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION v2"


def rows_of(*files: str | PathLike[str], options: str = "") -> str:
    """Return what stands behind FROM for the rows of local files, as one relation.

    DuckDB would take a folder such as `id=7` on the way to a file for a column, and prefer it to the file's own.

    Args:
        files: At least one.
        options: More options of `read_parquet`, as in "file_row_number = true".
    """
    listed = ", ".join(literal(os.fspath(file)) for file in files)
    return f"read_parquet([{listed}], hive_partitioning = false{', ' if options else ''}{options})"

"""Read a farm from Spark: `spark.dataSource.register(wlr.spark.FarmDataSource)`, then `spark.read.format("dbfarm")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["FarmDataSource"]

if TYPE_CHECKING:
    from wlr.spark.read.source import FarmDataSource
else:

    def __getattr__(name):
        # Replay uses the modules of this package without pyspark until there is work for Spark.
        if name != "FarmDataSource":
            raise AttributeError(f"module 'wlr.spark' has no attribute {name!r}")
        from wlr.spark.read.source import FarmDataSource

        return FarmDataSource

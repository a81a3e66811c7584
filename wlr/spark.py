"""Read a farm from Spark: `spark.dataSource.register(wlr.spark.FarmDataSource)`, then `spark.read.format("dbfarm")`."""

from __future__ import annotations

from wlr.bulk.source import FarmDataSource

__all__ = ["FarmDataSource"]

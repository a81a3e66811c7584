"""Assets for Dagster: a table of a master, and a replica of it, with a check that compares both.

Each asset is made in a process of its own, or one after the other in one. Materializing again does no harm: the load
is one transaction, and `wlc.flush` and `wlr.replicate` go on where they were. DBFARM_WORK names the folder of the
databases.

    dagster asset materialize --select '*' -f dagster_jobs.py
"""

import os
from pathlib import Path

from dagster import AssetCheckResult, Definitions, MaterializeResult, asset, asset_check

import wlc
import wlr

WORK = Path(os.environ.get("DBFARM_WORK", "."))
MASTER, REPLICA, FARM = WORK / "sales.duckdb", WORK / "copy.duckdb", str(WORK / "farm")


@asset
def sales() -> MaterializeResult:
    """What the stores sold, in the master, and published."""
    with wlc.connect(MASTER) as connection:
        connection.execute(
            "CREATE OR REPLACE TABLE sales AS SELECT range AS store, range * 1.5 AS amount FROM range(100)"
        )
    return MaterializeResult(metadata={"tick": wlc.flush(MASTER).tick})


@asset(deps=[sales])
def sales_copy() -> MaterializeResult:
    """A replica for analysts."""
    done = wlr.replicate("sales", farm=FARM, into=REPLICA)
    return MaterializeResult(metadata={"tick": done.tick, "transactions": done.transactions})


@asset_check(asset=sales_copy)
def is_equal() -> AssetCheckResult:
    """Every table of the replica holds what the master's log says."""
    found = wlr.verify(REPLICA)
    return AssetCheckResult(passed=not found.differing, metadata={"tick": found.tick, "tables": len(found.tables)})


definitions = Definitions(assets=[sales, sales_copy], asset_checks=[is_equal])

"""A DAG for Airflow: a nightly job writes into a master, publishes, rolls a replica forward, and verifies it.

Airflow's tasks are processes of their own, so each opens the master for itself: one writer at a time, as always. A
task that is tried again does no harm: `wlc.flush` and `wlr.replicate` go on where they were, and the load is one
transaction. Copy this file into the folder of your DAGs; DBFARM_WORK names the folder of the databases.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import dag, task

import wlc
import wlr

WORK = Path(os.environ.get("DBFARM_WORK", "."))
MASTER, REPLICA, FARM = WORK / "sales.duckdb", WORK / "copy.duckdb", str(WORK / "farm")
AGAIN = {"retries": 3, "retry_delay": timedelta(seconds=30)}


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, default_args=AGAIN)
def nightly_sales() -> None:
    """Load, publish, replicate, verify."""

    @task
    def load(day: str) -> None:
        with wlc.connect(MASTER) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS sales (day DATE, store INTEGER, amount DECIMAL(9, 2))")
            # The same day again replaces what an earlier attempt has loaded.
            connection.execute("BEGIN")
            connection.execute("DELETE FROM sales WHERE day = ?", [day])
            connection.execute("INSERT INTO sales SELECT ?, range, range * 1.5 FROM range(100)", [day])
            connection.execute("COMMIT")

    @task
    def publish() -> int:
        return wlc.flush(MASTER).tick

    @task
    def replicate(tick: int) -> int:
        done = wlr.replicate("sales", farm=FARM, into=REPLICA)
        assert done.tick >= tick
        return done.tick

    @task
    def verify(tick: int) -> None:
        if differing := wlr.verify(REPLICA).differing:
            raise ValueError(f"at tick {tick} these tables differ: {differing}")

    loaded = load("{{ ds }}")
    published = publish()
    loaded >> published
    verify(replicate(published))


nightly_sales()

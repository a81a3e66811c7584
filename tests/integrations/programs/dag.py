"""Airflow: tasks that write a database with DuckDB's own connections."""

import os
from datetime import UTC, datetime

import duckdb
from airflow.sdk import dag, task


@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def nightly() -> None:
    @task
    def load(day: str) -> int:
        with duckdb.connect(os.environ["SALES"]) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS sales (day DATE, store INTEGER, amount DECIMAL(9, 2))")
            connection.execute("BEGIN")
            connection.execute("DELETE FROM sales WHERE day = ?", [day])
            connection.execute("INSERT INTO sales SELECT ?, range, range * 1.5 FROM range(100)", [day])
            connection.execute("COMMIT")
            return connection.sql("FROM sales").count("*").fetchall()[0][0]

    @task
    def total(rows: int) -> None:
        with duckdb.connect(os.environ["SALES"]) as connection:
            connection.execute(
                "CREATE OR REPLACE TABLE totals AS SELECT day, sum(amount) AS total FROM sales GROUP BY day"
            )
            assert connection.execute("SELECT count(*) FROM sales").fetchall() == [(rows,)]

    total(load("{{ ds }}"))


nightly()

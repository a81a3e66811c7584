"""Dagster: assets over its resource for DuckDB and its I/O manager: one process for each step."""

import os

import pandas as pd
from dagster import Definitions, asset
from dagster_duckdb import DuckDBResource
from dagster_duckdb_pandas import DuckDBPandasIOManager


@asset
def raw_orders(database: DuckDBResource) -> None:
    with database.get_connection() as connection:
        connection.execute("CREATE OR REPLACE TABLE raw_orders AS SELECT range AS id, range % 3 AS store FROM range(9)")


@asset(deps=[raw_orders])
def orders(database: DuckDBResource) -> pd.DataFrame:
    with database.get_connection() as connection:
        return connection.sql("FROM raw_orders").df()


@asset
def stores(orders: pd.DataFrame) -> pd.DataFrame:
    return orders.groupby("store", as_index=False).agg(orders=("id", "count"))


DATABASE = os.environ["SALES"]
definitions = Definitions(
    assets=[raw_orders, orders, stores],
    resources={
        "database": DuckDBResource(database=DATABASE),
        "io_manager": DuckDBPandasIOManager(database=DATABASE, schema="shop"),
    },
)

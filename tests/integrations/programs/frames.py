"""pandas, Polars, PyArrow and ibis write and read one database."""

import sys

import duckdb
import ibis
import pandas as pd
import polars as pl
import pyarrow as pa

path = sys.argv[1]
with duckdb.connect(path) as connection:
    text = pd.DataFrame({"id": [1, 2], "name": ["a", None], "day": pd.to_datetime(["2026-01-01", None])})
    connection.execute("CREATE TABLE from_pandas AS SELECT * FROM text")
    connection.append("from_pandas", text)
    query = pl.DataFrame({"id": [3], "name": ["p"], "day": [None]})
    connection.sql("INSERT INTO from_pandas SELECT * FROM query")
    values = pa.table({"id": [4, 5], "tags": [["x"], []], "of": [{"a": 1}, None]})
    connection.from_arrow(values).create("from_arrow")
    lazy = pl.LazyFrame({"id": [7], "tags": [["l"]], "of": [{"a": 3}]})
    connection.execute("INSERT INTO from_arrow SELECT * FROM lazy")
    reader = pa.RecordBatchReader.from_batches(values.schema, values.to_batches())
    connection.execute("INSERT INTO from_arrow SELECT * FROM reader")
    connection.register("given", values)
    connection.execute("DELETE FROM from_arrow WHERE id IN (SELECT id FROM given WHERE id = 4)")
    wanted = connection.table("from_pandas").filter("id < 3")
    connection.execute("UPDATE from_pandas SET name = 'w' WHERE id IN (SELECT id FROM wanted)")
    print(connection.sql("FROM from_pandas ORDER BY ALL").df().to_csv())
    print(connection.sql("FROM from_arrow ORDER BY ALL").pl().rows())
    print(connection.sql("SELECT sum(id) AS s FROM from_arrow").to_arrow_table().to_pylist())
    for frame in connection.execute("SELECT id FROM from_arrow ORDER BY ALL").to_arrow_reader(2):
        print(frame.to_pydict())

backend = ibis.duckdb.connect(path)
frame = pd.DataFrame({"id": range(5), "city": ["Delft", "Gent", "Kiel", "Gent", "Kiel"], "amount": [1.5, 2, 3, 4, 5]})
sales = backend.create_table("sales", frame)
backend.insert("sales", pd.DataFrame({"id": [9], "city": ["Delft"], "amount": [9.0]}))
totals = sales.group_by("city").aggregate(total=sales.amount.sum())
backend.create_table("totals", totals, overwrite=True)
backend.create_view("large", sales.filter(sales.amount > 2), overwrite=True)
backend.create_table("scratch", frame, temp=True)
backend.upsert("sales", pd.DataFrame({"id": [9, 10], "city": ["Kiel", "Kiel"], "amount": [1.0, 2.0]}), on="id")
backend.raw_sql("ALTER TABLE totals RENAME TO city_totals").fetchall()
backend.raw_sql("ALTER TABLE sales ADD COLUMN note VARCHAR DEFAULT 'none'").fetchall()
backend.create_table("typed", schema=ibis.schema({"id": "!int64", "at": "timestamp('UTC')", "tags": "array<string>"}))
backend.truncate_table("city_totals")
backend.insert("city_totals", totals)
print(backend.table("city_totals").order_by("city").to_pandas().to_csv())
print(backend.table("large").order_by("id").to_polars().rows())
print(backend.table("sales").order_by("id").to_pyarrow().to_pylist())
backend.drop_table("typed")
backend.disconnect()

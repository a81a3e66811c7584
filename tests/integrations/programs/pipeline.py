"""dlt: append, merge, history of rows, a schema that grows, and staging, into one database."""

import sys

import dlt

path, run = sys.argv[1], int(sys.argv[2])
pipeline = dlt.pipeline(
    "sales", destination=dlt.destinations.duckdb(path), dataset_name="loaded", pipelines_dir="pipelines"
)


@dlt.resource(write_disposition="append")
def visits():
    yield [{"id": run * 10 + number, "page": {"path": f"/{number}"}, "tags": ["a", "b"]} for number in range(3)]


@dlt.resource(write_disposition="merge", primary_key="id")
def customers():
    yield [{"id": number, "name": f"name {number + run // 2}"} for number in range(run, run + 4)]


@dlt.resource(write_disposition={"disposition": "merge", "strategy": "scd2"})
def prices():
    yield [{"item": number, "price": number + (run if number % 2 else 0)} for number in range(5 - run)]


@dlt.resource(write_disposition={"disposition": "merge", "strategy": "upsert"}, primary_key="id")
def stock():
    yield [{"id": number, "amount": number * run} for number in range(run, run + 3)]


@dlt.resource(write_disposition="append")
def growing():
    row = {"id": run, "amount": run}
    if run > 1:
        # A new column, and a value that does not fit the type of an old one.
        row |= {"note": "new", "amount": "many"}
    yield row


@dlt.resource(write_disposition={"disposition": "replace"})
def replaced():
    yield [{"id": run, "day": f"2026-11-0{run}"}]


info = pipeline.run([visits(), customers(), prices(), stock(), growing(), replaced()])
info.raise_on_failed_jobs()
pipeline.run([replaced()], refresh="drop_resources" if run == 3 else None)
with pipeline.sql_client() as client:
    for query in (
        "SELECT id, page__path FROM visits ORDER BY ALL",
        "SELECT id, name FROM customers ORDER BY ALL",
        "SELECT item, price, _dlt_valid_to IS NULL FROM prices ORDER BY ALL",
        "SELECT id, amount FROM stock ORDER BY ALL",
        "SELECT * EXCLUDE (_dlt_id, _dlt_load_id) FROM growing ORDER BY ALL",
        "SELECT id, day FROM replaced",
    ):
        print(client.execute_sql(query))

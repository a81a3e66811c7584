"""Statements that somebody who can write to a farm might put into it; none of them may do anything on a replica."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# {folder} has a file secret.csv that must not be read, and must hold nothing else afterwards.
STATEMENTS = [
    # Other kinds of statements
    "COPY (SELECT 1) TO '{folder}/x.csv'",
    "COPY t TO '{folder}/x.csv'",
    "COPY t FROM '{folder}/secret.csv'",
    "EXPORT DATABASE '{folder}/x'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{folder}/x.db' AS x",
    "ATTACH OR REPLACE '{folder}/x.db' AS sales",
    "DETACH memory",
    "USE memory",
    "INSTALL httpfs",
    "LOAD '{folder}/x.duckdb_extension'",
    "FORCE INSTALL httpfs FROM '{folder}'",
    "SET enable_external_access = true",
    "SET GLOBAL allowed_directories = ['/']",
    "RESET allowed_directories",
    "PRAGMA enable_external_access = true",
    "PRAGMA database_list",
    "CALL enable_logging(storage = 'file', storage_path = '{folder}/log')",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "PREPARE p AS DROP TABLE t",
    "EXECUTE p",
    "EXPLAIN ANALYZE DELETE FROM t",
    "DELETE FROM t",
    "TRUNCATE t",
    "INSERT INTO t VALUES (1, 'b')",
    "SELECT nextval('s')",
    "WITH x AS (DELETE FROM t RETURNING *) FROM x",
    "CREATE SECRET s (TYPE s3)",
    "CREATE OR REPLACE PERSISTENT SECRET s (TYPE s3, SCOPE '{folder}')",
    "CREATE TEMP TABLE x (a INTEGER)",
    "CREATE OR REPLACE TEMPORARY VIEW x AS SELECT 1",
    "CREATE TEMP MACRO x() AS 1",
    "ALTER DATABASE sales SET ALIAS TO other",
    "",
    ";",
    "-- nothing",
    "/* CREATE TABLE x (a INTEGER) */ DELETE FROM t",
    # Several in one
    "CREATE TABLE a (b INTEGER); DROP TABLE t",
    "CREATE TABLE a (b INTEGER);; DELETE FROM t",
    "CREATE TABLE a (b INTEGER) /* ; */; -- ;\n DROP TABLE t",
    "COMMENT ON TABLE t IS 'x'; SET enable_external_access = true",
    # Queries where none is needed
    "CREATE TABLE x AS SELECT 1 AS a",
    "CREATE OR REPLACE TABLE x AS FROM read_csv('{folder}/secret.csv')",
    "CREATE TABLE x AS FROM enable_logging(storage = 'file', storage_path = '{folder}/log')",
    "CREATE TABLE x (a) AS FROM enable_logging(storage = 'file', storage_path = '{folder}/log')",
    "CREATE TABLE IF NOT EXISTS x AS /* ( */ WITH y AS (DELETE FROM t RETURNING *) FROM y",
    "CREATE TABLE x AS FROM glob('{folder}/*')",
    "CREATE TABLE x AS SELECT E'\\'' AS a, * FROM wlr.state -- '",
    "CREATE TYPE e AS ENUM (SELECT a::VARCHAR FROM read_csv('{folder}/secret.csv'))",
    "CREATE TYPE e AS ENUM (SELECT v FROM t)",
    "CREATE TYPE e AS ENUM (FROM enable_logging())",
    "CREATE TYPE e AS ENUM ((SELECT v FROM t))",
    "CREATE TYPE e AS STRUCT(a ENUM (SELECT v FROM t))",
    "CREATE TYPE e AS ENUM (SELECT v FROM t)[]",
    "CREATE TYPE e AS ENUM ('a', (SELECT v FROM t))",
    # Queries that a reader would run, who is not confined
    "CREATE VIEW x AS FROM read_csv('{folder}/secret.csv')",
    "CREATE VIEW x AS FROM '{folder}/secret.csv'",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM read_csv('{folder}/secret.csv')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM '{folder}/secret.csv'",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM other.main.t",
    'CREATE VIEW x WITH (DEFER_BINDING = true) AS SELECT * FROM "secret.csv"',
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS SELECT * FROM secret.csv",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS SELECT * FROM 's3://bucket/x'",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS SELECT (SELECT content FROM read_text('{folder}/secret.csv'))",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS WITH y AS (FROM glob('{folder}/*')) FROM y",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM t WHERE v IN (SELECT content FROM READ_TEXT('{folder}/secret.csv'))",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM \"read_blob\"('{folder}/secret.csv')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM read_parquet/**/('{folder}/x.parquet')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM t UNION ALL BY NAME FROM read_json('{folder}/x.json')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM st_read('{folder}/x')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM postgres_query('x', 'y')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM sqlite_scan('{folder}/x', 'y')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM memory.main.t",
    "CREATE VIEW x AS FROM query('FROM t')",
    "CREATE VIEW x AS FROM query_table('t')",
    "CREATE VIEW x AS FROM enable_logging(storage = 'file', storage_path = '{folder}/log')",
    "CREATE VIEW x AS FROM duckdb_secrets()",
    "CREATE VIEW x AS FROM json_execute_serialized_sql(json_serialize_sql('FROM t'))",
    "CREATE VIEW x AS SELECT write_log('x')",
    "CREATE VIEW x AS FROM wlr.state",
    "CREATE VIEW x AS SELECT E'\\'' AS a, * FROM \"wlr\".state -- '",
    "CREATE VIEW /* /* */ AS SELECT 1 -- */ x */ x AS FROM '{folder}/secret.csv'",
    "CREATE RECURSIVE VIEW x(a) AS SELECT 1 UNION ALL FROM read_text('{folder}/secret.csv')",
    "CREATE MACRO x() AS TABLE FROM read_csv('{folder}/secret.csv')",
    "CREATE MACRO x(f) AS TABLE FROM read_text(f)",
    "CREATE MACRO x(f) AS TABLE FROM query(f)",
    "CREATE MACRO x(f) AS (SELECT content FROM read_text(f))",
    "CREATE OR REPLACE FUNCTION x(a) AS a + 1, (a, b) AS (SELECT count(*) FROM glob(a))",
    "CREATE MACRO x() AS TABLE FROM '{folder}/secret.csv'",
    # Expressions of tables
    "CREATE TABLE x (a VARCHAR DEFAULT (SELECT content FROM read_text('{folder}/secret.csv')))",
    "CREATE TABLE x (a VARCHAR, b VARCHAR AS ((SELECT content FROM read_text('{folder}/secret.csv'))))",
    "CREATE TABLE x (a VARCHAR, CHECK (a = (SELECT content FROM read_text('{folder}/secret.csv'))))",
    "CREATE INDEX x ON t ((SELECT content FROM read_text('{folder}/secret.csv')))",
    "ALTER TABLE t ADD COLUMN s VARCHAR DEFAULT (SELECT content FROM read_text('{folder}/secret.csv'))",
    "ALTER TABLE t ALTER v TYPE VARCHAR USING (SELECT content FROM read_text('{folder}/secret.csv'))",
    "ALTER TABLE t ALTER v SET DEFAULT (SELECT content FROM read_text('{folder}/secret.csv'))",
    "CREATE TABLE x (a BIGINT DEFAULT sleep_ms(60000))",
    "CREATE TABLE x (a VARCHAR DEFAULT current_setting('s3_secret_access_key'))",
    "CREATE TABLE x (a VARCHAR DEFAULT main.\"write_log\"('x'))",
    "CREATE TABLE x (a VARCHAR, CHECK ('x'.write_log() IS NULL))",
    "CREATE TABLE x (a VARCHAR, b VARCHAR AS (current_setting /**/ ('s3_secret_access_key')))",
    "CREATE TABLE x (a BIGINT DEFAULT system.main.setval('s', 5))",
    "CREATE INDEX x ON t ((concat(v, current_setting('s3_secret_access_key'))))",
    "ALTER TABLE t ALTER v TYPE VARCHAR USING write_log(v)",
    "ALTER TABLE t ALTER v SET DEFAULT pg_sleep(60)",
    "ALTER TABLE t ADD COLUMN s BIGINT DEFAULT sleep_ms(60000)",
    "CREATE MACRO x(a) AS current_setting(a)",
    "CREATE MACRO x(a := current_setting('s3_secret_access_key')) AS a",
    "CREATE VIEW x AS SELECT current_setting('s3_secret_access_key')",
    "CREATE VIEW x AS SELECT sleep_ms(60000)",
    "CREATE VIEW x AS SELECT setval('s', 5)",
    "CREATE VIEW x AS FROM pg_settings",
    "CREATE VIEW x AS FROM duckdb_logs",
    "CREATE VIEW x AS FROM (SHOW VARIABLES)",
    'CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM (SHOW "secret.csv")',
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM (PIVOT '{folder}/secret.csv' ON a USING count(*))",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM (DESCRIBE '{folder}/secret.csv')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM t POSITIONAL JOIN '{folder}/secret.csv'",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM t, LATERAL (FROM read_text(t.v))",
    "CREATE VIEW x AS SELECT * REPLACE (getenv('HOME') AS v) FROM t",
    "CREATE VIEW x AS SELECT COLUMNS(c -> getenv('HOME') IS NULL) FROM t",
    "CREATE VIEW x AS SELECT id FROM t QUALIFY row_number() OVER () = sleep_ms(1)",
    "CREATE VIEW x AS SELECT count(*) FILTER (WHERE getvariable('x') IS NULL) FROM t",
    "CREATE VIEW x AS FROM sql_auto_complete('SEL')",
    "CREATE VIEW x AS FROM truncate_duckdb_logs()",
    "COMMENT ON COLUMN t.v IS getenv('HOME')",
    "CREATE TABLE x (a VARCHAR DEFAULT (getvariable('x')))",
    "CREATE TABLE x (a INTEGER) PARTITIONED BY (getenv('HOME'))",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (getenv('HOME') IS NULL)",
    "CREATE TYPE x AS STRUCT(a ENUM(FROM read_text('{folder}/secret.csv')))",
    "CREATE MACRO x(a) AS TABLE DELETE FROM t RETURNING id",
    "CREATE MACRO x(a := (SELECT content FROM read_text('{folder}/secret.csv'))) AS a",
    "CREATE MACRO x(f) AS TABLE FROM query_table([f])",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM (SUMMARIZE '{folder}/secret.csv')",
    "CREATE VIEW x WITH (DEFER_BINDING = true) AS SELECT spatial_area(v) FROM t",
    # They would take the place of what checks the statements behind them
    "CREATE MACRO json_serialize_sql(a) AS '{}'::JSON",
    "CREATE OR REPLACE FUNCTION main.\"Lower\"(a) AS 'x'",
    "CREATE MACRO IF NOT EXISTS duckdb_functions() AS TABLE SELECT 1 AS a",
    'CREATE MACRO "||"(a, b) AS a',
    "CREATE TYPE json AS INTEGER",
    # What is not the farm's
    "CREATE TABLE sales.wlr (a INTEGER)",
    'CREATE VIEW "sales" . "WLC" AS SELECT 1',
    "CREATE SCHEMA IF NOT EXISTS sales.wlc",
    'CREATE VIEW x AS FROM sales."WLR".state',
    "DROP SCHEMA wlr CASCADE",
    'DROP SCHEMA IF EXISTS "WLR" CASCADE',
    "DROP TABLE wlr.state",
    "DROP TABLE wlr/**/./**/state",
    'ALTER TABLE sales."wlr" . state RENAME TO x',
    "CREATE OR REPLACE TABLE wlr.guard (allowed_by VARCHAR)",
    "COMMENT ON TABLE wlr.state IS 'x'",
    "CREATE TABLE memory.main.x (a INTEGER)",
    "CREATE SCHEMA memory.x",
    "CREATE TABLE system.main.x (a INTEGER)",
    "CREATE TABLE pg_catalog.x (a INTEGER)",
    "CREATE TABLE information_schema.x (a INTEGER)",
    "CREATE TABLE other.main.x (a INTEGER)",
    # Each generated column is twice the one before it: inserting a row would take hours.
    "CREATE TABLE x (a INTEGER, b0 INTEGER AS (a + a)"
    + "".join(f", b{n} INTEGER AS (b{n - 1} + b{n - 1})" for n in range(1, 22))
    + ")",
]

# The last of each would stay when the macro is gone: it would mean the engine's own function then.
BEHIND_MACROS = [
    [
        "CREATE MACRO parquet_kv_metadata(f) AS TABLE SELECT 1 AS a",
        "CREATE VIEW x AS FROM parquet_kv_metadata('{folder}/x.parquet')",
    ],
    ["CREATE MACRO duckdb_secrets() AS TABLE SELECT 1 AS a", "CREATE VIEW x AS FROM main.duckdb_secrets()"],
    [
        "CREATE SCHEMA q",
        "CREATE MACRO q.enable_logging(storage_path) AS TABLE SELECT 1 AS a",
        "CREATE VIEW x AS FROM q.enable_logging('{folder}/log')",
    ],
    ["CREATE MACRO st_read(f) AS TABLE SELECT 1 AS a", "CREATE VIEW x AS FROM st_read('{folder}/x')"],
    ["CREATE MACRO sleep_ms(a) AS a", "CREATE VIEW x AS SELECT sleep_ms(60000)"],
    ["CREATE MACRO getenv(a) AS a", "CREATE TABLE x (a VARCHAR DEFAULT getenv('HOME'))"],
    ["CREATE MACRO write_log(a) AS a", "CREATE MACRO x(a) AS write_log(a)"],
]


def nested(depth: int) -> list[str]:
    """Statements that a parser could need all of its stack or memory for."""
    inside = "(SELECT " * depth + "1" + ")" * depth
    from_inside = "(SELECT * FROM " * depth + "t" + ")" * depth
    return [
        f"CREATE VIEW x AS SELECT {inside}",
        f"CREATE VIEW x AS SELECT * FROM {from_inside}",
        f"CREATE VIEW x WITH (DEFER_BINDING = true) AS SELECT * FROM {from_inside}",
        f"CREATE MACRO x() AS {inside}",
        f"CREATE TABLE x (a INTEGER DEFAULT {'(' * depth}1{')' * depth})",
        f"CREATE TABLE x (a INTEGER{'[]' * depth})",
        f"CREATE TABLE x (a {'STRUCT(a ' * depth}INTEGER{')' * depth})",
        f"CREATE VIEW x AS SELECT 1{' + 1' * depth}",
        f"CREATE VIEW x AS SELECT {'NOT ' * depth}true",
    ]


@contextmanager
def bounded(seconds: float = 60, memory_bytes: int = 1 << 30) -> Iterator[None]:
    """Fail if the body takes longer, or needs more memory; what was reserved before and not used comes on top of it."""
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert time.monotonic() - begun < seconds
    assert grown < memory_bytes

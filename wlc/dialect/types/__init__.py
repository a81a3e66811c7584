"""Column types: one table of their properties for every part of the product, and the storage of their values.

`table` has one row per type: its storage type, its text in digests, its counterparts in PostgreSQL and Spark. To add a
type, add a row there, a line to docs/types.md and values to tests/unit/dialect/test_types.py. `syntax` parses type
texts, `storage` makes the SQL that writes values to Parquet and reads them back.
"""

from wlc.dialect.types.column_types import BY_NAME, TABLE, DigestText, PostgresText, TypeRow
from wlc.dialect.types.storage import load_sql, storage_type, store_sql
from wlc.dialect.types.syntax import ColumnType, parse

__all__ = [
    "BY_NAME",
    "TABLE",
    "ColumnType",
    "DigestText",
    "PostgresText",
    "TypeRow",
    "load_sql",
    "parse",
    "storage_type",
    "store_sql",
]

"""Tables of Spark's catalog: `CREATE TABLE … USING dbfarm OPTIONS (…)`.

When Spark reads such a table, it gives the source none of the table's options, only the schema that the catalog keeps
(tried with Spark 4.3.0). So the columns carry the options in their metadata. Options of the read itself, as in
`SELECT * FROM orders WITH (tick = 3)`, arrive as ever and take precedence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as spark

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = "dbfarm"
# What Spark itself says of a table that is created; it gives every option a second time with the prefix.
_PROVIDER, _PREFIX = "provider", "option."
_SPARKS_OWN = {_PROVIDER, "owner", "comment", "location", "path", "collation", "external", "table_type"}
_STORAGE = "storage."


def is_created(options: Mapping[str, str]) -> bool:
    """Say whether Spark asks for the columns of a table that it is about to create."""
    return _PROVIDER in options


def carrying(schema: spark.StructType, options: Mapping[str, str]) -> spark.StructType:
    """Return a schema that carries options."""
    metadata = {_KEY: dict(options)}
    return spark.StructType([spark.StructField(f.name, f.dataType, f.nullable, metadata) for f in schema.fields])


def carried(schema: spark.StructType) -> dict[str, str]:
    """Return the options that a schema carries; can be empty."""
    return dict(next((field.metadata[_KEY] for field in schema.fields if _KEY in (field.metadata or {})), {}))


def options_given(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a statement CREATE TABLE gives.

    Raises:
        InvalidError: One of them would be shown to everybody who reads the catalog.
    """
    given = {name: value for name, value in options.items() if not name.startswith(_PREFIX)}
    given = {name: value for name, value in given.items() if name not in _SPARKS_OWN}
    if secret := next((name for name in given if name.startswith(_STORAGE)), None):
        hint = "Set the variables of the store, such as AWS_ACCESS_KEY_ID, or create a temporary view instead."
        raise InvalidError(
            f"a table of Spark's catalog has no option {secret!r}: everybody can read it there", hint=hint
        )
    return given

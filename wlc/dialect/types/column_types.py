"""The table of column types: one row per type of DuckDB, with all its properties.

The modules that generate SQL (digests, PostgreSQL, Spark, folding) ask this table and hold no lists of types.
docs/types.md shows the same to users.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LITERAL = "'(?:[^']|'')*'"


class DigestText(Enum):
    """The form in which a digest includes a value of a storage type: an integer or a text; docs/format.md defines both.

    A member of a nested value always has a text.
    """

    VALUE = auto()
    """DuckDB's own text, which holds no comma."""
    INTEGER = auto()
    """An integer, or a truth value; as a member DuckDB's text."""
    DECIMAL = auto()
    """The digits as an integer, if they are few; as a member DuckDB's text."""
    TIME = auto()
    """Microseconds since midnight, or nanoseconds; as a member DuckDB's text."""
    HALVES = auto()
    """Two integers of 64 bits; as a member DuckDB's text."""
    COUNTED = auto()
    """The text behind its length in bytes."""
    BITS = auto()
    """The bits of a float, as a member in hexadecimal; all NaN are alike."""
    BYTES = auto()
    """The bytes, as a member in hexadecimal."""
    DAYS = auto()
    """The number of days since 1970, or the text of an infinity."""
    MICROSECONDS = auto()
    """The number of microseconds since 1970, or the text of an infinity."""
    NANOSECONDS = auto()
    MEMBERS = auto()
    """Elements, fields or entries, each by its own rule."""


class PostgresText(Enum):
    """PostgreSQL's text of a value, compared with DuckDB's text."""

    VALUE = auto()
    """The same; a value that does not fit is refused by a cast."""
    TEXT = auto()
    """The value is text, and no text is refused."""
    HEX = auto()
    """Bytes in hexadecimal behind `\\x`."""
    DATE = auto()
    """A year before Christ ends in BC without brackets."""
    MOMENT = auto()
    """As DATE, and BC follows the time."""
    INTERVAL = auto()
    """PostgreSQL writes a plus sign behind a negative part."""
    JSON = auto()
    """The same, but DuckDB refuses halves of surrogate pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """The properties of one type.

    Attributes:
        name: Canonical name, as `duckdb_columns()` reports it.
        aliases: Its other names.
        parameters: Pattern of the parameters in brackets; "" if it takes none.
        parameters_default: Parameters that the name alone stands for.
        stored_as: Type of its values in data files; None if it is stored unchanged or its members decide.
        is_nested: It has members. Its members then decide all properties of values below.
        is_rebuilt: A cast cannot make the stored form; an expression splits the value and rebuilds it.
        is_integer: An integer of at most 64 bits.
        is_float: A binary floating-point number: 0.0 equals -0.0.
        has_equal_twins: SQL's `=` holds for some values that are not identical.
        is_native: The log's listing shows the value itself and not its text.
        digest: The form of a value in digests, for types that are stored unchanged.
        postgres: Type of a PostgreSQL replica's column, with `{}` for the parameters; None for nested types.
        postgres_text: How PostgreSQL writes the value.
        from_postgres: Types of a PostgreSQL master that become this one, as `format_type` writes them.
        takes_all_postgres: Every text of those types is valid for this one.
        is_exact_in_json: A JSON text holds it exactly. JSON itself does not qualify: its null could not be
            distinguished from NULL.
        casts_alike: A cast of a constant to it gives the same value in every session, independent of settings.
        spark: Class in `pyspark.sql.types`, for types that are stored as themselves.
        spark_as: DuckDB type that Spark gets instead, because Spark has no such type.
        spark_refuses_infinity: Spark has the type but treats an infinity as an ordinary value.
        delta: Type in the schema of a Delta table over data files, with `{}` for the parameters; None if Delta has
            none, for nested types, and for types that are stored as another one.
    """

    name: str
    aliases: tuple[str, ...] = ()
    parameters: str = ""
    parameters_default: str = ""
    stored_as: str | None = None
    is_nested: bool = False
    is_rebuilt: bool = False
    is_integer: bool = False
    is_float: bool = False
    has_equal_twins: bool = False
    is_native: bool = False
    digest: DigestText = DigestText.VALUE
    postgres: str | None = None
    postgres_text: PostgresText = PostgresText.VALUE
    from_postgres: tuple[str, ...] = ()
    takes_all_postgres: bool = False
    is_exact_in_json: bool = False
    casts_alike: bool = False
    spark: str | None = None
    spark_as: str | None = None
    spark_refuses_infinity: bool = False
    delta: str | None = None


_integer = partial(
    TypeRow, is_integer=True, is_native=True, digest=DigestText.INTEGER, is_exact_in_json=True, casts_alike=True
)
_float = partial(
    TypeRow,
    is_float=True,
    has_equal_twins=True,
    is_native=True,
    digest=DigestText.BITS,
    takes_all_postgres=True,
    casts_alike=True,
)
_seconds = partial(TypeRow, stored_as="TIMESTAMP", postgres="timestamp", postgres_text=PostgresText.MOMENT)
# Nanoseconds do not fit into the times of PostgreSQL and Spark.
_nanoseconds = partial(TypeRow, postgres="text", spark_as="VARCHAR")
_nested = partial(TypeRow, is_nested=True, digest=DigestText.MEMBERS)

TABLE: tuple[TypeRow, ...] = (
    TypeRow(
        name="BOOLEAN",
        aliases=("BOOL",),
        is_native=True,
        digest=DigestText.INTEGER,
        postgres="boolean",
        from_postgres=("boolean",),
        takes_all_postgres=True,
        is_exact_in_json=True,
        spark="BooleanType",
        casts_alike=True,
        delta="boolean",
    ),
    # Integers
    _integer(name="TINYINT", postgres="smallint", spark="ByteType", delta="byte"),
    _integer(
        name="SMALLINT",
        postgres="smallint",
        from_postgres=("smallint",),
        takes_all_postgres=True,
        spark="ShortType",
        delta="short",
    ),
    _integer(
        name="INTEGER",
        aliases=("INT",),
        postgres="integer",
        from_postgres=("integer",),
        takes_all_postgres=True,
        spark="IntegerType",
        delta="integer",
    ),
    _integer(
        name="BIGINT",
        postgres="bigint",
        from_postgres=("bigint",),
        takes_all_postgres=True,
        spark="LongType",
        delta="long",
    ),
    _integer(name="UTINYINT", postgres="smallint", spark_as="SMALLINT", delta="short"),
    _integer(name="USMALLINT", postgres="integer", spark_as="INTEGER", delta="integer"),
    _integer(
        name="UINTEGER",
        postgres="bigint",
        from_postgres=("oid",),
        takes_all_postgres=True,
        spark_as="BIGINT",
        delta="long",
    ),
    _integer(name="UBIGINT", postgres="numeric(20,0)", spark_as="DECIMAL(20,0)", delta="decimal(20,0)"),
    # Parquet would hold a DOUBLE.
    TypeRow(name="HUGEINT", stored_as="VARCHAR", postgres="numeric(39,0)", is_exact_in_json=True, casts_alike=True),
    TypeRow(name="UHUGEINT", stored_as="VARCHAR", postgres="numeric(39,0)", is_exact_in_json=True, casts_alike=True),
    # Other numbers
    TypeRow(name="BIGNUM", stored_as="VARCHAR", postgres="numeric"),
    TypeRow(
        name="DECIMAL",
        aliases=("NUMERIC",),
        parameters=r"\([0-9]+(?:,[0-9]+)?\)",
        parameters_default="(18,3)",
        digest=DigestText.DECIMAL,
        postgres="numeric{}",
        spark="DecimalType",
        casts_alike=True,
        delta="decimal{}",
    ),
    _float(name="FLOAT", aliases=("REAL",), postgres="real", from_postgres=("real",), spark="FloatType", delta="float"),
    _float(
        name="DOUBLE",
        postgres="double precision",
        from_postgres=("double precision",),
        spark="DoubleType",
        delta="double",
    ),
    # Texts and bytes
    TypeRow(
        name="VARCHAR",
        aliases=("TEXT", "STRING"),
        parameters=r"\([0-9]+\)",
        is_native=True,
        digest=DigestText.COUNTED,
        postgres="text",
        postgres_text=PostgresText.TEXT,
        from_postgres=("text",),
        takes_all_postgres=True,
        is_exact_in_json=True,
        spark="StringType",
        casts_alike=True,
        delta="string",
    ),
    TypeRow(
        name="ENUM",
        parameters=rf"\({_LITERAL}(?:, {_LITERAL})*\)",
        stored_as="VARCHAR",
        postgres="text",
        is_exact_in_json=True,
        casts_alike=True,
    ),
    TypeRow(
        name="JSON",
        digest=DigestText.COUNTED,
        postgres="json",
        postgres_text=PostgresText.JSON,
        from_postgres=("json", "jsonb"),
        spark="StringType",
        delta="string",
    ),
    TypeRow(
        name="UUID",
        digest=DigestText.HALVES,
        postgres="uuid",
        from_postgres=("uuid",),
        takes_all_postgres=True,
        is_exact_in_json=True,
        spark_as="VARCHAR",
        casts_alike=True,
        delta="binary",
    ),
    TypeRow(
        name="BLOB",
        digest=DigestText.BYTES,
        postgres="bytea",
        postgres_text=PostgresText.HEX,
        from_postgres=("bytea",),
        spark="BinaryType",
        casts_alike=True,
        delta="binary",
    ),
    TypeRow(name="BIT", stored_as="VARCHAR", postgres="bit varying"),
    # Parquet's GEOMETRY comes back under another coordinate system; well-known binary does not.
    TypeRow(
        name="GEOMETRY",
        parameters=rf"\({_LITERAL}\)",
        stored_as="BLOB",
        postgres="bytea",
        postgres_text=PostgresText.HEX,
    ),
    # Dates and times
    TypeRow(
        name="DATE",
        digest=DigestText.DAYS,
        postgres="date",
        postgres_text=PostgresText.DATE,
        from_postgres=("date",),
        is_exact_in_json=True,
        spark="DateType",
        spark_refuses_infinity=True,
        casts_alike=True,
        delta="date",
    ),
    # Spark's TIME ends before 24:00:00.
    TypeRow(
        name="TIME",
        digest=DigestText.TIME,
        postgres="time",
        from_postgres=("time without time zone",),
        is_exact_in_json=True,
        spark_as="VARCHAR",
        casts_alike=True,
    ),
    _nanoseconds(name="TIME_NS", digest=DigestText.TIME),
    # Parquet moves the time to UTC and drops the zone.
    TypeRow(
        name="TIME WITH TIME ZONE",
        aliases=("TIMETZ",),
        stored_as="VARCHAR",
        has_equal_twins=True,
        postgres="time with time zone",
        from_postgres=("time with time zone",),
    ),
    TypeRow(
        name="TIMESTAMP",
        digest=DigestText.MICROSECONDS,
        postgres="timestamp",
        postgres_text=PostgresText.MOMENT,
        from_postgres=("timestamp without time zone",),
        is_exact_in_json=True,
        spark="TimestampNTZType",
        spark_refuses_infinity=True,
        casts_alike=True,
        delta="timestamp_ntz",
    ),
    _seconds(name="TIMESTAMP_S", is_exact_in_json=True),
    _seconds(name="TIMESTAMP_MS", is_exact_in_json=True),
    _nanoseconds(name="TIMESTAMP_NS", digest=DigestText.NANOSECONDS),
    TypeRow(
        name="TIMESTAMP WITH TIME ZONE",
        aliases=("TIMESTAMPTZ",),
        digest=DigestText.MICROSECONDS,
        postgres="timestamp with time zone",
        postgres_text=PostgresText.MOMENT,
        from_postgres=("timestamp with time zone",),
        spark="TimestampType",
        spark_refuses_infinity=True,
        delta="timestamp",
    ),
    _nanoseconds(name="TIMESTAMPTZ_NS", digest=DigestText.NANOSECONDS),
    # Parquet drops microseconds and refuses negative intervals. A month equals 30 days.
    TypeRow(
        name="INTERVAL",
        stored_as="VARCHAR",
        has_equal_twins=True,
        postgres="interval",
        postgres_text=PostgresText.INTERVAL,
        from_postgres=("interval",),
    ),
    # The type of a column that holds only NULL: stored unchanged in Parquet, DuckDB 1.5 fails when it skips rows.
    TypeRow(name='"NULL"', stored_as="VARCHAR", postgres="text"),
    # Values with members
    _nested(name="LIST"),
    _nested(name="ARRAY"),
    _nested(name="STRUCT"),
    _nested(name="TUPLE"),
    _nested(name="MAP"),
    _nested(name="UNION", is_rebuilt=True),
    # Parquet has no empty groups.
    TypeRow(name="EMPTY STRUCT", stored_as="BOOLEAN", is_rebuilt=True),
    TypeRow(name="VARIANT", stored_as="STRUCT(metadata BLOB, value BLOB)", is_rebuilt=True),
)
BY_NAME: Mapping[str, TypeRow] = {name: row for row in TABLE for name in (row.name, *row.aliases)}

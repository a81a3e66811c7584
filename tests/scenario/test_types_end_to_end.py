"""Every type that DuckDB has arrives on a replica exactly, through the log and through a snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.lake import any_file
from tests.unit.dialect.test_types import EXPRESSIONS, NESTINGS, VALUES, WRAPS
from wlc.dialect.sql import literal, quote

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# (Declared type, SQL expressions of its values)
Typed = list[tuple[str, list[str]]]
WIDTH = 30
# A zone with daylight saving would show values that pass through local time.
ZONE = "SET TimeZone = 'Europe/Amsterdam'"
SAMPLES = "CREATE TEMP TABLE samples AS SELECT *, row_number() OVER () AS r FROM test_all_types()"


def types_and_values() -> Typed:
    """Every type with its extremes, alone and nested; the tests add NULL."""
    found: dict[str, list[str]] = {}
    with duckdb.connect() as connection:
        for name, declared, *_ in connection.execute("DESCRIBE FROM test_all_types()").fetchall():
            found[declared] = [f"(SELECT {quote(name)} FROM samples WHERE r = {row})" for row in (1, 2)]
    for declared, texts in VALUES.items():
        values = [f"{literal(text)}::{declared}" for text in texts]
        found.setdefault(declared, []).extend(values)
        for nesting, wrap in zip(NESTINGS, WRAPS, strict=True):
            found.setdefault(nesting.format(declared), []).extend(wrap.format(value) for value in values[-2:])
    for declared, expressions in EXPRESSIONS.items():
        found.setdefault(declared, []).extend(expressions)
    return list(found.items())


TYPES = types_and_values()
# Few wide tables are made in a fraction of the time of many narrow ones.
WIDE = [TYPES[first : first + WIDTH] for first in range(0, len(TYPES), WIDTH)]


def fill(connection: Any) -> None:
    """Fill wide tables whose row 0 is NULL and there twice, and whose rows 1, 2, … hold the values."""
    connection.execute(SAMPLES)
    for number, typed in enumerate(WIDE):
        columns = ", ".join(f"c{column} {declared}" for column, (declared, _) in enumerate(typed))
        connection.execute(f"CREATE TABLE t{number} (r INTEGER, {columns})")
        connection.execute(f"INSERT INTO t{number} (r) VALUES (0), (0)")
        for row in range(max(len(values) for _, values in typed)):
            values = (f"({v[row]})::{declared}" if row < len(v) else "NULL" for declared, v in typed)
            connection.execute(f"INSERT INTO t{number} SELECT {row + 1}, {', '.join(values)}")


def change(connection: Any) -> None:
    """Give every row the values of the next one, and delete one of them, with all values as images."""
    for number, typed in enumerate(WIDE):
        last = max(len(values) for _, values in typed)
        listed = ", ".join(f"c{column} = o.c{column}" for column in range(len(typed)))
        following = f"(SELECT DISTINCT ON (r) * FROM t{number}) o WHERE o.r = (t{number}.r + 1) % {last + 1}"
        connection.begin()
        connection.execute(f"UPDATE t{number} SET {listed} FROM {following}")
        connection.execute(f"DELETE FROM t{number} WHERE r = 1")
        connection.execute(f"INSERT INTO t{number} SELECT * REPLACE (r + 100 AS r) FROM t{number} WHERE r = 2")
        connection.commit()


def keys() -> Typed:
    """The types that DuckDB takes as primary key, each with values that are different and not NULL."""
    found = []
    with duckdb.connect() as connection:
        connection.execute(ZONE)
        connection.execute(SAMPLES)
        for declared, values in TYPES:
            try:
                connection.execute(f"CREATE OR REPLACE TABLE k (v {declared} PRIMARY KEY)")
            except duckdb.Error:
                continue
            kept = [value for value in values if is_taken(connection, f"({value})::{declared}")]
            if kept:
                found.append((declared, kept))
    return found


def is_taken(connection: Any, value: str) -> bool:
    try:
        connection.execute(f"INSERT INTO k SELECT {value}")
    except duckdb.ConstraintException:
        return False
    return True


def fill_keyed(connection: Any, typed: Typed) -> None:
    connection.execute(SAMPLES)
    connection.begin()
    for number, (declared, values) in enumerate(typed):
        connection.execute(f"CREATE TABLE t{number} (c0 {declared} PRIMARY KEY, r INTEGER)")
        rows = ", ".join(f"(({value})::{declared}, {row})" for row, value in enumerate(values))
        connection.execute(f"INSERT INTO t{number} VALUES {rows}")
    connection.commit()


def change_keyed(connection: Any, typed: Typed) -> None:
    connection.begin()
    for number, _ in enumerate(typed):
        connection.execute(f"UPDATE t{number} SET r = r + 100")
        connection.execute(f"DELETE FROM t{number} WHERE r % 2 = 1")
        connection.execute(f"INSERT OR REPLACE INTO t{number} SELECT c0, r + 1000 FROM t{number} LIMIT 1")
    connection.commit()


def differences(master: Path, replica: Path, tables: list[Typed]) -> dict[str, list[tuple[str, ...]]]:
    """Values, by type, that one side has more often than the other in value, text or type."""
    found = {}
    with duckdb.connect() as connection:
        connection.execute(ZONE)
        connection.execute(f"ATTACH {literal(str(master))} AS master (READ_ONLY)")
        connection.execute(f"ATTACH {literal(str(any_file(replica)))} AS replica (READ_ONLY)")
        for number, typed in enumerate(tables):
            # A table is compared as a whole, and column by column only to say what differs.
            shown = ", ".join(f"{v}, {v}::VARCHAR, typeof({v})" for v in (f"c{number}" for number in range(len(typed))))
            here, there = (f"SELECT r, {shown} FROM {side}.main.t{number}" for side in ("master", "replica"))
            bags = f"(({here}) EXCEPT ALL ({there})) UNION ALL (({there}) EXCEPT ALL ({here}))"
            if not connection.execute(f"SELECT count(*) FROM ({bags})").fetchall()[0][0]:
                continue
            for column, (declared, _) in enumerate(typed):
                value = f"c{column}"
                here, there = (
                    f"SELECT r, {value} AS v, {value}::VARCHAR AS t, typeof({value}) AS y FROM {side}.main.t{number}"
                    for side in ("master", "replica")
                )
                bags = f"(({here}) EXCEPT ALL ({there})) UNION ALL (({there}) EXCEPT ALL ({here}))"
                if rows := connection.execute(f"SELECT r, t, y FROM ({bags})").fetchall():
                    found[declared] = rows
    return found


@pytest.fixture
def master(tmp_path: Path) -> Path:
    source = tmp_path / "typed.duckdb"
    duckdb.connect(str(source)).close()
    wlc.master(source)
    return source


def test_every_type(master: Path, tmp_path: Path) -> None:
    through_log, through_snapshot, lake = tmp_path / "log.duckdb", tmp_path / "snapshot.duckdb", tmp_path / "lake"
    with wlc.connect(master) as connection:
        connection.execute(ZONE)
        fill(connection)
    wlc.flush(master)
    wlr.replicate(master, into=through_log)
    assert differences(master, through_log, WIDE) == {}
    wlc.snapshot(master)
    for replica in (through_snapshot, lake):
        made = wlr.replicate(master, into=replica, engine="local")
        assert made.transactions == 0, "everything came with the snapshot"
    assert differences(master, through_snapshot, WIDE) == {}
    with wlc.connect(master) as connection:
        connection.execute(ZONE)
        change(connection)
    wlc.flush(master)
    for replica in (through_log, through_snapshot, lake):
        wlr.replicate(into=replica, engine="local")
        assert differences(master, replica, WIDE) == {}


def test_every_type_as_primary_key(master: Path, tmp_path: Path) -> None:
    typed = keys()
    assert len(typed) > 20, "DuckDB takes most scalar types as keys"
    replicas = (tmp_path / "replica.duckdb", tmp_path / "lake")
    with wlc.connect(master) as connection:
        connection.execute(ZONE)
        fill_keyed(connection, typed)
    wlc.flush(master)
    for replica in replicas:
        wlr.replicate(master, into=replica, engine="local")
        assert differences(master, replica, [[column] for column in typed]) == {}
    with wlc.connect(master) as connection:
        connection.execute(ZONE)
        change_keyed(connection, typed)
    wlc.flush(master)
    for replica in replicas:
        wlr.replicate(into=replica, engine="local")
        assert differences(master, replica, [[column] for column in typed]) == {}

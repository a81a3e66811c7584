"""Two connections change the same rows at once: what DuckDB lets pass is captured exactly, or refused as a conflict."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import wants_all
from tests.oracle import file_contents, published
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

LAYOUTS = [
    "id INTEGER PRIMARY KEY, a VARCHAR, b DOUBLE",
    "id INTEGER, a VARCHAR, b DOUBLE",
    "id INTEGER, a VARCHAR, b DOUBLE, rowid INTEGER",
]
STATEMENTS = [
    "UPDATE {t} SET a = 'one' WHERE id = 2",
    "UPDATE {t} SET b = b + 1 WHERE id <= 2",
    "UPDATE {t} SET b = -0.0 WHERE id = 2",
    "UPDATE {t} SET id = id + 20 WHERE id = 2",
    "CREATE OR REPLACE TABLE {t} AS SELECT 99 AS id, 'made' AS a, 1.5::DOUBLE AS b",
    "DELETE FROM {t} WHERE id = 2",
    "DELETE FROM {t}",
    "TRUNCATE {t}",
    "INSERT INTO {t} (id, a, b) VALUES (30, 'new', 1)",
    "MERGE INTO {t} AS t USING (SELECT 2 AS id) s ON t.id = s.id WHEN MATCHED AND a = 'never' THEN DELETE"
    " WHEN NOT MATCHED THEN INSERT (id, a, b) VALUES (2, 'merged', 0)",
    "MERGE INTO {t} AS t USING (SELECT 2 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET b = 9",
    "DROP TABLE {t}",
    "ALTER TABLE {t} ADD COLUMN c INTEGER DEFAULT 5",
    "ALTER TABLE {t} ALTER b TYPE VARCHAR USING b || '!'",
    "DELETE FROM {t} WHERE id = 2; ALTER TABLE {t} ADD COLUMN c INTEGER DEFAULT 6",
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=["keyed", "bag", "rowid is a column"])
def test_what_two_connections_do_at_once_is_replicated_or_refused(tmp_path: Path, layout: str) -> None:
    pairs = [(first, second) for first in STATEMENTS for second in STATEMENTS]
    if not wants_all():
        # Every statement still comes first and second. Fewer pairs tell that the layout makes no difference.
        few = pairs[::8] if "KEY" in layout else pairs[::11]
        # DuckDB notices no conflict where a MERGE writes to no row.
        pairs = [*few, *[pair for pair in pairs if "never" in pair[1] and pair not in few]]
    source = tmp_path / "sales.duckdb"
    with duckdb.connect(str(source)) as connection:
        for number in range(len(pairs)):
            connection.execute(f"CREATE TABLE t{number} ({layout})")
            connection.execute(f"INSERT INTO t{number} (id, a, b) SELECT i, 'x', 0 FROM range(5) r(i)")
    wlc.master(source)
    both = refused = 0
    with wlc.connect(source) as one, one.cursor() as other:
        for number, (first, second) in enumerate(pairs):
            other.execute("BEGIN")
            other.execute(f"SELECT * FROM t{number}").fetchall()
            one.execute(first.format(t=f"t{number}"))
            try:
                other.execute(second.format(t=f"t{number}"))
                other.execute("COMMIT")
                both += 1
            except (duckdb.Error, UnsupportedError):
                with suppress(duckdb.Error):
                    other.execute("ROLLBACK")
                refused += 1
    # Folded as one change, and one after the other.
    replica = tmp_path / "replica.duckdb"
    wlr.replicate(source, into=replica)
    held, expected = file_contents(replica), file_contents(source)
    names = {*expected, *held}
    different = [pairs[int(name.removeprefix("main.t"))] for name in names if held.get(name) != expected.get(name)]
    assert different == []
    # The oracle finds rows by DuckDB's own rowid.
    assert "rowid" in layout or published(str(tmp_path / "dbfarm" / "sales")) == expected
    assert both > 5
    assert refused > 5


@pytest.mark.slow
def test_a_row_that_is_only_looked_at_is_no_conflict(tmp_path: Path) -> None:
    """Rows of the same table that another connection changes are nobody's business."""
    source = tmp_path / "sales.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t AS SELECT i AS id, 'x' AS a FROM range(1000) r(i)")
    wlc.master(source)
    with wlc.connect(source) as one, one.cursor() as other:
        for number in range(20):
            other.execute("BEGIN")
            other.execute("UPDATE t SET a = 'other' WHERE id = ?", [number])
            one.execute("UPDATE t SET a = 'one' WHERE id = ?", [500 + number])
            one.execute("DELETE FROM t WHERE id = ?", [900 + number])
            other.execute("COMMIT")
    wlr.replicate(source, into=tmp_path / "replica.duckdb")
    assert file_contents(tmp_path / "replica.duckdb") == file_contents(source)


@pytest.mark.slow
def test_a_table_that_another_transaction_changes_or_drops_is_a_conflict_as_in_duckdb(tmp_path: Path) -> None:
    """Programs run a transaction again after this class of error."""
    writes = ["DELETE FROM {t} WHERE id < 3", "DELETE FROM {t}", "UPDATE {t} SET a = 'y' WHERE id = 1"]
    changes = [
        "DROP TABLE {t}",
        "ALTER TABLE {t} DROP COLUMN b",
        "ALTER TABLE {t} RENAME TO {t}_moved",
        "CREATE OR REPLACE TABLE {t} (id BIGINT, a VARCHAR, b INTEGER)",
        "CREATE OR REPLACE TABLE {t} AS SELECT DATE '2020-01-01' AS id, [i] AS a, i AS b FROM range(5) r(i)",
    ]
    pairs = [(write, change) for write in writes for change in changes]
    wlc.master(tmp_path / "sales.duckdb", create=True)
    outcomes = []
    for database in (duckdb.connect(tmp_path / "plain.duckdb"), wlc.connect(tmp_path / "sales.duckdb")):
        found: list[type | None] = []
        with database as one, one.cursor() as other:
            for number, (write, change) in enumerate(pairs):
                name = f"t{number}"
                one.execute(f"CREATE TABLE {name} AS SELECT i AS id, 'x' AS a, 0 AS b FROM range(5) r(i)")
                other.execute("BEGIN")
                other.execute(write.format(t=name))
                one.execute(change.format(t=name))
                try:
                    other.execute("COMMIT")
                    found.append(None)
                except (duckdb.Error, UnsupportedError) as error:
                    found.append(type(error))
                    with suppress(duckdb.Error):
                        other.execute("ROLLBACK")
        outcomes.append(found)
    assert dict(zip(pairs, outcomes[1], strict=True)) == dict(zip(pairs, outcomes[0], strict=True))


def test_rows_of_a_table_that_the_transaction_has_altered_are_those_that_others_left(tmp_path: Path) -> None:
    """Others know the table under another name, or with other columns."""
    theirs = ["UPDATE {t} SET a = 'one' WHERE id = 2", "INSERT INTO {t} VALUES (30, 'new', 1)", "DELETE FROM {t}"]
    changes = [
        "ALTER TABLE {t} RENAME TO {t}_moved",
        "ALTER TABLE {t} ADD COLUMN c INTEGER",
        "DELETE FROM {t} WHERE id = 4; CREATE VIEW v_{t} AS SELECT id FROM {t}",
    ]
    writes = ["DELETE FROM {t} WHERE id = 2", "DELETE FROM {t}"]
    cases = [(first, change, write) for first in theirs for change in changes for write in writes]
    source, outcomes = tmp_path / "sales.duckdb", []
    wlc.master(source, create=True)
    with wlc.connect(source) as one, one.cursor() as other:
        for number, (first, change, write) in enumerate(cases):
            name = f"t{number}"
            one.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, a VARCHAR, b DOUBLE)")
            one.execute(f"INSERT INTO {name} SELECT i, 'x', 0 FROM range(5) r(i)")
            other.execute("BEGIN")
            other.execute(f"SELECT * FROM {name}").fetchall()
            one.execute(first.format(t=name))
            try:
                other.execute(change.format(t=name))
                other.execute(write.format(t=f"{name}_moved" if "RENAME" in change else name))
                other.execute("COMMIT")
                outcomes.append("done")
            except duckdb.TransactionException:
                with suppress(duckdb.Error):
                    other.execute("ROLLBACK")
                outcomes.append("conflict")
    wlr.replicate(source, into=tmp_path / "replica.duckdb")
    assert file_contents(tmp_path / "replica.duckdb") == file_contents(source)
    assert [case for case, found in zip(cases, outcomes, strict=True) if found == "done"] == [
        case for case in cases if "INSERT" in case[0]
    ]

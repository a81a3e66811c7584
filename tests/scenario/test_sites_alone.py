"""A site that is alone writes the log of any master, record by record, but for tables that are emptied.

Docs: docs/sites-rules.md.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
from wlc.farm.database import open_database

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR, u INTEGER UNIQUE);
    CREATE TABLE children (k INTEGER PRIMARY KEY, t INTEGER REFERENCES t (k));
    CREATE TABLE bag (v VARCHAR);
    CREATE TABLE emptied (k INTEGER PRIMARY KEY, v VARCHAR);
    INSERT INTO t VALUES (1, 'one', 1), (2, 'two', 2);
    INSERT INTO emptied VALUES (1, 'one'), (2, 'two');
"""
# Each inner list is a transaction.
USUAL = (
    ["INSERT INTO t VALUES (3, 'three', 3)", "INSERT INTO children VALUES (1, 3), (3, 3)"],
    ["UPDATE t SET v = 'changed' WHERE k = 1"],
    ["UPDATE t SET k = 9 WHERE k = 2"],
    ["INSERT INTO bag SELECT 'x' FROM range(5000)"],
    ["DELETE FROM children WHERE k = 1", "INSERT INTO children VALUES (2, 9)"],
    ["DELETE FROM t WHERE k = 1"],
    ["CREATE SEQUENCE numbers", "CREATE TABLE late (k INTEGER DEFAULT nextval('numbers') PRIMARY KEY, v VARCHAR)"],
    ["INSERT INTO late (v) VALUES ('a'), ('b')", "ALTER TABLE t ADD COLUMN w INTEGER DEFAULT 7"],
    ["SELECT * FROM t WHERE k = 9 FOR UPDATE", "UPDATE late SET v = 'read' WHERE k = 1"],
    ["SELECT * FROM t WHERE k = 9 FOR SHARE", "SELECT count(*) FROM t", "UPDATE late SET v = 'shared' WHERE k = 2"],
    ["SELECT * FROM t"],
    ["INSERT INTO bag VALUES ('y')", "DROP TABLE late", "CREATE VIEW few AS SELECT v FROM t"],
    ["UPDATE bag SET v = 'z' WHERE v = 'y'"],
)
EMPTIED = {"TRUNCATE": ["TRUNCATE emptied"], "DELETE": ["DELETE FROM emptied"]}


def write(connection: Any, statements: list[str], *, is_site: bool) -> None:
    connection.execute("BEGIN")
    for statement in statements:
        # A master that is no site leaves the clause to DuckDB, which does not know it.
        connection.execute(statement if is_site else re.sub(" FOR (UPDATE|SHARE)$", "", statement)).fetchall()
    connection.execute("COMMIT")


def content(folder: Path, transactions: list[list[str]], *, site: bool, mesh: bool = False) -> list[Any]:
    """Write transactions at a master; returns the lines of its log, without what no two logs share, and its images."""
    folder.mkdir()
    file = folder / "same.duckdb"
    with duckdb.connect(file) as connection:
        connection.execute(SCHEMA)
    wlc.master(file, farm=str(folder / "farm"), name="same", site="oslo" if site else None, mesh=mesh)
    for place, statements in enumerate(transactions):
        # Some log files have one transaction, and some several.
        with wlc.connect(file, beat_s=3600) as connection:
            write(connection, statements, is_site=site)
            if place % 3 == 0:
                connection.execute("INSERT INTO bag VALUES ('more')")
    log, history = open_database(f"{folder}/farm/same"), wlc.status(file).history
    lines: list[Any] = []
    for number in log.batch_numbers():
        text = log.logs.read(f"same_{number:012d}").decode()
        lines += [without_chance(json.loads(line)) for line in text.replace(history, "history").splitlines()]
        for each in log.read_batch(number)[0].files:
            rows = duckdb.sql(f"SELECT * FROM '{log.fetch(each)}'").fetchall()
            lines.append({"images": each.file.path, "rows": sorted(map(repr, rows))})
    assert not list((folder / "farm" / "same").glob("replicas/*"))
    return lines


def without_chance(value: Any) -> Any:
    """Leave out times, hashes and sizes of files."""
    if isinstance(value, dict):
        return {key: without_chance(each) for key, each in value.items() if key != "bytes"}
    if isinstance(value, list):
        return [without_chance(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]{15}Z", "time", re.sub("[0-9a-f]{64}", "hash", value))
    return value


@pytest.mark.parametrize("mesh", [False, True], ids=["star", "mesh"])
def test_its_log_is_that_of_any_master(tmp_path: Path, mesh: bool) -> None:
    plain = content(tmp_path / "plain", list(USUAL), site=False)
    alone = content(tmp_path / "alone", list(USUAL), site=True, mesh=mesh)
    assert len(plain) > 5 * len(USUAL)
    assert alone == plain


@pytest.mark.parametrize("how", EMPTIED)
def test_a_table_that_is_emptied_lists_its_rows_and_nothing_else_does(tmp_path: Path, how: str) -> None:
    written = [*USUAL[:3], EMPTIED[how], *USUAL[3:6]]
    plain = content(tmp_path / "plain", written, site=False)
    alone = content(tmp_path / "alone", written, site=True)
    (change,) = [each["change"] for each in alone if each.get("change", {}).get("table") == ["main", "emptied"]]
    assert (change["added"], change["removed"]) == (0, 2)
    (images,) = [each for each in alone if each.get("images") == change["path"]]
    assert [row.partition(", ")[2] for row in images["rows"]] == ["-1, 1, 'one')", "-1, 2, 'two')"]
    # Without these images, and with the record that counts the rows only, it is the other one's.
    alone.remove(images)
    for each in alone:
        if each.get("change") is change:
            each.clear()
            each["clear"] = {"table": ["main", "emptied"], "removed": 2}
        if "end" in each:
            each["end"]["files"] = [file for file in each["end"]["files"] if file["path"] != change["path"]]
    assert alone == plain

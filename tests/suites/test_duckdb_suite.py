"""DuckDB's own SQL suite on `wlc.connect`: every statement has the outcome that it has on plain DuckDB.

`DBFARM_DUCKDB_SUITE` names a checkout of DuckDB. Without it, an archive beside the project is used if there is one.
"""

from __future__ import annotations

import os
import random
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from tests.suites.beside import without_volatile
from tests.suites.processes import ROOT, reports
from tests.suites.refusals import FILES, REFUSALS, documented
from tests.suites.sqllogic import Command, commands

VARIABLE = "DBFARM_DUCKDB_SUITE"
ARCHIVE = ROOT.parent / "shared" / "suites" / "duckdb-sql.tar.xz"
# A run of every day takes a sample of these many files, and as many of them as fit into the time.
SAMPLE, SAMPLE_S = 12, 20.0
FILE_S = 120.0
IS_DEEP = os.environ.get("DBFARM_SUITES") == "all"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder test/sql of DuckDB."""
    if named := os.environ.get(VARIABLE):
        return Path(named) / "test" / "sql"
    if not ARCHIVE.exists():
        pytest.skip(f"DuckDB's SQL suite is not here: set {VARIABLE} to a checkout of DuckDB")
    folder = tmp_path_factory.mktemp("duckdb")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "test" / "sql"


def test_statements_have_the_outcome_of_plain_duckdb(suite: Path) -> None:
    files = sorted(suite.rglob("*.test"))
    assert files, f"{suite} holds no tests"
    if not IS_DEEP:
        files = random.Random(os.environ.get("DBFARM_SEED", "1")).sample(files, min(SAMPLE, len(files)))
    seconds = float("inf") if IS_DEEP else SAMPLE_S
    ended = {"outcome": "crashed", "statements": 0, "detail": "the process ended"}
    done = reports(["tests.suites.beside"], [str(file) for file in files], file_s=FILE_S, seconds=seconds)
    found = {file: report or ended for file, report in done}
    outcomes = Counter(report["outcome"] for report in found.values())
    statements = sum(report["statements"] for report in found.values())
    print(f"{len(found)} files, {statements} statements: {dict(outcomes)}")
    wrong = []
    for file, report in found.items():
        name = Path(file).relative_to(suite).as_posix()
        is_wrong = report["outcome"] in ("differs", "crashed")
        if is_wrong and name not in FILES:
            wrong.append(f"{name}: {report['outcome']}: {report['detail']}")
        elif not is_wrong and name in FILES:
            wrong.append(f"{name} is listed in FILES, and its outcome is {report['outcome']}")
    assert wrong == []
    assert found, "not one file was done in time"


def test_every_refusal_has_a_reason() -> None:
    assert all(refusal.reason and (refusal.error or refusal.statement) for refusal in REFUSALS)
    assert all(FILES.values())
    assert documented("SELECT 1", "BinderException: no such column") is None


def test_what_differs_from_run_to_run_is_left_out() -> None:
    one, two = (
        f"╭─ Summary ─╮\n│ Total Time: {total} │\n╭─ Merge Into ─╮\n│ 1 row {step} │\n"
        for total, step in (("0.0016s", "0µs"), ("0.016s", "12µs"))
    )
    assert without_volatile(one) == without_volatile(two) != without_volatile(one.replace("1 row", "2 rows"))
    missing = "Catalog Error: Table with name t does not exist!"
    for suggested in ('\nDid you mean "wlc.counts"?', '\nDid you mean "a ""b"" or c"?', ""):
        assert without_volatile(f"{missing}{suggested}\nLINE 1: FROM t") == f"{missing}\nLINE 1: FROM t"
    assert without_volatile("SELECT 5s") == "SELECT 5s"


FILE = """
# a comment
require parquet

statement ok
CREATE TABLE t (i INTEGER);

loop k 0 2

foreach type <signed> date

query I rowsort
SELECT ${k}::${type}
----
0

endloop

endloop

statement error con2
SELECT
x
----
no such column

mode skip

statement ok
never

mode unskip

skipif duckdb
statement ok
never

load __TEST_DIR__/x.db readonly
"""


def test_files_are_read() -> None:
    read = list(commands(FILE))
    assert read[:2] == [
        Command("require", "parquet", "", 3),
        Command("statement", "CREATE TABLE t (i INTEGER);", "", 5),
    ]
    queries = [command.text for command in read if command.verb == "query"]
    assert queries[:2] == ["SELECT 0::tinyint", "SELECT 0::smallint"]
    assert queries[-1] == "SELECT 1::date"
    assert len(queries) == 12
    assert [(c.verb, c.text, c.connection) for c in read[-2:]] == [
        ("statement", "SELECT\nx", "con2"),
        ("load", "__TEST_DIR__/x.db readonly", ""),
    ]

"""PostgreSQL's own regression suite in a published database beside an unpublished one, with three replicas.

`DBFARM_POSTGRES_SUITE` names the folder src/test/regress of PostgreSQL, of the installed server's version. Without it, the
suite is skipped. `DBFARM_POSTGRES_FILES` names the files to run ("domain rules"); without it, a run of every day takes
`SAMPLE`, and `DBFARM_SUITES=all` takes all.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.postgres.cluster import new_folder, running
from tests.suites.postgres_beside import ENGINES, differences
from tests.suites.postgres_refusals import FILES, REFUSED, SHOWN, STOPPED, STOPS
from tests.suites.processes import reports

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "DBFARM_POSTGRES_SUITE"
# What a run of every day takes.
SAMPLE = ("namespace", "domain")
# A file that needs longer hangs. The longest one, alter_table, has needed 13 minutes beside other work.
FILE_S = 3600.0
NAMED = os.environ.get("DBFARM_POSTGRES_FILES", "").split()
IS_DEEP = os.environ.get("DBFARM_SUITES") == "all"


@pytest.fixture
def suite() -> Iterator[Path]:
    """A copy of src/test/regress of PostgreSQL that the server can read."""
    if not (named := os.environ.get(VARIABLE)):
        pytest.skip(f"PostgreSQL's regression suite is not here: set {VARIABLE} to a checkout's src/test/regress")
    folder = Path(named).resolve()
    assert (folder / "parallel_schedule").is_file(), f"{VARIABLE} names {folder}, which has no parallel_schedule"
    copy = new_folder()
    copy.chmod(0o755)
    try:
        shutil.copytree(folder, copy, dirs_exist_ok=True, copy_function=shutil.copyfile)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


@pytest.fixture
def servers() -> Iterator[list[str]]:
    """URLs of two servers, without a database."""
    with ExitStack() as stack:
        clusters = [stack.enter_context(contextmanager(running)(new_folder())) for _ in range(2)]
        yield [cluster.url("").rstrip("/") for cluster in clusters]


def scheduled(suite: Path) -> list[str]:
    """Return all files in the order of the schedule, without the one that prepares the others."""
    schedule = (suite / "parallel_schedule").read_text(encoding="utf-8")
    listed = [name for line in re.findall(r"^test:(.*)$", schedule, re.MULTILINE) for name in line.split()]
    return [name for name in listed if name != "test_setup" and (suite / "sql" / f"{name}.sql").exists()]


def unexpected(name: str, report: dict[str, Any] | None) -> list[str]:
    """Return what a report says that no list names, and what a list names that it does not say."""
    if report is None:
        return [f"{name}: the process ended"]
    wrong = []
    if bool(report["differing"]) != (name in FILES):
        wrong.append(f"{name}: {report['differing'] or 'is listed in FILES, and no statement differs'}")
    listed = STOPPED.get(name, {})
    for place in ("master", *ENGINES):
        said = report["stopped"].get(place)
        if said and place not in listed:
            wrong.append(f"{name}: {place}: {said}")
        elif place in listed and not said:
            wrong.append(f"{name}: {place} is listed in STOPPED, and holds what it should")
    return wrong


def test_statements_and_replicas_of_a_published_database(suite: Path, servers: list[str]) -> None:
    known = scheduled(suite)
    assert set(NAMED) <= set(known), (
        f"DBFARM_POSTGRES_FILES names {sorted(set(NAMED) - set(known))}, which are no files"
    )
    names = NAMED or (known if IS_DEEP else SAMPLE)
    command = ["tests.suites.postgres_beside", str(suite), *servers]
    found = dict(reports(command, names, file_s=FILE_S, seconds=float("inf")))
    statements = sum(report["statements"] for report in found.values() if report)
    refused = sum(len(report["refused"]) for report in found.values() if report)
    print(f"{len(found)} files, {statements} statements, {refused} refused as documented")
    wrong = [said for name, report in found.items() for said in unexpected(name, report)]
    assert wrong == []
    assert len(found) == len(names) > 0


PRINTED = ["CREATE TABLE t ();", "SELECT 1;", "1"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (PRINTED, []),
        ([PRINTED[0], "ERROR:  table public.t cannot be replicated: it has no columns", *PRINTED[1:]], [True]),
        ([PRINTED[0], 'ERROR:  relation "t" exists', *PRINTED[1:]], [False]),
        ([*PRINTED[:2], "2"], [False]),
        (PRINTED[:2], [False]),
        ([*PRINTED, '    "dbfarm_x"'], [True]),
    ],
)
def test_outcomes_that_differ_are_found(found: list[str], expected: list[bool]) -> None:
    assert [is_documented for _, is_documented in differences(PRINTED, found)] == expected


def test_a_difference_names_its_statement() -> None:
    (told,) = differences(PRINTED, [*PRINTED[:2], "2"])
    assert told == ("SELECT 1;: -1 +2", False)


def test_what_no_list_names_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STOPPED, "listed", {"lake": "a reason"})
    monkeypatch.setitem(FILES, "listed", "a reason")
    same: dict[str, Any] = {"differing": [], "stopped": {}}
    other: dict[str, Any] = {"differing": ["SELECT 1;: -1 +2"], "stopped": {"lake": "1 tables differ"}}
    assert unexpected("boolean", same) == unexpected("listed", other) == []
    assert unexpected("boolean", other) == ["boolean: ['SELECT 1;: -1 +2']", "boolean: lake: 1 tables differ"]
    assert len(unexpected("listed", same)) == 2
    assert unexpected("listed", None) == ["listed: the process ended"]


def test_every_difference_has_a_reason() -> None:
    reasons = [*REFUSED.values(), *SHOWN.values(), *STOPS.values(), *FILES.values()]
    reasons += [reason for places in STOPPED.values() for reason in places.values()]
    assert all(reasons)
    assert {place for places in STOPPED.values() for place in places} <= {"master", *ENGINES}

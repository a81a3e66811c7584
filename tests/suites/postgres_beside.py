"""Run files of PostgreSQL's regression suite in a published database beside an unpublished one, then replicate.

`python -m tests.suites.postgres_beside SUITE PLAIN PUBLISHED FILE…` prints a line of JSON for every file. SUITE is the
folder src/test/regress of PostgreSQL. PLAIN and PUBLISHED are URLs of servers, without a database; there are two of them,
because files create roles and tablespaces. Replicas in PostgreSQL are databases of PLAIN.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import psycopg

import wlc
import wlr
from tests.lake import to_duckdb
from tests.postgres.cluster import execute
from tests.postgres.comparing import expected_in_duckdb, held_in_duckdb, texts_of
from tests.postgres.programs import program
from tests.suites.postgres_refusals import documented, documented_stop
from wlc.farm.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres.comparing import Rows

DATABASE, PREPARED, REPLICA = "regression", "prepared", "replica"
ENGINES = ("postgres", "duckdb", "lake")
PSQL_S = 240.0
# What pg_regress sets, so that a file takes the course that its author meant.
_SETTINGS = dict.fromkeys(("lc_messages", "lc_monetary", "lc_numeric", "lc_time"), "C") | {"bytea_output": "hex"}
_OPTIONS = ("-X", "-a", "-q", "-v", "HIDE_TABLEAM=on", "-v", "HIDE_TOAST_COMPRESSION=on")
_ENVIRONMENT = {
    "PGUSER": "postgres",
    "PGTZ": "PST8PDT",
    "PGDATESTYLE": "Postgres, MDY",
    "PGOPTIONS": "-c intervalstyle=postgres_verbose",
    "LC_ALL": "C",
    "PG_DLSUFFIX": ".so",
}
_ENDS = (";", r"\gexec", r"\gset", r"\gx", r"\g", r"\gdesc")


@dataclass
class FileReport:
    """How one file went.

    Attributes:
        statements: How many lines of the file end a statement.
        differing: Statements with another outcome than in the unpublished database, and without a documented reason.
        refused: Other statements that differ, and replicas that stopped, with their documented reasons.
        phases: What the seconds were needed for.
        stopped: For every other replica that does not hold what the master holds, why; "master" if it does not publish.
    """

    file: str
    statements: int = 0
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stopped: dict[str, str] = field(default_factory=dict)


class _Clock:
    """Notes how long the phases of a file take."""

    def __init__(self, report: FileReport) -> None:
        self._report, self._begun = report, time.monotonic()

    def phase(self, name: str) -> None:
        """End a phase."""
        now = time.monotonic()
        self._report.phases[name] = round(now - self._begun, 1)
        self._report.seconds = round(self._report.seconds + now - self._begun, 1)
        self._begun = now


class Beside:
    """An unpublished database beside a published one, and three replicas; made anew for every file."""

    def __init__(self, suite: Path, plain: str, published: str) -> None:
        self._suite, self._plain, self._published = suite, plain, published

    def run(self, name: str, work: Path) -> FileReport:
        """Run a file on both servers, and compare the replicas with what it left."""
        report = FileReport(name)
        took = _Clock(report)
        for server in (self._plain, self._published):
            self._prepare(server, work)
        took.phase("preparing")
        url = f"{self._published}/{DATABASE}"
        wlc.master(url, farm=str(work / "farm"), name="x")
        took.phase("snapshot")
        expected = self._run(self._plain, DATABASE, name, work)
        took.phase("unpublished")
        found = self._run(self._published, DATABASE, name, work)
        took.phase("published")
        report.statements = sum(line.rstrip().endswith(_ENDS) for line in expected)
        for text, is_documented in differences(expected, found):
            (report.refused if is_documented else report.differing).append(text)
        try:
            wlc.flush(url)
        except Exception as error:
            report.stopped["master"] = _told(error)
        else:
            took.phase("publishing")
            for engine, (into, held, wanted) in self._replicas(url, work).items():
                problem = _problem(work, into, held, wanted)
                if reason := documented_stop(problem):
                    report.refused.append(f"{engine}: {reason}")
                elif problem:
                    report.stopped[engine] = problem
                took.phase(engine)
        return report

    def _prepare(self, server: str, work: Path) -> None:
        """Leave the server with an empty database for the replica, and one as every file of the suite expects it."""
        control = f"{server}/postgres"
        for database in (DATABASE, REPLICA):
            execute(control, f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        execute(control, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
        if not execute(control, f"SELECT 1 FROM pg_database WHERE datname = '{PREPARED}'"):
            self._create(server, PREPARED, "template0")
            self._run(server, PREPARED, "test_setup", work)
        self._create(server, DATABASE, PREPARED)
        execute(control, f"CREATE DATABASE {REPLICA}")

    def _create(self, server: str, database: str, template: str) -> None:
        execute(f"{server}/postgres", f"CREATE DATABASE {database} TEMPLATE {template}")
        for setting, value in _SETTINGS.items():
            execute(f"{server}/postgres", f"ALTER DATABASE {database} SET {setting} TO '{value}'")

    def _replicas(self, url: str, work: Path) -> dict[str, tuple[str | Path, Callable[[], Rows], Callable[[], Rows]]]:
        """Return, for every engine, where the replica is, and what reads its rows and the master's."""
        replica, file, lake = f"{self._plain}/{REPLICA}", work / "r.duckdb", work / "lake"
        # Nothing is written any more when it is asked for.
        expected = functools.cache(partial(expected_in_duckdb, url))
        return {
            "postgres": (replica, lambda: _held_in_postgres(replica), lambda: texts_of(url)),
            "duckdb": (file, lambda: held_in_duckdb(file), expected),
            "lake": (lake, lambda: held_in_duckdb(to_duckdb(lake, work / "l.duckdb")), expected),
        }

    def _run(self, server: str, database: str, name: str, work: Path) -> list[str]:
        """Run a file with psql, as pg_regress does, and return the lines of its output."""
        port = server.rpartition(":")[2]
        built = work / port
        (built / "results").mkdir(parents=True, exist_ok=True)
        # The server writes into these folders as another user.
        for folder in (built, built / "results"):
            folder.chmod(0o777)
        environment = {
            **_ENVIRONMENT,
            "PATH": os.environ["PATH"],
            "PGHOST": "127.0.0.1",
            "PGPORT": port,
            "PGDATABASE": database,
            "PG_ABS_SRCDIR": str(self._suite),
            "PG_ABS_BUILDDIR": str(built),
            "PG_LIBDIR": str(Path(program("postgres")).parent.parent / "lib"),
        }
        with (self._suite / "sql" / f"{name}.sql").open("rb") as script:
            done = subprocess.run(
                [program("psql"), *_OPTIONS],
                stdin=script,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=built,
                timeout=PSQL_S,
                check=False,
            )
        text = done.stdout.decode("utf-8", errors="replace")
        return re.sub(rf"\bport {port}\b", "port PORT", text.replace(str(built), "BUILT")).splitlines()


def differences(expected: list[str], found: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield every statement that has another outcome: what is to be said about it, and whether it is documented.

    Args:
        expected: What psql printed for the unpublished database, with the statements among it.
        found: Likewise for the published one.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (("one", expected), ("two", found)):
            Path(folder, name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        done = subprocess.run(["diff", "-U0", "one", "two"], cwd=folder, capture_output=True, check=False)
    # The first two lines name the files.
    printed = done.stdout.decode("utf-8").partition("\n@@")[2]
    for hunk in printed.split("\n@@") if printed else ():
        place, *lines = hunk.splitlines()
        changed = [line for line in lines if line[1:].strip()]
        at = re.match(r" -(\d+)", place)
        assert at is not None
        reason = documented(changed)
        shown = _statement(expected[: int(at[1])])
        yield (f"{shown}: {reason}" if reason else _short(f"{shown}: {' '.join(changed)}")), reason is not None


def _statement(lines: list[str]) -> str:
    """Return the last line that ends a statement, or is a command of psql."""
    found = (line for line in reversed(lines) if line.rstrip().endswith(_ENDS) or line.startswith("\\"))
    return next(found, "at its beginning")


def _follow(work: Path, into: str | Path) -> None:
    wlr.replicate("x", farm=str(work / "farm"), into=into, register=False)


def _held_in_postgres(replica: str) -> Rows:
    """Return the rows of a replica without the tables that stand for a partitioned one, which have none."""
    listed = wlr.status(replica).left_out
    return {
        name: rows for name, rows in texts_of(replica).items() if rows or f"partitioning of table {name}" not in listed
    }


def _problem(work: Path, into: str | Path, held: Callable[[], Rows], wanted: Callable[[], Rows]) -> str:
    """Return why a replica does not hold what it should; "" if it does."""
    try:
        _follow(work, into)
        found, expected = held(), wanted()
    except Exception as error:
        return _told(error)
    tables = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    details = []
    for name in tables[:3]:
        one, two = expected.get(name), found.get(name)
        if one is None or two is None:
            details.append(f"{name} is {'missing' if two is None else 'surplus'}")
        else:
            details.append(f"{name} lacks {list((one - two).items())[:2]}, has {list((two - one).items())[:2]}")
    return _short(f"{len(tables)} tables differ: {'; '.join(details)}") if tables else ""


def _told(error: Exception) -> str:
    """Return an error as text; one that is not meant for users says so."""
    is_meant = isinstance(error, (FarmError, psycopg.Error, duckdb.Error))
    return _short(f"{'' if is_meant else 'CRASH '}{type(error).__name__}: {error}")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 400 else text[:400] + " …"


def main() -> None:
    warnings.simplefilter("ignore")
    suite, plain, published, *names = sys.argv[1:]
    both = Beside(Path(suite), plain, published)
    for name in names:
        work = Path(tempfile.mkdtemp(prefix="suite-"))
        work.chmod(0o755)
        try:
            report = both.run(name, work)
        except Exception as error:
            report = FileReport(name, stopped={"master": _told(error)})
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(json.dumps(asdict(report)), flush=True)


if __name__ == "__main__":
    main()

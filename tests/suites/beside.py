"""Run a file of DuckDB's suite on `wlc.connect` beside plain DuckDB, then replicate what it leaves.

`python -m tests.suites.beside FILE…` prints a line of JSON for every file. A crash of DuckDB ends this process only.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

import wlc
import wlr
from tests.lake import lake_contents
from tests.oracle import file_contents
from tests.suites.listings import without_own
from tests.suites.refusals import documented
from tests.suites.sqllogic import commands
from wlc.farm.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.suites.sqllogic import Command

STATEMENTS_MAX = 400
SECONDS_MAX = 15.0
# What DuckDB's own runner provides, and a wheel has.
PROVIDED = {"noforcestorage", "notwindows", "notmingw", "skip_reload", "64bit", "noalternativeverify", "nothreadsan"}
PROVIDED |= {"no_vector_verification", "vector_size", "block_size", "no_block_verification", "longdouble", "strinline"}
PROVIDED |= {"no_alternative_verify"}
FOLDER = "FOLDER"


@dataclass
class FileReport:
    """How one file went.

    Attributes:
        outcome: "same", "refused" (documented), "differs", "skipped" or "crashed".
        statements: How many statements ran on both sides with the same outcome.
        detail: What differs, what was refused, or why the file was skipped.
    """

    file: str
    outcome: str = "same"
    statements: int = 0
    detail: str = ""


class Side:
    """One of the two: opens databases, and keeps named connections to the one in use."""

    def __init__(self, folder: Path, connect: Callable[..., Any]) -> None:
        self.folder = folder
        self._connect = connect
        self._connections: dict[str, Any] = {}
        self.open("memory.duckdb")

    def open(self, path: str, *, read_only: bool = False) -> None:
        self.close()
        self.path = self.folder / path
        first = self._connect(self.path, read_only=read_only)
        first.execute("SET python_enable_replacements = false")
        self._connections = {"": first}

    def close(self) -> None:
        for connection in reversed(self._connections.values()):
            connection.close()
        self._connections = {}

    def reopen(self) -> None:
        self.open(str(self.path))

    def run(self, command: Command) -> Outcome:
        if command.connection not in self._connections:
            self._connections[command.connection] = self._connections[""].cursor()
        sql = command.text.replace("__TEST_DIR__", str(self.folder)).replace("{TEST_DIR}", str(self.folder))
        connection = self._connections[command.connection]
        try:
            connection.execute(sql)
            columns = connection.description
            rows = [tuple(map(repr, row)) for row in connection.fetchall()] if columns else []
        except (duckdb.Error, FarmError, OverflowError, ValueError) as error:
            # Python has no dates after the year 9999.
            return Outcome(type(error).__name__, self._shown(str(error)), isinstance(error, FarmError))
        described = [(name, str(kind)) for name, kind, *_ in columns or ()]
        shown = sorted(tuple(self._shown(value) for value in row) for row in rows)
        return Outcome("", "", rows=shown, columns=described, count=connection.rowcount)

    def _shown(self, text: str) -> str:
        return without_volatile(text.replace(str(self.folder), FOLDER))


def without_volatile(text: str) -> str:
    """Leave out what differs from run to run: times of an analyzed plan, and the name that DuckDB suggests.

    It suggests a similar name of the whole catalog, one of the schema `wlc`, too.
    """
    if "Total Time: " in text:
        return re.sub(r"[─━ ]*\d+(\.\d+)?(s|ms|µs)[─━ ]*", "", text)
    return re.sub(r'\s*Did you mean "[^\n]*"\??', "", text)


@dataclass
class Outcome:
    """What a statement gave; `is_own` marks an error of ours."""

    error: str
    text: str
    is_own: bool = False
    rows: list[tuple[str, ...]] = field(default_factory=list)
    columns: list[tuple[str, str]] = field(default_factory=list)
    count: int = -1


class Masters:
    """Connects to masters, and makes a file one when it is opened first."""

    def __init__(self, farm: Path) -> None:
        self.farm = farm
        self.files: dict[Path, str] = {}

    def __call__(self, path: Path, *, read_only: bool) -> Any:
        if path not in self.files and not read_only:
            self.files[path] = f"db{len(self.files)}"
            path.parent.mkdir(parents=True, exist_ok=True)
            duckdb.connect(str(path)).close()
            wlc.master(path, farm=str(self.farm), name=self.files[path])
        return wlc.connect(path, read_only=read_only)


def plain(path: Path, *, read_only: bool) -> duckdb.DuckDBPyConnection:
    """Connect to plain DuckDB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return duckdb.connect(str(path), read_only=read_only)


def run_file(file: Path, work: Path) -> FileReport:
    """Run one file on both sides, and compare its replicas with what it left."""
    report = FileReport(str(file))
    listed = list(_first(commands(file.read_text(encoding="utf-8")), STATEMENTS_MAX))
    if missing := _missing(listed):
        return FileReport(str(file), "skipped", 0, missing)
    masters = Masters(work / "farm")
    # The folders' names are equally long, because messages show paths and mark places in them.
    one, two = Side(work / "p", plain), Side(work / "w", masters)
    try:
        _compare(report, listed, one, two)
    finally:
        one.close()
        two.close()
    if report.outcome == "differs" and _is_volatile(report, listed, work):
        report.outcome, report.detail = "same", ""
    if report.outcome in ("same", "refused"):
        _replicate(report, masters, work)
    return report


def _first(found: Iterator[Command], most: int) -> Iterator[Command]:
    for number, command in enumerate(found):
        if number == most or command.verb == "halt":
            return
        yield command


def _missing(listed: list[Command]) -> str:
    with duckdb.connect() as connection:
        names = connection.execute("SELECT extension_name FROM duckdb_extensions() WHERE loaded").fetchall()
    loaded = {name for (name,) in names} | PROVIDED
    for command in listed:
        name = command.text.split()[0] if command.text else ""
        if command.verb in ("require-env", "test-env", "unzip") or (command.verb == "require" and name not in loaded):
            return f"it requires {command.text}"
    return ""


def _compare(report: FileReport, listed: list[Command], one: Side, two: Side) -> None:
    until = time.monotonic() + SECONDS_MAX
    for command in listed:
        if time.monotonic() > until:
            return
        if command.verb in ("load", "restart"):
            if not _opened(report, command, one, two):
                return
        elif command.verb in ("statement", "query"):
            expected, found = one.run(command), two.run(command)
            is_same = expected == found or _lists_the_same(command, expected, found, one, two)
            if not is_same and not _is_shown_otherwise(command, expected, found):
                _differ(report, command, expected, found)
                return
            report.statements += 1


def _opened(report: FileReport, command: Command, one: Side, two: Side) -> bool:
    for side in (one, two):
        words = command.text.split()
        try:
            if command.verb == "restart" or not words:
                side.reopen()
            else:
                path = words[0].replace("__TEST_DIR__/", "").replace("{TEST_DIR}/", "")
                side.open(path, read_only="readonly" in words[1:])
        except (duckdb.Error, FarmError) as error:
            report.outcome, report.detail = "skipped", f"line {command.line}: {command.text}: {error}"
            return False
    return True


def _lists_the_same(command: Command, expected: Outcome, found: Outcome, one: Side, two: Side) -> bool:
    """Say whether only rows of a listing differ, and not without those about dbfarm's own schema."""
    if replace(expected, rows=[]) != replace(found, rows=[]):
        return False
    for query in without_own(command.text):
        shown = replace(command, text=query)
        listed = one.run(shown)
        if not listed.error and listed == two.run(shown):
            return True
    return False


def _is_shown_otherwise(command: Command, expected: Outcome, found: Outcome) -> bool:
    """Say whether only rows differ, as they are documented to: the file goes on."""
    same_but_rows = replace(expected, rows=[]) == replace(found, rows=[])
    return same_but_rows and documented(command.text, "") is not None


def _differ(report: FileReport, command: Command, expected: Outcome, found: Outcome) -> None:
    said = f"{found.error}: {found.text}" if found.error else ""
    refusal = documented(command.text, said)
    report.outcome = "refused" if refusal else "differs"
    if refusal:
        report.detail = refusal.reason
        return
    pairs = [(name, value, getattr(found, name)) for name, value in asdict(expected).items()]
    shown = [f"{name}: {_short(a)} became {_short(b)}" for name, a, b in pairs if a != b and name != "is_own"]
    report.detail = f"line {command.line}: {_short(command.text)}; " + "; ".join(shown)


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 300 else text[:300] + " …"


def _is_volatile(report: FileReport, listed: list[Command], work: Path) -> bool:
    """Say whether two plain databases differ at the same statement: it shows times, sizes or the like."""
    again = FileReport(report.file)
    one, two = Side(work / "1", plain), Side(work / "2", plain)
    try:
        _compare(again, listed, one, two)
    finally:
        one.close()
        two.close()
    return again.outcome == "differs" and again.statements <= report.statements


def _replicate(report: FileReport, masters: Masters, work: Path) -> None:
    for path, name in masters.files.items():
        copy, lake = work / f"{name}.duckdb", work / f"{name} lake"
        try:
            wlc.flush(path)
            held = file_contents(path)
            for into in (copy, lake):
                wlr.replicate(name, farm=str(masters.farm), into=into, engine="local", register=False)
            found = {"replica": file_contents(copy), "lake": lake_contents(lake)}
            wrong = [kind for kind, content in found.items() if content != held]
            wrong += [str(into) for into in (copy, lake) if wlr.verify(into).differing]
        except (duckdb.Error, FarmError) as error:
            wrong = [f"{type(error).__name__}: {_short(error)}"]
        if wrong and (refusal := documented("", wrong[0])):
            report.outcome, report.detail = "refused", refusal.reason
        elif wrong:
            report.outcome, report.detail = "differs", f"after the file: {', '.join(wrong)}; {report.detail}"
            return


def main() -> None:
    warnings.simplefilter("ignore")
    for file in map(Path, sys.argv[1:]):
        work = Path(tempfile.mkdtemp(prefix="suite-"))
        try:
            report = run_file(file, work)
        except Exception as error:
            report = FileReport(str(file), "differs", 0, f"{type(error).__name__}: {_short(error)}")
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(json.dumps(asdict(report)), flush=True)


if __name__ == "__main__":
    main()

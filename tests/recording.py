"""Records which functions and files each file of tests uses, as a plugin: `pytest -p tests.recording`.

Coverage counts the lines, also in the processes that tests start; processes that are killed with signal 9 are not counted.
`tests/changed.py` selects tests by the result, `.cache/uses.json`. A run that is recorded fails if no quick test runs a
command or a public function.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import shutil
from collections import defaultdict
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
USES = ROOT / ".cache" / "uses.json"
TOPS = ("wlc", "wlr", "cli", "tests")
# The test file that runs now, with `SLOW` behind it while a slow test runs; processes that it starts read this variable.
NOW = "DBFARM_TEST_FILE"
SLOW = " slow"
_DATA = ROOT / ".cache" / "coverage"
_SETTINGS = f"""
[run]
parallel = true
data_file = {_DATA}/data
source = {",".join(str(ROOT / top) for top in TOPS)}
context = ${{{NOW}-}}
patch = subprocess,fork
disable_warnings = no-data-collected,module-not-imported,already-imported,couldnt-parse
"""


@dataclass(frozen=True)
class Summary:
    """Lines of the product: all, covered by quick tests, covered by any; and names that no quick test runs."""

    lines: int
    quick: int
    covered: int
    without_quick_test: list[str]


_coverage: coverage.Coverage | None = None
_summary: Summary | None = None
_now = ""
_read: dict[str, set[str]] = defaultdict(set)
_open = open


def _begin() -> None:
    """Count the lines of this process, which runs tests."""
    global _coverage  # noqa: PLW0603 - one counter a process
    os.environ.setdefault(NOW, "")
    _coverage = coverage.Coverage(config_file=str(_DATA / "settings"))
    _coverage.start()
    # No audit hook: while one runs, Python 3.11 lets no other thread begin to count its lines.
    builtins.open = io.open = _noted_open


@wraps(open)
def _noted_open(file: Any, *arguments: Any, **named: Any) -> Any:
    """Remember files of the project that a test opens."""
    if isinstance(file, str | os.PathLike) and str(file).startswith(str(ROOT)):
        _read[_now].add(str(file))
    return _open(file, *arguments, **named)


def pytest_load_initial_conftests() -> None:
    """Count the lines of a worker before it imports what it tests; the process that shares out the tests runs none."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        _begin()


def pytest_configure(config: pytest.Config) -> None:
    """Forget the last recording."""
    if not hasattr(config, "workerinput"):
        if not config.getoption("numprocesses", None):
            raise pytest.UsageError("tests.recording needs processes that share the tests: -n 2")
        shutil.rmtree(_DATA, ignore_errors=True)
        _DATA.mkdir(parents=True)
        (_DATA / "settings").write_text(_SETTINGS, encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Count for the file of the test that begins."""
    global _now  # noqa: PLW0603 - as above
    name = item.nodeid.partition("::")[0] + (SLOW if item.get_closest_marker("slow") else "")
    if _coverage is not None and _now != name:
        _now = os.environ[NOW] = name
        _coverage.switch_context(name)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save what a worker counted; the process that shares out the tests puts all together."""
    if _coverage is not None:
        _coverage.stop()
        _coverage.save()
        (_DATA / f"read-{os.getpid()}.json").write_text(json.dumps({k: sorted(v) for k, v in _read.items()}))
    elif not hasattr(session.config, "workerinput"):
        global _summary  # noqa: PLW0603 - as above
        _summary = _put_together()
        if _summary.without_quick_test:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many lines were covered, and what no quick test runs."""
    if _summary is not None:
        found = _summary
        terminalreporter.line(f"of {found.lines} lines, the quick tests cover {found.quick}, all tests {found.covered}")
        for name in found.without_quick_test:
            terminalreporter.line(f"no quick test runs {name}", red=True)


def _put_together() -> Summary:
    counted = coverage.Coverage(config_file=str(_DATA / "settings"))
    counted.combine()
    data = counted.get_data()
    functions: dict[str, dict[str, list[str]]] = {}
    quick = covered = lines = 0
    for path in sorted(p for top in TOPS for p in (ROOT / top).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        by_line = data.contexts_by_lineno(str(path))
        functions[name] = _functions(path, by_line)
        if not name.startswith("tests/"):
            statements = set(counted.analysis2(str(path))[1])
            lines += len(statements)
            covered += len(statements & by_line.keys())
            quick += sum(any(not test.endswith(SLOW) for test in by_line.get(line, ())) for line in statements)
    USES.write_text(json.dumps({"functions": functions, "read": _files_read()}, indent=0), encoding="utf-8")
    return Summary(lines, quick, covered, _without_quick_test(functions))


def _functions(path: Path, by_line: dict[int, list[str]]) -> dict[str, list[str]]:
    """Return which test files run the body of each function."""
    used: dict[str, set[str]] = {}
    for name, function in functions_of(ast.parse(path.read_text(encoding="utf-8"))):
        first, last = function.body[0].lineno, function.end_lineno or function.lineno
        used.setdefault(name, set()).update(*(by_line.get(line, ()) for line in range(first, last + 1)))
    return {name: sorted(files - {""}) for name, files in used.items()}


def _without_quick_test(functions: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return the commands and public functions that only slow tests run, or none."""
    return sorted(
        f"{function.__module__}.{function.__qualname__}"
        for function in _entrances()
        if all(
            test.endswith(SLOW)
            for test in functions[f"{function.__module__.replace('.', '/')}.py"].get(function.__qualname__, ())
        )
    )


def _entrances() -> Iterator[FunctionType]:
    """Yield the functions of all commands, and the public functions of Python."""
    # Not at the top: lines that run at import are counted, too.
    import wlc
    import wlr
    from tests.commands import commands

    yield from (cast("FunctionType", command.callback) for command in commands().values())
    for package in (wlc, wlr):
        public = (getattr(package, name) for name in package.__all__)
        yield from (value for value in public if isinstance(value, FunctionType))


def functions_of(tree: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its dotted name, those of classes and functions included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield above + node.name, node
        inner = (
            f"{above}{node.name}." if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else above
        )
        yield from functions_of(node, inner)


def _files_read() -> dict[str, list[str]]:
    """Return which test files open each file of the project that is no Python."""
    readers: dict[str, set[str]] = defaultdict(set)
    for part in _DATA.glob("read-*.json"):
        for test, paths in json.loads(part.read_text(encoding="utf-8")).items():
            for path in paths:
                name = Path(path).relative_to(ROOT).as_posix()
                if test and not name.startswith(".") and not name.endswith((".py", ".pyc")):
                    readers[name].add(test)
    return {name: sorted(tests) for name, tests in sorted(readers.items())}

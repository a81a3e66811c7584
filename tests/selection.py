"""Which tests are quick, which process runs them, and in what order.

A test is quick unless it carries the marker `slow` or stands in a folder of `SERVERS`. `pytest -m "not slow"` runs the quick
tests, `pytest -m slow` the others. Tests that are marked `deep` run only with DBFARM_DEEP=1.
"""

from __future__ import annotations

import functools
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import pieces
from tests.postgres.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _pytest.mark import ParameterSet
    from xdist.remote import Producer

# Folders whose tests need Java, or servers for long.
SERVERS = ("tests/spark/", "tests/suites/")
# Its quick tests run where its server is installed.
POSTGRES = "tests/postgres/"
# One process runs all tests that use Spark: to start it takes ten times as long as to start PostgreSQL.
WHOLE = "tests/spark/"
QUICK = "not slow"
QUICK_CPU_S_MAX = 2.0
ROOT = Path(__file__).parents[1]
# Tests of such a file share what takes long to make; in the second kind, those with the same value do.
SHARING_FILE = re.compile(r'scope="(module|session)"|^@(functools\.)?cache$', re.MULTILINE)
SHARING_BY_VALUE = re.compile(r'scope="module", params=')
# The whole file is slow; such a file is not even imported for a quick run.
SLOW_FILE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)

_too_long: dict[str, float] = {}
_shared_cpu_s = 0.0
_began_cpu_s = 0.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that a run of all tests has."""
    parser.addoption(
        "--limit-quick", action="store_true", help=f"fail if a quick test took over {QUICK_CPU_S_MAX:g} CPU seconds"
    )


def engine_params(engines: Iterable[str]) -> list[ParameterSet]:
    """Return engines as parameters: PostgreSQL is slow; a name that ends in a number, as that of an older PostgreSQL, is deep."""

    def marks(name: str) -> pytest.MarkDecorator | tuple[()]:
        if name[-1].isdigit():
            return pytest.mark.deep
        return pytest.mark.slow if name == "postgres" else ()

    return [pytest.param(name, marks=marks(name)) for name in engines]


def group_of(nodeid: str, *, is_quick: bool) -> str:
    """Return what one process runs as a whole: the folder `WHOLE`, what shares fixtures, or a function with its values.

    Quick tests go by file: they are many, and none takes long.
    """
    file = nodeid.partition("::")[0]
    if nodeid.startswith(WHOLE):
        return WHOLE
    if is_quick:
        return file
    text = _text(file)
    if SHARING_BY_VALUE.search(text):
        return file + nodeid[nodeid.find("[") :] if "[" in nodeid else file
    return file if SHARING_FILE.search(text) else nodeid.partition("[")[0]


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def is_quick_run(config: pytest.Config) -> bool:
    """Whether only quick tests run."""
    return bool(config.option.markexpr == QUICK)


class GroupScheduling(LoadScopeScheduling):
    """Gives each process a group of tests at a time, so that shared fixtures are made once, and no process ends late.

    The marker `xdist_group` would do the same, but pytest-xdist 3.8 does not hand it to pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid, is_quick=is_quick_run(self.config))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Hand out groups in the order of collection."""
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files for a quick run from which it has no test."""
    if not is_quick_run(config):
        return None
    folder = f"{collection_path.relative_to(config.rootpath).as_posix()}/"
    if folder in SERVERS or (folder == POSTGRES and find_program("initdb") is None):
        return True
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return (is_test and SLOW_FILE.search(collection_path.read_text(encoding="utf-8")) is not None) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the folders that need servers, leave out what does not run now, and put the longest groups first."""
    for item in items:
        if item.nodeid.startswith(SERVERS):
            item.add_marker("slow")
    done = pieces.passed()
    _leave_out(config, items, [i for i in items if (not pieces.is_deep_run() and _has(i, "deep")) or i.nodeid in done])
    if hasattr(config, "workerinput"):
        items[:] = _longest_groups_first(items, is_quick=is_quick_run(config))


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _has(item: pytest.Item, marker: str) -> bool:
    return item.get_closest_marker(marker) is not None


def _longest_groups_first(items: list[pytest.Item], *, is_quick: bool) -> list[pytest.Item]:
    """Sort groups of tests: the processes end at about the same time when short groups come last."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid, is_quick=is_quick), []).append(item)

    def length(name: str) -> tuple[bool, int, int]:
        return name == WHOLE, sum(_has(item, "slow") for item in groups[name]), len(groups[name])

    return [item for name in sorted(groups, key=length, reverse=True) for item in groups[name]]


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    """Count what shared fixtures take apart: the first test that asks for one did not choose to pay."""
    global _shared_cpu_s  # noqa: PLW0603 - the hooks of one process share a clock
    began = cpu_s()
    result = yield
    if fixturedef.scope != "function":
        _shared_cpu_s += cpu_s() - began
    return result


def pytest_runtest_logstart() -> None:
    """Begin to count the CPU seconds of a test."""
    global _began_cpu_s  # noqa: PLW0603 - as above
    _began_cpu_s = cpu_s() - _shared_cpu_s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """Send a test's CPU seconds with its last report to the process that shares out the tests."""
    if call.when == "teardown":
        item.user_properties.append(("cpu_s", cpu_s() - _shared_cpu_s - _began_cpu_s))
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember quick tests that took too long."""
    taken = dict(report.user_properties).get("cpu_s")
    if isinstance(taken, float) and taken > QUICK_CPU_S_MAX and "slow" not in report.keywords:
        _too_long[report.nodeid] = taken


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that limits quick tests, if one of them took too long."""
    if session.config.option.limit_quick and _too_long:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name quick tests that took too long, the longest first."""
    if config.option.limit_quick and _too_long:
        terminalreporter.section(f"over {QUICK_CPU_S_MAX:g} CPU seconds without the marker `slow`", red=True)
        for nodeid, taken in sorted(_too_long.items(), key=lambda item: -item[1]):
            terminalreporter.line(f"{taken:6.1f} s  {nodeid}")

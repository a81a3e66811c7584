"""Which files of tests can see a change."""

from __future__ import annotations

import pytest

from tests.changed import Difference, Uses, selected

BEAT = "wlc/farm/config.py"
BEFORE = (
    "LONGEST = 5\n\ndef parse(text=LONGEST):\n    return text\n\nclass Beat:\n    def shown(self):\n        return 1\n"
)
USES = Uses(
    {BEAT: {"parse": ["tests/scenario/test_cli.py"], "Beat.shown": ["tests/scenario/test_serve.py"]}},
    {"docs/cli.md": ["tests/test_docs.py"], "wlc/capture/postgres/triggers.sql": ["tests/postgres/test_types.py"]},
)
KNOWN = {
    "tests/scenario/test_cli.py": "import cli.wlc\n",
    "tests/scenario/test_serve.py": "from tests.sites import Sites\n",
    "tests/unit/test_beat.py": "from wlc.farm.config import parse\n",
    "tests/unit/test_paths.py": "from wlc.farm import paths\n",
    "tests/test_docs.py": "",
    "tests/postgres/test_types.py": "",
}


def seen(path: str, before: str = "", now: str = "", uses: Uses = USES) -> set[str] | None:
    return selected([Difference(path, before, now)], uses, KNOWN)


@pytest.mark.parametrize(
    "old, new, by",
    [
        ("return text", "return text + 1", {"tests/scenario/test_cli.py"}),
        ("return 1", "return 2", {"tests/scenario/test_serve.py"}),
        ("LONGEST = 5", "LONGEST = 6", {"tests/scenario/test_cli.py", "tests/scenario/test_serve.py"}),
        ("text=LONGEST", "text=7", {"tests/scenario/test_cli.py", "tests/scenario/test_serve.py"}),
        ("return 1", "return 1  # once", set()),
    ],
    ids=["function", "method", "constant", "default", "comment"],
)
def test_a_test_sees_the_functions_that_it_ran(old: str, new: str, by: set[str]) -> None:
    recorded = {"tests/scenario/test_cli.py", "tests/scenario/test_serve.py", "tests/test_docs.py"}
    uses = Uses(USES.functions | {"wlr/x.py": {"f": sorted(recorded | {"tests/postgres/test_types.py"})}}, USES.read)
    assert seen(BEAT, BEFORE, BEFORE.replace(old, new), uses) == by | {"tests/unit/test_beat.py"}


def test_a_file_of_tests_that_was_not_recorded_runs_and_a_unit_test_only_for_what_it_imports() -> None:
    assert seen("wlc/farm/paths.py", "a = 1", "a = 2") == {
        "tests/unit/test_paths.py",
        "tests/test_docs.py",
        "tests/postgres/test_types.py",
    }


def test_changed_tests_and_those_that_use_a_changed_helper_run() -> None:
    uses = Uses({"wlr/x.py": {"f": list(KNOWN)}}, {})
    assert seen("tests/sites.py", "a = 1", "a = 2", uses) == {"tests/scenario/test_serve.py"}
    assert seen("tests/unit/test_paths.py", "a = 1", "a = 2", uses) == {"tests/unit/test_paths.py"}


@pytest.mark.parametrize(
    "path, by",
    [
        ("docs/cli.md", "tests/test_docs.py"),
        ("docs/new.md", "tests/test_docs.py"),
        ("wlc/capture/postgres/triggers.sql", "tests/postgres/test_types.py"),
    ],
)
def test_other_files_run_the_tests_that_read_them(path: str, by: str) -> None:
    uses = Uses({"wlr/x.py": {"f": list(KNOWN)}}, USES.read)
    assert seen(path, uses=uses) == {by}


@pytest.mark.parametrize("path", ["pyproject.toml", "constraints.txt", "tests/conftest.py", "wlr/care/new.html"])
def test_what_may_concern_any_test_runs_all(path: str) -> None:
    assert seen(path) is None

"""Prints the files of tests that can see what changed: `python -m tests.changed [REF]`, HEAD by default.

A test file can see a change of a function that it ran when all tests were last recorded (`tests/recording.py`). A change
outside functions counts for all that ran a function of the file. A file of unit tests runs no processes: the modules that
it imports are enough. A test file that was not recorded runs.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.recording import ROOT, SLOW, USES, functions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A change there can change any test.
EVERYTHING = ("pyproject.toml", "setup.py", "constraints", "tests/conftest.py", "tests/run.sh", "tests/selection.py")


@dataclass(frozen=True)
class Uses:
    """What test files used when they were recorded: functions by file, and other files that they opened."""

    functions: dict[str, dict[str, list[str]]]
    read: dict[str, list[str]]

    def tests(self) -> set[str]:
        """Return all test files that were recorded."""
        return {test for names in self.functions.values() for tests in names.values() for test in tests}


@dataclass(frozen=True)
class Difference:
    """A file with its text before and now; empty where the file is not there."""

    path: str
    before: str
    now: str


def selected(differences: Iterable[Difference], uses: Uses, known: Mapping[str, str]) -> set[str] | None:
    """Return the test files that can see the differences, or None if all can.

    Args:
        differences: Files that differ, with paths relative to the project.
        uses: The last recording.
        known: All files of tests there are now, with their texts.
    """
    found = known.keys() - uses.tests() - {test for test in known if test.startswith("tests/unit/")}
    for each in differences:
        path = each.path
        if path.startswith(EVERYTHING):
            return None
        if path.endswith(".py"):
            importers = {test for test, text in known.items() if _may_import(test, path) and _imports(text, path)}
            found |= {path} | _users(each, uses) | importers
        elif path in uses.read:
            found |= set(uses.read[path])
        elif path.endswith(".md"):
            found |= {test for page, tests in uses.read.items() if page.endswith(".md") for test in tests}
        elif not path.startswith((".", "LICENSE")):
            return None
    return found & known.keys()


def _users(difference: Difference, uses: Uses) -> set[str]:
    """Return the test files that ran what differs in a file of Python."""
    before, now = _parts(difference.before), _parts(difference.now)
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    ran = uses.functions.get(difference.path, {})
    names = ran if "" in differing else differing
    return {test for name in names for test in ran.get(name, ())}


def _parts(text: str) -> dict[str, str]:
    """Return a file's functions by dotted name, and what is outside of functions by the empty name."""
    tree = ast.parse(text)
    functions = list(functions_of(tree))
    parts: dict[str, str] = {}
    for name, function in functions:
        parts[name] = parts.get(name, "") + ast.dump(function)
    for _, function in functions:
        # A name, parameters with defaults and decorators are evaluated outside.
        function.body = []
    parts[""] = ast.dump(tree)
    return parts


def _may_import(test: str, path: str) -> bool:
    return test.startswith("tests/unit/") or path.startswith("tests/")


def _imports(text: str, path: str) -> bool:
    """Say whether a program names the module of a path in an import."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = module.rpartition(".")
    return any(
        (isinstance(node, ast.Import) and any(alias.name == module for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == module)
        or (isinstance(node, ast.ImportFrom) and node.module == package and any(a.name == name for a in node.names))
        for node in ast.walk(ast.parse(text))
    )


def _uses() -> Uses:
    recorded = json.loads(USES.read_text(encoding="utf-8"))
    functions = {
        path: {name: [test.removesuffix(SLOW) for test in tests] for name, tests in names.items()}
        for path, names in recorded["functions"].items()
    }
    return Uses(
        functions, {path: [test.removesuffix(SLOW) for test in tests] for path, tests in recorded["read"].items()}
    )


def _difference(path: str, old: str) -> Difference:
    if not path.endswith(".py"):
        return Difference(path, "", "")
    shown = subprocess.run(["git", "show", f"{old}:{path}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return Difference(
        path, shown.stdout if shown.returncode == 0 else "", _text(path) if (ROOT / path).exists() else ""
    )


def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def main(old: str = "HEAD") -> None:
    """Print the selected test files, `tests` for all of them, or nothing."""
    changed = [*_git("diff", "--name-only", old), *_git("ls-files", "--others", "--exclude-standard")]
    if changed and not USES.exists():
        print("tests")
        print("no recording yet: all tests run; sh tests/run.sh --all records", file=sys.stderr)
    elif changed:
        tests = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
        differences = [_difference(path, old) for path in changed]
        found = selected(differences, _uses(), {test: _text(test) for test in tests})
        print(*(["tests"] if found is None else sorted(found)), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

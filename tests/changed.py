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

from tests.recording import ROOT, USES, functions_of

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def selected(changed: Iterable[str], old: str, uses: Uses, known: set[str]) -> set[str] | None:
    """Return the test files that can see the changes, or None if all can.

    Args:
        changed: Paths that differ from `old`, relative to the project.
        old: A commit.
        uses: The last recording.
        known: All files of tests there are now.
    """
    found = known - uses.tests() - {test for test in known if test.startswith("tests/unit/")}
    for path in changed:
        if path.startswith(EVERYTHING):
            return None
        if path.endswith(".py"):
            found |= {path} | _users(path, old, uses) | {test for test in known if _imports(test, path)}
        elif path in uses.read:
            found |= set(uses.read[path])
        elif path.endswith(".md"):
            found |= {test for page, tests in uses.read.items() if page.endswith(".md") for test in tests}
        elif not path.startswith((".", "LICENSE")):
            return None
    return found & known


def _users(path: str, old: str, uses: Uses) -> set[str]:
    """Return the test files that ran what differs in a file of Python."""
    before, after = _parts(_text_at(old, path)), _parts(_text_now(path))
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    ran = uses.functions.get(path, {})
    if "" in differing:
        return {test for tests in ran.values() for test in tests}
    return {test for name in differing for test in ran.get(name, ())}


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


def _imports(test: str, path: str) -> bool:
    """Say whether a file of unit tests, or one that imports a helper of tests, names the module of a path."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if not test.startswith("tests/unit/") and not path.startswith("tests/"):
        return False
    package, _, name = module.rpartition(".")
    tree = ast.parse(_text_now(test))
    return any(
        (isinstance(node, ast.Import) and any(alias.name == module for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == module)
        or (isinstance(node, ast.ImportFrom) and node.module == package and any(a.name == name for a in node.names))
        for node in ast.walk(tree)
    )


def _text_now(path: str) -> str:
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _text_at(commit: str, path: str) -> str:
    done = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def main(old: str = "HEAD") -> None:
    """Print the selected test files, `tests` for all of them, or nothing."""
    changed = [*_git("diff", "--name-only", old), *_git("ls-files", "--others", "--exclude-standard")]
    known = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    if not changed:
        return
    if not USES.exists():
        print("tests")
        print("no recording yet: all tests run; sh tests/run.sh --all records", file=sys.stderr)
        return
    recorded = json.loads(USES.read_text(encoding="utf-8"))
    found = selected(changed, old, Uses(recorded["functions"], recorded["read"]), known)
    print(*(["tests"] if found is None else sorted(found)), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

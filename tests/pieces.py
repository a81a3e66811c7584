"""Long runs in pieces: DBFARM_DONE names a file with the seed and what has passed; the next run does what is missing.

DBFARM_MINUTES ends a run early: the test that is running finishes the case it is at, and the others are skipped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_Case = TypeVar("_Case")

USUAL_SEED = 20261121
_BEGAN = time.monotonic()
_OVER = "DBFARM_MINUTES are over; the same command again goes on from here"


def is_deep_run() -> bool:
    """Whether tests that are marked `deep` run, too."""
    return os.environ.get("DBFARM_DEEP") == "1"


def _file() -> Path | None:
    name = os.environ.get("DBFARM_DONE")
    return Path(name) if name else None


def _lines() -> list[str]:
    path = _file()
    return path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []


def _add(line: str) -> None:
    path = _file()
    if path is not None:
        # One write of one line, so that processes that share the tests do not mix theirs.
        with path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")


def seed_of_run() -> int:
    """Return DBFARM_SEED, else the seed of the earlier pieces of this run, else always the same."""
    told = os.environ.get("DBFARM_SEED")
    earlier = next((line.split()[1] for line in _lines() if line.startswith("seed ")), None)
    if told and earlier and int(told) != int(earlier):
        raise pytest.UsageError(f"{_file()} is of a run with the seed {earlier}; unset DBFARM_SEED or remove the file")
    return int(told or earlier or USUAL_SEED)


def begin() -> None:
    """Write the seed into a new file, so that every piece takes the same samples."""
    path = _file()
    if path is not None and not path.exists():
        _add(f"seed {seed_of_run()}")


def passed() -> frozenset[str]:
    """Return the ids of the tests that passed in earlier pieces."""
    return frozenset(line.removeprefix("test ") for line in _lines() if line.startswith("test "))


def note_passed(nodeid: str) -> None:
    """Remember that a test passed."""
    _add(f"test {nodeid}")


def skip_if_over() -> None:
    """Skip the test that is running if the time of this piece is over."""
    minutes = os.environ.get("DBFARM_MINUTES")
    if minutes and time.monotonic() - _BEGAN > float(minutes) * 60:
        pytest.skip(_OVER)


def each(cases: Iterable[_Case]) -> Iterator[_Case]:
    """Yield the cases of a test that did not pass in an earlier piece; a case passes when the next one is asked for."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    done = {line for line in _lines() if line.startswith("case ")}
    for case in cases:
        line = f"case {test} {case}"
        if line not in done:
            skip_if_over()
            yield case
            _add(line)

"""Run files of a suite in processes that report a line of JSON for each, and go on behind a file that ends its process."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parent.parent.parent


def reports(
    command: Sequence[str], files: Sequence[str], *, file_s: float, seconds: float
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield files with their reports until the time is over.

    Args:
        command: A module and its arguments; files are appended.
        file_s: What takes longer is killed.

    Returns:
        None for a file that ended its process, or took too long.
    """
    until, left = time.monotonic() + seconds, list(files)
    while left and time.monotonic() < until:
        with subprocess.Popen(
            [sys.executable, "-m", *command, *left], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            try:
                for line in _lines(process, min(file_s, seconds), until):
                    yield left.pop(0), json.loads(line)
                if left and time.monotonic() < until:
                    yield left.pop(0), None
            finally:
                process.kill()


def _lines(process: subprocess.Popen[bytes], seconds: float, until: float) -> Iterator[bytes]:
    """Yield lines that a process writes, for as long as none takes too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, min(seconds, until - time.monotonic()))):
            line = process.stdout.readline()
            if not line:
                return
            yield line

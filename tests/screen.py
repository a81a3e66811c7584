"""What a command says on standard error, however slow the machine is."""

from __future__ import annotations

import re

_PROGRESS = re.compile(r".* …|.*: [0-9]+ of [0-9]+")


def told(stderr: str) -> list[str]:
    """Return the lines that are not empty, without those about the progress of a command that takes long."""
    return [line for line in stderr.splitlines() if line.strip() and not _PROGRESS.fullmatch(line)]

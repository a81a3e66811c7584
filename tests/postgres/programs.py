"""PostgreSQL's own programs, where they are installed; without any driver, for a run that only asks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def program(name: str) -> str:
    """Return the path of a program of the installed PostgreSQL."""
    found = find_program(name)
    assert found is not None, f"these tests need PostgreSQL's server programs, and {name} is not installed"
    return found


def find_program(name: str) -> str | None:
    """Find a program of the installed PostgreSQL, the newest one where there are several; None if it is not there."""
    folders = [Path(found).parent for found in [shutil.which(name)] if found]
    if config := shutil.which("pg_config"):
        folders.append(Path(subprocess.run([config, "--bindir"], capture_output=True, text=True).stdout.strip()))
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    for folder in [*versions, *folders]:
        if (folder / name).is_file():
            return str(folder / name)
    return None

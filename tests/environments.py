"""Python environments with other versions or other programs than the tests' own: a process can import only one DuckDB."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Among requirements: the product, from its source tree.
DBFARM = f"-e{ROOT}"


def environment(name: str, *requirements: str) -> Path:
    """Return the Python program of an environment that has these requirements, and nothing of the tests' own.

    Runs share environments, below `DBFARM_TEST_ENVIRONMENTS` or the cache folder of the user. Two processes may ask for
    one environment at the same time: the second waits for the first.

    Args:
        name: Begins the name of the folder; different requirements get different folders.
        requirements: Arguments of `pip install`; `DBFARM` for the product.
    """
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"{name}-{_fingerprint(requirements)}"
    python, complete = folder / "bin" / "python", folder / "complete"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            _install(python, requirements)
            complete.touch()
    return python


def _home() -> Path:
    if named := os.environ.get("DBFARM_TEST_ENVIRONMENTS"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dbfarm-test-environments"


def _fingerprint(requirements: tuple[str, ...]) -> str:
    parts = [sys.version, *requirements]
    if DBFARM in requirements:
        parts.append((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _install(python: Path, requirements: tuple[str, ...]) -> None:
    # Airflow has hundreds of requirements, which uv settles in seconds; tests/run.sh installs it. uv does not read
    # pip's settings.
    uv = Path(sys.executable).with_name("uv")
    if (
        uv.exists()
        and not subprocess.run([uv, "pip", "install", "--python", python, "--quiet", *requirements]).returncode
    ):
        return
    subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)

"""The machine that the figures come from."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import duckdb


def describe() -> list[str]:
    """Lines that say what the figures depend on."""
    return [
        f"CPU     {_cpu()}, {_cores()} cores",
        f"memory  {_memory_gb():.0f} GB",
        f"system  {platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"DuckDB  {duckdb.__version__}",
        f"load    {load()} over the last minute; measure when it is far below {_cores()}",
    ]


def load() -> str:
    """Mean number of processes that wanted a core during the last minute, our own included."""
    return f"{os.getloadavg()[0]:.1f}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30

"""When scheduled work was last done: remembered on this machine, so that a service that restarts does not repeat it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time, read_time
from wlc.farm.seal.checksum import checksum
from wlr.audit_progress import cache_folder

if TYPE_CHECKING:
    from datetime import datetime

# systemd names the folder of a service here.
STATE_VARIABLE = "STATE_DIRECTORY"


def memory_file(config: Path) -> Path:
    """Return the file that belongs to a file of settings."""
    folder = os.environ.get(STATE_VARIABLE)
    base = Path(folder.partition(":")[0]) if folder else cache_folder()
    return base / f"serve-{checksum(str(config.absolute()).encode())[:24]}.json"


class ServiceMemory:
    """Times by work; a file that is lost or damaged costs one more run of everything."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._times = _read(file)

    def last(self, key: tuple[str, str], now: datetime) -> datetime | None:
        """Return when a work was last done; None if that is not known.

        A time to come, which a clock that was set back leaves, is replaced by the present: counted from it, the work
        would not be due for as long as the clock was ahead.
        """
        with self._lock:
            last = self._times.get(" ".join(key))
        if last is not None and last > now:
            self.note(key, now)
            return now
        return last

    def note(self, key: tuple[str, str], time: datetime) -> None:
        """Remember that a work was done."""
        with self._lock:
            self._times[" ".join(key)] = time
            content = json.dumps({name: format_time(each) for name, each in self._times.items()})
            half = self._file.with_suffix(f".{os.getpid()}")
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                half.write_text(content, encoding="utf-8")
                half.replace(self._file)
            except OSError:
                half.unlink(missing_ok=True)


def _read(file: Path) -> dict[str, datetime]:
    try:
        content = json.loads(file.read_bytes())
        return {str(name): read_time(time) for name, time in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}

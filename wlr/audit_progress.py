"""How far earlier audits of a farm's database have come, remembered on this machine."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.names import as_digests, digests_json

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Digest, Name

CACHE_VARIABLE = "DBFARM_CACHE"
_FORMAT = 1


@dataclass(slots=True)
class AuditProgress:
    """How far a database has been verified.

    Attributes:
        batch: Number of the last batch; `chain`: its hash.
        history: The history it belongs to.
        digests: What tables hold after it.
        snapshots: Checksum of every manifest that was verified with its files, by tick.
    """

    batch: int = 0
    chain: str = ""
    history: str = ""
    digests: dict[Name, Digest] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)


def cache_folder() -> Path:
    """Return the folder in which this machine remembers what it can do without."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(os.environ.get(CACHE_VARIABLE) or caches / "dbfarm")


def progress_file(database: FarmDatabase) -> Path:
    """Return the path of the file in which this machine remembers what it has verified of a database."""
    return cache_folder() / f"verified-{hashlib.sha256(database.url.encode()).hexdigest()[:24]}.json"


def recall(memory: Path) -> AuditProgress:
    """Read what is remembered; a file that cannot be read counts as nothing, so that everything is verified again."""
    try:
        content = json.loads(memory.read_bytes())
        if content["format"] != _FORMAT:
            return AuditProgress()
        snapshots = {int(tick): str(stamp) for tick, stamp in content["snapshots"].items()}
        digests = as_digests(content["digests"])
        return AuditProgress(int(content["batch"]), content["chain"], content["history"], digests, snapshots)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return AuditProgress()


def remember(memory: Path, found: AuditProgress) -> None:
    """Remember what was verified; a failure to write only costs the next audit time."""
    content = {
        "format": _FORMAT,
        "batch": found.batch,
        "chain": found.chain,
        "history": found.history,
        "digests": digests_json(found.digests),
        "snapshots": found.snapshots,
    }
    half = memory.with_suffix(f".{os.getpid()}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(json.dumps(content))
        half.replace(memory)
    except OSError:
        half.unlink(missing_ok=True)

"""The home of a master's file, so that a copy of the file does not act as the master.

A copy holds the master's whole state, and would publish into the master's farm. Only the file that became the master
may do that: the same file, under the same path, on the same machine. Differences between two runs without a move of the
file are ignored:

    the path     a bind mount or a hard link: the remembered path still names this file
    the host     a container with a new name on the same running machine
    the device   the machine or the file system started again: numbers of devices are given out anew

Doubt: another program may have written a master's file since the last captured session.

DuckDB numbers the checkpoints of a file, in its header. A session finally writes the number of its own last checkpoint.
If the file has another number, or a write-ahead log is left, another program has written the file, or the session
crashed. Then all tables are in doubt until they are compared with the captured state. A commit that removes or changes
rows of a table that differs is refused: images of uncaptured rows would stop each replica. See
`wlc.capture.duckdb.uncaptured`.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.opening import has_log
from wlc.farm import json_fields as fields
from wlc.farm.errors import FencedError
from wlc.farm.model import Name
from wlc.masters.contract import PublishingPlace

if TYPE_CHECKING:
    from collections.abc import Iterable


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Home:
    """A file on a machine.

    Attributes:
        host: Name of the machine.
        boot: Random id of its present run, which its containers share; "" where the system has none.
        path: Absolute, without symbolic links.
        device: Number of the file system.
        inode: Number of the file there.
    """

    host: str
    boot: str
    path: str
    device: int
    inode: int

    @property
    def _is_lasting_device(self) -> bool:
        # Network file systems, overlays and the like get another number whenever they are mounted.
        return os.major(self.device) != 0

    def is_machine_of(self, other: Home) -> bool:
        """Say whether both are on one machine."""
        return self.host == other.host or (self.boot != "" and self.boot == other.boot)

    def is_file_of(self, other: Home) -> bool:
        """Say whether both are one file of one machine, whatever its path."""
        if not self.is_machine_of(other) or self.inode != other.inode:
            return False
        is_comparable = self.boot == other.boot and self._is_lasting_device and other._is_lasting_device
        return not is_comparable or self.device == other.device

    def is_home_of(self, here: Home, names: Home | None = None) -> bool:
        """Say whether a file is the one that became the master.

        Args:
            here: The file.
            names: The file that stands at the remembered path now, None without a file.
        """
        is_same_path = self.path == here.path or (names is not None and names.is_file_of(here))
        return is_same_path and self.is_file_of(here)

    def __str__(self) -> str:
        return f"{self.path} on {self.host}"


def home_at(path: str) -> Home:
    """Return where a file is now.

    Raises:
        OSError: There is no such file.
    """
    found = Path(path).resolve()
    stat = found.stat()
    return Home(socket.gethostname(), _boot_id(), str(found), stat.st_dev, stat.st_ino)


# An extended attribute of a master's file: where it publishes. Readable even if another process has the database open;
# a copy lacks it.
_PLACE = "user.dbfarm.place"


def note_place(file: Path, place: PublishingPlace) -> None:
    """Store the publishing place in an attribute of the master's file, if the file system has attributes."""
    if sys.platform == "linux" and noted_place(str(file)) != place:
        with suppress(OSError):
            os.setxattr(file, _PLACE, json.dumps(asdict(place)).encode())


def noted_place(source: str) -> PublishingPlace | None:
    """Return where a master's file publishes; None if unknown."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(os.getxattr(source, _PLACE))
            return PublishingPlace(fields.as_text(found["url"]), fields.as_object(found["options"]))
    return None


# An extended attribute of a master's file: its last session left nothing to publish and no doubt.
_SETTLED = "user.dbfarm.settled"


def note_settled(file: Path, tick: int | None) -> None:
    """Store the last tick of a file that was just closed; None if a transaction waits, or something is in doubt."""
    if sys.platform == "linux":
        with suppress(OSError):
            if tick is None:
                os.removexattr(file, _SETTLED)
            else:
                os.setxattr(file, _SETTLED, json.dumps({**_identity(file), "tick": tick}).encode())


def settled_tick(source: str) -> int | None:
    """Return the tick of `note_settled` if no program has written the file since then; None if unknown."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError, KeyError):
            noted = json.loads(os.getxattr(source, _SETTLED))
            tick = int(noted.pop("tick"))
            if noted == _identity(Path(source)) and not has_log(Path(source)):
                return tick
    return None


def _identity(file: Path) -> dict[str, object]:
    """Return what differs for a copy, a moved file, and a file with a later checkpoint."""
    return {"path": str(file.resolve()), "inode": file.stat().st_ino, "checkpoint": checkpoints(file)}


def named_by(path: str) -> Home | None:
    """Return what a path names now, None if that is nothing."""
    try:
        return home_at(path)
    except OSError:
        return None


def encode_home(home: Home) -> str:
    """Write a home as JSON."""
    return json.dumps(asdict(home))


def decode_home(text: str | None) -> Home | None:
    """Decode a home, None if the text is no home: the home of such a file is unknown."""
    try:
        values = fields.as_object(fields.DECODER.decode(text or ""))
        texts = {key: fields.as_text(values[key]) for key in ("host", "boot", "path")}
        # Numbers of files have all 64 bits on some file systems.
        return Home(**texts, device=int(values["device"]), inode=int(values["inode"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def elsewhere(name: str, home: Home | None, here: Home, shown: str) -> FencedError | None:
    """Return the error for a file that is a copy of a master, or was moved; None for the master.

    Args:
        name: The master's name in the farm.
        home: The file that became the master; None if unknown.
        here: The present file.
        shown: The file as its user names it.
    """
    if home is not None and (home.is_home_of(here) or home.is_home_of(here, named_by(home.path))):
        return None
    if home is None:
        where = f"{shown} does not say which file became the master of farm database {name}"
    elif (home.host, home.path) == (here.host, here.path):
        where = f"the master of farm database {name} was another file at {home}, and this file was put in its place"
    else:
        where = f"the master of farm database {name} is {home}, and this file is {here}"
    source = shlex.quote(shown)
    return FencedError(
        f"{where}; a copy publishes nothing",
        hint=f"if this file takes its place: wlc master {source} --moved; if the other one continues: wlc master "
        f"{source} --name OTHER, which makes this file a separate master",
        path=shown,
    )


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


# Key of `wlc.state`.
KEY = "written"
_HEADER_BYTES = 4096


@dataclass(slots=True)
class Doubt:
    """Tables that may hold uncaptured rows.

    Attributes:
        is_open: All tables but the compared ones.
        compared: Tables that agreed since the doubt arose.
        differing: Tables that differed in this process.
        of_schema: Tables or other objects were created, altered or dropped without capture.
    """

    is_open: bool = False
    compared: set[Name] = field(default_factory=set)
    differing: set[Name] = field(default_factory=set)
    of_schema: bool = False

    def of(self, tables: Iterable[Name]) -> list[Name]:
        """Return the tables that are in doubt."""
        return [name for name in tables if name not in self.compared] if self.is_open else []

    def settle(self, tables: Iterable[Name], differing: Iterable[Name], *, of_schema: bool) -> None:
        """Store the result of a comparison of all tables and other objects."""
        self.differing, self.of_schema = set(differing), of_schema
        self.is_open = bool(self.differing) or of_schema
        self.compared = set(tables) - self.differing if self.is_open else set()


def checkpoints(path: Path) -> int:
    """Return how many checkpoints a database file has had; 0 if the file cannot be read.

    If this process has the file open, DuckDB's own descriptor is read: a process that closes another one gives up
    DuckDB's lock on the file (POSIX).
    """
    data = _headers(path).ljust(3 * _HEADER_BYTES, b"\0")
    # Two headers take turns. Each begins with its checksum.
    numbers = (struct.unpack_from("<Q", data, place * _HEADER_BYTES + 8)[0] for place in (1, 2))
    return int(max(numbers))


def _headers(path: Path) -> bytes:
    wanted = path.stat()
    for descriptor in (int(entry.name) for entry in Path("/dev/fd").iterdir()):
        # The descriptor of the listing itself is closed by now.
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), wanted):
                return os.pread(descriptor, 3 * _HEADER_BYTES, 0)
    with path.open("rb") as file:
        return file.read(3 * _HEADER_BYTES)


def found(path: Path, written: str | None) -> Doubt:
    """Return the doubt about a file that was just opened; `written` is the last result of `to_note`."""
    return decode(written, checkpoints(path), has_log=has_log(path))


def to_note(path: Path, doubt: Doubt, written: str | None) -> dict[str, str]:
    """Return the entries for `wlc.state` before a file is closed: the next checkpoint is the session's last one.

    Empty if nothing was written since the last call.
    """
    last = checkpoints(path)
    is_noted = not has_log(path) and encode(last, doubt) == written
    return {} if is_noted else {KEY: encode(last + 1, doubt)}


def encode(checkpoint: int, doubt: Doubt) -> str:
    """Encode the state for the next session, as JSON."""
    compared = [[name.schema, name.name] for name in sorted(doubt.compared)] if doubt.is_open else None
    return json.dumps({"checkpoint": checkpoint, "compared": compared})


def decode(text: str | None, checkpoint: int, *, has_log: bool) -> Doubt:
    """Return the doubt about a file when it is opened.

    Args:
        text: The result of `encode`, None without one.
        checkpoint: Number of the file's last checkpoint.
        has_log: A write-ahead log was left.
    """
    try:
        values = fields.as_object(fields.DECODER.decode(text or ""))
        if has_log or values["checkpoint"] != checkpoint:
            return Doubt(is_open=True)
        if (compared := values["compared"]) is None:
            return Doubt()
        names = (map(fields.as_text, fields.as_list(each)) for each in fields.as_list(compared))
        return Doubt(is_open=True, compared={Name(*name) for name in names})
    except (ValueError, KeyError, TypeError):
        return Doubt(is_open=True)

"""One tree of errors, divided by what the caller does next, not by where the error happened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class AtTick(Protocol):
    """A position; its class belongs to a higher layer."""

    @property
    def tick(self) -> int: ...


HINT = "hint: "
# Options whose parameter has another name.
PARAMETERS = {
    "class": "class_name",
    "from": "start",
    "limit-rate": "rate",
    "open": "open_tables",
    "master": "spark_master",
}
_COMMAND = re.compile(r"(\bwl[cr] [^;]*)")
# A word behind an option is its value if it is no plain word, or ends the hint or a part of it: `Leave --keep out.`
_VALUE = r"(?!out\b)(?:[a-z]+(?=[,;.]?$|[,;] )|(?=[^\s,;()]*[^a-z\s,;().])[^-\s,;.()](?:[^\s,;()]*[^\s,;.()])?)"
_OPTION = re.compile(rf"--([a-z][a-z-]*)(?:[ =]({_VALUE}))?")


def in_python(hint: str) -> str:
    """Write a hint as a program follows it: `--tick 5` becomes `tick=5`; a command stays one for the shell."""
    parts = _COMMAND.split(hint)
    return "".join(
        f"in a shell: {part}" if place % 2 else _OPTION.sub(_argument, part) for place, part in enumerate(parts)
    )


def _argument(option: re.Match[str]) -> str:
    name = PARAMETERS.get(option[1], option[1].replace("-", "_"))
    value = option[2]
    return f"{name}={value if value.isdecimal() or value.isupper() else repr(value)}" if value else name


class FarmError(Exception):
    """Something about a farm, a master or a replica went wrong.

    Args:
        message: Names the object and the value.
        hint: The next command to type, or what to change.
        path: File or object that the error is about.
        position: Replica or master position at which it happened.

    Attributes:
        done: The part of the result that was completed, for functions that document it. Further failures are in the
            error's notes.
    """

    exit_code = 1
    done: tuple[Any, ...] = ()

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        path: str | None = None,
        position: AtTick | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self._hint: str | None = None
        self.hint = hint
        self.path = path
        self.position = position

    @property
    def hint(self) -> str | None:
        """The next command to type, or what to change; a traceback shows it as a note, in words of Python."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        notes = [note for note in getattr(self, "__notes__", ()) if not note.startswith(HINT)]
        self.__notes__ = [HINT + in_python(hint), *notes] if hint else notes
        self._hint = hint


class UnavailableError(FarmError):
    """Try again later; the outcome may be unknown. Publishing and replaying are idempotent."""

    exit_code = 75


class FencedError(FarmError):
    """Another master owns the farm database: stop, do not retry."""

    exit_code = 4


class ReplayError(FarmError):
    """A transaction cannot be applied: repair the replica, or accept the transaction."""

    exit_code = 5


class InseparableError(ReplayError):
    """No replica stops at this transaction of a site: it applies only together with later ones. Choose a later tick."""


@dataclass(frozen=True, slots=True)
class RowConflict:
    """A row that differs from its expected image.

    Attributes:
        table: `schema.table`.
        key: The primary key; None in a table without one.
        present: The row in the table; None if it is missing.
        expected: The expected row; None if no row with this key is expected.
        copies: How many rows differ; more than one only in a table without a primary key.
    """

    table: str
    key: Mapping[str, object] | None
    present: Mapping[str, object] | None
    expected: Mapping[str, object] | None
    copies: int = 1


class ChangedSinceError(ReplayError):
    """Later transactions changed rows that should be undone: inspect them, then exclude them or force the old values.

    Attributes:
        conflicts: The first of them, in the order of tables and keys.
        count: How many there are.
    """

    conflicts: tuple[RowConflict, ...] = ()
    count: int = 0


class CorruptError(FarmError):
    """Do not apply: a checksum, a truncation, a broken chain or an unknown version."""

    exit_code = 6


class GapError(CorruptError):
    """A batch is missing between two that exist."""


class ExpiredError(FarmError):
    """The requested state was pruned or never existed: choose one of the named targets."""

    exit_code = 7


class UnsupportedError(FarmError):
    """The engine cannot capture or apply this; the message names the alternative."""

    exit_code = 8


class ExceededError(FarmError):
    """A stated limit is exceeded: inspect the object that the message names."""

    exit_code = 9


class InvalidError(FarmError, ValueError):
    """Fix the call, the target or the configuration."""

    exit_code = 2

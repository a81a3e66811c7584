"""What a replay reports when a transaction cannot be applied."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time

if TYPE_CHECKING:
    from datetime import datetime


_CAUSE_MAX = 2000


@dataclass(frozen=True, slots=True)
class Failure:
    """The transaction that could not be applied, and why; `table` and `key` are None where they are unknown."""

    tick: int
    table: str | None
    key: str | None
    cause: str
    at: datetime

    def __str__(self) -> str:
        where = f", table {self.table}" if self.table else ""
        return f"transaction {self.tick}{where}{f', {self.key}' if self.key else ''}: {self.cause}"


def failure_json(failure: Failure | None) -> dict[str, Any] | None:
    """Write a failure."""
    return None if failure is None else {**asdict(failure), "at": format_time(failure.at)}


def as_failure(value: object) -> Failure | None:
    """Read what `failure_json` wrote.

    Raises:
        ValueError, KeyError: The value is something else.
    """
    if value is None:
        return None
    content = fields.as_object(value)
    table, key = (None if content[name] is None else fields.as_text(content[name]) for name in ("table", "key"))
    cause, at = fields.as_text(content["cause"]), fields.as_time(content["at"])
    return Failure(fields.as_tick(content["tick"]), table, key, cause, at)


class StepError(Exception):
    """A step could not be applied; the target was left as it was before the step.

    Args:
        cause: What the engine reported, or what does not fit.
        table: The table at fault, None if it is unknown.
        key: The row at fault, None if it is unknown.
        is_shortage: The machine has too little memory. A step of fewer transactions may succeed.
        is_reference: A foreign key was violated, perhaps only because transactions were folded.
    """

    def __init__(
        self,
        cause: str,
        *,
        table: str | None = None,
        key: str | None = None,
        is_shortage: bool = False,
        is_reference: bool = False,
    ) -> None:
        # An engine may repeat a statement of any length.
        cause = cause if len(cause) <= _CAUSE_MAX else f"{cause[:_CAUSE_MAX]} …"
        super().__init__(cause)
        self.cause = cause
        self.table = table
        self.key = key
        self.is_shortage = is_shortage
        self.is_reference = is_reference

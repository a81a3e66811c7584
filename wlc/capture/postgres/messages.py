"""What the event triggers of a PostgreSQL master write into its log, see functions.sql."""

from __future__ import annotations

import json
from dataclasses import dataclass

from wlc.capture.postgres.access import DescribedAccess
from wlc.capture.postgres.described import DescribedObject, DescribedTable


@dataclass(frozen=True, slots=True)
class TableChanged:
    """A table was altered, created (there is no old description) or dropped (there is no new one)."""

    table: int
    old: DescribedTable | None
    new: DescribedTable | None


@dataclass(frozen=True, slots=True)
class ResendBegun:
    """All rows of a table follow once more."""

    resend: int


@dataclass(frozen=True, slots=True)
class ResendEnded:
    """All rows of a table have followed."""

    resent: int


@dataclass(frozen=True, slots=True)
class ObjectChanged:
    """An object that is no table was altered, created (there is no old description) or dropped (there is no new one).

    Attributes:
        object: Its number.
        tag: Of the command, such as "CREATE VIEW".
        user: Who sent it.
    """

    object: int
    tag: str
    old: DescribedObject | None
    new: DescribedObject | None
    user: str


@dataclass(frozen=True, slots=True)
class AccessChanged:
    """Who may do what with an object, or which rows they see, is another matter now; a new one has no old description.

    Attributes:
        access: Number of the table or object.
        user: Who sent the command.
    """

    access: int
    old: DescribedAccess | None
    new: DescribedAccess
    user: str


TriggerMessage = TableChanged | ResendBegun | ResendEnded | ObjectChanged | AccessChanged


def read_message(text: str | bytes) -> TriggerMessage:
    """Read a message."""
    content = json.loads(text)
    if "table" in content:
        old, new = (DescribedTable.read(content[name]) if content[name] else None for name in ("old", "new"))
        return TableChanged(content["table"], old, new)
    for kind, key in ((ResendBegun, "resend"), (ResendEnded, "resent")):
        if key in content:
            return kind(**content)
    if "access" in content:
        found = DescribedAccess.read(content["old"]) if content["old"] else None
        return AccessChanged(content["access"], found, DescribedAccess.read(content["new"]), content["user"])
    described = {name: DescribedObject(**content[name]) if content[name] else None for name in ("old", "new")}
    return ObjectChanged(**{**content, **described})


def shown(text: str | bytes) -> str:
    """Return a message, shortened for an error."""
    found = text.decode(errors="replace") if isinstance(text, bytes) else text
    return found if len(found) <= 300 else f"{found[:300]} …"

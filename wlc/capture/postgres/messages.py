"""What the event triggers of a PostgreSQL master write into its log, see functions.sql."""

from __future__ import annotations

import json
from dataclasses import dataclass

from wlc.capture.postgres.described import DescribedTable


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
    """An object that is no table was created or altered.

    Attributes:
        object: Kind of object, such as "view".
        tag: Of the command, such as "CREATE VIEW".
        schema: Where the object lies; None for one that lies in no schema.
        identity: Qualified name as the server writes it; None of a privilege.
        definition: Statement that makes it as it is now; None if there is none.
        is_identity: It is the sequence of an identity column.
        query: What the client sent, with other statements perhaps.
        user: Who sent it.
    """

    object: str
    tag: str
    schema: str | None
    identity: str | None
    oid: int | None
    definition: str | None
    is_identity: bool
    query: str | None
    user: str


@dataclass(frozen=True, slots=True)
class ObjectDropped:
    """An object that is no table was dropped; `dropped` is its kind."""

    dropped: str
    schema: str | None
    name: str | None
    identity: str


TriggerMessage = TableChanged | ResendBegun | ResendEnded | ObjectChanged | ObjectDropped


def read_message(text: str | bytes) -> TriggerMessage:
    """Read a message."""
    content = json.loads(text)
    if "table" in content:
        old, new = (DescribedTable.read(content[name]) if content[name] else None for name in ("old", "new"))
        return TableChanged(content["table"], old, new)
    for kind, key in ((ResendBegun, "resend"), (ResendEnded, "resent"), (ObjectDropped, "dropped")):
        if key in content:
            return kind(**content)
    return ObjectChanged(**content)

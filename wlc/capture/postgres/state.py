"""What a PostgreSQL master remembers besides what every master does: its slot, and how far that is published."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wlc.farm.names import as_digests, digests_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.model import Digest, Name


@dataclass(frozen=True, slots=True)
class SlotState:
    """Where in its server's log a master is published.

    Attributes:
        slot: Name of the replication slot.
        publication: Name of the publication.
        tables: Regular expression of the names of the captured tables.
        place: What tells the database from its copies; see `setup.place`.
        prefix: Of the messages that the event triggers write into the server's log; a secret, because everybody may
            write messages.
        lsn: Up to where the server's log is published; "" before the first snapshot.
        digests: What the tables held at the last published tick, as far as it is known.
    """

    slot: str
    publication: str
    tables: str
    place: str
    prefix: str
    lsn: str = ""
    digests: Mapping[Name, Digest] = field(default_factory=dict)


def encode(state: SlotState) -> dict[str, str]:
    """Write a state as keys and values."""
    return {
        "slot": state.slot,
        "publication": state.publication,
        "tables": state.tables,
        "place": state.place,
        "prefix": state.prefix,
        "lsn": state.lsn,
        "digests": json.dumps(digests_json(state.digests)),
    }


def decode(values: Mapping[str, str]) -> SlotState:
    """Read what `encode` wrote; keys of others are ignored."""
    texts = {key: values[key] for key in ("slot", "publication", "tables", "place", "prefix", "lsn")}
    return SlotState(**texts, digests=as_digests(json.loads(values["digests"])))

"""A replica's state as keys and values, the same in every database that is a replica."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wlc import fields
from wlc.clock import format_time, read_time
from wlc.errors import CorruptError
from wlc.model import Position
from wlr.engine import State, as_failure, failure_json
from wlr.engine.tally import as_tally, tally_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.model import Digest, Name
    from wlr.plan import Step

FORMAT = "1"
OWNER = "owner"


def encode(**fields: Any) -> dict[str, str]:
    """Turn fields of a State into keys and values."""
    values: dict[str, str] = {}
    for name, value in fields.items():
        match name:
            case "position":
                values.update(history=value.history, tick=str(value.tick), batch=str(value.batch), chain=value.chain)
            case "clock":
                values[name] = format_time(value) if value else ""
            case "tables":
                values["patterns"] = json.dumps(list(value))
            case "accepted":
                values[name] = json.dumps(sorted(value))
            case "failure":
                values[name] = json.dumps(failure_json(value)) if value else ""
            case "digests":
                values[name] = json.dumps(tally_json(value))
            case _:
                values[name] = str(value)
    return values


def encode_all(state: State) -> dict[str, str]:
    """Turn a whole State into keys and values."""
    names = "id master catalog tables position batch_last clock beat_s failure accepted digests verify".split()
    return {"format": FORMAT, **encode(**{name: getattr(state, name) for name in names})}


def after(step: Step, digests: Mapping[Name, Digest | None]) -> dict[str, Any]:
    """Return the fields of a State that are others once a step was applied; `digests` is what its tables hold then."""
    values: dict[str, Any] = {"position": step.position, "batch_last": step.mark.batch_last, "failure": None}
    values["digests"] = digests
    return values if step.clock is None else {**values, "clock": step.clock}


def decode(values: Mapping[str, str], place: str, *, is_unlocked: bool) -> State:
    """Read what `encode_all` wrote.

    Args:
        values: Keys and values.
        place: Where the replica is, for messages.
        is_unlocked: Its owner allows direct writes.

    Raises:
        CorruptError: They are damaged, or written by a newer version.
    """
    try:
        if values["format"] != FORMAT:
            raise CorruptError(f"{place} is a replica of format {values['format']}, this version reads {FORMAT}")
        return State(
            id=values["id"],
            master=values["master"],
            catalog=values["catalog"],
            tables=tuple(map(fields.as_text, fields.as_list(_json(values["patterns"])))),
            position=Position(values["history"], _count(values["tick"]), _count(values["batch"]), values["chain"]),
            batch_last=_count(values["batch_last"]),
            clock=read_time(values["clock"]) if values["clock"] else None,
            beat_s=fields.as_beat(float(values["beat_s"])),
            failure=as_failure(_json(values.get("failure") or "null")),
            accepted=frozenset(map(fields.as_tick, fields.as_list(_json(values["accepted"])))),
            is_unlocked=is_unlocked,
            digests=as_tally(json.loads(values.get("digests") or "[]")),
            verify=values.get("verify", ""),
        )
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"the state of replica {place} is damaged: {error}", hint="Make the replica anew."
        ) from error


def _json(text: str) -> object:
    return fields.DECODER.decode(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text[:80]!r} is not a count")
    return fields.as_tick(int(text), 0)

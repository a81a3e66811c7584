"""What a replica remembers of itself, and how it is written: the same in every engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from wlc.farm import json_fields as fields
from wlc.farm.beat import BEAT_S
from wlc.farm.clock import format_time
from wlc.farm.errors import CorruptError
from wlc.farm.model import Position
from wlr.ddl.left_out import without_counterparts
from wlr.fold.tally import as_tally, tally_json
from wlr.plan.contained_transactions import NOTHING, Contained
from wlr.plan.failure import as_failure, failure_json
from wlr.plan.row_filters import EVERYTHING, as_filters, filters_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from wlc.farm.attachment import Attachment
    from wlc.farm.model import Name
    from wlr.fold.tally import Held
    from wlr.plan.failure import Failure
    from wlr.plan.row_filters import RowFilters
    from wlr.plan.step import Step

# A version that knows no filters must not roll a filtered replica forward: it would write what is kept out.
FORMAT, FILTERED_FORMAT = 1, 2
START = Position("", 0)
# Who allows direct writes, as the guard of a database records it.
OWNER = "owner"


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What a replica remembers of itself, stored in the target.

    Attributes:
        id: Random id under which it registers.
        master: URL of the database's folder in the farm.
        catalog: Name that DDL text gives the database.
        tables: Patterns of the tables it replicates; empty for all.
        position: The last transaction that it holds; `clock` is the time of that transaction.
        batch_last: Last tick of the batch of that position.
        beat_s: How often it looks for new log files when it follows, seconds.
        follows_beat: That is the master's beat.
        accepted: Ticks of transactions that replay skips; see `wlr.skipped_transactions`.
        is_unlocked: The replica's owner allows direct writes to replicated tables.
        is_paused: The owner wants it to stay where it is.
        keep: How many old ticks of a Parquet replica stay readable, or for how long; empty for all.
        digests: What its tables hold; see `wlr.fold.tally`.
        names_digests: The log, or the snapshot, has named digests.
        left_out: What the replica does not have because its engine cannot hold or make it, or because only PostgreSQL
            has it, by name, with the cause.
        open_tables: Which format's logs a Parquet replica keeps over its files, "delta"; empty for none.
        swaps: Rounds go to a second file, which then takes the replica's place; only DuckDB replicas do that.
        access: Roles get privileges from the farm here; only PostgreSQL replicas have roles.
        contained: What its position contains, of other sites, too, with the proofs of where those stood.
        attachment: Which upstream it reads, if it chooses one or was told which; None if it reads `master` itself.
        filters: Which rows, columns and values it holds of the tables that it has not whole.
        verify: Keys as text. One of them must have signed each file that is read from the farm; empty for no check.
    """

    id: str
    master: str
    catalog: str
    tables: tuple[str, ...] = ()
    position: Position = START
    batch_last: int = 0
    clock: datetime | None = None
    beat_s: float = BEAT_S
    follows_beat: bool = True
    failure: Failure | None = None
    accepted: frozenset[int] = field(default_factory=frozenset)
    is_unlocked: bool = False
    is_paused: bool = False
    keep: str = ""
    digests: Mapping[Name, Held] = field(default_factory=dict)
    names_digests: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    verify: str = ""
    access: bool = False
    open_tables: str = ""
    swaps: bool = False
    attachment: Attachment | None = None
    contained: Contained = NOTHING
    filters: RowFilters = EVERYTHING


class Standing(Protocol):
    """Where a replica stands and what its tables hold then."""

    @property
    def position(self) -> Position: ...
    @property
    def batch_last(self) -> int: ...
    @property
    def clock(self) -> datetime | None: ...
    @property
    def digests(self) -> Mapping[Name, Held]: ...
    @property
    def contained(self) -> Contained: ...


def after(state: ReplicaState, step: Step, digests: Mapping[Name, Held]) -> ReplicaState:
    """Return the state behind a step; `digests` is what the tables hold then."""
    return replace(
        state,
        position=step.position,
        batch_last=step.mark.batch_last,
        clock=step.clock_after(state.clock),
        failure=None,
        accepted=state.accepted - step.retried,
        digests=digests,
        contained=step.contained(state.contained),
        names_digests=state.names_digests or step.names_digests,
        left_out=without_counterparts(state.left_out, step.schema_changes(), state.tables),
        filters=state.filters if step.filters is None else step.filters,
    )


# As JSON -------------------------------------------------------------------------------------------------------------


def settings_json(state: ReplicaState) -> dict[str, Any]:
    """Write what a replica remembers besides where it stands."""
    return {
        "format": FILTERED_FORMAT if state.filters else FORMAT,
        "id": state.id,
        "master": state.master,
        "catalog": state.catalog,
        "patterns": list(state.tables),
        "beat_s": state.beat_s,
        "follows_beat": state.follows_beat,
        "is_paused": state.is_paused,
        "keep": state.keep,
        "names_digests": state.names_digests,
        "verify": state.verify,
        "access": state.access,
        "open_tables": state.open_tables,
        "swaps": state.swaps,
        "attachment": _attachment_json(state.attachment) if state.attachment else None,
        "left_out": dict(state.left_out),
        "filters": filters_json(state.filters),
        "accepted": sorted(state.accepted),
        "failure": failure_json(state.failure),
    }


def as_settings(content: Mapping[str, Any]) -> ReplicaState:
    """Read what `settings_json` wrote, as the state of a replica that stands nowhere.

    Raises:
        ValueError, KeyError: The content is something else.
    """
    fields.as_format(content["format"], FILTERED_FORMAT if content.get("filters") else FORMAT)
    return ReplicaState(
        id=fields.as_text(content["id"]),
        master=fields.as_text(content["master"]),
        catalog=fields.as_text(content["catalog"]),
        tables=tuple(map(fields.as_text, fields.as_list(content["patterns"]))),
        beat_s=fields.as_beat(content["beat_s"]),
        follows_beat=fields.as_flag(content["follows_beat"]),
        is_paused=fields.as_flag(content["is_paused"]),
        keep=fields.as_text(content["keep"]),
        names_digests=fields.as_flag(content["names_digests"]),
        verify=fields.as_text(content["verify"]),
        access=fields.as_flag(content.get("access", False)),
        open_tables=fields.as_text(content.get("open_tables", "")),
        swaps=fields.as_flag(content.get("swaps", False)),
        attachment=None if content.get("attachment") is None else _as_attachment(content["attachment"]),
        left_out={what: fields.as_text(cause) for what, cause in fields.as_object(content["left_out"]).items()},
        filters=as_filters(content.get("filters")),
        accepted=frozenset(map(fields.as_tick, fields.as_list(content["accepted"]))),
        failure=as_failure(content["failure"]),
    )


# Most replicas choose no upstream, and need nothing of what that takes.
def _attachment_json(attachment: Attachment) -> dict[str, Any]:
    from wlc.farm.attachment import attachment_json

    return attachment_json(attachment)


def _as_attachment(content: object) -> Attachment:
    from wlc.farm.attachment import as_attachment

    return as_attachment(content)


def standing_json(standing: Standing) -> dict[str, Any]:
    """Write where a replica stands."""
    return {
        "position": fields.position_json(standing.position) if standing.position.history else None,
        "batch_last": standing.batch_last,
        "clock": format_time(standing.clock) if standing.clock else None,
        "digests": tally_json(standing.digests),
        "contained": _contained_json(standing.contained),
    }


def as_standing(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `standing_json` wrote, as arguments of `ReplicaState` or another class with these fields.

    Raises:
        ValueError, KeyError: The content is something else.
    """
    return {
        "position": START if content["position"] is None else fields.as_position(content["position"]),
        "batch_last": fields.as_count(content["batch_last"]),
        "clock": None if content["clock"] is None else fields.as_time(content["clock"]),
        "digests": as_tally(content["digests"]),
        "contained": _as_contained(content.get("contained")),
    }


def _contained_json(contained: Contained) -> dict[str, Any] | None:
    if contained == NOTHING:
        return None
    return {
        "tick": contained.tick,
        "vector": dict(sorted(contained.vector.items())),
        "own": contained.own,
        "proofs": list(map(fields.taken_json, contained.proofs)),
    }


def _as_contained(value: object) -> Contained:
    if value is None:
        return NOTHING
    content = fields.as_object(value)
    return Contained(
        fields.as_tick(content["tick"], 0),
        fields.as_vector(content["vector"]),
        None if content["own"] is None else fields.as_tick(content["own"], 0),
        tuple(map(fields.as_taken, fields.as_list(content["proofs"]))),
    )


# As keys and values of a table ---------------------------------------------------------------------------------------


def encode(state: ReplicaState) -> dict[str, str]:
    """Write a state as keys and JSON texts, for the table `wlr.state` of a database."""
    content = {**settings_json(state), **standing_json(state)}
    return {key: json.dumps(value) for key, value in content.items()}


def changed(before: ReplicaState, now: ReplicaState) -> dict[str, str]:
    """Return the keys and texts of a state that are others than before."""
    known = encode(before)
    return {key: text for key, text in encode(now).items() if known[key] != text}


def decode(values: Mapping[str, str], place: str, *, is_unlocked: bool) -> ReplicaState:
    """Read what `encode` wrote.

    Args:
        values: Keys and texts; keys that a state does not have are ignored.
        place: Where the replica is, for messages.
        is_unlocked: The replica's owner allows direct writes.

    Raises:
        CorruptError: The values are damaged, or a newer version wrote them.
    """
    try:
        content = {key: fields.DECODER.decode(values[key]) for key in _KEYS if key in values}
        return replace(as_settings(content), **as_standing(content), is_unlocked=is_unlocked)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CorruptError(
            f"the state of replica {place} is damaged: {error}", hint="Make the replica anew."
        ) from error


_KEYS = tuple(encode(ReplicaState("", "", "")))

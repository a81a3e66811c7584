"""The state of a replica, and its encoding, for every engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from wlc.farm.config import BEAT_S
from wlc.farm.errors import CorruptError
from wlc.farm.json_fields import DECODER, Absent, JsonForm, JsonKey, Later, Tick, as_format
from wlc.farm.json_records import null_for, record_of
from wlc.farm.model import Position
from wlr.replay.ddl.left_out import without_counterparts
from wlr.replay.fold.tally import Tallies
from wlr.replay.plan.common_position import NOTHING, Contained
from wlr.replay.plan.failure import Failure
from wlr.replay.plan.row_filters import EVERYTHING, WrittenFilters

if TYPE_CHECKING:
    from wlc.farm.model import Name
    from wlc.tiers.attachment import Attachment
    from wlr.replay.fold.tally import Held
    from wlr.replay.plan.step import Step


# A version without filters must not roll a filtered replica forward: it would write hidden rows.
FORMAT, FILTERED_FORMAT = 1, 2
START = Position("", 0)


# The guard's record of who allowed direct writes.
OWNER = "owner"
StartOrPosition = Annotated[Position, null_for(START, lambda position: not position.history)]
WrittenContained = Annotated[Contained, null_for(NOTHING, NOTHING.__eq__)]
if not TYPE_CHECKING:
    # Most replicas choose no upstream, and do not need this import.
    Attachment = object


def _as_attachment(value: object) -> Attachment:
    from wlc.tiers.attachment import Attachment

    return record_of(Attachment).read(value)


def _attachment_json(attachment: Attachment) -> dict[str, Any]:
    from wlc.tiers.attachment import Attachment

    return record_of(Attachment).write(attachment)


WrittenAttachment = Annotated[Attachment, JsonForm(_as_attachment, _attachment_json)]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of a replica, stored in the target.

    Attributes:
        id: Random id under which it registers.
        master: URL of the database's folder in the farm.
        catalog: Name that DDL text gives the database.
        tables: Patterns of the tables it replicates; empty for all.
        position: The last transaction that it holds; `clock` is the time of that transaction.
        batch_last: Last tick of the batch of that position.
        beat_s: How often it looks for new log files when it follows, seconds.
        follows_beat: `beat_s` is the master's beat.
        accepted: Ticks of transactions that replay skips; see `wlr.replay.skipped_transactions`.
        is_unlocked: The replica's owner allows direct writes to replicated tables.
        is_paused: The owner has paused it.
        keep: Retention of old ticks of a Parquet replica: a number, or an age; empty for all.
        digests: Digests of its tables; see `wlr.replay.fold.tally`.
        names_digests: The log, or the snapshot, has named digests.
        left_out: Objects that it lacks because its engine cannot hold or make them, or because only PostgreSQL has
            them, by name, with the cause.
        open_tables: Format of the logs that a Parquet replica keeps over its files, "delta"; empty for none.
        swaps: Rounds write a second file, which then replaces the replica's; only for DuckDB.
        storage_version: Storage version for readers with an older DuckDB; empty for the newest.
        access: Roles get privileges from the farm; only for PostgreSQL.
        contained: Contents at its position, including other sites, with the proofs of their positions.
        attachment: The upstream that it reads, chosen or pinned; None if it reads `master` itself.
        filters: Filters of its partly replicated tables.
        promotion: What it names its history by as a master, noted before it begins that; empty for a mere replica.
        verify: Keys as text. One of them must have signed each file that is read from the farm; empty for no check.
    """

    id: str
    master: str
    catalog: str
    tables: Annotated[tuple[str, ...], JsonKey("patterns")] = ()
    beat_s: float = BEAT_S
    follows_beat: bool = True
    is_paused: bool = False
    keep: str = ""
    names_digests: bool = False
    verify: str = ""
    access: Later[bool] = False
    open_tables: Later[str] = ""
    swaps: Later[bool] = False
    storage_version: Later[str] = ""
    promotion: Later[str] = ""
    attachment: Later[WrittenAttachment | None] = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    filters: Later[WrittenFilters] = EVERYTHING
    accepted: frozenset[Tick] = frozenset()
    failure: Failure | None = None
    position: StartOrPosition = START
    batch_last: int = 0
    clock: datetime | None = None
    digests: Tallies = field(default_factory=dict)
    contained: Later[WrittenContained] = NOTHING
    is_unlocked: Absent[bool] = False

    @property
    def not_locked(self) -> str:
        """Why no lock can refuse direct writes; empty for a replica that can be locked."""
        return f"storage version {self.storage_version} has no triggers" if self.storage_version else ""


def after(state: ReplicaState, step: Step, digests: Mapping[Name, Held]) -> ReplicaState:
    """Return the state after a step with its digests."""
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

_STANDING = frozenset({"position", "batch_last", "clock", "digests", "contained"})


def settings_json(state: ReplicaState) -> dict[str, Any]:
    """Encode a replica's state without its position."""
    return _json(state, _STANDING)


def _json(state: ReplicaState, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    version = FILTERED_FORMAT if state.filters else FORMAT
    return {"format": version, **record_of(ReplicaState, without).write(state)}


def as_settings(content: Mapping[str, Any]) -> ReplicaState:
    """Decode the output of `settings_json`, as the state of a replica without a position.

    Raises:
        ValueError, KeyError: The content is something else.
    """
    return _read(content, _STANDING)


def _read(content: Mapping[str, Any], without: frozenset[str] = frozenset()) -> ReplicaState:
    as_format(content["format"], FILTERED_FORMAT if content.get("filters") else FORMAT)
    return record_of(ReplicaState, without).read_among(dict(content))


def settings_keys() -> frozenset[str]:
    """Return the keys of `settings_json`."""
    return record_of(ReplicaState, _STANDING).known | {"format"}


def encode(state: ReplicaState) -> dict[str, str]:
    """Write a state as keys and JSON texts, for the table `wlr.state` of a database."""
    return {key: json.dumps(value) for key, value in _json(state).items()}


def changed(before: ReplicaState, now: ReplicaState) -> dict[str, str]:
    """Return the changed keys and texts of a state."""
    known = encode(before)
    return {key: text for key, text in encode(now).items() if known[key] != text}


def decode(values: Mapping[str, str], place: str, *, is_unlocked: bool) -> ReplicaState:
    """Decode the output of `encode`.

    Args:
        values: Keys and texts; unknown keys are ignored.
        place: The replica's place, for messages.
        is_unlocked: The replica's owner allows direct writes.

    Raises:
        CorruptError: The values are damaged, or a newer version wrote them.
    """
    try:
        known = record_of(ReplicaState).known | {"format"}
        content = {key: DECODER.decode(text) for key, text in values.items() if key in known}
        return replace(_read(content), is_unlocked=is_unlocked)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"the state of replica {place} is damaged: {error}", hint="Rebuild the replica.") from error

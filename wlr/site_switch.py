"""Let a replica of one site go on from another one's log if nothing needs to be copied: `wlr.plan.common_position`."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.database import open_database
from wlc.farm.errors import ExpiredError, FarmError, InvalidError, UnavailableError
from wlc.farm.human_form import ForPeople
from wlc.farm.registry import unregister
from wlc.farm.same_past import is_same_place, prove_same_past
from wlc.tiers.attachment_options import detach
from wlr.farm_log import FarmLog, home_log
from wlr.plan.common_position import Refusal, meeting_point
from wlr.registration import register_replica
from wlr.same_database import refuse_other_database, with_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlr.engine.contract import Target
    from wlr.engine.state import ReplicaState


@dataclass(frozen=True, slots=True)
class Switched(ForPeople):
    """Which place a replica read before, and which it reads now.

    Attributes:
        tick: Where the replica stands in the log that it reads now; no row was written.
        is_dry_run: Nothing was changed.
    """

    tick: int
    before: str
    now: str
    is_dry_run: bool = False


def switch_site(
    target: Target,
    database: FarmDatabase,
    storage_options: Mapping[str, Any] | None,
    *,
    registers: bool,
    dry_run: bool,
) -> Switched:
    """Let a replica of one site go on from the log of another one.

    Raises:
        InvalidError: It is another database, or nothing proves that the replica holds the same.
        ExpiredError: What would prove it was pruned.
    """
    state = target.read_state()
    database = with_keys(state.verify, database)
    source = FarmLog(database)
    if state.position.history not in source.histories:
        refuse_other_database(state, database, target)
    home = home_log(with_keys(state.verify, open_database(state.master, storage_options=storage_options)))
    with (
        tempfile.TemporaryDirectory(prefix="wlr-switch-") as work,
        target.scanned(Path(work), storage_options) as scan,
    ):
        held = {name: scan.digest(name) for name in scan.layouts}
        state = scan.state
    chosen = "the replica holds chosen rows, columns or values of some tables"
    # The digests of no log are those of what it holds.
    found = Refusal(chosen, "") if state.filters else meeting_point(state, source, home, held)
    if isinstance(found, Refusal):
        raise _refused(found, target, database, state)
    if dry_run:
        return Switched(found.position.tick, state.master, database.url, is_dry_run=True)
    moved = replace(
        state,
        master=database.url,
        position=found.position,
        batch_last=found.batch_last,
        clock=found.clock or state.clock,
        contained=found.contained,
        catalog=found.catalog or state.catalog,
        digests={name: digest for name, digest in source.digests(found.position).items() if name in held},
        failure=None,
        attachment=None,
    )
    with target.open() as replica:
        if replica.state.position != state.position:
            raise UnavailableError(f"{target} was rolled forward meanwhile", hint="try again", path=str(target))
        if registers:
            register_replica(database, moved, target)
            prove_again(database, moved)
        replica.move(moved)
    leave(state, database, storage_options)
    return Switched(found.position.tick, state.master, database.url)


def _refused(refusal: Refusal, target: Target, database: FarmDatabase, state: ReplicaState) -> FarmError:
    url, into = shlex.quote(database.url), shlex.quote(str(target))
    common = f"; the last tick that both hold is {refusal.common}" if refusal.common is not None else ""
    kind = ExpiredError if refusal.is_expired else InvalidError
    return kind(
        f"{target} cannot go on from {database.url}: {refusal.reason}{common}",
        hint=refusal.nearest.replace("--into TARGET", f"--into {into}")
        or f"wlr replicate {url} --into {into} --rebase",
        path=str(target),
        position=state.position,
    )


def leave(state: ReplicaState, database: FarmDatabase, storage_options: Mapping[str, Any] | None) -> None:
    """Give up what a replica claimed, and its registration where it read before."""
    detach(database, state.attachment, None, state.id)
    before = open_database(state.master, storage_options=storage_options)
    if not is_same_place(before, database):
        # The place before may be gone, which can be why the replica leaves it.
        with suppress(FarmError):
            unregister(before, state.id)


def prove_again(database: FarmDatabase, state: ReplicaState) -> None:
    """Check that nothing was pruned before the replica was registered; then the place before may forget it."""
    try:
        prove_same_past(database, state.position)
    except FarmError:
        if state.master != database.url:
            with suppress(FarmError):
                unregister(database, state.id)
        raise

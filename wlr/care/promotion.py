"""A replica becomes the master of its database, in place of one that is lost or must not go on.

The order makes each step safe: the copy notes which history it will begin; the first batch of that history is created,
which fences the former master off; the copy takes it; in one transaction it ceases to be a replica and is a master; a
snapshot follows. Until that transaction the copy is a replica, after it a master.
"""

from __future__ import annotations

import secrets
import shlex
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, InvalidError, UnsupportedError
from wlc.farm.health import read_health
from wlc.farm.human_form import ForPeople
from wlc.farm.model import Ddl, Origin
from wlc.farm.newest_batches import read_newest
from wlc.farm.paths import ATTACHMENT
from wlc.farm.registry import unregister
from wlc.farm.seal.checksum import checksum
from wlc.masters.promotion import Junction, begin, check_copy, complete, follow, present_master, take_place
from wlr.engine.adapters import target_at
from wlr.engine.contract import DatabaseFile, Lake
from wlr.replay import log_reader
from wlr.replay.derivation.publishing import SOURCE
from wlr.replay.farm_log import FarmLog
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Stop
from wlr.replay.registration import with_keys
from wlr.replay.run import Replay

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Batch, Position
    from wlr.engine.contract import Target
    from wlr.engine.replica_state import ReplicaState


@dataclass(frozen=True, slots=True)
class Promoted(ForPeople):
    """What a promotion did, or would do.

    Attributes:
        database: URL of the database's folder in the farm.
        tick: The last transaction that the copy held as a replica.
        lost: Transactions of the log behind it, which count no more.
        former: The last known publisher, as `FILE on HOST`; None if none has given a sign.
        history: The history that the new master writes; None where nothing was done.
    """

    database: str
    tick: int
    lost: int
    former: str | None
    history: str | None = None
    is_dry_run: bool = False


def promote(
    copy: str | os.PathLike[str],
    *,
    lose: int = 0,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Promoted:
    """Make a replica the master of its database; the former master can publish no more.

    Readers that hold what the copy holds, or less, go on with what it writes. Dying in between is harmless: the same
    call goes on.

    Args:
        copy: A DuckDB replica of the whole database.
        lose: So many transactions of the log behind the copy count no more; readers that hold one are refused.
        dry_run: Only say what would be done.
        storage_options: Options of the farm's file system.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        InvalidError: There is no such replica, it cannot become the master, or the log holds another number of
            transactions behind it than `lose`. Nothing was changed.
        UnsupportedError: The copy has something that no master can have. Nothing was changed.
        UnavailableError: The copy is in use, the farm is out of reach, or another master came first: try again.

    Examples:
        >>> wlr.promote("copy.duckdb", dry_run=True).lost
        0
    """
    target = target_at(copy, storage_options)
    _refuse_kind(target)
    path = target.place.path
    if (database := present_master(path, storage_options)) is not None:
        done = Promoted(database.url, database.config().tick, 0, _former(database), is_dry_run=dry_run)
        warnings.warn(f"{path} is the master of {database.name} already", stacklevel=2)
        is_new = not dry_run and database.config().parent is not None
        return _done(done, database) if is_new and complete(path, database, progress) is not None else done
    state = target.read_state()
    _refuse_partial(state, path)
    database = with_keys(state.verify, open_database(state.master, storage_options=storage_options))
    _refuse_place(state, path, database)
    newest, again = read_newest(database), _again(path, lose)
    if newest is None or newest[0].history != _history(state, newest[0].previous):
        done = _checked(target, state, database, lose)
        if dry_run:
            return replace(done, is_dry_run=True)
        state = _announced(target, state)
        take_place(database, _junction(state, database, newest).first_batch(), again)
    else:
        done = Promoted(database.url, state.position.tick, 0, _former(database))
    return _taken(target, state, database, done, progress)


def _taken(
    target: Target, state: ReplicaState, database: FarmDatabase, done: Promoted, progress: Progress | None
) -> Promoted:
    """Roll a copy to the first batch of its history, and make it a master."""
    path, found = target.place.path, read_newest(database)
    assert found is not None
    batch, chain = found
    follow(database, batch)
    Replay(target, database, Stop(), progress=progress).roll_forward()
    unregister(database, state.id)
    begin(path, database, batch, chain)
    complete(path, database, progress)
    return _done(done, database)


def _done(done: Promoted, database: FarmDatabase) -> Promoted:
    return replace(done, history=database.config().history)


def _announced(target: Target, state: ReplicaState) -> ReplicaState:
    """Let a copy remember what it names its history by, so that it knows the first batch as its own if it dies."""
    file = DatabaseFile.required(target, "wlr promote")
    file.set_swaps(False)
    with target.open() as replica:
        noted = replace(replica.state, promotion=state.promotion or secrets.token_hex(8), swaps=False)
        if replica.state.position != state.position:
            raise InvalidError(f"{target} was moved meanwhile", hint="run it again", path=str(target))
        replica.remember(noted)
        return noted


def _history(state: ReplicaState, previous: str) -> str | None:
    """Return the id of the history that a copy begins behind a batch, given its chain hash; None before it is noted."""
    return checksum(f"{state.promotion} {previous}".encode())[:16] if state.promotion else None


def _junction(state: ReplicaState, database: FarmDatabase, newest: tuple[Batch, str] | None) -> Junction:
    position = state.position
    parent = Origin(position.history or database.config().history, position.tick)
    history = _history(state, newest[1] if newest else "")
    assert history is not None
    return Junction(history, parent, _vector(database, position), newest, database.config())


def _vector(database: FarmDatabase, position: Position) -> Mapping[str, int]:
    """Return per history the last tick that a replica of the whole database contains."""
    vector: Mapping[str, int] = {}
    if position.batch:
        vector = database.read_batch(position.batch)[0].vector
    if position.tick in database.snapshot_ticks():
        vector = database.read_manifest(position.tick).vector
    return {**vector, position.history: position.tick} if position.tick else vector


# What is refused -----------------------------------------------------------------------------------------------------


def _refuse_kind(target: Target) -> None:
    if DatabaseFile.of(target) is not None:
        return
    into = shlex.quote(str(target))
    if Lake.of(target) is not None:
        raise UnsupportedError(
            f"{target} is {target.noun}, which no program can write with capture",
            hint="make a DuckDB replica and promote it: wlr replicate DB --into FILE.duckdb",
            path=str(target),
        )
    raise UnsupportedError(
        f"{target} is {target.noun}, which wlr promote does not make a master: the former server's programs cannot be"
        " fenced off",
        hint=f"stop the programs of the former server; psql {into} -c 'DROP SCHEMA wlr CASCADE'; wlc master {into}"
        " --name NEW",
        path=str(target),
    )


def _refuse_partial(state: ReplicaState, path: Path) -> None:
    """Refuse a replica that is not an exact copy of the whole database."""
    anew = f"make a whole copy and promote it: wlr replicate {shlex.quote(state.master)} --into NEW.duckdb"
    problems = {
        "holds chosen rows, columns or values": bool(state.filters),
        "holds chosen tables": bool(state.tables),
        f"lacks {', '.join(state.left_out)}": bool(state.left_out),
        "has skipped transactions": bool(state.accepted),
        "was unlocked, so that its owner can have written to it": state.is_unlocked,
        "has no lock, so that its owner can have written to it": bool(state.not_locked),
    }
    if state.failure is not None:
        problems[f"cannot apply transaction {state.failure.tick}"] = True
    for problem, is_so in problems.items():
        if is_so:
            raise InvalidError(f"{path} {problem}: it is no copy of the whole database", hint=anew, path=str(path))


def _refuse_place(state: ReplicaState, path: Path, database: FarmDatabase) -> None:
    """Refuse a copy whose database has no master of its own, or where its batches would not be taken."""
    shown, url = shlex.quote(str(path)), shlex.quote(database.url)
    if database.store.exists(ATTACHMENT):
        raise InvalidError(
            f"{path} reads the relay {database.url}, and a master publishes into the farm itself",
            hint=f"wlr replica switch {shown} URL-OF-THE-FARM/{database.name}; then: wlr promote {shown}",
            path=database.url,
        )
    if state.attachment is not None:
        raise InvalidError(
            f"{path} chooses the place that it reads, and a master publishes into the farm itself",
            hint=f"wlr replicate --into {shown} --upstream none; then: wlr promote {shown}",
            path=str(path),
        )
    if FarmLog(database).histories:
        raise InvalidError(
            f"{database.name} has several masters, the sites of {database.url}; one of them leads",
            hint=f"wlc site list {url}; then: wlc site role {url} SITE primary --lost PRIMARY",
            path=database.url,
        )
    newest = read_newest(database)
    if newest is not None and any(taken.site == SOURCE for taken in newest[0].taken):
        raise InvalidError(
            f"{database.name} is derived from another database, whose changes it follows",
            hint=f"wlc farm derive DB --as {database.name} goes on with it",
            path=database.url,
        )
    if newest is not None and newest[0].lsn is not None:
        raise UnsupportedError(
            f"the master of {database.name} is a PostgreSQL database, and a DuckDB file is no copy of all that it has",
            hint=f"wlc master {shown} --name NEW is a master of its own, once it is no replica",
            path=database.url,
        )
    database.keys.check()
    if state.verify and not database.keys.signs:
        raise InvalidError(
            f"{path} demands signatures, and there is no key to sign what it publishes",
            hint=f"wlr promote {shown} --storage-option signing_key_file=FILE",
            path=str(path),
        )


def _checked(target: Target, state: ReplicaState, database: FarmDatabase, lose: int) -> Promoted:
    """Refuse a copy that is behind, or has objects of its owner's; return what the promotion would do."""
    path = target.place.path
    shown = shlex.quote(str(path))
    try:
        left = Replay(target, database, Stop()).rehearse(state)
    except FarmError as error:
        error.hint = (error.hint or "").replace(bounds.REBASE, f"wlr replicate --into {shown} --rebase")
        raise
    if lose != left.transactions:
        more = f"{left.transactions} transaction{'' if left.transactions == 1 else 's'}"
        forward = f"wlr replicate --into {shown} takes them; to lose them: "
        raise InvalidError(
            f"{path} is at tick {state.position.tick}; {database.name} goes on to tick {left.tick}, with {more} more",
            hint=f"{forward if left.transactions else ''}{_again(path, left.transactions).removesuffix(' --yes')}",
            path=str(path),
        )
    file = DatabaseFile.required(target, "wlr promote")
    if own := file.owned(_statements(database, state.position)):
        raise InvalidError(
            f"{path} has objects of its owner, which no reader of {database.name} has: {', '.join(own[:5])}",
            hint="move them to another file; the new master can create them again",
            path=str(path),
        )
    check_copy(path)
    return Promoted(database.url, state.position.tick, left.transactions, _former(database))


def _statements(database: FarmDatabase, position: Position) -> Iterator[Ddl]:
    """Yield the schema statements that lead to a position."""
    stop = Stop(position.tick)
    manifest = log_reader.choose_snapshot(database, stop)
    if manifest is not None:
        yield from (*manifest.schema, *manifest.schema_after)
    for step in log_reader.steps_after(database, manifest, stop):
        yield from (record for each in step.transactions for record in each.records if isinstance(record, Ddl))


def _former(database: FarmDatabase) -> str | None:
    """Return the last known publisher."""
    sign = read_health(database).publisher
    return f"{sign.source} on {sign.host}" if sign else None


def _again(path: Path, lose: int) -> str:
    return f"wlr promote {shlex.quote(str(path))}{f' --lose {lose}' if lose else ''} --yes"

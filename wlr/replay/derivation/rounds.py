"""Derive a farm database from another one: data that must not leave never enters its log."""

from __future__ import annotations

import os
import secrets
import shlex
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.clock import utc_now
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.human_form import ForPeople, Progress
from wlc.farm.model import Digest, Origin, Position
from wlc.farm.newest_batches import read_newest
from wlc.farm.read_ahead import Fetcher
from wlc.farm.registry import Replica, register, this_host, this_user
from wlc.farm.retry import CHANGE_ATTEMPTS
from wlc.farm.seal.checksum import checksum
from wlc.farm.store import MissingError, join_url
from wlr.engine.adapters import folder_target
from wlr.engine.contract import NewReplica
from wlr.engine.replica_state import ReplicaState
from wlr.replay import log_reader
from wlr.replay.derivation.contents import StepContent
from wlr.replay.derivation.publishing import DerivedDatabase, as_own_snapshot, taken
from wlr.replay.derivation.settings import Derivation, add_derivation, chosen_tables, find_derivation
from wlr.replay.filters.filtered_steps import filtered
from wlr.replay.filters.images import key_of, masking, other_key, with_key
from wlr.replay.filters.schema import created, known_tables, refuse_all_unfit
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.patterns import listed
from wlr.replay.run import Replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Manifest
    from wlr.replay.derivation.contents import DerivedPart
    from wlr.replay.derivation.publishing import DerivedStanding
    from wlr.replay.derivation.settings import ChosenTables
    from wlr.replay.plan.row_filters import RowFilters
    from wlr.replay.plan.step import Step


_NEW_HISTORY = "--anew begins its new history with the newest snapshot"


@dataclass(frozen=True, slots=True)
class Derived(ForPeople):
    """The result of a round.

    Attributes:
        url: URL of the derived database's folder.
        tick: Its last tick; `clock` is the commit time of that transaction, None before the first.
        transactions: Number published in this round; `rows`: row images in them; `batches`: log files.
        snapshot: Tick of the snapshot that began its history in this round; None if the history existed before, or
            began with nothing.
    """

    url: str
    tick: int
    clock: datetime | None
    transactions: int
    rows: int
    batches: int
    snapshot: int | None


def derive(
    db: str | os.PathLike[str],
    name: str,
    *,
    farm: str | os.PathLike[str] | None = None,
    filters: RowFilters | None = None,
    tables: Sequence[str] | None = None,
    anew: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Derived:
    """Publish chosen data of a farm database as another one with its own log; once, up to the current end.

    The caller must be able to read the source database and to write to both folders. Readers of the derived database
    need neither the source nor its keys. Rounds are idempotent, and concurrent rounds are safe.

    Args:
        db: Name in the farm, URL of the database's folder there, or path of the master.
        name: Name of the derived database in the same farm, or URL of its folder.
        farm: URL of the farm, for a bare name.
        filters: Rows, columns and values that pass, see `wlr.row_filters`; remembered.
        tables: Patterns of tables that pass whole. Unnamed tables are not derived. Remembered.
        anew: Begin a new history from the newest snapshot, with other filters if some are given.
        storage_options: Options of the source's file system, and its keys.
        target_options: Options for the derived database.
        progress: Called with units done, units in all, and what is being done.

    Raises:
        InvalidError: No filter, or another filter, is given, or the folder is another database's. Nothing was changed.
        ReplayError: A transaction changes a table so that its filter does not fit any more.
        ExpiredError: The next batch was pruned: begin a new history.
        FencedError: Another process publishes there.
        UnavailableError: A farm is unreachable. Try again.

    Examples:
        >>> pens = wlr.row_filters(where=["orders: item = 'pen'"])
        >>> wlr.derive("sales", "pens", filters=pens).tick
        3
        >>> wlr.read("pens", "orders").fetchall()
        [(1, 'pen')]
    """
    first = wlc.resolve(db, farm, storage_options=storage_options)
    url = name if "/" in name else join_url(first.url.rstrip("/").rpartition("/")[0], name)
    place = open_database(url, storage_options=target_options)
    _refuse_same_keys(first, place)
    run = _Deriving(first, place, shlex.quote(os.fspath(db)), shlex.quote(name), progress)
    try:
        return run.round(filters, listed(tables, None), anew=anew)
    except FarmError as error:
        if error.hint and any(words in error.hint for words in (bounds.REBASE, "--tick")):
            at = f" --farm {shlex.quote(os.fspath(farm))}" if farm else ""
            command = f"wlc farm derive {run.shown}{at} --as {run.name} --anew"
            error.hint = f"{command} begins its new history with the newest snapshot"
        raise


def _refuse_same_keys(first: FarmDatabase, place: FarmDatabase) -> None:
    """Refuse a derived database whose readers could also read the source."""
    if first.url.rstrip("/") == place.url.rstrip("/"):
        raise InvalidError(f"{place.url} cannot be derived from itself", hint="Give another name with --as.")
    if not (first.keys.encrypts and place.keys.encrypts):
        return
    shared = {key.content for key in first.keys.encryption} & {key.content for key in place.keys.encryption}
    if shared:
        raise InvalidError(
            f"{place.url} would have the encryption key of {first.url}, and its readers could read that database",
            hint="wlc farm key encryption derived.key, then --target-option encryption_key_file=derived.key",
        )


@dataclass(slots=True)
class _Deriving:
    first: FarmDatabase
    place: FarmDatabase
    shown: str
    name: str
    progress: Progress | None
    _snapshot: int | None = None
    _transactions: int = 0
    _rows: int = 0
    _batches: int = 0

    def round(self, filters: RowFilters | None, patterns: tuple[str, ...] | None, *, anew: bool) -> Derived:
        """Bring the derived database up to the end of the source's log."""
        said = self._said(filters, patterns, anew=anew)
        derived = DerivedDatabase(self.place, said)
        if not derived.is_begun():
            self._begin(derived)
        for _ in range(CHANGE_ATTEMPTS):
            standing = derived.standing()
            try:
                standing = self._publish(derived, standing)
            except FencedError:
                # Another process derives it and was faster, unless the history is not ours any more.
                if derived.standing() == standing:
                    raise
                continue
            self._register(said, standing.position, standing.clock)
            return Derived(
                self.place.url,
                standing.tick,
                standing.clock,
                self._transactions,
                self._rows,
                self._batches,
                self._snapshot,
            )
        message = f"another process also derives {self.place.url}, and is always faster"
        raise UnavailableError(message, hint="Try again, or leave it to the other process.")

    # Filters

    def _said(self, filters: RowFilters | None, patterns: tuple[str, ...] | None, *, anew: bool) -> Derivation:
        before, number = find_derivation(self.first, self.place.name) or (None, 0)
        if before is None:
            said = self._new(chosen_tables(with_key(filters, "") if filters else None, patterns or ()))
        elif before.url.rstrip("/") != self.place.url.rstrip("/"):
            message = f"{self.place.name} is derived from {self.first.name} already, into {before.url}"
            raise InvalidError(message, hint=f"--as {shlex.quote(before.url)}; or give another name with --as")
        else:
            choice = self._asked(before.choice, filters, patterns, may_differ=anew)
            said = self._renewed(before, choice) if anew else replace(before, choice=choice)
        return said if said == before else add_derivation(self.first, self.place.name, number + 1, said)

    def _asked(
        self, known: ChosenTables, filters: RowFilters | None, patterns: tuple[str, ...] | None, *, may_differ: bool
    ) -> ChosenTables:
        """Return the record with the filters of this round."""
        if filters is None and patterns is None:
            return known
        if filters is not None and not filters and patterns is None:
            # A key alone is a new path of the same key.
            filters, patterns = replace(known, key_file=filters.key_file), known.patterns
        choice = chosen_tables(with_key(filters, known.key_file) if filters else None, patterns or ())
        if choice.key_mark and known.key_mark not in ("", choice.key_mark) and not may_differ:
            raise other_key(choice.key_file)
        if not may_differ and (not choice.is_same(known) or set(choice.patterns) != set(known.patterns)):
            held = "; ".join([*known.patterns, *map(str, known.tables)])
            raise InvalidError(
                f"{self.place.url} was derived with {held}",
                hint=f"Derive another database with --as; or {_NEW_HISTORY}.",
            )
        return choice if may_differ else replace(known, key_file=choice.key_file or known.key_file)

    def _new(self, choice: ChosenTables) -> Derivation:
        if not choice:
            example = f"wlc farm derive {self.shown} --as {self.name} --where \"orders: region = 'EU'\""
            raise InvalidError(
                "no table is named, so nothing would be derived",
                hint=f"Name tables with --where, --columns, --mask or --tables: {example}",
            )
        if _is_there(self.place):
            raise taken(self.place)
        self.place.keys.check()
        manifest = log_reader.choose_snapshot(self.first, Stop())
        choice = self._checked(choice, manifest)
        self.place.store.probe()
        start = manifest.position if manifest else Position("", 0)
        return Derivation(self.place.url, secrets.token_hex(8), start, secrets.token_hex(32), None, (0, ""), choice)

    def _renewed(self, before: Derivation, choice: ChosenTables) -> Derivation:
        """Return the record of a new history, which begins with the newest snapshot of the source."""
        manifest, newest = log_reader.choose_snapshot(self.first, Stop()), read_newest(self.place)
        choice = self._checked(choice, manifest)
        if choice == before.choice and self._can_go_on(before, newest[0] if newest else None):
            return before
        number, chain, last = (newest[0].number, newest[1], newest[0].last) if newest else (0, "", before.start.tick)
        if manifest is None or manifest.position.tick <= max(last, 1):
            raise InvalidError(
                f"{self.place.url} is at tick {last}, and {self.first.name} has no later snapshot",
                hint=f"wlc snapshot {shlex.quote(self.first.url)} --from-log, once there are later transactions; or"
                " give another name with --as",
            )
        former = newest[0].history if newest else before.parent.history if before.parent else before.history
        # Readers of the former history must miss a tick: else, readers at its end would continue without the snapshot.
        parent = Origin(former, min(last, manifest.position.tick - 2))
        history, mark = secrets.token_hex(8), secrets.token_hex(32)
        return Derivation(self.place.url, history, manifest.position, mark, parent, (number, chain), choice)

    def _can_go_on(self, said: Derivation, newest: Batch | None) -> bool:
        """Return whether a history whose start was interrupted can still begin at its recorded place."""
        if DerivedDatabase(self.place, said).is_begun():
            return False
        return newest is None or newest.history == said.history or newest.number == said.behind[0]

    def _checked(self, choice: ChosenTables, manifest: Manifest | None) -> ChosenTables:
        """Return the filters with full names of tables, each checked against the first columns of its table."""
        replay = self._replay()
        replay.begins_with(manifest)
        start = ReplicaState("", "", "", position=manifest.position if manifest else Position("", 0))
        layouts, names = known_tables(manifest, replay.steps(start), choice.is_served)
        choice = choice.served(names)
        refuse_all_unfit(choice, layouts)
        return choice

    # Rounds

    def _replay(self) -> Replay:
        """Return the replication that plans the reading of the source's log, and restores tables of it."""
        return Replay(folder_target(Path(self.place.name)), self.first, Stop())

    def _begin(self, derived: DerivedDatabase) -> None:
        said = derived.said
        beat_s = self.first.config().beat_s
        self._register(said, said.start, None)
        if not said.start.history:
            derived.begin(beat_s, None, {})
            return
        manifest = self.first.read_manifest(said.start.tick)
        passing = tuple(table for table in manifest.tables if said.choice.of(table.table))
        statements = tuple(created(table.table, table.layout) for table in passing)
        new = NewReplica(
            ReplicaState("", "", "", filters=said.choice),
            replace(manifest, tables=passing, schema=statements, schema_after=(), sequences=(), digests={}),
            lambda file: self.first.fetch_snapshot(manifest, file),
            self.first.release,
        )
        with tempfile.TemporaryDirectory(prefix="wlr-derive-") as work, filtered(new, Path(work)) as chosen:
            assert chosen.manifest is not None
            digests = {name: held for name, held in chosen.state.digests.items() if isinstance(held, Digest)}
            whole = replace(chosen.manifest, digests=digests)
            local = {file.path: chosen.fetch(file) for table in whole.tables for file in table.files}
            derived.begin(beat_s, *as_own_snapshot(self.place, said, whole, local))
        self._snapshot = said.start.tick

    def _publish(self, derived: DerivedDatabase, standing: DerivedStanding) -> DerivedStanding:
        """Publish the source's log after a position."""
        replay, choice = self._replay(), derived.said.choice
        steps = replay.steps(ReplicaState("", self.first.url, "", position=standing.position, clock=standing.clock))
        step = next(steps, None)
        if step is None:
            return standing
        key, end, start = key_of(choice), log_reader.last_tick(self.first, self.first.batch_numbers()), standing.tick
        with closing(Fetcher(self.first)) as fetcher:
            while step is not None:
                following, problem = _next(steps)
                with tempfile.TemporaryDirectory(prefix="wlr-derive-") as folder:
                    work = Path(folder)
                    with masking(key, work) as connection:
                        known = dict(standing.digests)
                        number = standing.batch + 1
                        content = StepContent(self.place.name, number, choice, known, connection, work, fetcher.fetch)
                        part = content.of(step, partial(replay.restored, folder=work))
                    after = derived.publish(standing, step, part, is_last=following is None)
                if after.batch > standing.batch:
                    self._count(part)
                standing = after
                fetcher.release(set(step.files))
                if self.progress:
                    self.progress(min(step.last, end) - start, max(end - start, 1), f"at tick {step.last}")
                if problem is not None:
                    raise problem
                step = following
        return standing

    def _count(self, part: DerivedPart) -> None:
        self._batches += 1
        self._rows += sum(file.file.rows for file in part.files)
        self._transactions += len(part.transactions)

    def _register(self, said: Derivation, position: Position, clock: datetime | None) -> None:
        """Register at the source, so that pruning keeps the files that are still to be read."""
        here = this_host(), this_user()
        identity = checksum(self.place.url.encode())[:16]
        held = position if position.history else None
        registration = Replica(identity, self.place.url, held, clock, utc_now(), *here, tables=said.choice.patterns)
        register(self.first, registration)


def _next(steps: Iterator[Step]) -> tuple[Step | None, FarmError | None]:
    """Return the next step, None after the last, or its error: the steps before it are published first."""
    try:
        return next(steps, None), None
    except FarmError as error:
        return None, error


def _is_there(place: FarmDatabase) -> bool:
    """Return whether there is a database in a folder."""
    try:
        place.config()
    except MissingError:
        return False
    return True

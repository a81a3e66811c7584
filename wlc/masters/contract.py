"""The contract of a source: what a database of any engine must do to be a master.

`wlc.masters.adapters` says which module implements it for which path or URL. A verb that means nothing to an engine
gets a plain answer.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FencedError, InvalidError, UnsupportedError
from wlc.farm.store.options import lay_over

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from pathlib import Path

    from wlc.farm.human_form import Progress
    from wlc.farm.model import Batch, Digest, Manifest, Name, Position, TableFile, Taken, Transaction
    from wlc.masters.compensation import Compensated, WantedChange
    from wlc.masters.master_state import MasterState, Wish
    from wlc.multi_master.circle import Circle
    from wlc.multi_master.circle_place import SiteState
    from wlc.multi_master.site_step import (
        ConflictCounter,
        RejectedRow,
        RejectionMark,
        Rejections,
        SiteStep,
        Succession,
        TakenCount,
    )


@dataclass(frozen=True, slots=True)
class BatchContent:
    """What a source writes into a batch.

    Attributes:
        catalog: Name of the database inside its engine.
        transactions: In commit order, at least one.
        files: The data files, in the order of their numbers.
        local: For the path of each data file the local file.
        digests: What the changed tables hold afterwards, as far as it is known.
        undigested: The changed tables of which it is not.
        lsn: Where the source stands in its own log after the batch; None if it has no such log.
        taken: How far the logs of other sites are taken with its transactions, in their order.
    """

    catalog: str
    transactions: Sequence[Transaction]
    files: tuple[TableFile, ...]
    local: Mapping[str, Path]
    digests: Mapping[Name, Digest]
    undigested: frozenset[Name]
    lsn: str | None = None
    taken: tuple[Taken, ...] = ()


class Gathered(Protocol):
    """Transactions that a source has gathered for one batch, as of one moment."""

    def write(self) -> BatchContent:
        """Write the data files into a temporary folder, which lasts as long as the gathering."""

    def matches(self, batch: Batch) -> bool:
        """Say whether a published batch consists of exactly these transactions."""

    def note(self, batch: Batch, chain: str) -> None:
        """Note that the transactions are published, in one transaction with the new state, and forget them."""


@dataclass(frozen=True, slots=True)
class SourceDetails:
    """What only the source itself knows of its state.

    Attributes:
        unpublished: Transactions that wait in the journal; None where that is not known without reading them.
        bypassed: Tables changed without capture, and how that shows; None if this is not a master now.
        slot: "reserved" while all is well; "unreserved", "lost" or "gone" otherwise; None without a slot.
        retained_bytes: Size of the server's log that is kept until it is published; None without a slot.
        lsn: Up to where the server's log is published; None without such a log.
        warning: What the DBA must do soon; None if nothing.
    """

    unpublished: int | None = None
    bypassed: Mapping[str, str] | None = None
    slot: str | None = None
    retained_bytes: int | None = None
    lsn: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a source remembers of itself.

    Attributes:
        away: Why it is not the master that it remembers to be, as `Source.elsewhere` says; None if it is.
    """

    state: MasterState
    away: FencedError | None


@dataclass(frozen=True, slots=True)
class PublishingPlace:
    """The URL of the folder in which a source publishes, and options of its file system that are no secrets."""

    url: str
    options: Mapping[str, Any]


class StuckError(UnsupportedError):
    """What waits cannot be published, now or later: the history ends with what is published."""


class DivergedError(FencedError):
    """A restored database has committed something else than what it had published."""


class SiteSource(ABC):
    """What a database does as one of several sites; `wlc.multi_master.site_life` has the half that engines share."""

    # It was compared with its own log, in case it was restored; see `wlc.multi_master.restored`.
    has_settled_past: bool

    # What the life of every master asks of a site

    @abstractmethod
    def claim(self, wish: Wish, site: str | None, *, is_mesh: bool) -> FarmDatabase:
        """Make the database a master as the first of several sites, or as the site that it was, or a master a site.

        Raises:
            InvalidError: The site's name is invalid, or the database cannot be that site any more.
        """

    @abstractmethod
    def refuse_end(self, database: FarmDatabase) -> None:
        """Refuse to end the log of a primary that other sites read."""

    @abstractmethod
    def settle_past(self, database: FarmDatabase) -> None:
        """Bring the site back into step with its own log; see `wlc.multi_master.restored`."""

    @abstractmethod
    def settle_end(self, database: FarmDatabase) -> None:
        """Begin a history behind a handover that is elsewhere in the log, whose folder was rolled back meanwhile."""

    @abstractmethod
    def follow_circle(self, database: FarmDatabase) -> MasterState:
        """Remember the circle as it is now, and return the new state."""

    @abstractmethod
    def follow_handover(self, database: FarmDatabase, batch: Batch, chain: str) -> None:
        """Go on as a secondary after a handover; see `wlc.multi_master.restored`."""

    # What only its engine can do

    @abstractmethod
    def held(self) -> Position | None:
        """Return where the replica stands that this database is, None if it is no replica.

        Raises:
            InvalidError: The replica is not an exact copy of the whole database.
        """

    @abstractmethod
    def refuse_rules(self, site: SiteState) -> None:
        """Refuse to publish a table with a constraint that a rule does not keep, which was given to it meanwhile.

        Args:
            site: With the circle as it is in the farm; the source does not remember it yet.

        Raises:
            UnsupportedError: There is one. The error names the table, the rule and what to do.
            InvalidError: A table lacks a column that its rule compares or adds.
        """

    @abstractmethod
    def take(self, steps: Iterable[SiteStep], fetch: Callable[[TableFile], Path]) -> TakenCount:
        """Take steps of another site's log: rows, journal and what it contains then, each in one transaction.

        Args:
            steps: What to take; each is taken before the next one is asked for.
            fetch: Returns a local file with the content of a data file.

        Returns:
            How much was taken.

        Raises:
            UnsupportedError: The database has not the tables for it.
            ReplayError: The rows break a constraint here.
            CorruptError: A data file does not hold what the log says.
        """

    @abstractmethod
    def rehearsal(self) -> AbstractContextManager[Source]:
        """Provide a copy, in which steps can be taken; it is never published, and deleted afterwards."""

    @abstractmethod
    def inherit(self, log: FarmDatabase, last: int, circle: Circle) -> Mapping[str, int]:
        """Keep what the log of a mesh's site says of rows, and return the vector from which on that log says it.

        The own log begins behind that. Without this, a change that another site made before it knew of a deletion would
        bring the row back here, and nowhere else. It is kept once, when the site joins, and goes when the beginning of
        the own log is pruned: then nobody can be judged any more who lacks a part of it.

        Args:
            log: That site's folder.
            last: The batch with which this database has begun, and the last one to keep.
            circle: Says which columns of which tables are added.
        """

    @abstractmethod
    def disinherit(self) -> None:
        """Delete what `inherit` has kept; doing it twice is harmless."""

    @abstractmethod
    def note_contained(self, site: str, tick: int) -> None:
        """Note that another site contains all ticks of this one up to this one, for `conflict_counters`."""

    @abstractmethod
    def take_back(self, batch: Batch, chain: str, fetch: Callable[[TableFile], Path]) -> int:
        """Take the next batch of its own log back after it was restored from a backup, or died before it noted it.

        Args:
            batch: The one after the last that it remembers to have published.
            chain: Its hash.
            fetch: Returns a local file with the content of a data file.

        Returns:
            How many transactions it did not hold.

        Raises:
            DivergedError: What it has committed since is something else; nothing was changed.
        """

    @abstractmethod
    def pass_sequences(self, given: Mapping[Name, int]) -> None:
        """Let sequences go on behind the last values that they gave out before the database was restored.

        Those that have got further since, are not there or cycle stay where they are.
        """

    @abstractmethod
    def renew(self, state: MasterState) -> None:
        """Begin a new history: what waits to be published follows the tick of the new state."""

    @abstractmethod
    def what_only_a_primary_writes(self) -> str | None:
        """Say what of that which waits to be published only a primary may publish; None if there is nothing."""

    @abstractmethod
    def step_down(self, state: MasterState) -> None:
        """Begin the history of a secondary behind a handover, with own transactions that wait to be published.

        What was taken and not published is undone. The new state says what is contained if there is nothing of that.

        Raises:
            FencedError: What waits cannot be published by a secondary.
        """

    @abstractmethod
    def take_over(self, succession: Succession, fetch: Callable[[TableFile], Path]) -> None:
        """Judge the own transactions that the former primary has not judged, and lead the present term.

        Args:
            succession: What to judge by what.
            fetch: Returns a local file with the content of a data file of the own log.
        """

    @abstractmethod
    def rejected_rows(self, since: datetime | None = None) -> list[RejectedRow]:
        """Return what was rejected of other sites' changes, oldest first; nothing where there are no other sites."""

    @abstractmethod
    def resubmit(self, source: str, tick: int, count: int | None) -> int:
        """Write rejected rows again as a new transaction.

        Args:
            source: Site whose log had them.
            tick: Their transaction there.
            count: One row of it; all if None.

        Returns:
            How many rows were written.

        Raises:
            InvalidError: Nothing such was rejected, it was written again before, or the rows that are there now are
                not those that were there then.
        """

    @abstractmethod
    def conflict_counters(self) -> list[ConflictCounter]:
        """Return the counters of what was rejected, ordered by site, rule and name."""

    @abstractmethod
    def rejection_mark(self) -> RejectionMark:
        """Return how much has been rejected until now."""

    @abstractmethod
    def rejected_since(self, mark: RejectionMark) -> Rejections:
        """Return what was rejected after a mark."""


class Source(ABC):
    """An open database that is a master, was one, or becomes one. `str` shows it without a password.

    Attributes:
        beat_s: The beat that it follows, seconds; publishing keeps it as `wlc.config` says.
    """

    beat_s: float

    # What it is

    @property
    @abstractmethod
    def state(self) -> MasterState | None:
        """What it remembers of itself; None if it has never been a master."""

    def require_state(self) -> MasterState:
        """Return what it remembers.

        Raises:
            InvalidError: It has never been a master.
        """
        return require_state(self.state, str(self))

    @property
    def site(self) -> SiteSource | None:
        """What it can do as one of several sites; None if databases of its engine cannot be sites."""
        return None

    def require_site(self) -> SiteSource:
        """Return what it can do as one of several sites.

        Raises:
            UnsupportedError: Databases of its engine cannot be sites.
        """
        if (site := self.site) is None:
            raise cannot_be_site(str(self))
        return site

    @property
    def present_site(self) -> SiteSource | None:
        """What it does as the site that it remembers to be; None for the only master of its database."""
        return self.require_site() if self.require_state().site is not None else None

    @property
    @abstractmethod
    def default_name(self) -> str:
        """Name in the farm unless another is given."""

    @property
    @abstractmethod
    def default_folder(self) -> Path:
        """Folder in which the farm `dbfarm` lies unless another is given."""

    @abstractmethod
    def elsewhere(self) -> FencedError | None:
        """Return the error for a copy of a master, None for a master in its own place, and for no master."""

    @abstractmethod
    def settle_here(self) -> bool:
        """Note that its place is here now; returns False where its history cannot go on here."""

    @abstractmethod
    def keep_options(self, options: Mapping[str, Any]) -> None:
        """Let options of the farm's file system hold for all users of the source in this process."""

    # Becoming a master

    @abstractmethod
    def check(self, *, is_replica: bool = False) -> None:
        """Refuse what cannot be captured, before anything is changed; and a replica, unless it is to be a master."""

    @abstractmethod
    def install(self, state: MasterState) -> None:
        """Create what the capture needs, in place of what a history or a replica left, and remember `state`."""

    @abstractmethod
    def has_objects(self) -> bool:
        """Say whether a replica could not start from nothing."""

    @abstractmethod
    def remember(self, state: MasterState) -> None:
        """Replace what it remembers, all or nothing."""

    # Publishing

    @abstractmethod
    def working(self) -> AbstractContextManager[None]:
        """Translate errors of the engine and of the machine into the farm's while a master works."""

    @abstractmethod
    def publishing(self) -> AbstractContextManager[None]:
        """Keep all other publishers of the database waiting.

        Raises:
            UnavailableError: Another one has been publishing for too long. Try again.
        """

    @abstractmethod
    def refuse_gap(self) -> None:
        """Refuse to publish where changes are lost.

        Raises:
            GapError: They are, so that the history ends.
            FencedError: This is a copy of the master.
        """

    @abstractmethod
    def last_place(self) -> str:
        """Return the place in the source's own log up to which it has committed; "" without such a log."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Say whether it is certain, without reading much, that nothing waits to be published."""

    @abstractmethod
    def gather(self, upto: str, *, is_each: bool) -> AbstractContextManager[Gathered | None]:
        """Gather transactions for the next batch; None if nothing waits.

        Args:
            upto: What `last_place` gave.
            is_each: Gather one transaction only.
        """

    @abstractmethod
    def gather_again(self, batch: Batch) -> AbstractContextManager[Gathered | None]:
        """Gather as many transactions as a batch has that is published and not noted; None if nothing waits."""

    # What a master does now and then

    @abstractmethod
    def take_snapshot(self, database: FarmDatabase, *, is_first: bool, progress: Progress | None = None) -> Manifest:
        """Publish a snapshot at the tick that it remembers; a later one publishes everything before.

        Args:
            database: Where to publish.
            is_first: It begins a history.
            progress: Called with tables copied, tables in all, and what is being done.

        Raises:
            UnsupportedError: Something bypassed the capture, so that no tick describes the database.
        """

    def compensate(
        self,
        changes: Sequence[WantedChange],  # noqa: ARG002
        *,
        force: bool,  # noqa: ARG002
        dry_run: bool,  # noqa: ARG002
    ) -> Compensated:
        """Make net changes as one new transaction; see `wlc.masters.operations.compensate`."""
        raise UnsupportedError(
            f"transactions of {self} cannot be undone by dbfarm: only DuckDB masters can",
            hint="wlr diff DB --tick A:B shows the rows; write them in the database itself",
        )

    @abstractmethod
    def warn_bypassed(self) -> None:
        """Warn of tables that were changed without capture."""

    @abstractmethod
    def details(self) -> SourceDetails:
        """Return what only the source itself knows of its state."""

    @abstractmethod
    def verify(self, database: FarmDatabase) -> tuple[Mapping[Name, Digest], Mapping[Name, Digest]]:
        """Read every row. Return what the tables hold, and what they must hold according to the capture."""

    @abstractmethod
    def journal_difference(self, published: Path | None) -> None:
        """Journal what turns the published state into the present one.

        Args:
            published: DuckDB file with the published state; None if the log cannot be applied. Then tables that differ
                from the log are journalled with all their rows.
        """

    @abstractmethod
    def without_commits(self) -> AbstractContextManager[None]:
        """Keep others from committing, where the engine can; the caller is `publishing`."""

    @abstractmethod
    def uninstall(self) -> None:
        """Remove what must not stay in a database that is no longer a master."""


def require_state(state: MasterState | None, shown: str) -> MasterState:
    """Return what a source remembers.

    Raises:
        InvalidError: It has never been a master.
    """
    if state is None:
        raise InvalidError(f"{shown} is not a master", hint=f"wlc master {shlex.quote(shown)}", path=shown)
    return state


def cannot_be_site(shown: str) -> UnsupportedError:
    """Build the error for a database of an engine whose databases cannot be sites."""
    return UnsupportedError(
        f"{shown} cannot be one of several sites: only DuckDB files can, PostgreSQL sites do not exist yet",
        hint="wlc join FILE.duckdb --name DB --site NAME; a server can hold a replica: wlr replicate DB --into URL",
    )


def database_of(
    state: MasterState, storage_options: Mapping[str, Any] | None = None, farm: str | os.PathLike[str] | None = None
) -> FarmDatabase:
    """Open a master's place in the farm; options given now prevail over those that it remembers."""
    return open_database(state.name, farm or state.farm, lay_over(state.options, storage_options or {}))

"""The contract of a source: the operations of a master, for any engine.

`wlc.masters.adapters` maps paths and URLs to the modules that implement it. An operation without meaning for an engine
returns a neutral value.
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
    """The content of a source's batch.

    Attributes:
        catalog: Name of the database inside its engine.
        transactions: In commit order, at least one.
        files: The data files, in the order of their numbers.
        local: Local file by path of data file.
        digests: Digests of changed tables afterwards, if known.
        undigested: Changed tables with an unknown digest.
        lsn: The source's position in its own log after the batch; None without such a log.
        taken: Positions in the logs of other sites that its transactions have taken, in order.
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
    """Transactions that a source has gathered for one batch, at one moment."""

    def write(self) -> BatchContent:
        """Write the data files into a temporary folder with the lifetime of this object."""

    def matches(self, batch: Batch) -> bool:
        """Say whether a published batch consists of exactly these transactions."""

    def note(self, batch: Batch, chain: str) -> None:
        """Store the new state and remove the published transactions, in one transaction."""


@dataclass(frozen=True, slots=True)
class SourceDetails:
    """The part of a source's state that only the source itself knows.

    Attributes:
        unpublished: Pending transactions in the journal; None if counting would require reading them.
        bypassed: Tables changed without capture, with the evidence; None if this is not a master now.
        slot: "reserved" if healthy; "unreserved", "lost" or "gone" otherwise; None without a slot.
        retained_bytes: Size of the server's log that is retained until it is published; None without a slot.
        lsn: Published position in the server's log; None without such a log.
        warning: Urgent action for the DBA; None if nothing.
    """

    unpublished: int | None = None
    bypassed: Mapping[str, str] | None = None
    slot: str | None = None
    retained_bytes: int | None = None
    lsn: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """The stored state of a source.

    Attributes:
        away: The reason why it is not the master of this state, from `Source.elsewhere`; None if it is.
    """

    state: MasterState
    away: FencedError | None


def bypassing(source: object, found: Mapping[str, str], capture: str = "wlc.connect()") -> UnsupportedError:
    """Return the error for what was written to a source without capture, and how to repair it.

    Args:
        source: As users type it.
        found: The evidence by table, see `Source.bypassed`.
        capture: What did not see the writes.
    """
    listed = "; ".join(f"{name} {problem}" for name, problem in found.items())
    return UnsupportedError(
        f"{source} was written to without {capture}: {listed}", hint=f"wlc farm repair {shlex.quote(str(source))}"
    )


class Interception(Protocol):
    """Captures connections to some masters that other programs open."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that captures."""

    def settled_tick(self, source: str) -> int | None:
        """Return the last tick of a master that nothing has written since its last session, which published everything.

        None if that is unknown without opening it.
        """

    def check(self, interpreter: str) -> None:
        """Refuse a Python, by its path, that cannot capture.

        Raises:
            InvalidError: It cannot; the hint says what to install.
        """

    def here(self) -> AbstractContextManager[None]:
        """Capture in this process, and in Python processes that it starts meanwhile."""


@dataclass(frozen=True, slots=True)
class PublishingPlace:
    """The URL of the folder in which a source publishes, and its file system's options without secrets."""

    url: str
    options: Mapping[str, Any]


class StuckError(UnsupportedError):
    """The pending transactions can never be published: the history ends with the published ones."""


class DivergedError(FencedError):
    """A restored database has committed transactions that differ from the published ones."""


class SiteSource(ABC):
    """The operations of a site, one of several masters; `wlc.multi_master.site_life` has the part common to engines."""

    # The site was compared with its own log, in case it was restored; see `wlc.multi_master.restored`.
    has_settled_past: bool

    # Hooks of a master's life cycle

    @abstractmethod
    def claim(self, wish: Wish, site: str | None, *, is_mesh: bool) -> FarmDatabase:
        """Make the database a master as the first of several sites or as its former site, or make a master a site.

        Raises:
            InvalidError: The site's name is invalid, or the database can no longer be that site.
        """

    @abstractmethod
    def refuse_end(self, database: FarmDatabase) -> None:
        """Refuse to end the log of a primary that other sites read."""

    @abstractmethod
    def reconcile_log(self, database: FarmDatabase) -> None:
        """Reconcile the site with its own log; see `wlc.multi_master.restored`."""

    @abstractmethod
    def reconcile_end(self, database: FarmDatabase) -> None:
        """Begin a history after a handover that is elsewhere in the log because the folder was rolled back."""

    @abstractmethod
    def follow_circle(self, database: FarmDatabase) -> MasterState:
        """Store the present circle, and return the new state."""

    @abstractmethod
    def follow_handover(self, database: FarmDatabase, batch: Batch, chain: str) -> None:
        """Continue as a secondary after a handover; see `wlc.multi_master.restored`."""

    # Operations of the engine

    @abstractmethod
    def held(self) -> Position | None:
        """Return the position of this database as a replica, None if it is no replica.

        Raises:
            InvalidError: The replica is not an exact copy of the whole database.
        """

    @abstractmethod
    def refuse_rules(self, site: SiteState) -> None:
        """Refuse to publish a table with a constraint that its new rule cannot preserve.

        Args:
            site: With the farm's present circle; the source has not stored it yet.

        Raises:
            UnsupportedError: There is one. The error names the table, the rule and the remedy.
            InvalidError: A table lacks a column that its rule compares or adds.
        """

    @abstractmethod
    def take(self, steps: Iterable[SiteStep], fetch: Callable[[TableFile], Path]) -> TakenCount:
        """Take steps of another site's log: rows, journal and the new vector, each step in one transaction.

        Args:
            steps: The steps; each is taken before the next one is requested.
            fetch: Returns a local file with the content of a data file.

        Returns:
            The amount taken.

        Raises:
            UnsupportedError: The database lacks a table.
            ReplayError: The rows violate a constraint here.
            CorruptError: A data file differs from its entry in the log.
        """

    @abstractmethod
    def rehearsal(self) -> AbstractContextManager[Source]:
        """Provide a copy in which steps can be taken; it is never published and is deleted afterwards."""

    @abstractmethod
    def inherit(self, log: FarmDatabase, last: int, circle: Circle) -> Mapping[str, int]:
        """Inherit the row history in the log of a mesh's site, and return the vector at which that history begins.

        This database's own log begins later. Without the inherited history, a change that another site made before it
        knew of a deletion would restore the row here, and nowhere else. It is stored once, when the site joins, and
        deleted when the beginning of the own log is pruned: then sites that lack a part of it can no longer be judged.

        Args:
            log: That site's folder.
            last: The batch with which this database has begun, and the last one to read.
            circle: Names the columns of each table that are added.
        """

    @abstractmethod
    def disinherit(self) -> None:
        """Delete the inherited history; can be repeated."""

    @abstractmethod
    def note_contained(self, site: str, tick: int) -> None:
        """Record that another site contains this site's ticks up to a tick, for `conflict_counters`."""

    @abstractmethod
    def take_back(self, batch: Batch, chain: str, fetch: Callable[[TableFile], Path]) -> int:
        """Take back the own log's next batch after a restore from a backup, or a crash before the batch was recorded.

        Args:
            batch: The batch after the last one in the stored state.
            chain: Its hash.
            fetch: Returns a local file with the content of a data file.

        Returns:
            The number of transactions that the database lacked.

        Raises:
            DivergedError: The database has committed different transactions since; nothing was changed.
        """

    @abstractmethod
    def pass_sequences(self, given: Mapping[Name, int]) -> None:
        """Advance sequences past the last values that they gave out before the database was restored.

        Sequences that are already further, are missing or cycle stay unchanged.
        """

    @abstractmethod
    def renew(self, state: MasterState) -> None:
        """Begin a new history: pending transactions follow the tick of the new state."""

    @abstractmethod
    def what_only_a_primary_writes(self) -> str | None:
        """Return a description of pending changes that only a primary may publish; None if there are none."""

    @abstractmethod
    def step_down(self, state: MasterState) -> None:
        """Begin the history of a secondary after a handover, with its own pending transactions.

        Transactions that were taken and not published are undone. The new state holds the vector without them.

        Raises:
            FencedError: A secondary cannot publish the pending changes.
        """

    @abstractmethod
    def take_over(self, succession: Succession, fetch: Callable[[TableFile], Path]) -> None:
        """Judge the own transactions that the former primary has not judged, and begin the present term.

        Args:
            succession: The transactions to judge, and the states to judge them by.
            fetch: Returns a local file with the content of a data file of the own log.
        """

    @abstractmethod
    def rejected_rows(self, since: datetime | None = None) -> list[RejectedRow]:
        """Return the rejected rows of other sites' changes, oldest first; empty without other sites."""

    @abstractmethod
    def resubmit(self, source: str, tick: int, count: int | None) -> int:
        """Resubmit rejected rows as a new transaction.

        Args:
            source: Site whose log held them.
            tick: Their transaction there.
            count: One row of it; all if None.

        Returns:
            Number of rows written.

        Raises:
            InvalidError: No such row was rejected, it was resubmitted before, or the present rows differ from those at
                the rejection.
        """

    @abstractmethod
    def conflict_counters(self) -> list[ConflictCounter]:
        """Return the counters of rejections, ordered by site, rule and name."""

    @abstractmethod
    def rejection_mark(self) -> RejectionMark:
        """Return how much has been rejected until now."""

    @abstractmethod
    def rejected_since(self, mark: RejectionMark) -> Rejections:
        """Return what was rejected after a mark."""


class Source(ABC):
    """An open database that is a master, was one, or becomes one. `str` shows it without a password.

    Attributes:
        beat_s: The beat that it follows, seconds; publishing updates it from `wlc.config`.
    """

    beat_s: float

    # Its identity

    @property
    @abstractmethod
    def state(self) -> MasterState | None:
        """Its stored state; None if it has never been a master."""

    def require_state(self) -> MasterState:
        """Return its stored state.

        Raises:
            InvalidError: It has never been a master.
        """
        return require_state(self.state, str(self))

    @property
    def site(self) -> SiteSource | None:
        """Its operations as one of several sites; None if databases of its engine cannot be sites."""
        return None

    def require_site(self) -> SiteSource:
        """Return its operations as one of several sites.

        Raises:
            UnsupportedError: Databases of its engine cannot be sites.
        """
        if (site := self.site) is None:
            raise cannot_be_site(str(self))
        return site

    @property
    def present_site(self) -> SiteSource | None:
        """Its operations as the site in its stored state; None for the only master of its database."""
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
        """Return the error for a copy of a master; None for a master in its own place and for other databases."""

    @abstractmethod
    def adopt_place(self) -> bool:
        """Store its present place; return False if its history cannot continue here."""

    @abstractmethod
    def keep_options(self, options: Mapping[str, Any]) -> None:
        """Set options of the farm's file system for all users of the source in this process."""

    # Becoming a master

    @abstractmethod
    def check(self, *, is_replica: bool = False) -> None:
        """Refuse uncapturable objects before anything is changed; and a replica, unless it is to be a master."""

    @abstractmethod
    def install(self, state: MasterState) -> None:
        """Create the objects of the capture, replacing those of an earlier history or a replica, and store `state`."""

    @abstractmethod
    def has_objects(self) -> bool:
        """Say whether a replica could not start from nothing."""

    @abstractmethod
    def remember(self, state: MasterState) -> None:
        """Replace the stored state atomically."""

    # Publishing

    @abstractmethod
    def working(self) -> AbstractContextManager[None]:
        """Translate errors of the engine and the machine into errors of the farm while a master works."""

    @abstractmethod
    def publishing(self) -> AbstractContextManager[None]:
        """Lock out other publishers of the database.

        Raises:
            UnavailableError: Another one has been publishing for too long. Try again.
        """

    @abstractmethod
    def refuse_gap(self) -> None:
        """Refuse to publish if changes are lost.

        Raises:
            GapError: Changes are lost, so the history ends.
            FencedError: This is a copy of the master.
        """

    @abstractmethod
    def last_place(self) -> str:
        """Return the end of the commits in the source's own log; "" without such a log."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Say whether it is certain, without much reading, that no transaction is pending."""

    @abstractmethod
    def gather(self, upto: str, *, is_each: bool) -> AbstractContextManager[Gathered | None]:
        """Gather transactions for the next batch; None if none is pending.

        Args:
            upto: A result of `last_place`.
            is_each: Gather only one transaction.
        """

    @abstractmethod
    def gather_again(self, batch: Batch) -> AbstractContextManager[Gathered | None]:
        """Gather as many transactions as a published but unrecorded batch holds; None if none is pending."""

    # Occasional work of a master

    @abstractmethod
    def take_snapshot(self, database: FarmDatabase, *, is_first: bool, progress: Progress | None = None) -> Manifest:
        """Publish a snapshot at the stored tick; unless it is the first, publish pending transactions before.

        Args:
            database: The place in the farm.
            is_first: It begins a history.
            progress: Called with tables copied, tables in total, and the current activity.

        Raises:
            UnsupportedError: Changes bypassed the capture, so no tick describes the database.
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
            hint="wlr rows diff DB --tick A:B shows the rows; write them in the database itself",
        )

    @abstractmethod
    def bypassed(self) -> dict[str, str]:
        """Return the tables that were changed without capture since they were last compared, with the evidence."""

    @abstractmethod
    def warn_bypassed(self) -> None:
        """Warn of tables that were changed without capture, once for each table."""

    @abstractmethod
    def details(self) -> SourceDetails:
        """Return what only the source itself knows of its state."""

    @abstractmethod
    def verify(self, database: FarmDatabase) -> tuple[Mapping[Name, Digest], Mapping[Name, Digest]]:
        """Read every row. Return the tables' digests, and the expected ones according to the capture."""

    @abstractmethod
    def journal_difference(self, published: Path | None) -> None:
        """Journal the difference between the published state and the present one.

        Args:
            published: DuckDB file with the published state; None if the log cannot be applied. Then tables that differ
                from the log are journalled with all their rows.
        """

    @abstractmethod
    def publish_bypassed(self, database: FarmDatabase) -> None:
        """Publish the changes of the tables that `bypassed` returns, before anything is captured on top of them."""

    @abstractmethod
    def without_commits(self) -> AbstractContextManager[None]:
        """Block commits of other connections, if the engine can; the caller is `publishing`."""

    @abstractmethod
    def uninstall(self) -> None:
        """Remove the capture's objects that must not stay in a database that is no longer a master."""


def require_state(state: MasterState | None, shown: str) -> MasterState:
    """Return a source's stored state.

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
        hint="wlc site join FILE.duckdb --name DB --site NAME; a server can hold a replica:"
        " wlr replicate DB --into URL",
    )


def database_of(
    state: MasterState, storage_options: Mapping[str, Any] | None = None, farm: str | os.PathLike[str] | None = None
) -> FarmDatabase:
    """Open a master's place in the farm; given options override the remembered ones."""
    return open_database(state.name, farm or state.farm, lay_over(state.options, storage_options or {}))

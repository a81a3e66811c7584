"""A PostgreSQL database as a source: its slot holds committed transactions until they are published."""

from __future__ import annotations

import re
import secrets
import warnings
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from wlc.capture.postgres import digests, rights, setup, snapshot
from wlc.capture.postgres.described import DescribedTable
from wlc.capture.postgres.gathering import Gathering, PublishedTable
from wlc.capture.postgres.master_connection import connect as connect_to
from wlc.capture.postgres.master_connection import talking
from wlc.capture.postgres.slot import (
    Slot,
    SlotReader,
    SlotState,
    decode,
    encode,
    find_gap,
    find_slot,
    lsn_text,
    read_lsn,
    retention_warning,
)
from wlc.capture.postgres.snapshot import moved_sequences, records, write_sequences
from wlc.farm.addresses import without_password
from wlc.farm.config import BEAT_S
from wlc.farm.errors import FencedError, GapError, InvalidError, UnavailableError, UnsupportedError
from wlc.masters import master_state as master_states
from wlc.masters.contract import BatchContent, Remembered, Source, SourceDetails, StuckError
from wlc.masters.fence import announce_snapshot
from wlc.masters.publish import publish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from wlc.capture.postgres.snapshot import Sequences
    from wlc.dialect.postgres.server_connection import Connection
    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Batch, Digest, Manifest, Name
    from wlc.masters.contract import Gathered, PublishingPlace
    from wlc.masters.master_state import MasterState

_LOCK = 0x6462_6661  # "dbfa"
_LOCK_TIMEOUT = "60s"
# Maximum number of messages in one read of the slot, up to the end of a transaction.
_MOST_MESSAGES = 2_000_000
# Minimum size of log without published changes for which a slot is advanced: advancing writes to the log itself.
_PASSED_BYTES = 1 << 20
_AGAIN = "wlc stop {0}, then wlc master {0}, starts a new history from a fresh snapshot"


# The functions of a source module ------------------------------------------------------------------------------------


@contextmanager
def opened(source: str, tables: Sequence[str] = ()) -> Iterator[PostgresSource]:
    """Connect to a database; see `SourceModule`."""
    with connect_to(source) as connection, talking(source):
        found = PostgresSource(source, connection, tables)
        with closing(found.reader):
            yield found


def creating(source: str) -> NoReturn:
    """Refuse every database: the server makes it."""
    shown = without_password(source)
    message = f"{shown} is a PostgreSQL database, and --create makes DuckDB files"
    raise InvalidError(message, hint="createdb makes an empty database on the server", path=shown)


def look(source: str) -> Remembered:
    """Return what a database remembers."""
    with opened(source) as found:
        return Remembered(found.require_state(), found.elsewhere())


def default_place(source: str) -> tuple[str, str] | None:  # noqa: ARG001 -- a server does not say where farms are
    """Return None: a URL does not say where a farm is."""
    return None


def held_place(source: str) -> PublishingPlace | None:  # noqa: ARG001 -- many can open it at once
    """Return None: no process keeps others out of a server."""
    return None


def tables_to_change(source: str, tables: Sequence[str]) -> list[Name]:
    """List the tables that get REPLICA IDENTITY FULL when a database becomes a master."""
    with opened(source, tables) as found:
        if found.state is not None and found.state.is_master and found.elsewhere() is None:
            return []
        found.check()
        return setup.needing_identity(found.connection, tables)


def preparation(source: str) -> str:
    """Return what a superuser must run so that the role of a URL can make the database a master."""
    return rights.for_role(source)


def check_run(source: str) -> None:
    """Accept every database: each is published by `wlc run`."""


def check_repair(source: str) -> NoReturn:
    """Refuse every database: which rows bypassed the capture is not known."""
    shown = without_password(source)
    message = f"{shown} is a PostgreSQL master: which of its rows bypassed the capture is not known"
    raise InvalidError(message, hint=_AGAIN.format(shown), path=shown)


def connect(source: str, **_: Any) -> NoReturn:
    """Refuse every database: its own programs write to it."""
    shown = without_password(source)
    raise InvalidError(
        "a PostgreSQL master is written to with PostgreSQL's own programs",
        hint=f"psql '{shown}'; wlc run '{shown}' publishes what is committed",
        path=shown,
    )


# The source ----------------------------------------------------------------------------------------------------------


class PostgresSource(Source):
    """A PostgreSQL database, connected.

    Attributes:
        url: With its password, if it has one; must not be shown.
        reader: Looks into the slot.
    """

    def __init__(self, url: str, connection: Connection, patterns: Sequence[str] = ()) -> None:
        self.url = url
        self.connection = connection
        self.reader = SlotReader(url)
        self._patterns = patterns
        self._load()
        self.beat_s = self._state.beat_s if self._state else BEAT_S
        self._looked_to = ""  # Before this place in the server's log, everything is published.

    def _load(self) -> None:
        values = setup.read_state(self.connection)
        self._state = master_states.decode(values, str(self))
        self._slot_state = decode(values) if values else None

    def __str__(self) -> str:
        return without_password(self.url)

    @property
    def state(self) -> MasterState | None:
        return self._state

    @property
    def slot_state(self) -> SlotState:
        """Its stored state of the slot; it is or was a master."""
        assert self._slot_state is not None
        return self._slot_state

    @property
    def default_name(self) -> str:
        return self.connection.info.dbname

    @property
    def default_folder(self) -> Path:
        return Path.cwd()

    def keep_options(self, options: Mapping[str, Any]) -> None:
        """Keep nothing: a connection has one user."""

    # Becoming a master

    def check(self, *, is_replica: bool = False) -> None:  # noqa: ARG002 -- a server's replica is left by hand
        rights.check(self.connection, self.url, setup.pattern(self._patterns))

    def install(self, state: MasterState) -> None:
        name = "dbfarm_" + re.sub(r"[^a-z0-9_]", "_", state.name.lower())[:40]
        with talking(self.url):
            # Slots belong to the server, whose databases may have the same name in several farms.
            place = setup.place(self.connection)
            slot = f"{name}_{place.rpartition('.')[2]}"
            slots = SlotState(slot, name, setup.pattern(self._patterns), place, f"wlc.{secrets.token_hex(16)}")
            for old in {slot, self._slot_state.slot if self._slot_state else slot}:
                setup.drop_slot(self.connection, old)
            setup.install(self.connection, {**master_states.encode(state), **encode(slots)})
        self._state, self._slot_state = state, slots

    def has_objects(self) -> bool:
        return True

    def remember(self, state: MasterState) -> None:
        self._remember(state, self.slot_state)

    def _remember(self, state: MasterState, slots: SlotState) -> None:
        with talking(self.url):
            setup.write_state(self.connection, self._changes(state, slots))
        self._state, self._slot_state = state, slots

    def _changes(self, state: MasterState, slots: SlotState) -> dict[str, str]:
        before = encode(self.slot_state)
        changed = {key: value for key, value in encode(slots).items() if before[key] != value}
        return master_states.changes(self._state, state) | changed

    # Publishing

    def working(self) -> AbstractContextManager[None]:
        return talking(self.url)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        try:
            with talking(self.url):
                self.connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
                self.connection.execute("SELECT pg_advisory_lock(%s, 0)", [_LOCK])
                self.connection.execute("SET lock_timeout = 0")
        except UnavailableError as error:
            raise UnavailableError(
                f"{self} is being published by another process: {error}", hint="try again"
            ) from error
        try:
            # Another one may have published since.
            self._load()
            yield
        finally:
            if not self.connection.closed:
                self.connection.execute("SELECT pg_advisory_unlock(%s, 0)", [_LOCK])

    def elsewhere(self) -> FencedError | None:
        if self._state is None:
            return None
        with talking(self.url):
            here = setup.place(self.connection)
        if here == self.slot_state.place:
            return None
        return FencedError(
            f"{self} is a copy of the database that became the master of {self._state.name}: that is database"
            f" {setup.shown_place(self.slot_state.place)}, this is {setup.shown_place(here)}",
            hint=f"if this database takes its place: wlc master {self} --moved; if the other one continues: wlc master "
            f"{self} --name OTHER, which makes this database a separate master",
            path=str(self),
        )

    def adopt_place(self) -> bool:
        """Return False: the slot with the pending transactions stays with the other server or database."""
        return False

    def refuse_gap(self) -> None:
        if (away := self.elsewhere()) is not None:
            raise away
        with talking(self.url):
            problem = find_gap(self.connection, self.slot_state)
        if problem is not None:
            where = f"changes of {self} after {self.slot_state.lsn or 'its beginning'}"
            raise GapError(
                f"{problem}: {where} cannot be published, and the history ends there",
                hint=_AGAIN.format(self),
                path=str(self),
            )

    def last_place(self) -> str:
        # The slot does not show unflushed changes, and must not be advanced past them.
        with talking(self.url):
            ((place,),) = self.connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        return str(place)

    def is_idle(self) -> bool:
        return self.last_place() == self._looked_to

    @contextmanager
    def gather(self, upto: str, *, is_each: bool) -> Iterator[Gathered | None]:
        if upto == self._looked_to:
            yield None
            return
        most: int | None = 1 if is_each else _MOST_MESSAGES
        while True:
            with self._gathered(upto, most) as gathering:
                if is_each and len(gathering.round.numbers()) > 1:
                    upto, most = lsn_text(gathering.first_end()), None
                    continue
                # Changes after the maximum number of messages were not read.
                is_cut = most is not None and gathering.messages >= most and gathering.read_to < read_lsn(upto)
                if len(gathering.round.numbers()):
                    # More transactions are pending than fit into this batch: it cannot end at a readable moment.
                    if not gathering.rewrites() or (is_cut and not is_each):
                        yield _Round(self, gathering, looked_to="" if is_cut else upto)
                        return
                    break
                if is_cut:
                    self._pass_by(lsn_text(gathering.read_to))
            if not is_cut:
                if not self._looked_to or read_lsn(upto) - read_lsn(self.slot_state.lsn) >= _PASSED_BYTES:
                    self._pass_by(upto)
                self._looked_to = upto
                yield None
                return
            # Each look reads all that the server keeps of its log: few must do behind many messages of others.
            most = min(2 * most, _MOST_MESSAGES) if most else None
        with snapshot.looking(self.url) as look, self._gathered(look.moment.lsn, None) as gathering:
            if not is_each or len(gathering.round.numbers()) == 1:
                yield _Round(self, gathering, look=look)
                return
        with self._gathered(upto, most) as gathering:
            yield _Round(self, gathering)

    @contextmanager
    def gather_again(self, batch: Batch) -> Iterator[Gathered | None]:
        if batch.lsn is None:
            yield None
            return
        with self._gathered(batch.lsn, None) as gathering:
            yield _Round(self, gathering, is_again=True) if len(gathering.round.numbers()) else None

    @contextmanager
    def _gathered(self, upto: str, most: int | None) -> Iterator[Gathering]:
        self._advance(self.slot_state.lsn)
        with ExitStack() as stack:
            try:
                look = self.reader.gathered(self.slot_state, self._published_tables(), upto, most)
                gathering = stack.enter_context(look)
            except UnsupportedError as error:
                with talking(self.url):
                    setup.remember_problem(self.connection, error.message)
                raise StuckError(error.message, hint=error.hint or _AGAIN.format(self)) from error
            yield gathering

    def _published_tables(self) -> dict[int, PublishedTable]:
        with talking(self.url):
            found = self.connection.execute("SELECT oid::bigint, description, rows FROM wlc.published").fetchall()
        return {oid: PublishedTable(DescribedTable.read(description), rows) for oid, description, rows in found}

    def _note(self, gathering: Gathering, batch: Batch, chain: str, sequences: Sequences) -> None:
        """Store the published state, in one transaction."""
        found = gathering.round
        tables = {table.description.qualified for table in found.tables.values()}
        state = self.require_state().after(batch, chain)
        held = digests.noted(self.slot_state.digests, batch, tables)
        slots = replace(self.slot_state, lsn=str(batch.lsn), digests=held)
        changed: dict[int, tuple[DescribedTable, int] | None] = {
            oid: (found.tables[oid].description, found.tables[oid].rows) if oid in found.tables else None
            for oid in found.touched
        }
        with talking(self.url), self.connection.transaction():
            setup.remember_problem(self.connection, None)
            setup.write_published(self.connection, changed)
            write_sequences(self.connection, sequences)
            setup.write_state(self.connection, self._changes(state, slots))
        self._state, self._slot_state = state, slots
        if found.left_out:
            listed = ", ".join(found.left_out)
            warnings.warn(f"{self}: replicas that are PostgreSQL will not have: {listed}", stacklevel=2)

    def _pass_by(self, lsn: str) -> None:
        """Advance the slot to a place before which there was nothing to publish."""
        if read_lsn(lsn) > read_lsn(self.slot_state.lsn):
            self._remember(self.require_state(), replace(self.slot_state, lsn=lsn))
            self._advance(lsn)

    def _advance(self, lsn: str) -> None:
        slot = self.slot()
        if slot is not None and read_lsn(lsn) > slot.confirmed:
            with talking(self.url):
                self.connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [self.slot_state.slot, lsn])

    def slot(self) -> Slot | None:
        """Return the slot as the server shows it, None if it is gone."""
        with talking(self.url):
            return find_slot(self.connection, self.slot_state.slot)

    # Occasional work of a master

    def take_snapshot(self, database: FarmDatabase, *, is_first: bool, progress: Progress | None = None) -> Manifest:
        if is_first:
            # The slot begins at the moment of the copy, so that it holds everything that changes afterwards.
            with snapshot.exported(self.url, self.slot_state.slot, is_temporary=False) as moment:
                # Transactions that began before the event triggers existed have ended now.
                if found := self.bypassed():
                    raise UnavailableError(
                        f"meanwhile {setup.listed_problems(found)}", hint="try again", path=str(self)
                    )
                return self._take(database, moment, progress, is_first=True)
        self.refuse_gap()
        if found := self.bypassed():
            message = f"no tick describes {self}: {setup.listed_problems(found)}"
            raise UnsupportedError(message, hint=_AGAIN.format(self), path=str(self))
        with self._published_moment(database) as moment:
            return self._take(database, moment, progress, is_first=False)

    def _published_moment(self, database: FarmDatabase) -> AbstractContextManager[snapshot.Moment]:
        def publish_to(lsn: str) -> bool:
            publish(self, database, upto=lsn)
            return read_lsn(self.slot_state.lsn) <= read_lsn(lsn)

        return snapshot.published(self.url, self.publishing, publish_to)

    def _take(
        self, database: FarmDatabase, moment: snapshot.Moment, progress: Progress | None, *, is_first: bool
    ) -> Manifest:
        state = self.require_state()
        known = {} if is_first else self.slot_state.digests
        manifest, tables, sequences = snapshot.take(self.url, moment, database, state.reached(), known, progress)
        slots = replace(self.slot_state, digests=manifest.digests)
        with talking(self.url), self.connection.transaction():
            if is_first:
                setup.write_published(self.connection, dict(tables))
                write_sequences(self.connection, sequences)
                slots = replace(slots, lsn=moment.lsn)
            setup.write_state(self.connection, self._changes(state, slots))
        self._slot_state = slots
        announce_snapshot(database, state)
        return manifest

    def verify(self, database: FarmDatabase) -> tuple[Mapping[Name, Digest], Mapping[Name, Digest]]:
        self.refuse_gap()
        with self._published_moment(database) as moment:
            return snapshot.digest_tables(self.url, moment), self.slot_state.digests

    def bypassed(self, *, is_waiting: bool = True) -> dict[str, str]:
        """Return the tables that are not captured correctly, with the evidence."""
        with talking(self.url):
            return setup.bypassed(self.connection) if is_waiting else setup.bypassed_now(self.connection)

    def warn_bypassed(self) -> None:
        checked = self.bypassed(is_waiting=False)
        if found := {table: problem for table, problem in checked.items() if problem != setup.NOT_CHECKED}:
            warnings.warn(f"{self}: {setup.listed_problems(found)}; {_AGAIN.format(self)}", stacklevel=3)

    def details(self) -> SourceDetails:
        lsn = self.slot_state.lsn
        if not self.require_state().is_master:
            return SourceDetails(lsn=lsn)
        slot = self.slot()
        return SourceDetails(
            bypassed=self.bypassed(is_waiting=False),
            slot=slot.status if slot else "gone",
            retained_bytes=slot.retained_bytes if slot else 0,
            lsn=lsn,
            warning=self._warning(),
        )

    def _warning(self) -> str | None:
        state = self.require_state()
        with talking(self.url):
            if problem := find_gap(self.connection, self.slot_state):
                return f"{problem}: the history ends at tick {state.tick}; {_AGAIN.format(self)}"
            if problem := setup.problem(self.connection):
                return f"nothing is published: {problem}; {_AGAIN.format(self)}"
            return retention_warning(self.connection, self.slot_state, state.name, str(self))

    def journal_difference(self, published: Path | None) -> None:  # noqa: ARG002 -- there is no journal
        check_repair(self.url)

    def publish_bypassed(self, database: FarmDatabase) -> None:  # noqa: ARG002
        check_repair(self.url)

    def without_commits(self) -> AbstractContextManager[None]:
        return nullcontext()

    def uninstall(self) -> None:
        setup.drop_slot(self.connection, self.slot_state.slot)
        setup.remove(self.connection)


class _Round:
    """The result of one read of the slot; see `wlc.masters.contract.Gathered`."""

    def __init__(
        self,
        source: PostgresSource,
        gathering: Gathering,
        *,
        look: snapshot.Look | None = None,
        is_again: bool = False,
        looked_to: str = "",
    ) -> None:
        self._source = source
        self._gathering = gathering
        self._look = look
        self._is_again = is_again
        self._looked_to = looked_to
        self._sequences: Sequences = {}

    def write(self) -> BatchContent:
        source, gathering = self._source, self._gathering
        state = source.require_state()
        with talking(source.url):
            self._sequences = moved_sequences(source.connection, gathering.round.sequences)
        positions = list(records(self._sequences))
        transactions, files, local = gathering.write(state.name, state.batch + 1, state.tick, positions)
        transactions, held, unknown = digests.follow(
            transactions,
            files,
            local,
            source.slot_state.digests,
            gathering.layouts,
            gathering.round.misfits,
            gathering.rows.connection,
            self._look,
        )
        return BatchContent(state.name, transactions, files, local, held, unknown, lsn_text(gathering.round.lsn))

    def matches(self, batch: Batch) -> bool:
        own, published = ([(t.tick, t.xid) for t in found] for found in (self.write().transactions, batch.transactions))
        return own == published

    def note(self, batch: Batch, chain: str) -> None:
        sequences = self._sequences
        if self._is_again:
            # Where sequences are now is not where they were when a batch of an earlier attempt was published.
            sequences = {oid: (name, None) for oid, (name, _) in sequences.items()}
        self._source._note(self._gathering, batch, chain, sequences)
        self._source._advance(str(batch.lsn))
        self._source._looked_to = self._looked_to

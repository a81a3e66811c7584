"""A PostgreSQL database as master: beginning, publishing what its slot holds, snapshots, stopping, status."""

from __future__ import annotations

import re
import tempfile
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.address import without_password
from wlc.capture.postgres import ddl, digests, setup, snapshot
from wlc.capture.postgres.connection import Reader, connect, talking
from wlc.capture.postgres.sequences import moved_sequences, records, write_sequences
from wlc.capture.postgres.slot import Slot, find_slot, lsn_text, read_lsn
from wlc.capture.postgres.source import Gathering, Table, gathered
from wlc.config import STOPPED
from wlc.errors import FencedError, GapError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm import FarmDatabase, open_database
from wlc.model import Batch, Name, literal
from wlc.ownership import (
    Flushed,
    advance_config,
    after,
    announce_snapshot,
    change_config,
    fence,
    header,
    outdated,
    own,
    present_config,
    reached,
    settle,
)
from wlc.store import MissingError
from wlc.store.options import lay_over, merged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wlc.capture.postgres.sequences import Sequences
    from wlc.capture.postgres.setup import Connection
    from wlc.model import Digest, Manifest

_LOCK = 0x6462_6661  # "dbfa"
_LOCK_TIMEOUT = "60s"
# Messages that one look into the slot takes at most, up to the end of a transaction.
_MOST_MESSAGES = 2_000_000
_RETAINED_WARNING_BYTES = 1 << 30

_AGAIN = "wlc stop {0}, then wlc master {0}, starts a new history from a fresh snapshot"


class PostgresSource:
    """A PostgreSQL database, connected.

    Attributes:
        url: With its password, if it has one; not to be shown.
        state: What the database remembers of itself.
    """

    def __init__(self, url: str, connection: Connection, patterns: Sequence[str] = ()) -> None:
        self.url = url
        self.connection = connection
        self.state = setup.read_state(connection)
        self._patterns = patterns

    def __str__(self) -> str:
        return without_password(self.url)

    @property
    def is_master(self) -> bool:
        """Whether it is one now."""
        return self.state.get("state") == "1"

    @property
    def database_name(self) -> str:
        """Name of the database on the server."""
        return self.connection.info.dbname

    # What `wlc.begin` asks of a source

    def check(self) -> None:
        setup.check(self.connection, self.url)

    def install(self, state: Mapping[str, str]) -> None:
        name = "dbfarm_" + re.sub(r"[^a-z0-9_]", "_", state["name"].lower())[:40]
        with talking(self.url):
            # Slots are the server's, whose databases may have the same name in several farms.
            place = setup.place(self.connection)
            slot = f"{name}_{place.rpartition('.')[2]}"
            values = {**state, "slot": slot, "publication": name, "tables": setup.pattern(self._patterns)}
            values |= {"lsn": "", "place": place}
            for old in {slot, self.state.get("slot", slot)}:
                setup.drop_slot(self.connection, old)
            setup.install(self.connection, values)
        self.state = values

    def has_objects(self) -> bool:
        return True

    def take_snapshot(self, database: FarmDatabase) -> Manifest:
        """Make the slot, and copy the database as of the moment from which on the slot has what changes."""
        with snapshot.exported(self.url, self.state["slot"], is_temporary=False) as moment:
            # What began before the event triggers were there is over now.
            if found := self.bypassed():
                raise UnavailableError(f"meanwhile {_told(found)}", hint="try again", path=str(self))
            return self._take(database, moment)

    def remember(self, values: Mapping[str, str]) -> None:
        with talking(self.url):
            setup.write_state(self.connection, values)
        self.state.update(values)

    # Snapshots and publishing

    def take_later_snapshot(self, database: FarmDatabase) -> Manifest:
        """Copy the database as of a moment of its own, up to which all is published.

        Raises:
            UnsupportedError: Something bypassed the capture, so that no tick describes the database.
        """
        self._refuse_gap()
        if found := self.bypassed():
            raise UnsupportedError(
                f"no tick describes {self}: {_told(found)}", hint=_AGAIN.format(self), path=str(self)
            )
        with (
            self.publishing(),
            snapshot.exported(self.url, f"{self.state['slot']}_s", is_temporary=True) as moment,
        ):
            self.publish(database, upto=moment.lsn)
            return self._take(database, moment, is_first=False)

    def verify(self, database: FarmDatabase) -> tuple[dict[Name, Digest], dict[Name, Digest]]:
        """Publish up to a moment, and return what tables hold then, and what they must hold by what was captured."""
        self._refuse_gap()
        with (
            self.publishing(),
            snapshot.exported(self.url, f"{self.state['slot']}_s", is_temporary=True) as moment,
        ):
            self.publish(database, upto=moment.lsn)
            return snapshot.digest_tables(self.url, moment), digests.read(self.state)

    def _take(self, database: FarmDatabase, moment: snapshot.Moment, *, is_first: bool = True) -> Manifest:
        state = self.state
        position, clock, vector = reached(state)
        known = {} if is_first else digests.read(state)
        manifest, tables, sequences = snapshot.take(self.url, moment, database, position, clock, vector, known)
        values = digests.write(manifest.digests)
        with talking(self.url), self.connection.transaction():
            if is_first:
                setup.write_published(self.connection, dict(tables))
                write_sequences(self.connection, sequences)
                values["lsn"] = moment.lsn
            setup.write_state(self.connection, values)
        self.state.update(values)
        announce_snapshot(database, state, position.tick)
        return manifest

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Keep other publishers of the database away; they wait for a minute, then give up.

        Raises:
            UnavailableError: Another one has been at it for a minute.
        """
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
            self.state = setup.read_state(self.connection)
            yield
        finally:
            if not self.connection.closed:
                self.connection.execute("SELECT pg_advisory_unlock(%s, 0)", [_LOCK])

    def publish(self, database: FarmDatabase, upto: str | None = None) -> Flushed:
        """Publish what the slot holds, up to a place in the server's log or up to now.

        Dying anywhere in between is harmless: a batch exists with its log file or not at all and says up to where it
        goes; what is noted in the database and the slot follow it.

        Raises:
            GapError: The slot is gone or was moved: changes are lost, and the history ends.
            FencedError: The farm's database is another master's, or this is a copy of it. Nothing was published.
        """
        self._refuse_gap()
        with talking(self.url):
            # Where nothing is flushed yet the slot shows nothing, and what it does not show must not be passed by.
            ((now,),) = self.connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        batches = transactions = rows = 0
        is_done = False
        while not is_done:
            batch, is_done = self._publish_batch(database, upto or now)
            if batch is not None:
                batches, transactions = batches + 1, transactions + len(batch.transactions)
                rows += sum(file.file.rows for file in batch.files)
        return Flushed(batches, transactions, rows, int(self.state["tick"]))

    def _publish_batch(self, database: FarmDatabase, upto: str) -> tuple[Batch | None, bool]:
        """Publish the next batch; returns it, if there is anything to publish, and whether the slot has no more."""
        config = present_config(database, self.state)
        fence(config, self.state)
        number = int(self.state["batch"]) + 1
        present = self._already_published(database, number)
        most: int | None = 1 if config.beat_s == 0 else _MOST_MESSAGES
        with (
            tempfile.TemporaryDirectory(prefix="wlc-") as folder,
            gathered(Path(folder), self._published_tables()) as gathering,
        ):
            if present is not None:
                self._gather(gathering, str(present[0].lsn), None)
            else:
                self._gather(gathering, upto, most)
            if not gathering.round.numbers():
                is_done = not gathering.round.lsn
                self._pass_by(upto if is_done else lsn_text(gathering.round.lsn))
                return None, is_done
            with talking(self.url):
                sequences = moved_sequences(self.connection)
            batch, files = self._batch(gathering, number, sequences)
            if present is not None:
                if [(t.tick, t.xid) for t in batch.transactions] != [(t.tick, t.xid) for t in present[0].transactions]:
                    raise outdated(database, number)
                batch, chain = present
                # Where they are now is not where they were when it was published.
                sequences = {}
            else:
                chain = database.publish(batch, files)
            self._note(gathering, batch, chain, sequences)
            if gathering.round.left_out:
                listed = ", ".join(gathering.round.left_out)
                warnings.warn(f"{self}: replicas that are PostgreSQL will not have: {listed}", stacklevel=2)
        self._advance(self.state["lsn"])
        advance_config(database, batch)
        return batch, False

    def _gather(self, gathering: Gathering, upto: str, most: int | None) -> None:
        slot, publication = literal(self.state["slot"]), literal('"' + self.state["publication"] + '"')
        limits = f"{literal(upto)}::pg_lsn, {'NULL' if most is None else most}"
        options = f"'proto_version', '1', 'publication_names', {publication}, 'messages', 'true'"
        self._advance(self.state["lsn"])
        with Reader(self.url) as reader:
            gathering.read(
                reader.blocks(f"SELECT data FROM pg_logical_slot_peek_binary_changes({slot}, {limits}, {options})")
            )

    def _batch(self, gathering: Gathering, number: int, sequences: Sequences) -> tuple[Batch, dict[str, Path]]:
        described = header(self.state, number)
        last_tick = int(self.state["tick"])
        with talking(self.url):
            positions = list(records(self.connection, sequences))
        transactions, files, local = gathering.write(self.state["name"], number, last_tick, positions)
        transactions, told = digests.follow(
            transactions, files, local, digests.read(self.state), gathering.layouts, gathering.round.misfits
        )
        last = transactions[-1].tick
        batch = Batch(
            first=transactions[0].tick,
            last=last,
            catalog=self.state["name"],
            transactions=transactions,
            files=files,
            lsn=lsn_text(gathering.round.lsn),
            digests=told,
            **{**described, "vector": {**described["vector"], described["history"]: last}},
        )
        return batch, local

    def _already_published(self, database: FarmDatabase, number: int) -> tuple[Batch, str] | None:
        """Our own batch that we died or lost the answer after; another's batch fences us off."""
        try:
            batch, chain = database.read_batch(number, is_own=True)
        except MissingError:
            return None
        except GapError as error:
            raise outdated(database, number) from error
        if batch.history != self.state["history"] or batch.previous != self.state["chain"] or batch.lsn is None:
            raise outdated(database, number)
        return batch, chain

    def _published_tables(self) -> dict[int, Table]:
        with talking(self.url):
            found = self.connection.execute("SELECT oid::bigint, description, rows FROM wlc.published").fetchall()
        return {oid: Table(description, rows) for oid, description, rows in found}

    def _note(self, gathering: Gathering, batch: Batch, chain: str, sequences: Sequences) -> None:
        """Remember what is published, in one transaction."""
        gathered = gathering.round
        tables = {ddl.name_of(table.description) for table in gathered.tables.values()}
        values = {**after(batch, chain), "lsn": str(batch.lsn), **digests.noted(self.state, batch, tables)}
        changed: dict[int, tuple[dict[str, Any], int] | None] = {
            oid: (gathered.tables[oid].description, gathered.tables[oid].rows) if oid in gathered.tables else None
            for oid in gathered.touched
        }
        with talking(self.url), self.connection.transaction():
            setup.write_published(self.connection, changed)
            write_sequences(self.connection, sequences)
            setup.write_state(self.connection, values)
        self.state.update(values)

    def _pass_by(self, lsn: str) -> None:
        """Let the server give up its log up to a place before which nothing was to be published."""
        if read_lsn(lsn) > read_lsn(self.state["lsn"]):
            self.remember({"lsn": lsn})
            self._advance(lsn)

    def _advance(self, lsn: str) -> None:
        slot = self.slot()
        if slot is not None and read_lsn(lsn) > slot.confirmed:
            with talking(self.url):
                self.connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [self.state["slot"], lsn])

    def slot(self) -> Slot | None:
        """The slot as the server shows it, None if it is gone."""
        with talking(self.url):
            return find_slot(self.connection, self.state.get("slot", ""))

    def _refuse_gap(self) -> None:
        with talking(self.url):
            is_copy = setup.place(self.connection) != self.state["place"]
        if is_copy:
            raise FencedError(
                f"{self} is a copy of the database that became the master of {self.state['name']}",
                hint=f"wlc stop {self}, then wlc master {self} --name OTHER; without --name it takes the other's place",
                path=str(self),
            )
        if problem := self._gap():
            where = f"changes of {self} after {self.state['lsn'] or 'its beginning'}"
            raise GapError(
                f"{problem}: {where} cannot be published, and the history ends there",
                hint=_AGAIN.format(self),
                path=str(self),
            )

    def _gap(self) -> str | None:
        """Why changes are lost, None if they are not."""
        slot, name = self.slot(), f"slot {self.state.get('slot')}"
        if slot is None:
            return f"{name} is gone"
        if slot.status == "lost":
            return f"{name} was invalidated by the server (max_slot_wal_keep_size)"
        if slot.confirmed > read_lsn(self.state["lsn"]):
            return f"{name} was moved by somebody else"
        return None if self._has_publication() else f"publication {self.state['publication']} is gone"

    def bypassed(self) -> dict[str, str]:
        """Tables that are not captured as they should be, and how that shows."""
        with talking(self.url):
            return setup.bypassed(self.connection)

    def warn_bypassed(self) -> None:
        """Name what is not captured as it should be."""
        if found := self.bypassed():
            warnings.warn(f"{self}: {_told(found)}; {_AGAIN.format(self)}", stacklevel=3)

    def _has_publication(self) -> bool:
        with talking(self.url):
            query = "SELECT FROM pg_publication WHERE pubname = %s"
            return self.connection.execute(query, [self.state["publication"]]).fetchone() is not None

    def retention_warning(self) -> str | None:
        """Say that the server keeps much of its log for a publisher that does not come, None if it does not."""
        if problem := self._gap():
            return f"{problem}: the history ends at tick {self.state['tick']}; {_AGAIN.format(self)}"
        if (slot := self.slot()) is None or slot.status == "unreserved":
            return f"slot {self.state['slot']} is about to be given up by the server: publish with wlc flush {self}"
        if slot.retained_bytes > _RETAINED_WARNING_BYTES:
            size = slot.retained_bytes / (1 << 30)
            return f"the server keeps {size:.1f} GiB of its log for {self.state['name']}: is wlc run running?"
        return None

    def tables_to_change(self, patterns: Sequence[str]) -> list[Name]:
        """List the tables that get REPLICA IDENTITY FULL when the database becomes a master."""
        if self.is_master:
            return []
        self.check()
        return setup.needing_identity(self.connection, patterns)


# Operations ----------------------------------------------------------------------------------------------------------


@contextmanager
def opened(url: str, patterns: Sequence[str] = ()) -> Iterator[PostgresSource]:
    """Connect to a database."""
    with connect(url) as connection, talking(url):
        yield PostgresSource(url, connection, patterns)


@contextmanager
def opened_master(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[tuple[PostgresSource, FarmDatabase]]:
    """Connect to a master.

    Raises:
        InvalidError: It is none, or was stopped.
    """
    with opened(url) as source:
        require_state(source)
        if not source.is_master:
            raise InvalidError(f"{source} was stopped", hint=f"wlc master {source} starts a new history")
        yield source, database_of(source, storage_options)


def require_state(source: PostgresSource) -> None:
    """Refuse a database that has never been a master."""
    if not source.state:
        raise InvalidError(f"{source} is not a master", hint=f"wlc master {source}", path=str(source))


def database_of(
    source: PostgresSource, storage_options: Mapping[str, Any] | None = None, farm: str | None = None
) -> FarmDatabase:
    """The master's place in the farm, with the options it remembers and those given now."""
    options = lay_over(merged(source.state.get("options"), None), storage_options or {})
    return open_database(source.state["name"], farm or source.state["farm"], options)


def flush(url: str, storage_options: Mapping[str, Any] | None) -> Flushed:
    """Publish what was committed, now."""
    with opened_master(url, storage_options) as (source, database), source.publishing():
        flushed = source.publish(database)
        settle(source.state, database)
        source.warn_bypassed()
        return flushed


def stop(url: str, storage_options: Mapping[str, Any] | None) -> str:
    """Publish the rest, end the history, and take slot, publication and triggers away; returns the farm's URL."""
    with opened_master(url, storage_options) as (source, database), source.publishing():
        try:
            try:
                source.publish(database)
                settle(source.state, database)
            except GapError as error:
                warnings.warn(f"the history ends with tick {source.state['tick']}: {error.message}", stacklevel=2)
            change_config(database, lambda config: replace(own(config, source.state), state=STOPPED))
        except (FencedError, MissingError) as error:
            warnings.warn(f"{source} publishes no more, and the farm is left as it is: {error}", stacklevel=2)
        setup.drop_slot(source.connection, source.state["slot"])
        setup.remove(source.connection)
        source.remember({"state": "2"})
        return database.url


def _told(found: Mapping[str, str]) -> str:
    """What `bypassed` gave, as a sentence."""
    return "not captured: " + ", ".join(f"{table} {problem}" for table, problem in found.items())

"""Feed the changes of a database to a file or a Kafka topic."""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import wlc
from wlc.farm import paths
from wlc.farm.addresses import without_password
from wlc.farm.clock import parse_moment, parse_time, utc_now
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, InvalidError, UnavailableError
from wlc.farm.human_form import ForPeople, Progress, parse_bytes
from wlc.farm.lease import Lease
from wlc.farm.parameters import command_words, takes
from wlc.farm.registry import FEED, Replica, known_replicas, this_host, this_user
from wlc.farm.store import MissingError
from wlc.farm.store.options import remembered
from wlc.tiers.attaching import read_through, register_paused
from wlc.tiers.attachment import attachment_of, detach, place_of, register_reader
from wlr.reading.feeds.options import BYTES_MAX, FeedOptions
from wlr.replay import log_reader
from wlr.replay.plan import bounds
from wlr.replay.plan.bounds import Stop
from wlr.replay.plan.patterns import described
from wlr.replay.registration import with_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import date, datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Config
    from wlc.tiers.attachment import Attachment, Keepalive, Membership
    from wlc.tiers.options import UpstreamOptions
    from wlr.reading.feeds.contract import Output
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.reading.feeds.run import FeedRun, Kept

SNAPSHOT = "snapshot"
# Properties of librdkafka that hold secrets under innocent names.
_PRIVATE = re.compile(r"\.pem$|\.key$|config$")


@dataclass(frozen=True, slots=True)
class Fed(ForPeople):
    """The result of a round of a feed, and the feed's position.

    Attributes:
        name: The feed's name.
        to: Its output.
        tick: Last transaction in the output; `clock`: its commit time, None before the first.
        records: Records written in this round; `bytes`: bytes of them.
        dropped: Records that `drop` left out.
        is_paused: The feed is paused, so nothing was done.
    """

    name: str
    to: str
    tick: int
    clock: datetime | None
    records: int
    bytes: int
    dropped: int
    is_paused: bool = False


@takes(FeedOptions)
def feed(
    db: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    output_options: Mapping[str, object] | None = None,
    keepalive: Keepalive | None = None,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[FeedOptions],
) -> Fed:
    """Write the changes of some tables since the last round, in the order of the log.

    A file has each change once. A topic can have duplicates with equal headers after a killed run.

    Args:
        db: Name in the farm, URL of the database's folder there, or path of the master.
        to: A file, to which lines are appended; or a topic, `kafka://host:9092/topic`.
        tables: Patterns such as `main.sales_*`; all tables if omitted.
        output_options: Properties of librdkafka, such as `security.protocol`.
        keepalive: Keepalive of a program that follows; it reports between rounds that the feed runs.
        farm: URL of the farm, for a bare name.
        storage_options: Options of the farm's file system.
        progress: Called with ticks done, ticks in all, and what is being done.

    Raises:
        InvalidError: An argument is invalid, or the output belongs to something else. Nothing was written.
        ExpiredError: The log after the position was pruned: begin again with `start="snapshot"`.
        CorruptError: A file of the farm or of the output is damaged.
        FencedError: Another run has taken over the feed.
        UnavailableError: Another run feeds it, or a place is unreachable: try again.

    Examples:
        >>> wlr.feed("sales", to="orders.jsonl", tables=["orders"]).records
        4
    """
    from wlr.reading.feeds.adapters import OutputSettings, output_at

    max_bytes, rotate = int(parse_bytes(options.get("max_bytes", BYTES_MAX))), options.get("rotate")
    drop, form = options.get("drop", False), options.get("format")
    if drop and not max_bytes:
        raise InvalidError("--drop needs a bound of bytes", hint="--max-bytes 64M --drop")
    settings = OutputSettings(
        None if rotate is None else int(parse_bytes(rotate)), options.get("transactional", False), output_options or {}
    )
    output = output_at(os.fspath(to), settings)
    output.check_format(form)
    database = wlc.resolve(db, farm, storage_options=storage_options)
    start = feed_start(options.get("start"))
    wanted = _Wanted(tuple(tables or ()), form, start, max_bytes, drop, options.get("name"), progress)
    words = [*_words(db, farm, output.shown, wanted.tables), *command_words(FeedOptions, {**options, "start": None})]
    words += _option_words("--output-option", output_options or {})
    words += _option_words("--storage-option", storage_options or {})
    wanted = replace(wanted, command=tuple(words))
    return _Feeding(database, output, wanted).go(options, keepalive)


def _words(
    db: str | os.PathLike[str], farm: str | os.PathLike[str] | None, shown: str, tables: Iterable[str]
) -> Iterator[str]:
    """Return the words of a command for the source and the output."""
    yield from ("wlr", "feed", without_password(os.fspath(db)))
    yield from ("--farm", without_password(os.fspath(farm))) if farm else ()
    for table in tables:
        yield from ("--table", table)
    yield from ("--to", shown)


def _option_words(option: str, given: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Return the words of a command for some options; the user must add secrets."""
    fit = json.loads(remembered(given))
    for name, value in given.items():
        if isinstance(value, dict):
            yield from _option_words(option, value, f"{within}{name}.")
            continue
        said = fit[name] if name in fit and not _PRIVATE.search(name) else "…"
        yield from (option, f"{within}{name}={str(said).lower() if isinstance(said, bool) else said}")


def feed_start(given: str | int | date | None) -> str | int | datetime | None:
    """Parse the start of a new feed: a tick, a time, or the newest snapshot.

    Raises:
        InvalidError: The text is something else.
    """
    if given is None or given == SNAPSHOT:
        return SNAPSHOT if given else None
    return parse_moment(given, "start", parse_time)


def feed_reader(state: FeedState) -> Replica:
    """Return the registration of a feed."""
    position = state.position if state.position and state.position.history else None
    here = this_host(), this_user()
    identity = paths.feed_id(state.name)
    return Replica(identity, state.to, position, state.clock, utc_now(), *here, kind=FEED, tables=state.tables)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The user's request; `command` is the whole command line, for hints."""

    tables: tuple[str, ...]
    format: str | None
    start: str | int | datetime | None
    bytes_max: int
    drops: bool
    name: str | None
    progress: Progress | None
    command: tuple[str, ...] = ()


def _is_lost(error: ExpiredError | CorruptError) -> bool:
    """Return whether the log does not continue from the feed's position, so that only a snapshot helps."""
    return isinstance(error, ExpiredError) or bounds.REBASE in (error.hint or "")


class _Feeding:
    """One round of a feed."""

    def __init__(self, database: FarmDatabase, output: Output, wanted: _Wanted) -> None:
        # The database with the feed's lease, and the place to read.
        self._database = self._place = database
        self._membership: Membership | None = None
        self._may_begin_anew = wanted.start == SNAPSHOT
        self._output = output
        self._wanted = wanted
        self._name = wanted.name if wanted.name is not None else paths.as_feed_name(output.label)
        self._memory = output.memory(database, self._name)

    def go(self, reads: UpstreamOptions, keepalive: Keepalive | None) -> Fed:
        """Do the round, reading the database itself or an upstream."""
        paths.feed_lease_path(self._name)  # Refuses an invalid name.
        state = self._known()
        if state is not None and state.is_paused:
            register_paused(self._database, feed_reader(state), state.attachment, keepalive)
            return self._result(state)
        attachment = self._attachment(state, reads)
        try:
            return self._round(state) if attachment is None else self._round_of_tier(state, attachment, keepalive)
        except (ExpiredError, CorruptError) as error:
            if self._wanted.start == SNAPSHOT or not _is_lost(error):
                raise
            raise self._with_hint(error) from error

    def _round_of_tier(self, state: FeedState | None, attachment: Attachment, keepalive: Keepalive | None) -> Fed:
        registry, me = place_of(self._database, attachment.registry), feed_reader(state or self._blank())
        if state is None:
            # Registering would replace another feed of that name.
            with suppress(UnavailableError, MissingError):
                self._refuse_other_output(registry)
        self._may_begin_anew = False
        try:
            return read_through(registry, me, attachment, self._round_at, keepalive)
        except (ExpiredError, CorruptError) as error:
            if self._wanted.start != SNAPSHOT or not _is_lost(error):
                raise
        # The log after its position was pruned everywhere: it begins again, at any upstream.
        self._may_begin_anew = True
        return read_through(registry, replace(me, position=None), attachment, self._round_at, keepalive)

    def _attachment(self, state: FeedState | None, reads: UpstreamOptions) -> Attachment | None:
        """Return the feed's upstream, after releasing claims in a registry that it leaves."""
        before = state.attachment if state else None
        at = state.master if state else self._database.url
        asked = reads.get("upstream"), reads.get("class_name"), reads.get("registry")
        wanted = attachment_of(self._database, before, *asked, at)
        detach(self._database, before, wanted, paths.feed_id(self._name))
        return wanted

    def _round_at(self, place: FarmDatabase, membership: Membership) -> Fed:
        self._place, self._membership = place, membership
        return self._round(self._known())

    def _known(self) -> FeedState | None:
        found = self._memory.load()
        return self._checked(found[0]) if found is not None else None

    def _round(self, state: FeedState | None) -> Fed:
        config = self._place.config()
        if state is not None and self._is_level(state, config):
            self._output.check_written(state)
            self._remember_place(state)
            # Pruning keeps the log from the position on.
            self._register(state, is_level=True)
            return self._result(state)
        lease = Lease(self._database.store, paths.feed_lease_path(self._name), f"feed {self._name}")
        try:
            return self._go(lease.run, config.beat_s)
        finally:
            lease.release()

    def _checked(self, state: FeedState) -> FeedState:
        """Refuse the state of another feed, and take its name and keys."""
        given = self._wanted
        if given.name not in (None, state.name):
            message = f"the feed in {self._output.shown} is called {state.name}"
            raise InvalidError(message, hint="Leave --name out, or give another --to.")
        if state.master.rstrip("/").rpartition("/")[2] != self._database.name:
            message = f"feed {state.name} in {self._output.shown} reads {state.master}, not {self._database.url}"
            raise InvalidError(message, hint="Give another --to.")
        if given.tables and given.tables != state.tables:
            message = f"feed {state.name} has {described(state.tables)}"
            raise InvalidError(message, hint="Leave --table out, or begin another feed: another --to.")
        if given.format not in (None, state.format):
            message = f"feed {state.name} has --format {state.format}"
            raise InvalidError(message, hint=f"--format {state.format}, or begin another feed: another --to.")
        self._output.check_place(state)
        self._name = state.name
        is_apart = self._place is not self._database
        self._database = with_keys(state.verify, self._database)
        self._place = with_keys(state.verify, self._place) if is_apart else self._database
        return state

    def _remember_place(self, state: FeedState) -> None:
        """Store another upstream in a round without changes, which takes no lease."""
        attachment = self._membership.attachment if self._membership else None
        master = self._place.url if attachment or state.attachment else state.master
        if (attachment, master) != (state.attachment, state.master):
            self._memory.change(lambda there: replace(there or state, attachment=attachment, master=master))

    def _is_level(self, state: FeedState, config: Config) -> bool:
        """Return whether there is nothing to write, with two requests."""
        position = state.position
        if position is None or state.written or (position.tick, position.history) != (config.tick, config.history):
            return False
        return not self._place.logs.exists(paths.log_path(self._place.name, config.batches))

    def _go(self, run: str, beat_s: float) -> Fed:
        from wlr.reading.feeds.run import Kept

        found = self._memory.load()
        kept = Kept(self._memory, *(found or (self._new(), None)))
        verify = self._place.keys.verify_words() or kept.state.verify
        attachment = self._membership.attachment if self._membership else None
        state = replace(kept.state, master=self._place.url, to=self._output.shown, verify=verify, beat_s=beat_s)
        state = replace(state, attachment=attachment)
        # From now on, an earlier run that still lives cannot move the position.
        kept.keep(replace(state, run=run))
        done = self._write_or_begin_anew(kept)
        with suppress(FarmError):
            self._register(kept.state, is_level=True)
        return self._result(kept.state, done)

    def _write_or_begin_anew(self, kept: Kept) -> FeedRun:
        try:
            return self._write(kept)
        except (ExpiredError, CorruptError) as error:
            if not self._may_begin_anew or not _is_lost(error):
                raise
            kept.keep(self._at_snapshot(kept.state))
            return self._write(kept)

    def _write(self, kept: Kept) -> FeedRun:
        from wlr.reading.feeds.formats import format_of
        from wlr.reading.feeds.log_source import FeedReader
        from wlr.reading.feeds.run import FeedRun

        wanted, state, end = self._wanted, kept.state, self._place.config().tick
        form = format_of(state.format)(self._database.name, state.name)
        reader = FeedReader(self._place, form, wanted.bytes_max, self._membership)
        with closing(reader):
            # Pruning keeps nothing for a feed whose log was pruned.
            reader.check(state)
            self._register(state)
            try:
                with self._output.open(state, form, wanted.bytes_max) as output:
                    run = FeedRun(kept, reader, output, wanted.bytes_max, wanted.drops, wanted.progress, end)
                    run.go(output.resume_at(state))
            except FarmError as error:
                with suppress(FarmError):
                    self._register(kept.state, failure=error.message)
                raise
        if self._place.witness is not None and kept.state.position is not None:
            self._place.witness.note(kept.state.position)
        return run

    # A new feed

    def _new(self) -> FeedState:
        from wlr.reading.feeds.formats import format_of
        from wlr.reading.feeds.log_source import beginning, refuse_idle_tables

        wanted, state = self._wanted, self._blank()
        has_columns = format_of(state.format).has_columns
        if has_columns and (len(wanted.tables) != 1 or set("*?[!") & set(wanted.tables[0])):
            message = f"a file of {state.format} has the columns of one table"
            raise InvalidError(message, hint="--table SCHEMA.TABLE once, without a pattern; or --to FILE.jsonl")
        if has_columns and "." not in wanted.tables[0]:
            table = wanted.tables[0]
            message = f"a file of {state.format} has the columns of one table, but several schemas can have {table}"
            raise InvalidError(message, hint=f"--table {shlex.quote(f'main.{table}')}")
        self._refuse_other_output(self._membership.registry if self._membership else self._database)
        self._output.check_new()
        refuse_idle_tables(self._place, wanted.tables)
        if wanted.start == SNAPSHOT:
            return self._at_snapshot(state)
        assert not isinstance(wanted.start, str)
        position, batch_last = beginning(self._place, wanted.start)
        return replace(state, position=position, history=position.history, batch_last=batch_last)

    def _blank(self) -> FeedState:
        from wlr.reading.feeds.feed_state import FeedState

        wanted, form = self._wanted, self._output.choose_format(self._wanted.format)
        return FeedState(self._name, self._place.url, self._output.shown, wanted.tables, form)

    def _at_snapshot(self, state: FeedState) -> FeedState:
        """Return the state that starts with the rows of the newest snapshot, or with the log without one."""
        from wlr.reading.feeds.log_source import beginning

        manifest = log_reader.choose_snapshot(self._place, Stop())
        if manifest is None:
            position, batch_last = beginning(self._place, None)
            return replace(state, position=position, history=position.history, batch_last=batch_last, written=None)
        start = manifest.position
        return replace(state, position=None, history=start.history, snapshot=start.tick, written=None)

    def _refuse_other_output(self, registry: FarmDatabase) -> None:
        """Refuse the name of a registered feed to another output."""
        for known in known_replicas(registry)[0]:
            if known.id == paths.feed_id(self._name) and (known.target, known.host) != (
                self._output.shown,
                this_host(),
            ):
                raise InvalidError(
                    f"feed {self._name} of {self._database.name} writes to {known.target} on {known.host}",
                    hint="Give this one another name: --name NAME",
                )

    # The farm

    def _register(self, state: FeedState, *, is_level: bool = False, failure: str = "") -> None:
        """Register the feed's position, so that pruning keeps the log after it."""
        known = replace(feed_reader(state), target=self._output.shown)
        register_reader(self._place, known, self._membership, is_level=is_level, failure=failure)

    def _with_hint(self, error: ExpiredError | CorruptError) -> ExpiredError | CorruptError:
        hint = (
            f"{shlex.join([*self._wanted.command, '--from', SNAPSHOT])} continues with the rows of the newest snapshot"
        )
        return type(error)(error.message, hint=hint, path=error.path, position=error.position)

    def _result(self, state: FeedState, done: FeedRun | None = None) -> Fed:
        counts = (done.records, done.bytes, done.dropped) if done else (0, 0, 0)
        tick = state.position.tick if state.position else 0
        return Fed(state.name, self._output.shown, tick, state.clock, *counts, is_paused=state.is_paused)

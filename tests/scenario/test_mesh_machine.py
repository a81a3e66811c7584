"""Whatever sites of a mesh write and take from whomever, each row is what the newest change made of it (P1, P5, P6), and
each number is the sum of what was added to it (P11). Programs are killed, takes die half way, files are restored from
backups, sites join and leave.

The model knows every transaction by name and by the time of its commit, which it reads from the log of the site that
made it. In the end all sites hold the newest change of each row, digests included, each transaction is in each log once,
whoever was rejected had not seen what it collided with (P4), and then all are silent. DBFARM_EXAMPLES=1000 looks further.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import wlc
from tests.fault.breaker import abandon_masters, kill_master
from tests.sampling import machine_settings
from tests.sites import Sites, clock_ahead
from wlc.farm.errors import ExpiredError, InvalidError, UnavailableError
from wlc.masters.publish import publish
from wlc.multi_master import take_round

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.capture.duckdb.connection import Connection
    from wlc.farm.model import Batch

NAMES = ("oslo", "paris", "rome", "york")
SCHEMA = """
    CREATE TABLE t (k VARCHAR PRIMARY KEY, v VARCHAR);
    CREATE TABLE o (k VARCHAR PRIMARY KEY, v VARCHAR);
    CREATE TABLE p (k VARCHAR PRIMARY KEY, v VARCHAR);
    CREATE TABLE s (k VARCHAR PRIMARY KEY, v VARCHAR, n DECIMAL(9, 2) NOT NULL);
    CREATE TABLE b (v VARCHAR);
    INSERT INTO t VALUES ('a', 'first'), ('b', 'first'), ('A', 'first');
"""
KEYS = ("a", "b", "A")
# Who may write the tables: all, paris, and oslo.
TABLES = {"t": None, "o": "paris", "p": "oslo"}
Key = tuple[str, str]
Stamp = tuple[datetime, str, int]
# History and tick of its first commit.
TransactionName = tuple[str, int]
_FIRST: Stamp = (datetime.min.replace(tzinfo=UTC), "", 0)
sites = st.integers(0, 3)


@dataclass(frozen=True)
class Own:
    """A transaction that a site has made: what became of rows, what it added to numbers, and to rows without a key."""

    made: dict[Key, str | None] = field(default_factory=dict)
    added: tuple[str, int] | None = None
    bag: tuple[str, int] | None = None


@dataclass
class Past:
    """What a site has written, in its order, and how much of it is published.

    Attributes:
        backup: A copy of its file, and how much the site had written then.
    """

    written: list[Own] = field(default_factory=list)
    published: int = 0
    backup: tuple[bytes, int] | None = None
    skew: timedelta = timedelta()

    def lose(self, kept: int = 0) -> None:
        """Forget what is neither published nor in the file any more."""
        del self.written[max(self.published, kept) :]


class Mesh(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.sites = Sites(self.folder)
        self.count = 0
        self.pasts: dict[str, Past] = {}

    def teardown(self) -> None:
        try:
            if self.sites.names:
                self.settle()
        finally:
            abandon_masters()
            shutil.rmtree(self.folder)

    @initialize()
    def found(self) -> None:
        self.sites.found(SCHEMA, mesh=True)
        for table, owner in TABLES.items():
            if table != "p":
                rule_name = "owner" if owner else "newest"
                wlc.set_rule("sales", table, rule_name, site="" if owner != "paris" else "oslo", farm=self.sites.farm)
        wlc.set_rule("sales", "s", "newest", add=["n"], farm=self.sites.farm)
        wlc.set_rule("sales", "b", "add", farm=self.sites.farm)
        for name in NAMES[:3]:
            self.sites.join(name) if name != "oslo" else None
            self.pasts[name] = Past()
        wlc.set_rule("sales", "o", "owner", site="paris", farm=self.sites.farm)
        self.sites.exchange()

    def pick(self, site: int) -> str:
        return self.sites.names[site % len(self.sites.names)]

    @contextmanager
    def connected(self, name: str, *, is_killed: bool = False) -> Iterator[Connection]:
        """A program of a site, which publishes at its end unless it is killed."""
        past, file = self.pasts[name], self.sites.file(name)
        with clock_ahead(past.skew):
            if is_killed:
                connection = wlc.connect(file)
                yield connection
                kill_master(connection, file)
                return
            with wlc.connect(file) as connection:
                yield connection
        past.published = len(past.written)

    @rule(
        site=sites,
        table=st.sampled_from("tttop"),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True),
        kind=st.sampled_from(["set", "set", "remove", "replace"]),
        is_killed=st.sampled_from([False, False, True]),
    )
    def write(self, site: int, table: str, keys: list[str], kind: str, is_killed: bool) -> None:
        name = self.pick(site)
        if TABLES[table] not in (None, name):
            with pytest.raises(InvalidError, match="cannot write"), wlc.connect(self.sites.file(name)) as connection:
                connection.execute(f"INSERT INTO {table} VALUES ('new', '')")
            return
        self.count += 1
        made: dict[Key, str | None] = {}
        with self.connected(name, is_killed=is_killed) as connection:
            connection.execute("BEGIN")
            for key in keys:
                had = connection.execute(f"SELECT v FROM {table} WHERE k = '{key}'").fetchall()
                if had and kind in ("remove", "replace"):
                    connection.execute(f"DELETE FROM {table} WHERE k = '{key}'")
                    made[table, key] = None
                if kind == "set" or (kind == "replace" and not had):
                    value = f"{name} {self.count}"
                    text = f"INSERT INTO {table} VALUES ('{key}', '{value}') ON CONFLICT DO UPDATE SET v = excluded.v"
                    connection.execute(text)
                    made[table, key] = value
            connection.execute("COMMIT")
            if made:
                self.pasts[name].written.append(Own(made))

    @rule(site=sites, key=st.sampled_from(KEYS), by=st.integers(-3, 3), writes=st.booleans())
    def add(self, site: int, key: str, by: int, writes: bool) -> None:
        """Add to a number, or write the rest of its row, too."""
        name = self.pick(site)
        if not writes and (by == 0 or key not in [row[0] for row in self.sites.rows(name, "s")]):
            return
        self.count += 1
        value = f"{name} {self.count}"
        text = f"UPDATE s SET n = n + {by} WHERE k = '{key}'"
        if writes:
            values = f"INSERT INTO s VALUES ('{key}', '{value}', {by})"
            text = f"{values} ON CONFLICT DO UPDATE SET v = excluded.v, n = s.n + excluded.n"
        with self.connected(name) as connection:
            connection.execute(text)
            self.pasts[name].written.append(Own({("s", key): value} if writes else {}, added=(key, by)))

    @rule(site=sites, value=st.sampled_from(KEYS), removes=st.booleans())
    def add_row(self, site: int, value: str, removes: bool) -> None:
        """Add a row that has no key, or let the primary remove one."""
        name = "oslo" if removes else self.pick(site)
        if removes and (value,) not in self.sites.rows(name, "b"):
            return
        text = f"DELETE FROM b WHERE rowid = (SELECT min(rowid) FROM b WHERE v = '{value}')"
        with self.connected(name) as connection:
            connection.execute(text if removes else f"INSERT INTO b VALUES ('{value}')")
            self.pasts[name].written.append(Own(bag=(value, -1 if removes else 1)))

    @rule(site=sites, other=sites)
    def take_from(self, site: int, other: int) -> None:
        name, source = self.pick(site), self.pick(other)
        if name != source:
            # What it presupposes may be in another log, and clocks may be too far apart.
            with clock_ahead(self.pasts[name].skew), suppress(ExpiredError, UnavailableError):
                wlc.take(self.sites.file(name), site=source)
            self.pasts[name].published = len(self.pasts[name].written)

    @rule(site=sites, dies=st.sampled_from([False, False, True]))
    def take(self, site: int, dies: bool) -> None:
        """Take, or die between what was taken and its publication."""
        name, calls = self.pick(site), list[int]()

        def dying(*given: object) -> object:
            calls.append(1)
            if dies and len(calls) > 1:
                raise UnavailableError("died")
            return publish(*given)  # type: ignore[arg-type]

        with clock_ahead(self.pasts[name].skew), patch.object(take_round, "publish", dying), suppress(UnavailableError):
            self.sites.take(name)
        self.pasts[name].published = len(self.pasts[name].written)

    @rule(site=sites)
    def flush(self, site: int) -> None:
        self.publish(self.pick(site))

    def publish(self, name: str) -> None:
        wlc.flush(self.sites.file(name))
        self.pasts[name].published = len(self.pasts[name].written)

    @rule(site=sites)
    def prune(self, site: int) -> None:
        name = self.pick(site)
        self.publish(name)
        wlc.snapshot(self.sites.file(name))
        wlc.prune(self.sites.log(name).url, keep_for="0s")

    @rule(site=sites)
    def back_up(self, site: int) -> None:
        past, file = self.pasts[self.pick(site)], self.sites.file(self.pick(site))
        past.backup = file.read_bytes(), len(past.written)

    @rule(site=sites)
    def restore(self, site: int) -> None:
        """The file is that of the backup: what the log has comes back, and what was in neither is lost."""
        name = self.pick(site)
        past, file = self.pasts[name], self.sites.file(name)
        if past.backup is None:
            return
        for each in file.parent.glob(f"{file.name}.wal*"):
            each.unlink()
        content, kept = past.backup
        file.write_bytes(content)
        past.lose(kept)
        with warnings.catch_warnings(), clock_ahead(past.skew):
            # Of what came back.
            warnings.simplefilter("ignore", UserWarning)
            wlc.connect(file).close()
        past.published = len(past.written)

    @rule(site=sites, minutes=st.sampled_from([-60, -2, 0, 2]))
    def set_clock(self, site: int, minutes: int) -> None:
        self.pasts[self.pick(site)].skew = timedelta(minutes=minutes)

    @precondition(lambda self: NAMES[3] not in self.pasts)
    @rule()
    def join(self) -> None:
        self.sites.join(NAMES[3])
        self.pasts[NAMES[3]] = Past()

    @rule(site=sites)
    def leave(self, site: int) -> None:
        """A site may leave once all others have read what it published."""
        name = self.pick(site)
        if name in ("oslo", "paris"):
            return
        try:
            wlc.leave("sales", name, farm=self.sites.farm)
        except InvalidError as error:
            assert "has read site" in error.message or "has not read" in error.message, error
            return
        self.sites.names.remove(name)
        self.pasts[name].lose()

    # The end --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for name in self.sites.names:
            self.publish(name)
        for _ in range(2 * len(self.sites.names)):
            if not sum([self.sites.take(name) for name in self.sites.names]):
                break
        else:
            raise AssertionError("they never fall silent")
        self.sites.refuse_differences(*TABLES, "s", "b")
        sums, bag = dict[str, int](), Counter[str]()
        for own in (own for past in self.pasts.values() for own in past.written):
            if own.added is not None:
                sums[own.added[0]] = sums.get(own.added[0], 0) + own.added[1]
            if own.bag is not None:
                bag[own.bag[0]] += own.bag[1]
        assert self.sites.rows("oslo", "b") == [(value,) for value in sorted(bag.elements())]
        assert {key: n for key, _, n in self.sites.rows("oslo", "s")} == sums
        self.check_newest()
        for name in self.sites.names:
            found = self.sites.names_of(name)
            assert len(found) == len({(each.history, each.tick) for each in found})
        self.sites.replica_equals(self.sites.names[self.count % len(self.sites.names)], *TABLES, "s", "b")
        for name in self.sites.names:
            assert all(check.outcome == "same" for check in wlc.verify_source(self.sites.file(name)))

    def check_newest(self) -> None:
        """Each row is what the newest of all changes made of it, and nobody was rejected who had seen all others."""
        newest: dict[Key, tuple[Stamp, str | None]] = {("t", key): (_FIRST, "first") for key in KEYS}
        made: dict[TransactionName, dict[Key, str | None]] = {}
        seen: dict[TransactionName, frozenset[TransactionName]] = {}
        for name, past in self.pasts.items():
            own = self.own_transactions(name, seen)
            if len(own) < len(past.written):
                # The beginning is pruned.
                return
            for stamp, each in zip(own[len(own) - len(past.written) :], past.written, strict=True):
                made[stamp[1:]] = each.made
                for key, value in each.made.items():
                    newest[key] = max(newest.get(key, (_FIRST, None)), (stamp, value), key=lambda each: each[0])
        for table in TABLES:
            expected = sorted((key, value) for (of, key), (_, value) in newest.items() if of == table and value)
            assert self.sites.rows("oslo", table) == expected
        values = {key: value for (of, key), (_, value) in newest.items() if of == "s"}
        assert {key: value for key, value, _ in self.sites.rows("oslo", "s")} == values
        for name in self.sites.names:
            for row in wlc.exceptions(self.sites.file(name)):
                rejected, key = (row.origin_history, row.origin_tick), (row.table.name, str(row.key["k"]))
                others = [other for other, changes in made.items() if key in changes and other not in seen[rejected]]
                assert any(rejected not in seen[other] for other in others if other != rejected), (name, row)

    def own_transactions(self, name: str, seen: dict[TransactionName, frozenset[TransactionName]]) -> list[Stamp]:
        """Return a site's own transactions in their order; adds to each of them what the site had seen before it."""
        found: list[Stamp] = []
        held: set[TransactionName] = set()
        for batch in self.batches(name):
            for each in batch.transactions:
                named = (each.origin.history, each.origin.tick) if each.origin else (batch.history, each.tick)
                if each.origin is None and each.records and each.committed:
                    found.append((each.committed, *named))
                    seen[named] = frozenset(held)
                held.add(named)
        return found

    def batches(self, name: str) -> list[Batch]:
        log = self.sites.log(name)
        return [log.read_batch(number)[0] for number in log.batch_numbers()]


@pytest.mark.slow
def test_each_row_is_its_newest_change() -> None:
    run_state_machine_as_test(Mesh, settings=machine_settings(3))


@pytest.mark.deep
def test_each_row_is_its_newest_change_a_thousand_times() -> None:
    run_state_machine_as_test(Mesh, settings=machine_settings(1000))

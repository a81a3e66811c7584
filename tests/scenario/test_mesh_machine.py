"""Whatever sites of a mesh write and take from whomever, each row is what the newest change made of it (P1, P4, P5, P6),
and each number is the sum of what was added to it (P11).

The model knows every transaction by name and by the time of its commit, which it reads from the log of the site that
made it. In the end all sites hold the newest change of each row, digests included, each transaction is in each log once,
and then they are silent. DBFARM_EXAMPLES=1000 looks further.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import wlc
from tests.sampling import machine_settings
from tests.sites import Sites, clock_ahead
from wlc.farm.errors import ExpiredError, InvalidError, UnavailableError

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
_FIRST: Stamp = (datetime.min.replace(tzinfo=UTC), "", 0)
sites = st.integers(0, 3)


class Mesh(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.sites = Sites(self.folder)
        self.count = 0
        self.sums: dict[str, int] = {}
        self.bag: Counter[str] = Counter()
        self.skews: dict[str, timedelta] = {}
        # Of each site what its own transactions made of rows, in their order.
        self.written: dict[str, list[dict[Key, str | None]]] = {}

    def teardown(self) -> None:
        try:
            if self.sites.names:
                self.settle()
        finally:
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
            self.written[name], self.skews[name] = [], timedelta()
        wlc.set_rule("sales", "o", "owner", site="paris", farm=self.sites.farm)
        self.sites.exchange()

    def pick(self, site: int) -> str:
        return self.sites.names[site % len(self.sites.names)]

    @rule(
        site=sites,
        table=st.sampled_from("tttop"),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True),
        kind=st.sampled_from(["set", "set", "remove", "replace"]),
    )
    def write(self, site: int, table: str, keys: list[str], kind: str) -> None:
        name = self.pick(site)
        if TABLES[table] not in (None, name):
            with pytest.raises(InvalidError, match="cannot write"), wlc.connect(self.sites.file(name)) as connection:
                connection.execute(f"INSERT INTO {table} VALUES ('new', '')")
            return
        self.count += 1
        made: dict[Key, str | None] = {}
        with clock_ahead(self.skews[name]), wlc.connect(self.sites.file(name)) as connection:
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
            self.written[name].append(made)

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
        with clock_ahead(self.skews[name]), wlc.connect(self.sites.file(name)) as connection:
            connection.execute(text)
        self.written[name].append({("s", key): value} if writes else {})
        self.sums[key] = self.sums.get(key, 0) + by

    @rule(site=sites, value=st.sampled_from(KEYS), removes=st.booleans())
    def add_row(self, site: int, value: str, removes: bool) -> None:
        """Add a row that has no key, or let the primary remove one."""
        name = "oslo" if removes else self.pick(site)
        if removes and (value,) not in self.sites.rows(name, "b"):
            return
        text = f"DELETE FROM b WHERE rowid = (SELECT min(rowid) FROM b WHERE v = '{value}')"
        with clock_ahead(self.skews[name]), wlc.connect(self.sites.file(name)) as connection:
            connection.execute(text if removes else f"INSERT INTO b VALUES ('{value}')")
        self.written[name].append({})
        self.bag[value] += -1 if removes else 1

    @rule(site=sites, other=sites)
    def take_from(self, site: int, other: int) -> None:
        name, source = self.pick(site), self.pick(other)
        if name != source:
            # What it presupposes may be in another log, and clocks may be too far apart.
            with clock_ahead(self.skews[name]), suppress(ExpiredError, UnavailableError):
                wlc.take(self.sites.file(name), site=source)

    @rule(site=sites)
    def take(self, site: int) -> None:
        name = self.pick(site)
        with clock_ahead(self.skews[name]), suppress(UnavailableError):
            self.sites.take(name)

    @rule(site=sites)
    def flush(self, site: int) -> None:
        wlc.flush(self.sites.file(self.pick(site)))

    @rule(site=sites)
    def prune(self, site: int) -> None:
        name = self.pick(site)
        wlc.snapshot(self.sites.file(name))
        wlc.prune(self.sites.log(name).url, keep_for="0s")

    @rule(site=sites, minutes=st.sampled_from([-60, -2, 0, 2]))
    def set_clock(self, site: int, minutes: int) -> None:
        self.skews[self.pick(site)] = timedelta(minutes=minutes)

    @precondition(lambda self: len(self.sites.names) == 3)
    @rule()
    def join(self) -> None:
        self.sites.join(NAMES[3])
        self.written[NAMES[3]], self.skews[NAMES[3]] = [], timedelta()

    # The end --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for name in self.sites.names:
            wlc.flush(self.sites.file(name))
        for _ in range(2 * len(self.sites.names)):
            if not sum([self.sites.take(name) for name in self.sites.names]):
                break
        else:
            raise AssertionError("they never fall silent")
        self.sites.refuse_differences(*TABLES, "s", "b")
        assert self.sites.rows("oslo", "b") == [(value,) for value in sorted(self.bag.elements())]
        assert {key: n for key, _, n in self.sites.rows("oslo", "s")} == self.sums
        self.check_newest()
        for name in self.sites.names:
            found = self.sites.names_of(name)
            assert len(found) == len({(each.history, each.tick) for each in found})
        self.sites.replica_equals(self.sites.names[self.count % len(self.sites.names)], *TABLES, "s", "b")
        for name in self.sites.names:
            assert all(check.outcome == "same" for check in wlc.verify_source(self.sites.file(name)))

    def check_newest(self) -> None:
        """Each row is what the newest of all changes made of it."""
        newest: dict[Key, tuple[Stamp, str | None]] = {("t", key): (_FIRST, "first") for key in KEYS}
        for name, written in self.written.items():
            log = self.sites.log(name)
            batches = [log.read_batch(number)[0] for number in log.batch_numbers()]
            own = [
                (t.committed, batch.history, t.tick)
                for batch in batches
                for t in batch.transactions
                if t.origin is None and t.records and t.committed
            ]
            if len(own) < len(written):
                # The beginning is pruned.
                return
            for stamp, made in zip(own[len(own) - len(written) :], written, strict=True):
                for key, value in made.items():
                    newest[key] = max(newest.get(key, (_FIRST, None)), (stamp, value), key=lambda each: each[0])
        for table in TABLES:
            expected = sorted((key, value) for (of, key), (_, value) in newest.items() if of == table and value)
            assert self.sites.rows("oslo", table) == expected
        values = {key: value for (of, key), (_, value) in newest.items() if of == "s"}
        assert {key: value for key, value, _ in self.sites.rows("oslo", "s")} == values


def test_each_row_is_its_newest_change() -> None:
    run_state_machine_as_test(Mesh, settings=machine_settings(3))


@pytest.mark.deep
def test_each_row_is_its_newest_change_a_thousand_times() -> None:
    run_state_machine_as_test(Mesh, settings=machine_settings(1000))

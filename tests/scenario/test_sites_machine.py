"""Whatever sites write, publish and take in whatever order, each holds what a model in plain Python says (P1 to P10).

The model (`tests/sites_model.py`) knows what every transaction's author had seen, and decides by looking through the
whole log of the primary. After every operation each site holds the model's rows; in the end all are equal, each
transaction is in each log once, the exceptions are the model's, and a plain replica of a site holds what the site holds,
also at an earlier tick. DBFARM_EXAMPLES=1000 looks further.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import duckdb
import pytest
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import wlc
import wlr
from tests.fault.breaker import abandon_masters
from tests.pieces import each, seed_of_run
from tests.sampling import machine_settings
from tests.sites import Sites, windows_compared
from tests.sites_model import PRIMARY, ModelSite, SitesModel
from wlc.capture.duckdb.home import Home
from wlc.farm.errors import FencedError, InvalidError, UnavailableError
from wlc.farm.store import memory
from wlc.multi_master import missing_steps
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sites_model import Key, TransactionName
    from wlc.masters.contract import SiteStep

# A long run can be done in pieces of so many examples; see `tests.pieces`.
PIECE = 20
NAMES = ("oslo", "paris", "rome", "york")
KEYS = (1, 2, 3)
# The same to a collation, and different to the index.
TEXTS = {1: "A", 2: "a", 3: "B"}
RULES = {"t": "epoch_trans", "e": "epoch", "s": "epoch_trans", "n": "", "o": "owner"}
# Tables whose rows are equal everywhere in the end: without a rule, sites that write one row hold different values.
AGREED = {"t", "e", "s", "o"}
OWNER = 1
# Tables with constraints, which the model does not know: in the end they are equal.
CONSTRAINED = {
    "u": "CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE)",
    "parents": "CREATE TABLE parents (k INTEGER PRIMARY KEY, v VARCHAR)",
    "children": "CREATE TABLE children (k INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (k))",
}
STATEMENTS = (
    "INSERT INTO u VALUES ({k}, 'v{m}')",
    "UPDATE u SET v = 'v{m}' WHERE k = {k}",
    "DELETE FROM u WHERE k = {k}",
    "INSERT INTO parents VALUES ({k}, '{site}')",
    "UPDATE parents SET v = '{site}' WHERE k = {k}",
    "DELETE FROM parents WHERE k = {k}",
    "INSERT INTO children VALUES ({k}, {m})",
    "UPDATE children SET parent = {m} WHERE k = {k}",
    "DELETE FROM children WHERE k = {k}",
)

change = st.tuples(
    st.sampled_from("tttteesssno"),
    st.sampled_from(["set", "set", "set", "remove", "replace", "move", "all", "empty"]),
    st.sampled_from(KEYS),
)
transactions = st.lists(st.lists(change, min_size=1, max_size=3), min_size=1, max_size=4)
sites = st.integers(0, 3)
statements = st.lists(
    st.tuples(st.sampled_from(STATEMENTS), st.sampled_from(KEYS), st.sampled_from(KEYS)), min_size=1, max_size=5
)


def text(key: Key) -> str:
    """A row's condition."""
    return f"k COLLATE \"binary\" = '{TEXTS[key[1]]}'" if key[0] == "s" else f"k = {key[1]}"


def value(key: Key) -> str:
    return f"'{TEXTS[key[1]]}'" if key[0] == "s" else str(key[1])


@dataclass
class Start:
    """Files and farm of three sites that everything begins with."""

    folder: Path
    farm: dict[str, bytes]


_start: list[Start] = []


@contextmanager
def one_home() -> Iterator[None]:
    """Let copies of the files stand for one place: a copy of a master would publish nothing.

    What is concurrent to a step is compared with what is derived for it alone.
    """
    with (
        patch("wlc.capture.duckdb.shared.home_at", lambda _: Home("host", "boot", "/world", 1, 1)),
        windows_compared(),
    ):
        yield


class MemorySites(Sites):
    """Sites in a farm in memory."""

    @property
    def farm(self) -> str:
        return "memory://sites"


def started() -> Start:
    if not _start:
        folder = Path(tempfile.mkdtemp(prefix="dbfarm-", dir=_quick()))
        made = MemorySites(folder)
        _empty()
        made.found(
            "; ".join(
                f"CREATE TABLE {table} (k {'VARCHAR COLLATE NOCASE' if table == 's' else 'INTEGER'} PRIMARY KEY,"
                " v VARCHAR)"
                for table in RULES
            )
            + "; ".join(["", *CONSTRAINED.values()])
        )
        for name in NAMES[1:3]:
            made.join(name)
        for table, found in {**RULES, "u": "epoch", "parents": "epoch_trans", "children": "epoch_trans"}.items():
            if found:
                wlc.set_rule("sales", table, found, site=NAMES[OWNER] if found == "owner" else "", farm=made.farm)
        for name in NAMES[:3]:
            wlc.take(made.file(name))
        _start.append(Start(folder, {key: data for key, data in memory._objects.items() if _is_ours(key)}))
    return _start[0]


def _quick() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _is_ours(key: str) -> bool:
    return key.startswith("memory://sites/")


def _empty() -> None:
    for key in [key for key in memory._objects if _is_ours(key)]:
        del memory._objects[key]


class Exchange(RuleBasedStateMachine):
    """Sites that write and take."""

    @initialize(joined=st.sampled_from([1, 2, missing_steps.JOINED_TRANSACTIONS]))
    def begin(self, joined: int) -> None:
        """Begin; up to how many transactions of several log files a step may hold decides nothing."""
        self.around = ExitStack()
        self.around.enter_context(one_home())
        self.around.enter_context(patch.object(missing_steps, "JOINED_TRANSACTIONS", joined))
        start = started()
        self.folder = Path(tempfile.mkdtemp(prefix="dbfarm-", dir=_quick()))
        for name in NAMES[:3]:
            shutil.copy(start.folder / f"{name}.duckdb", self.folder)
        _empty()
        memory._objects.update(start.farm)
        self.sites = MemorySites(self.folder, list(NAMES[:3]))
        self.model = SitesModel([ModelSite(number, published=0) for number in range(3)], dict(RULES))
        self.alive = [0, 1, 2]
        self.idle: set[int] = set()
        self.count = 0
        self.is_constrained = False
        self.names: dict[tuple[str, int], TransactionName] = {}
        # What a site held at a tick of its log.
        self.past: dict[int, list[tuple[int, dict[Key, str]]]] = {number: [] for number in range(4)}
        self.connect()

    def connect(self) -> None:
        self.connections = {number: wlc.connect(self.sites.file(NAMES[number])) for number in self.alive}

    def teardown(self) -> None:
        if not hasattr(self, "connections"):
            return
        try:
            self.settle()
        finally:
            for connection in self.connections.values():
                connection.close()
            abandon_masters()
            shutil.rmtree(self.folder)
            self.around.close()

    # What is looked at after every operation ------------------------------------------------------------------------

    def held(self, number: int) -> dict[Key, str]:
        with self.connections[number].cursor() as connection:
            found = [
                f"SELECT '{table}', CAST(k AS VARCHAR), v FROM {table}" for table in self.model.rules if table != "s"
            ]
            rows: list[tuple[str, str, str]] = connection.execute(" UNION ALL ".join(found)).fetchall()
            texts = connection.execute("SELECT CAST(k AS VARCHAR), v FROM s").fetchall()
        numbers = {text: number for number, text in TEXTS.items()}
        held = {(table, int(key)): v for table, key, v in rows}
        assert len(held) == len(rows)
        return held | {("s", numbers[key]): v for key, v in texts}

    def check(self, *numbers: int) -> None:
        for number in numbers or self.alive:
            held, expected = self.held(number), self.model.sites[number].rows
            assert held == expected, f"{NAMES[number]}: {held} is not {expected}"
            self.past[number].append((self.connections[number]._shared.last_tick, dict(expected)))

    # Operations -----------------------------------------------------------------------------------------------------

    def pick(self, number: int) -> int:
        return self.alive[number % len(self.alive)]

    @rule(site=sites, bursts=transactions)
    def write(self, site: int, bursts: list[list[tuple[str, str, int]]]) -> None:
        for changes in bursts:
            self.commit(self.pick(site), changes)
        self.check(self.pick(site))

    def commit(self, number: int, changes: list[tuple[str, str, int]]) -> None:
        """Commit a transaction at a site and in the model."""
        model = self.model.sites[number]
        rows, statements = dict(model.rows), []
        self.count += 1
        new = f"{NAMES[number]} {self.count}"
        touched: set[Key] = set()
        for table, kind, place in changes:
            key = (table, place)
            inside = [other for other in rows if other[0] == table]
            involved = {
                "move": {key, (table, place % len(KEYS) + 1)},
                "all": set(inside),
                "empty": set(inside),
            }.get(kind, {key})
            if involved & touched or not involved:
                # DuckDB does not let one transaction remove a key and add it again.
                continue
            statement = self.changed(rows, kind, key, new)
            if statement:
                touched |= involved
                statements.append(statement)
        after = {key: rows.get(key) for key in touched if rows.get(key) != model.rows.get(key)}
        if not statements:
            return
        connection = self.connections[number]
        if number != OWNER and any(table == "o" for table, _ in after):
            with pytest.raises(InvalidError, match="cannot write main.o"):
                connection.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
            if connection._session.transaction is not None:
                connection.rollback()
            return
        connection.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
        if after:
            model.write(after)
            shared = connection._shared
            self.names[shared.require_state().history, shared.last_tick] = (number, model.ticks)

    @rule(site=sites, parts=statements)
    def write_with_constraints(self, site: int, parts: list[tuple[str, int, int]]) -> None:
        number = self.pick(site)
        for statement, k, m in parts:
            with suppress(duckdb.ConstraintException):
                self.connections[number].execute(statement.format(k=k, m=m, site=NAMES[number]))
                self.is_constrained = True

    @staticmethod
    def changed(rows: dict[Key, str], kind: str, key: Key, new: str) -> str:
        """Change rows as a statement does, and return the statement; empty if it would fail."""
        table, place = key
        if kind == "move":
            other = (table, place % len(KEYS) + 1)
            if key not in rows or other in rows:
                return ""
            rows[other] = new
            del rows[key]
            return f"UPDATE {table} SET k = {value(other)}, v = '{new}' WHERE {text(key)}"
        if kind == "all":
            rows.update({other: new for other in rows if other[0] == table})
            return f"UPDATE {table} SET v = '{new}'"
        if kind == "empty":
            for other in [other for other in rows if other[0] == table]:
                del rows[other]
            return f"TRUNCATE {table}" if place == 1 else f"DELETE FROM {table}"
        if kind == "remove" and key in rows:
            del rows[key]
            return f"DELETE FROM {table} WHERE {text(key)}"
        is_there = key in rows
        rows[key] = new
        # INSERT OR REPLACE replaces by collation, which the index does not know.
        if is_there and (kind != "replace" or table == "s"):
            return f"UPDATE {table} SET v = '{new}' WHERE {text(key)}"
        return f"INSERT {'OR REPLACE ' if is_there else ''}INTO {table} VALUES ({value(key)}, '{new}')"

    @rule(site=sites)
    def publish(self, site: int) -> None:
        number = self.pick(site)
        wlc.flush(self.sites.file(NAMES[number]))
        self.model.sites[number].publish()

    @rule(site=sites)
    def take(self, site: int) -> None:
        self.taken(self.pick(site))

    @rule(site=sites, changes=st.lists(change, min_size=1, max_size=3))
    def take_while_a_user_commits(self, site: int, changes: list[tuple[str, str, int]]) -> None:
        """A user commits after the taker has published what waited."""
        number, steps = self.pick(site), SiteLog.steps
        done: list[int] = []

        def meeting(log: SiteLog) -> Iterator[SiteStep]:
            if not done:
                done.append(1)
                self.commit(number, changes)
            yield from steps(log)

        with patch.object(SiteLog, "steps", meeting):
            self.taken(number)

    @rule(site=sites, at=st.integers(0, 40), is_after=st.booleans())
    def take_after_a_broken_call(self, site: int, at: int, is_after: bool) -> None:
        """A call of the store fails in the middle, or its answer is lost; the next round ends where this one would."""
        number = self.pick(site)
        calls: list[int] = []

        def breaking(name: str) -> Callable[..., Any]:
            method = getattr(memory.MemoryStore, name)

            def broken(*arguments: Any, **options: Any) -> Any:
                calls.append(1)
                is_here = len(calls) == at + 1
                if is_here and not is_after:
                    raise UnavailableError("broken")
                found = method(*arguments, **options)
                if is_here:
                    raise UnavailableError("broken")
                return found

            return broken

        names = ("read", "read_versioned", "fetch", "list", "exists", "create", "replace")
        with pytest.MonkeyPatch.context() as patches:
            for name in names:
                patches.setattr(memory.MemoryStore, name, breaking(name))
            with suppress(UnavailableError):
                wlc.take(self.sites.file(NAMES[number]))
        self.taken(number, is_rest=True)

    def taken(self, number: int, *, is_rest: bool = False) -> int:
        """Take, or take what a round has left that was broken off."""
        model = self.model.sites[number]
        model.publish()
        found = wlc.take(self.sites.file(NAMES[number]))
        before = len(model.log)
        if number in self.idle:
            assert found == []
        elif number == PRIMARY:
            for other in self.alive:
                if other != PRIMARY and other not in self.idle:
                    self.model.take_at_primary(other)
        elif PRIMARY not in self.idle:
            self.model.take_at(number, len(self.model.sites[PRIMARY].log))
        taken = sum(each.transactions for each in found)
        # The model tells of each rejected transaction by itself, the product of all in a step.
        expected = [entry for entry in model.log[before:] if not (entry.is_refresh and number == PRIMARY)]
        told = {entry.name for entry in self.model.sites[PRIMARY].log if entry.is_refresh}
        assert is_rest or sum(entry.name not in told for entry in expected) <= taken
        assert taken <= len(expected) or self.is_constrained
        model.publish()
        self.check(number)
        return taken

    @rule(table=st.sampled_from("tes"), name=st.sampled_from(["epoch", "epoch_trans"]))
    def change_rule(self, table: str, name: str) -> None:
        """The primary judges by it from its next take."""
        wlc.set_rule("sales", table, name, farm=self.sites.farm)
        self.model.rules[table] = name

    @rule(site=sites)
    def change_role(self, site: int) -> None:
        number = self.pick(site)
        if number == PRIMARY:
            return
        wlc.set_role("sales", NAMES[number], "secondary" if number in self.idle else "none", farm=self.sites.farm)
        self.idle ^= {number}

    @rule()
    def crash(self) -> None:
        """All programs are gone; the files are as they were at that moment."""
        image = {file.name: file.read_bytes() for file in self.folder.glob("*.duckdb*") if file.is_file()}
        for connection in self.connections.values():
            connection._finalizer.detach()
        abandon_masters()
        for file in self.folder.glob("*.duckdb*"):
            if file.name not in image:
                file.unlink()
        for name, data in image.items():
            (self.folder / name).write_bytes(data)
        self.connect()
        self.check()

    @rule(site=sites)
    def prune(self, site: int) -> None:
        number = self.pick(site)
        wlc.snapshot(self.sites.file(NAMES[number]))
        self.model.sites[number].publish()
        wlc.prune(self.sites.log(NAMES[number]).url, keep_for="0s")

    @precondition(lambda self: len(self.model.sites) == 3)
    @rule()
    def join(self) -> None:
        """A site joins with what the primary has published."""
        number = len(self.model.sites)
        primary = self.model.sites[PRIMARY]
        new = ModelSite(number, published=0)
        self.sites.join(NAMES[number])
        for entry in primary.visible:
            new.write(entry.after, entry.name)
        new.read[PRIMARY] = len(primary.visible)
        # What it begins with is the primary's: it may leave before it is read.
        new.published = primary.read[number] = len(new.log)
        self.model.sites.append(new)
        self.alive.append(number)
        self.connections[number] = wlc.connect(self.sites.file(NAMES[number]))
        self.check(number)

    @rule(site=sites)
    def leave(self, site: int) -> None:
        """A site may leave once the primary has read all that it published."""
        number = self.pick(site)
        if number in (PRIMARY, OWNER) or len(self.alive) < 3:
            return
        has_read = self.model.sites[PRIMARY].read.get(number, 0) == self.model.sites[number].published
        try:
            wlc.leave("sales", NAMES[number], farm=self.sites.farm)
        except InvalidError:
            # Footers of echoes, too, are read.
            self.taken(PRIMARY)
            return
        assert has_read or self.is_constrained
        self.alive.remove(number)
        self.idle.discard(number)
        self.sites.names.remove(NAMES[number])
        # What it has not published stays in its file alone.
        with suppress(FencedError):
            self.connections.pop(number).close()

    # The end --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for number in sorted(self.idle):
            wlc.set_role("sales", NAMES[number], "secondary", farm=self.sites.farm)
        self.idle.clear()
        for number in self.alive:
            self.publish(self.alive.index(number))
        for _ in range(2 * len(self.alive)):
            if not sum([self.taken(number) for number in self.alive]):
                break
        else:
            raise AssertionError("they never fall silent")
        self.check()
        agreed = [
            {key: v for key, v in self.model.sites[number].rows.items() if key[0] in AGREED} for number in self.alive
        ]
        assert agreed == [agreed[0]] * len(agreed), agreed
        for table in CONSTRAINED:
            rows = [self.connections[number].execute(f"FROM {table} ORDER BY ALL").fetchall() for number in self.alive]
            assert rows == [rows[0]] * len(rows), f"{table}: {rows}"
        self.check_logs()
        self.check_exceptions()
        self.check_replica(self.alive[self.count % len(self.alive)])

    def check_logs(self) -> None:
        """Each transaction is in each log once, in the model's order."""
        refreshes = {entry.name for entry in self.model.sites[PRIMARY].log if entry.is_refresh}
        for number in self.alive:
            if number == 3 or any(site.number not in self.alive for site in self.model.sites):
                # The log of a site that joined begins after what it had then.
                continue
            found = [self.names.get((each.history, each.tick)) for each in self.sites.names_of(NAMES[number])]
            named = [name for name in found if name is not None]
            expected = [entry.name for entry in self.model.sites[number].log if entry.name not in refreshes]
            # The beginning may be pruned.
            assert named == expected[len(expected) - len(named) :]

    def check_exceptions(self) -> None:
        numbers = {text: number for number, text in TEXTS.items()}
        found = sorted(
            (
                self.names[row.origin_history, row.origin_tick],
                (row.table.name, numbers[str(row.key["k"])] if row.table.name == "s" else row.key["k"]),
            )
            for row in wlc.exceptions(self.sites.file("oslo"))
            if row.table.name in RULES
        )
        assert found == sorted(self.model.rejected)

    def check_replica(self, number: int) -> None:
        """A plain replica holds what the site held, at an earlier tick and now, and its digests say so."""
        log, into = self.sites.log(NAMES[number]), self.folder / "replica of it.duckdb"
        first = (log.snapshot_ticks() or [0])[-1]
        ticks = [each for each in self.past[number] if each[0] > first]
        for tick, expected in [*ticks[:: max(1, len(ticks) // 2)][:2], (None, self.model.sites[number].rows)]:
            wlr.replicate(log.url, into=into, register=False, tick=tick)
            with duckdb.connect(into, read_only=True) as connection:
                for table in RULES:
                    rows = dict(connection.execute(f"SELECT CAST(k AS VARCHAR), v FROM {table}").fetchall())
                    wanted = {value(key).strip("'"): v for key, v in expected.items() if key[0] == table}
                    assert rows == wanted, f"{NAMES[number]} at tick {tick}: {table}"
        assert all(check.outcome == "same" for check in wlr.verify(into).tables)
        assert wlr.verify_farm(log.url, full=True).problems == ()
        assert all(check.outcome == "same" for check in wlc.verify_source(self.sites.file(NAMES[number])))


@pytest.fixture(scope="module", autouse=True)
def start_removed() -> Iterator[None]:
    """Remove what all examples begin with."""
    yield
    for start in _start:
        shutil.rmtree(start.folder)
    _start.clear()


def run(examples: int, piece: int | None = None) -> None:
    """Try so many examples; each piece of a long run has others."""
    machine = Exchange if piece is None else seed(f"{seed_of_run()} {piece}")(type("Exchange", (Exchange,), {}))
    run_state_machine_as_test(machine, settings=machine_settings(examples))


def test_sites_hold_what_the_model_holds() -> None:
    run(2)


@pytest.mark.deep
def test_sites_hold_what_the_model_holds_ten_thousand_times() -> None:
    for piece in each(range(10_000 // PIECE)):
        run(PIECE, piece)

"""Whatever sites write, publish and take in whatever order, each holds what a model in plain Python says (P1 to P10).

The model (`tests/sites_model.py`) knows what every transaction's author had seen, and decides by looking through the
whole log of the primary. After every operation the site holds the model's rows; in the end all are equal, each
transaction is in each log once, and the exceptions are the model's. One time in four a plain replica of a site
holds what the site holds, also at an earlier tick. DBFARM_EXAMPLES=1000 looks further.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import duckdb
import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import wlc
import wlr
from tests.fault.breaker import abandon_masters, kill_master
from tests.fault.prepared_sites import (
    NAMES,
    OWNER,
    READ_TABLE,
    ROWS,
    PreparedSites,
    made_folders,
    one_home,
    quick_folder,
    reads_of,
    replica_of,
    started,
)
from tests.pieces import each, seed_of_run
from tests.sampling import machine_settings
from tests.scratch import attached
from tests.sites import offline, windows_compared
from tests.sites_model import PRIMARY, ModelSite, SitesModel
from wlc.farm.errors import FencedError, InvalidError, UnavailableError
from wlc.farm.model import Name
from wlc.multi_master import missing_steps
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.sites_model import Key, TransactionName
    from wlc.capture.duckdb.connection import Connection
    from wlc.multi_master.site_step import SiteStep

    # Keys, and clauses behind a SELECT.
    Reads = Sequence[tuple[int, str]]
    Transactions = list[tuple[int, list[tuple[str, str, int]], Reads]]


class SavedSite(NamedTuple):
    """The files of a site's database, and how many entries its log had, how many were rejected, its newest batch."""

    files: dict[Path, bytes]
    entries: int
    rejected: int
    published: int


# A long run can be done in pieces of so many examples; see `tests.pieces`.
PIECE = 50
KEYS = (1, 2, 3)
# The same to a collation, and different to the index.
TEXTS = {1: "A", 2: "a", 3: "B"}
CLAUSES = {"": False, "FOR SHARE": False, "FOR UPDATE": True}
# In which table a change is made where there is no such table.
INSTEAD = {"s": "t", "n": "e", "o": "t"}
# Tables whose rows are equal everywhere in the end: without a rule, sites that write one row hold different values.
AGREED = {"t", "e", "s", "o"}
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
sites = st.integers(0, 3)
reads = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(list(CLAUSES))), min_size=1, max_size=2, unique_by=lambda e: e[0]
)
changes_of_one = st.lists(change, min_size=1, max_size=3)
maybe_reads: st.SearchStrategy[Reads] = st.one_of(st.just([]), reads)
transactions = st.lists(st.tuples(sites, changes_of_one, maybe_reads), min_size=1, max_size=5)
offline_transaction = st.tuples(changes_of_one, maybe_reads)
statements = st.lists(
    st.tuples(st.sampled_from(STATEMENTS), st.sampled_from(KEYS), st.sampled_from(KEYS)), min_size=1, max_size=5
)


def text(key: Key) -> str:
    return f"k COLLATE \"binary\" = '{TEXTS[key[1]]}'" if key[0] == "s" else f"k = {key[1]}"


def value(key: Key) -> str:
    return f"'{TEXTS[key[1]]}'" if key[0] == "s" else str(key[1])


class Exchange(RuleBasedStateMachine):
    """Sites that write and take."""

    @initialize(
        joined=st.sampled_from([1, 2, missing_steps.JOINED_TRANSACTIONS]),
        number=st.sampled_from([2, 3, 3, 3, 4]),
        is_constrained=st.booleans(),
        has_replica=st.sampled_from([False, False, False, True]),
        may_join=st.sampled_from([False] * 7 + [True]),
        may_prune=st.sampled_from([False, False, False, True]),
        parts=transactions,
        published=st.sets(sites),
    )
    def begin(
        self,
        joined: int,
        number: int,
        is_constrained: bool,
        has_replica: bool,
        may_join: bool,
        may_prune: bool,
        parts: Transactions,
        published: set[int],
    ) -> None:
        """Begin with something to take; up to how many transactions of several log files a step may hold decides nothing."""
        self.around = ExitStack()
        self.around.enter_context(one_home())
        # What is concurrent to a step is compared with what is derived for it alone.
        self.around.enter_context(windows_compared())
        self.around.enter_context(patch.object(missing_steps, "JOINED_TRANSACTIONS", joined))
        self.start = start = started(number, is_constrained=is_constrained)
        self.has_replica, self.may_join, self.may_prune = has_replica, may_join, may_prune
        self.folder = Path(tempfile.mkdtemp(prefix="dbfarm-", dir=quick_folder()))
        for name in start.names:
            shutil.copy(start.folder / f"{name}.duckdb", self.folder)
        start.put_back()
        self.sites = PreparedSites(self.folder, list(start.names))
        self.alive = list(range(number))
        self.model = SitesModel([ModelSite(each, dict(ROWS), published=0) for each in self.alive], dict(start.rules))
        self.idle: set[int] = set()
        self.pruned: set[int] = set()
        self.count = 0
        self.is_constrained = False
        self.names: dict[tuple[str, int], TransactionName] = {}
        # What a site held at a tick of its log.
        self.past: dict[int, list[tuple[int, dict[Key, str]]]] = {each: [] for each in range(len(NAMES))}
        self.vectors: dict[int, dict[str, int]] = {}
        self.connections: dict[int, Connection] = {}
        self.backups = {each: self.backup(each) for each in self.alive}
        self.commit_all(parts, published)

    def connection(self, number: int) -> Connection:
        """The connection of a site's program, which begins when it has something to do."""
        if number not in self.connections:
            self.connections[number] = wlc.connect(self.sites.file(NAMES[number]))
        return self.connections[number]

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
        with self.connection(number).cursor() as connection:
            found = [
                f"SELECT '{table}', CAST(k AS VARCHAR), v FROM {table}" for table in self.model.rules if table != "s"
            ]
            rows: list[tuple[str, str, str]] = connection.execute(" UNION ALL ".join(found)).fetchall()
            texts = []
            if "s" in self.model.rules:
                texts = connection.execute("SELECT CAST(k AS VARCHAR), v FROM s").fetchall()
        numbers = {text: number for number, text in TEXTS.items()}
        held = {(table, int(key)): v for table, key, v in rows}
        assert len(held) == len(rows)
        return held | {("s", numbers[key]): v for key, v in texts}

    def check(self, *numbers: int) -> None:
        for number in numbers or self.alive:
            held, expected = self.held(number), self.model.sites[number].rows
            assert held == expected, f"{NAMES[number]}: {held} is not {expected}"
            shared = self.connection(number)._shared
            self.past[number].append((shared.last_tick, dict(expected)))
            site, before = shared.require_state().site, self.vectors.get(number, {})
            assert site is not None
            self.vectors[number] = dict(site.contained)
            # A history leaves it with its site.
            assert all(site.contained.get(history, tick) >= tick for history, tick in before.items())

    # Operations -----------------------------------------------------------------------------------------------------

    def pick(self, number: int) -> int:
        return self.alive[number % len(self.alive)]

    @rule(parts=transactions, published=st.sets(sites))
    def write(self, parts: Transactions, published: set[int]) -> None:
        self.commit_all(parts, published)

    def commit_all(self, parts: Transactions, published: set[int]) -> None:
        """Sites commit transactions, and some publish what they have."""
        for site, changes, wanted_reads in parts:
            self.commit(self.pick(site), changes, wanted_reads)
        for number in {self.pick(site) for site, _, _ in parts}:
            self.check(number)
        for number in {self.pick(site) for site in published}:
            self.publish(number)

    def commit(self, number: int, changes: list[tuple[str, str, int]], wanted_reads: Reads = ()) -> None:
        """Commit a transaction at a site and in the model; it begins with what it reads."""
        model = self.model.sites[number]
        rows, statements = dict(model.rows), []
        self.count += 1
        new = f"{NAMES[number]} {self.count}"
        touched: set[Key] = set()
        for wanted, kind, place in changes:
            table = wanted if wanted in self.model.rules else INSTEAD[wanted]
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
        connection = self.connection(number)
        selects, read = self.reading(number, wanted_reads, is_writing=bool(statements))
        statements = selects + statements
        if not statements:
            return
        if number != OWNER and any(table == "o" for table, _ in after):
            with pytest.raises(InvalidError, match="cannot write main.o"):
                connection.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
            if connection._session.transaction is not None:
                connection.rollback()
            return
        connection.execute("BEGIN; " + "; ".join(statements) + "; COMMIT")
        if after or read:
            model.write(after, reads=read)
            self.name_last(number)

    def name_last(self, number: int) -> None:
        model, shared = self.model.sites[number], self.connection(number)._shared
        self.names[shared.require_state().history, shared.last_tick] = (model.author, model.ticks)

    def reading(self, number: int, wanted: Reads, *, is_writing: bool) -> tuple[list[str], dict[Key, bool]]:
        """Return statements that read rows, and of which rows that counts, as far as the site knows the rule."""
        site = self.connection(number)._shared.require_state().site
        assert site is not None
        rule = site.circle.rule_of(Name("main", READ_TABLE)) if site.circle else None
        if rule is None or rule.reads == "none":
            return [], {}
        held = self.model.sites[number].rows
        # Without a clause it counts once the transaction writes something.
        found = {
            (READ_TABLE, key): CLAUSES[clause]
            for key, clause in wanted
            if (READ_TABLE, key) in held and (clause or is_writing)
        }
        return [f"SELECT v FROM {READ_TABLE} WHERE k = {key} {clause}".strip() for key, clause in wanted], found

    @rule(site=sites, wanted=reads, changes=st.lists(change, max_size=2))
    def read_and_write(self, site: int, wanted: Reads, changes: list[tuple[str, str, int]]) -> None:
        number = self.pick(site)
        self.commit(number, changes, wanted)
        self.check(number)

    @rule(site=sites, wanted=reads, key=st.sampled_from(KEYS), table=st.sampled_from("te"))
    def read_before_a_round_and_write_after_it(self, site: int, wanted: Reads, key: int, table: str) -> None:
        """What was read is what the site had when the transaction began; what is written may meet what was taken."""
        number, written = self.alive[1:][site % (len(self.alive) - 1)], (table, key)
        self.publish(PRIMARY)
        model = self.model.sites[number]
        began, before = frozenset(model.contained), model.rows.get(written)
        selects, read = self.reading(number, wanted, is_writing=True)
        self.count += 1
        new = f"{NAMES[number]} {self.count}"
        statement = self.changed(dict(model.rows), "set", written, new)
        with self.connection(number).cursor() as user:
            user.execute("; ".join(["BEGIN", *selects, "SELECT 1"]))
            self.taken(number)
            try:
                user.execute(statement)
                user.commit()
            except (duckdb.TransactionException, duckdb.ConstraintException):
                if user._session.transaction is not None:
                    user.rollback()
            else:
                assert model.rows.get(written) == before
                model.write({written: new}, reads=read, began=began)
                self.name_last(number)
        self.check(number)

    @precondition(lambda self: self.start.is_constrained)
    @rule(site=sites, parts=statements, is_one=st.booleans())
    def write_with_constraints(self, site: int, parts: list[tuple[str, int, int]], is_one: bool) -> None:
        """Commit each statement that fits, or those in front of the first that does not as one transaction."""
        number = self.pick(site)
        connection = self.connection(number)
        done: list[str] = []
        for template, k, m in parts:
            statement = template.format(k=k, m=m, site=NAMES[number])
            try:
                connection.execute("; ".join(["BEGIN", *done, statement, "ROLLBACK" if is_one else "COMMIT"]))
            except duckdb.ConstraintException:
                if connection._session.transaction is not None:
                    connection.rollback()
                if is_one:
                    break
            else:
                done += [statement] if is_one else []
                self.is_constrained = True
        if done:
            connection.execute("; ".join(["BEGIN", *done, "COMMIT"]))

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

    def publish(self, number: int) -> None:
        self.connection(number)
        wlc.flush(self.sites.file(NAMES[number]))
        self.model.sites[number].publish()

    @rule(site=sites)
    def take(self, site: int) -> None:
        self.taken(self.pick(site))

    @rule(site=sites)
    def take_from(self, site: int) -> None:
        """The primary reads the log of one site."""
        other = self.pick(site)
        if other != PRIMARY and other not in self.idle:
            self.taken(PRIMARY, of=[other])

    @rule(site=sites)
    def take_as_rehearsed(self, site: int) -> None:
        """A dry run says what the round does, and changes nothing."""
        number = self.pick(site)
        file = self.sites.file(NAMES[number])
        self.connection(number)
        told = wlc.take(file, dry_run=True)
        self.check(number)
        before = len(wlc.exceptions(file))
        assert self.taken(number) == sum(each.transactions for each in told)
        rejected = sum(count.rows for each in told for count in each.in_conflict)
        assert len(wlc.exceptions(file)) - before == rejected

    @rule(site=sites, changes=changes_of_one)
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

    def taken(self, number: int, *, of: Sequence[int] = ()) -> int:
        """Take, of those sites only if there are some."""
        model = self.model.sites[number]
        model.publish()
        # A file that is open need not be opened again by every command.
        self.connection(number)
        found = wlc.take(self.sites.file(NAMES[number]), site=NAMES[of[0]] if of else None)
        before = len(model.log)
        if number in self.idle:
            assert found == []
        elif number == PRIMARY:
            for other in of or self.alive:
                if other != PRIMARY and other not in self.idle:
                    self.model.take_at_primary(other)
        elif PRIMARY not in self.idle:
            self.model.take_at(number, len(self.model.sites[PRIMARY].log))
        taken = sum(each.transactions for each in found)
        # The model tells of each rejected transaction by itself, the product of all in a step.
        expected = [entry for entry in model.log[before:] if not (entry.is_refresh and number == PRIMARY)]
        told = {entry.name for entry in self.model.sites[PRIMARY].log if entry.is_refresh}
        assert sum(entry.name not in told for entry in expected) <= taken
        assert taken <= len(expected) or self.is_constrained
        model.publish()
        self.check(number)
        return taken

    @rule(table=st.sampled_from("tes"), name=st.sampled_from(["epoch", "epoch_trans"]))
    def change_rule(self, table: str, name: str) -> None:
        """The primary judges by it from its next take."""
        table = table if table in self.model.rules else INSTEAD[table]
        wlc.set_rule("sales", table, name, reads=reads_of(table, name), farm=self.sites.farm)
        self.model.rules[table] = name

    @rule(site=sites)
    def change_role(self, site: int) -> None:
        number = self.pick(site)
        if number == PRIMARY:
            return
        wlc.set_role("sales", NAMES[number], "secondary" if number in self.idle else "none", farm=self.sites.farm)
        self.idle ^= {number}

    @rule(site=sites, is_alone=st.booleans())
    def crash(self, site: int, is_alone: bool) -> None:
        """The program of a site is gone, or all are; the files are as they were at that moment."""
        for number in [self.pick(site)] if is_alone else list(self.connections):
            self.kill(number)
        self.check(self.pick(site))

    def image(self, number: int) -> dict[Path, bytes]:
        """Return the files of a site's database."""
        found = self.folder.glob(f"{NAMES[number]}.duckdb*")
        return {each: each.read_bytes() for each in found if each.is_file()}

    def replace(self, number: int, image: dict[Path, bytes]) -> None:
        for file in self.image(number).keys() - image.keys():
            file.unlink()
        for file, data in image.items():
            file.write_bytes(data)

    def backup(self, number: int) -> SavedSite:
        published = max(self.sites.log(NAMES[number]).batch_numbers(), default=0)
        entries, rejected = len(self.model.sites[number].log), len(self.model.rejected)
        return SavedSite(self.image(number), entries, rejected, published)

    def kill(self, number: int) -> None:
        if number in self.connections:
            kill_master(self.connections.pop(number), self.sites.file(NAMES[number]))

    @rule(site=sites)
    def back_up(self, site: int) -> None:
        number = self.pick(site)
        self.kill(number)
        self.backups[number] = self.backup(number)

    @rule(site=sites, parts=st.one_of(st.just([]), st.lists(offline_transaction, max_size=2)))
    def restore(self, site: int, parts: list[tuple[list[tuple[str, str, int]], Reads]]) -> None:
        """A site's file is that of a backup, and a secondary commits before it can see its log.

        What it had published comes back, and the rest is lost; a backup behind what was pruned is refused. The
        primary's list of what it has rejected is older.
        """
        number = self.pick(site)
        if number not in self.backups:
            return
        self.kill(number)
        backup = self.backups[number]
        if min(self.sites.log(NAMES[number]).batch_numbers(), default=0) > backup.published + 1:
            self.refuse_pruned(number, backup)
            return
        if number == PRIMARY:
            parts = []
            del self.model.rejected[backup.rejected :]
        self.replace(number, backup.files)
        kept = backup.entries
        model = self.model.sites[number]
        # Ticks that nobody has seen come again, and not always in the model.
        lost = {entry.name for entry in model.log[kept:]} - {entry.name for entry in model.visible}
        self.names = {tick: name for tick, name in self.names.items() if name not in lost}
        self.model.restore(number, kept)
        lives = model.lives
        names, last = self.commit_offline(number, parts)
        with warnings.catch_warnings():
            # Of what came back, or of the new history.
            warnings.simplefilter("ignore", UserWarning)
            wlc.connect(self.sites.file(NAMES[number])).close()
        self.vectors.pop(number, None)
        shared = self.connection(number)._shared
        history, has_begun = shared.require_state().history, model.lives > lives
        rise = shared.last_tick - last
        self.names.update({(history, tick + rise): name for (_, tick), name in names.items()})
        self.model.look(number)
        if has_begun:
            # Files of the history before cannot go on.
            del self.backups[number]
        self.past[number] = [each for each in self.past[number] if each[0] <= shared.last_tick and not has_begun]
        self.check(number)

    def refuse_pruned(self, number: int, backup: SavedSite) -> None:
        """What was pruned does not come back; the present file takes the place of the backup again."""
        present, log = self.image(number), self.sites.log(NAMES[number])
        self.replace(number, backup.files)
        published = log.config()
        with pytest.raises(FencedError, match="which it lacks, was pruned"):
            wlc.flush(self.sites.file(NAMES[number]))
        assert log.config() == published
        self.replace(number, present)

    def commit_offline(
        self, number: int, parts: list[tuple[list[tuple[str, str, int]], Reads]]
    ) -> tuple[dict[tuple[str, int], TransactionName], int]:
        """Commit while a site cannot see its log; returns the names of that, and the last tick then."""
        before, self.names = self.names, {}
        with offline():
            for changes, wanted in parts:
                # A transaction that is refused would be committed as one that was rolled back, and its log has none.
                self.commit(number, [each for each in changes if each[0] != "o" or number == OWNER], wanted)
            last = self.connection(number)._shared.last_tick
            with suppress(UnavailableError):
                self.connections.pop(number).close()
        names, self.names = self.names, before
        return names, last

    @precondition(lambda self: self.may_prune)
    @rule(site=sites)
    def prune(self, site: int) -> None:
        number = self.pick(site)
        wlc.snapshot(self.sites.file(NAMES[number]))
        self.pruned.add(number)
        self.model.sites[number].publish()
        wlc.prune(self.sites.log(NAMES[number]).url, keep_for="0s")

    @precondition(lambda self: self.may_join and len(self.model.sites) < len(NAMES))
    @rule()
    def join(self) -> None:
        """A site joins with what the primary has published."""
        number = len(self.model.sites)
        primary = self.model.sites[PRIMARY]
        new = ModelSite(number, dict(ROWS), published=0)
        self.sites.join(NAMES[number])
        for entry in primary.visible:
            new.write(entry.after, entry.name)
        new.read[PRIMARY] = len(primary.visible)
        # What it begins with is the primary's: it may leave before it is read.
        new.published = primary.read[number] = len(new.log)
        self.model.sites.append(new)
        self.alive.append(number)
        self.check(number)

    @rule(site=sites)
    def leave(self, site: int) -> None:
        """A site may leave once the primary has read all that it published."""
        number = self.pick(site)
        if number in (PRIMARY, OWNER) or len(self.alive) < 3:
            return
        has_read = self.model.sites[PRIMARY].read.get(number, 0) == len(self.model.sites[number].visible)
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
            if number in self.connections:
                self.connections.pop(number).close()

    # The end --------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for number in sorted(self.idle):
            wlc.set_role("sales", NAMES[number], "secondary", farm=self.sites.farm)
        self.idle.clear()
        for number in self.alive:
            self.publish(number)
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
        for table in self.start.constrained:
            rows = [self.connection(number).execute(f"FROM {table} ORDER BY ALL").fetchall() for number in self.alive]
            assert rows == [rows[0]] * len(rows), f"{table}: {rows}"
        self.check_logs()
        self.check_exceptions()
        if self.has_replica:
            self.check_replica(self.alive[self.count % len(self.alive)])

    def check_logs(self) -> None:
        """Each transaction is in each log once, in the model's order."""
        refreshes = {entry.name for entry in self.model.sites[PRIMARY].log if entry.is_refresh}
        for number in self.alive:
            if number >= len(self.start.names):
                # The log of a site that joined begins after what it had then.
                continue
            found = [self.names.get((each.history, each.tick)) for each in self.sites.names_of(NAMES[number])]
            named = [name for name in found if name is not None]
            expected = [entry.name for entry in self.model.sites[number].visible if entry.name not in refreshes]
            is_whole = number not in self.pruned
            assert named == (expected if is_whole else expected[len(expected) - len(named) :])

    def check_exceptions(self) -> None:
        numbers = {text: number for number, text in TEXTS.items()}
        found = sorted(
            (
                self.names[row.origin_history, row.origin_tick],
                (row.table.name, numbers[str(row.key["k"])] if row.table.name == "s" else row.key["k"]),
            )
            for row in wlc.exceptions(self.sites.file("oslo"))
            if row.table.name in self.model.rules
        )
        assert found == sorted(self.model.rejected)

    def check_replica(self, number: int) -> None:
        """A plain replica holds what the site held, at an earlier tick and now, and its digests say so."""
        name = NAMES[number]
        log, into = self.sites.log(name), replica_of(self.folder, name)
        first = log.snapshot_ticks()[-1]
        if name in self.start.names and number not in self.pruned and not self.model.sites[number].lives:
            shutil.copy(replica_of(self.start.folder, name), into)
        ticks = [each for each in self.past[number] if each[0] > first]
        for tick, expected in [*ticks[len(ticks) // 2 :][:1], (None, self.model.sites[number].rows)]:
            wlr.replicate(log.url, into=into, register=False, tick=tick)
            with attached(into) as connection:
                for table in self.model.rules:
                    rows = dict(connection.execute(f"SELECT CAST(k AS VARCHAR), v FROM {table}").fetchall())
                    wanted = {value(key).strip("'"): v for key, v in expected.items() if key[0] == table}
                    assert rows == wanted, f"{name} at tick {tick}: {table}"
        assert all(check.outcome == "same" for check in wlr.verify(into).tables)
        assert wlr.verify_farm(log.url, full=True).problems == ()
        assert all(check.outcome == "same" for check in wlc.verify_source(self.sites.file(name)))


@pytest.fixture(scope="module", autouse=True)
def start_removed() -> Iterator[None]:
    yield
    for folder in made_folders:
        shutil.rmtree(folder)
    made_folders.clear()
    started.cache_clear()


@pytest.mark.slow
def test_sites_hold_what_the_model_holds() -> None:
    run_state_machine_as_test(Exchange, settings=machine_settings(2, steps=10))


@pytest.mark.deep
def test_sites_hold_what_the_model_holds_ten_thousand_times() -> None:
    """In pieces that are as long whatever DBFARM_EXAMPLES says; each has other examples."""
    for piece in each(range(10_000 // PIECE)):
        machine = seed(f"{seed_of_run()} {piece}")(type("Exchange", (Exchange,), {}))
        run_state_machine_as_test(machine, settings=settings(machine_settings(PIECE, steps=10), max_examples=PIECE))

"""Several masters of one database: each takes what the others published, and all of it happens once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from wlc.capture.duckdb import journal, lines, permitted, taking
from wlc.exchange.reading import SiteLog
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, FencedError, InvalidError, ReplayError, UnsupportedError
from wlc.farm.model import Origin
from wlc.masters import founding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.masters.contract import SiteStep

SCHEMA = """
    CREATE TABLE a (id INTEGER PRIMARY KEY, v VARCHAR, x DOUBLE);
    CREATE TABLE parents (id INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (id));
    CREATE TABLE bag (v VARCHAR);
    CREATE TABLE u (id INTEGER PRIMARY KEY, name VARCHAR UNIQUE);
    INSERT INTO a VALUES (1, 'one', 0.5), (2, 'two', '-0.0'::DOUBLE);
    INSERT INTO bag VALUES ('x'), ('x'), ('y');
"""


@dataclass
class Sites:
    """A database `sales` with the sites oslo, the primary, and others, in one folder."""

    folder: Path
    names: list[str] = field(default_factory=list)

    @property
    def farm(self) -> str:
        return str(self.folder / "farm")

    def file(self, site: str) -> Path:
        return self.folder / f"{site}.duckdb"

    def log(self, site: str) -> FarmDatabase:
        return open_database(f"{self.farm}/sales" if site == "oslo" else f"{self.farm}/sales/sites/{site}")

    def found(self, schema: str = SCHEMA) -> None:
        with duckdb.connect(self.file("oslo")) as connection:
            connection.execute(schema)
        wlc.master(self.file("oslo"), farm=self.farm, name="sales", site="oslo")
        self.names.append("oslo")

    def join(self, site: str) -> None:
        primary = wlc.joined_from(self.file(site), name="sales", farm=self.farm)
        assert primary is not None
        wlr.replicate(primary, into=self.file(site), register=False)
        wlc.join(self.file(site), name="sales", farm=self.farm, site=site)
        self.names.append(site)

    def write(self, site: str, *statements: str) -> None:
        with wlc.connect(self.file(site)) as connection:
            for statement in statements:
                connection.execute(statement)

    def take(self, site: str) -> int:
        return sum(each.transactions for each in wlc.take(self.file(site)))

    def exchange(self) -> None:
        """Let every site take until nobody finds anything."""
        for _ in range(5):
            if not sum([self.take(site) for site in self.names]):
                return
        raise AssertionError("they never fall silent")

    def rows(self, site: str, table: str) -> list[tuple[object, ...]]:
        with duckdb.connect(self.file(site), read_only=True) as connection:
            return connection.execute(f"FROM {table} ORDER BY ALL").fetchall()

    def refuse_differences(self, *tables: str) -> None:
        for table in tables:
            # As text, where NaN is itself and -0.0 is not 0.0.
            assert len({repr(self.rows(site, table)) for site in self.names}) == 1

    def names_of(self, site: str) -> list[Origin]:
        """Where the transactions of a site's log were first committed, in its order."""
        log = self.log(site)
        batches = [log.read_batch(number)[0] for number in log.batch_numbers()]
        return [
            Origin(t.origin.history, t.origin.tick) if t.origin else Origin(batch.history, t.tick)
            for batch in batches
            for t in batch.transactions
        ]

    def replica_equals(self, site: str) -> None:
        """A plain replica of a site's folder knows nothing of sites, and holds what the site holds."""
        into = self.folder / f"replica of {site}.duckdb"
        wlr.replicate(self.log(site).url, into=into, register=False)
        with duckdb.connect(into, read_only=True) as connection:
            for table in ("a", "parents", "children", "bag"):
                held = connection.execute(f"FROM {table} ORDER BY ALL").fetchall()
                assert repr(held) == repr(self.rows(site, table))
        assert all(check.outcome == "same" for check in wlr.verify(into).tables)
        # In full: an earlier run of the tests may have verified a farm in a folder of the same name.
        assert wlr.verify_farm(self.log(site).url, full=True).problems == ()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("two"))
    sites.found()
    sites.write("oslo", "INSERT INTO a VALUES (3, 'three', NULL)")
    log = sites.log("oslo")
    # The founder pays nothing as long as it is alone.
    text = log.logs.read("sales_000000000001").decode()
    assert not [key for key in ('"term"', '"own"', '"taken"', '"after"') if key in text]
    sites.join("rome")
    return sites


def test_rows_are_exchanged_and_then_there_is_silence(two: Sites) -> None:
    two.write("oslo", "INSERT INTO a VALUES (10, 'oslo', -0.0)", "UPDATE a SET v = 'ONE' WHERE id = 1")
    two.write("oslo", "INSERT INTO bag VALUES ('z')", "DELETE FROM bag WHERE v = 'x'")
    two.write("rome", "INSERT INTO a VALUES (11, 'rome', 'nan')", "DELETE FROM a WHERE id = 2")
    two.exchange()
    two.refuse_differences("a", "bag")
    assert [row[0] for row in two.rows("rome", "a")] == [1, 3, 10, 11]
    before = [two.log(site).batch_numbers() for site in two.names]
    two.exchange()
    assert [two.log(site).batch_numbers() for site in two.names] == before
    for site in two.names:
        assert len(set(two.names_of(site))) == len(two.names_of(site))
        two.replica_equals(site)


def test_what_is_taken_keeps_its_origin_and_its_first_commit(two: Sites) -> None:
    two.write("rome", "INSERT INTO a VALUES (20, 'kept', 1)")
    two.exchange()
    rome, oslo = two.log("rome"), two.log("oslo")
    theirs = rome.read_batch(rome.batch_numbers()[-1])[0]
    ours = oslo.read_batch(oslo.batch_numbers()[-1])[0]
    first, taken = theirs.transactions[-1], ours.transactions[-1]
    assert taken.origin == Origin(theirs.history, first.tick, first.committed)
    assert ours.vector == {theirs.history: first.tick, ours.history: ours.last}
    assert (ours.taken[0].site, ours.taken[0].tick, ours.taken[0].batch) == ("rome", theirs.last, theirs.number)
    assert ours.term == 1
    assert ours.own is not None
    assert ours.own < ours.last


def test_foreign_keys_and_rows_that_change_often(two: Sites) -> None:
    two.write(
        "rome",
        "INSERT INTO parents VALUES (1, 'p'), (2, 'q')",
        "INSERT INTO children VALUES (1, 1), (2, 2)",
        "UPDATE parents SET v = 'p2' WHERE id = 1",
        "DELETE FROM children WHERE id = 2",
        "INSERT INTO a VALUES (30, 'a', 1)",
        "UPDATE a SET v = 'b' WHERE id = 30",
        "DELETE FROM a WHERE id = 30",
        "INSERT INTO a VALUES (30, 'c', 2)",
    )
    two.exchange()
    two.write("oslo", "DELETE FROM parents WHERE id = 2", "UPDATE parents SET v = 'p3' WHERE id = 1")
    two.exchange()
    two.refuse_differences("a", "parents", "children")
    assert two.rows("oslo", "parents") == [(1, "p3")]
    two.replica_equals("oslo")


def test_what_another_one_changed_meanwhile_is_journalled_as_it_was_here(two: Sites) -> None:
    """Without a rule, what is read last overwrites; the log of each site stays a log of its own states."""
    two.write("oslo", "INSERT INTO a VALUES (40, 'x', 0), (41, 'y', 0)")
    two.exchange()
    two.write("oslo", "UPDATE a SET v = 'oslo' WHERE id = 40", "DELETE FROM a WHERE id = 41")
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id = 40", "DELETE FROM a WHERE id = 41")
    two.exchange()
    assert (40, "rome", 0.0) in two.rows("oslo", "a")
    assert (40, "oslo", 0.0) in two.rows("rome", "a")
    for site in two.names:
        two.replica_equals(site)
    two.write("oslo", "DELETE FROM a WHERE id = 40")
    two.exchange()
    two.refuse_differences("a")


def test_a_table_that_is_emptied_says_which_rows_went(two: Sites) -> None:
    two.write("oslo", "CREATE TABLE emptied (id INTEGER PRIMARY KEY)", "INSERT INTO emptied VALUES (1), (2)")
    two.exchange()
    two.write("rome", "TRUNCATE emptied")
    two.exchange()
    two.refuse_differences("emptied")
    log = two.log("rome")
    last = [t for n in log.batch_numbers() for t in log.read_batch(n)[0].transactions if t.records][-1]
    assert [(type(record).__name__, getattr(record, "removed", None)) for record in last.records] == [("Change", 2)]


def test_only_one_site_changes_the_schema(two: Sites) -> None:
    with pytest.raises(InvalidError, match="site rome cannot change the schema"):
        two.write("rome", "CREATE TABLE wrong (id INTEGER)")
    two.write(
        "oslo",
        "CREATE TABLE made (id INTEGER PRIMARY KEY, v VARCHAR)",
        "INSERT INTO made VALUES (1, 'a')",
        "ALTER TABLE made ADD COLUMN w INTEGER DEFAULT 7",
        "CREATE TABLE copied AS SELECT * FROM made",
        "INSERT INTO made VALUES (2, 'b', 8)",
    )
    two.take("oslo")
    assert two.take("rome") > 0
    two.write("rome", "INSERT INTO made VALUES (3, 'c', 9)")
    two.exchange()
    two.refuse_differences("made", "copied")
    assert two.rows("rome", "made") == [(1, "a", 7), (2, "b", 8), (3, "c", 9)]
    assert wlc.status(two.file("rome")).bypassed == {}
    for site in two.names:
        two.replica_equals(site)


def test_only_the_primary_writes_tables_without_a_key(two: Sites) -> None:
    with pytest.raises(InvalidError, match=r"site rome cannot write main\.bag"):
        two.write("rome", "INSERT INTO bag VALUES ('rome')")
    two.refuse_differences("bag")


def test_rows_of_a_keyless_table_are_refused_whoever_published_them(
    two: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = two.rows("oslo", "bag")
    with monkeypatch.context() as patch:
        patch.setattr(permitted, "refuse_rows", lambda *_: None)
        two.write("rome", "INSERT INTO bag VALUES ('rome')")
    with pytest.raises(CorruptError, match=r"site rome has published rows of main\.bag, which has no primary key"):
        two.take("oslo")
    assert two.rows("oslo", "bag") == before
    # The other tests go on with these sites.
    monkeypatch.setattr(taking, "_refuse_keyless", lambda *_: None)
    two.take("oslo")


def test_rows_of_a_table_that_was_renamed_are_taken_under_its_old_name(two: Sites) -> None:
    two.write("rome", "INSERT INTO a VALUES (59, 'rome', 0)")
    two.write("oslo", "ALTER TABLE a RENAME TO b")
    with pytest.raises(UnsupportedError, match="which is no table here") as refused:
        two.take("oslo")
    assert "rename it back" in str(refused.value.hint)
    two.write("oslo", "ALTER TABLE b RENAME TO a")
    assert two.take("oslo") == 1
    two.exchange()
    two.refuse_differences("a")


def test_a_repair_publishes_no_schema_change_of_another_site(two: Sites, tmp_path: Path) -> None:
    published = tmp_path / "published.duckdb"
    wlr.replicate(two.log("rome").url, into=published, register=False)
    with duckdb.connect(two.file("rome")) as plain:
        plain.execute("CREATE TABLE wrong (id INTEGER)")
    with pytest.raises(InvalidError, match="site rome cannot change the schema"):
        wlc.repair(two.file("rome"), published=published)
    with duckdb.connect(two.file("rome")) as plain:
        plain.execute("DROP TABLE wrong")


def test_a_failed_take_changes_nothing_and_the_next_one_goes_on(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write("rome", "INSERT INTO a VALUES (50, 'once', 1)")
    wlc.flush(two.file("rome"))
    before = repr(two.rows("oslo", "a"))
    for place in (journal, "add_entries"), (journal, "write_state"), (lines, "journal_images"), (lines, "add"):

        def broken(*_: object) -> None:
            raise OSError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(*place, broken)
            with pytest.raises(wlc.UnavailableError, match="broken"):
                two.take("oslo")
        assert repr(two.rows("oslo", "a")) == before
        assert wlc.status(two.file("oslo")).unpublished == 0
    assert two.take("oslo") == 1
    assert two.take("oslo") == 0
    two.exchange()
    two.refuse_differences("a")


def test_two_rounds_at_once_take_everything_once(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write("rome", "INSERT INTO a VALUES (55, 'once', 1)")
    wlc.flush(two.file("rome"))
    steps = SiteLog.steps
    others: list[int] = []

    def meeting(log: SiteLog) -> Iterator[SiteStep]:
        for step in steps(log):
            if not others:
                others.append(0)
                others[0] = two.take("oslo")
            yield step

    monkeypatch.setattr(SiteLog, "steps", meeting)
    with pytest.raises(wlc.UnavailableError, match="is taking from site rome already"):
        two.take("oslo")
    assert others == [1]
    two.exchange()
    two.refuse_differences("a")


def test_a_user_who_commits_meanwhile_loses_nothing(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write("rome", "INSERT INTO a VALUES (60, 'rome', 1)", "UPDATE a SET v = 'r' WHERE id = 3")
    wlc.flush(two.file("rome"))
    with wlc.connect(two.file("oslo")) as user:
        add = lines.add
        meetings: list[object] = []

        def meeting(*arguments: object) -> None:
            add(*arguments)  # type: ignore[arg-type]
            if len(meetings) < 2:
                meetings.append(user.execute(f"INSERT INTO a VALUES ({61 + len(meetings)}, 'user', 1)").fetchall())

        monkeypatch.setattr(lines, "add", meeting)
        assert two.take("oslo") == 2
    assert len(meetings) == 2
    two.exchange()
    two.refuse_differences("a")
    two.replica_equals("oslo")


def test_rows_that_break_a_constraint_are_refused(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found()
    sites.join("rome")
    sites.write("oslo", "INSERT INTO u VALUES (1, 'same')")
    sites.write("rome", "INSERT INTO u VALUES (2, 'same')")
    with pytest.raises(ReplayError, match="which site rome published, does not fit"):
        sites.take("oslo")
    assert sites.rows("oslo", "u") == [(1, "same")]
    sites.write("oslo", "DELETE FROM u")
    assert sites.take("oslo") == 1


def test_triggers_are_refused_and_references_are_kept(tmp_path: Path) -> None:
    two = Sites(tmp_path)
    two.found()
    two.join("rome")
    two.write(
        "oslo",
        "CREATE TABLE tree (id INTEGER PRIMARY KEY, up INTEGER REFERENCES tree (id))",
        "CREATE TABLE noted (id INTEGER PRIMARY KEY)",
        "CREATE TABLE notes (id INTEGER PRIMARY KEY)",
        "CREATE TRIGGER noting AFTER INSERT ON noted FOR EACH STATEMENT INSERT INTO notes VALUES (1)",
    )
    two.exchange()
    two.write("rome", "INSERT INTO noted VALUES (1)")
    with pytest.raises(UnsupportedError, match="has a trigger, noting"):
        two.take("oslo")
    two.write("oslo", "DROP TRIGGER noting ON noted")
    two.write("rome", "INSERT INTO parents VALUES (1, 'p')", "INSERT INTO children VALUES (1, 1)")
    two.write("rome", "INSERT INTO tree VALUES (1, NULL)", "INSERT INTO tree VALUES (2, 1), (3, 1)")
    two.write("rome", "INSERT INTO tree VALUES (4, 3), (5, NULL)", "DELETE FROM tree WHERE id = 2")
    two.exchange()
    # DuckDB does not remove a child and then its parent in one transaction.
    two.write("rome", "DELETE FROM children", "DELETE FROM parents", "DELETE FROM tree WHERE id = 4")
    two.write("rome", "DELETE FROM tree WHERE id = 3", "UPDATE tree SET up = 5 WHERE id = 1")
    two.exchange()
    two.refuse_differences("noted", "parents", "children", "tree")
    assert two.rows("oslo", "tree") == [(1, 5), (5, None)]


def test_three_sites_in_a_star(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = Sites(tmp_path)
    sites.found()
    for site in ("rome", "paris"):
        sites.join(site)
        for number, name in enumerate(sites.names):
            sites.write(name, f"INSERT INTO a VALUES ({len(sites.names) * 100 + number}, '{name}', 1)")
    # Nobody may prune what a site has not read.
    wlc.snapshot(sites.file("oslo"))
    assert wlc.prune(sites.log("oslo").url, keep_for="0s").delete_batches == ()
    sites.exchange()
    sites.refuse_differences("a")
    for site in sites.names:
        assert len(set(sites.names_of(site))) == len(sites.names_of(site))
    found = {each.site: each for each in wlc.sites("sales", farm=sites.farm)}
    assert [each.role for each in found.values()] == ["primary", "secondary", "secondary"]
    assert [sorted(each.read_by) for each in found.values()] == [["paris", "rome"], ["oslo"], ["oslo"]]
    assert not any(each.behind for each in found.values())
    # A site that does not take part neither reads nor is read.
    wlc.set_role("sales", "paris", "none", farm=sites.farm)
    sites.write("paris", "INSERT INTO a VALUES (900, 'paris', 1)")
    sites.exchange()
    assert sites.rows("paris", "a")[-1][0] == 900
    assert 900 not in [row[0] for row in sites.rows("oslo", "a")]
    wlc.set_role("sales", "paris", "secondary", farm=sites.farm)
    with pytest.raises(InvalidError, match="site oslo has read site paris"):
        wlc.leave("sales", "paris", farm=sites.farm)
    sites.exchange()
    sites.refuse_differences("a")
    assert [site.name for site in wlc.leave("sales", "paris", farm=sites.farm).sites] == ["oslo", "rome"]
    with pytest.raises(FencedError):
        wlc.take(sites.file("paris"))
    # The history of a site that left is in no vector any more.
    sites.names.remove("paris")
    sites.write("oslo", "INSERT INTO a VALUES (901, 'oslo', 1)")
    sites.exchange()
    sites.refuse_differences("a")
    assert run_app(app, "wlc", ["sites", "sales", "--farm", sites.farm, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [site["site"] for site in shown] == ["oslo", "rome"]


def test_a_site_that_lags_takes_what_one_that_left_has_written(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found()
    sites.join("rome")
    sites.join("paris")
    sites.exchange()
    sites.write("paris", "INSERT INTO a VALUES (3, 'three', 3)")
    wlc.flush(sites.file("paris"))
    assert sites.take("oslo") == 1
    wlc.leave(sites.file("oslo"), "paris")
    sites.names.remove("paris")
    assert sites.take("rome") == 1
    sites.write("oslo", "INSERT INTO a VALUES (4, 'four', 4)")
    sites.write("rome", "INSERT INTO a VALUES (5, 'five', 5)")
    sites.exchange()
    assert len(sites.rows("rome", "a")) == 5
    sites.refuse_differences("a")


def test_a_key_knows_no_collation_and_an_emptied_table_lists_its_rows(tmp_path: Path) -> None:
    """Before it knows of another site, the first one must say which rows it removes."""
    sites = Sites(tmp_path)
    sites.found()
    sites.write("oslo", "CREATE TABLE names (name VARCHAR COLLATE NOCASE PRIMARY KEY, n INTEGER)")
    sites.write("oslo", "INSERT INTO names VALUES ('A', 1), ('a', 2)")
    wlc.flush(sites.file("oslo"))
    sites.join("rome")
    sites.write(
        "rome", "UPDATE names SET n = 9 WHERE name COLLATE \"binary\" = 'A'", "INSERT INTO a VALUES (9, 'r', 1)"
    )
    wlc.flush(sites.file("rome"))
    sites.write("oslo", "DELETE FROM a")
    sites.exchange()
    assert set(sites.rows("oslo", "names")) == {("A", 9), ("a", 2)}
    wlc.set_rule(sites.file("oslo"), "names", "epoch")
    sites.write("oslo", "UPDATE names SET n = 10 WHERE name COLLATE \"binary\" = 'A'")
    sites.write("rome", "UPDATE names SET n = 11 WHERE name COLLATE \"binary\" = 'A'")
    wlc.flush(sites.file("rome"))
    sites.exchange()
    (rejected,) = wlc.exceptions(sites.file("oslo"))
    assert rejected.local == {"name": "A", "n": 10}
    assert set(sites.rows("oslo", "names")) == {("A", 10), ("a", 2)}
    assert sites.rows("oslo", "a") == [(9, "r", 1.0)]
    sites.refuse_differences("names", "a")


def test_a_join_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = Sites(tmp_path)
    sites.found()
    primary = wlc.joined_from(sites.file("rome"), name="sales", farm=sites.farm)
    assert primary is not None
    wlr.replicate(primary, into=sites.file("rome"), register=False)
    for method in ("create_config", "change_config"):
        with monkeypatch.context() as patch:

            def broken(*_: object) -> None:
                raise wlc.UnavailableError("broken")

            patch.setattr(FarmDatabase, method, broken)
            with pytest.raises(wlc.UnavailableError, match="broken"):
                wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome")
        assert wlc.joined_from(sites.file("rome"), name="sales", farm=sites.farm) is None
    wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome")
    sites.names.append("rome")
    sites.write("rome", "INSERT INTO a VALUES (70, 'rome', 1)")
    sites.exchange()
    sites.refuse_differences("a")
    sites.replica_equals("rome")
    with pytest.raises(InvalidError):
        wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome")


def test_what_cannot_be_a_site_says_so(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "alone.duckdb") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    farm = str(tmp_path / "farm")
    wlc.master(tmp_path / "alone.duckdb", farm=farm, name="alone")
    with pytest.raises(InvalidError, match="is the only master of alone"):
        wlc.take(tmp_path / "alone.duckdb")
    with pytest.raises(InvalidError, match="has one master and no sites"):
        wlc.join(tmp_path / "x.duckdb", name="alone", farm=farm, site="rome")
    # A master that runs becomes a site, too.
    wlc.master(tmp_path / "alone.duckdb", site="oslo")
    assert wlc.take(tmp_path / "alone.duckdb") == []
    with pytest.raises(InvalidError, match="is site oslo already"):
        wlc.master(tmp_path / "alone.duckdb", site="york")
    with pytest.raises(UnsupportedError, match="oslo is the primary"):
        wlc.set_role("alone", "oslo", "secondary", farm=farm)
    with duckdb.connect(tmp_path / "other.duckdb") as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with pytest.raises(InvalidError, match="no replica of alone"):
        wlc.join(tmp_path / "other.duckdb", name="alone", farm=farm, site="rome")


def test_a_site_that_was_stopped_or_left_goes_on_as_its_hints_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE a (id INTEGER PRIMARY KEY)")
    sites.join("rome")
    oslo, rome = sites.file("oslo"), sites.file("rome")
    # A circle that the farm lost is written as a site remembers it.
    (tmp_path / "farm" / "sales" / "circle.json").unlink()
    with pytest.raises(InvalidError, match="no sites"):
        wlc.take(rome)
    wlc.master(rome, site="rome")
    sites.write("oslo", "INSERT INTO a VALUES (81)")
    assert sites.take("rome") == 1
    with pytest.raises(InvalidError, match="whose log is read by rome") as caught:
        wlc.stop(oslo)
    assert "wlc leave" in str(caught.value.hint)
    with monkeypatch.context() as patch:
        # It was alone when it was stopped.
        patch.setattr(founding, "refuse_end", lambda *_: None)
        wlc.stop(oslo)
    before = sites.rows("oslo", "wlc.state")
    for site, moved in ((None, False), ("oslo", False), (None, True)):
        with pytest.raises(InvalidError, match="was site oslo of sales and was stopped") as caught:
            wlc.master(oslo, site=site, moved=moved)
        assert "wlc leave" in str(caught.value.hint)
    assert sites.rows("oslo", "wlc.state") == before
    wlc.leave("sales", "rome", farm=sites.farm, force=True)
    wlc.stop(rome)
    with pytest.raises(InvalidError, match="which it has left") as caught:
        wlc.master(rome)
    assert "--name OTHER" in str(caught.value.hint)
    # It is a database of its own then, and none of Oslo's sites.
    assert wlc.master(rome, name="other").farm == f"{sites.farm}/other"
    with pytest.raises(InvalidError, match="was site oslo"):
        wlc.master(oslo, site="york")
    again = wlc.master(oslo)
    assert [(site.site, site.history) for site in wlc.sites("sales", farm=sites.farm)] == [("oslo", again.history)]
    for name in ("rome", "Oslo"):
        with pytest.raises(InvalidError, match=f"the name {name} belongs to another site") as caught:
            wlc.joined_from(sites.file("new"), name="sales", site=name, farm=sites.farm)
        assert "--site" in str(caught.value.hint)


@pytest.mark.deep
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=st.lists(st.tuples(st.sampled_from(["oslo", "rome", "paris"]), st.integers(0, 5)), max_size=30))
def test_sites_that_write_rows_of_their_own_end_equal(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[str, int]]
) -> None:
    """Whoever writes and takes in whatever order: everybody ends with what all have written, each of it once."""
    sites = Sites(tmp_path_factory.mktemp("plan"))
    sites.found()
    sites.join("rome")
    sites.join("paris")
    # The simplest model: each row is its site's alone.
    model: dict[int, str] = {1: "one", 2: "two"}
    for number, (site, what) in enumerate(plan):
        key = sites.names.index(site) * 1000 + what % 3 + 10
        if what == 5:
            sites.take(site)
        elif key in model and what % 2:
            del model[key]
            sites.write(site, f"DELETE FROM a WHERE id = {key}")
        else:
            model[key] = f"{site} {number}"
            sites.write(site, f"INSERT OR REPLACE INTO a VALUES ({key}, '{site} {number}', 0)")
    sites.exchange()
    sites.refuse_differences("a")
    assert {row[0]: row[1] for row in sites.rows("paris", "a")} == model
    for site in sites.names:
        assert len(set(sites.names_of(site))) == len(sites.names_of(site))
        sites.replica_equals(site)

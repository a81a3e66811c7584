"""Several masters of one database: each takes what the others published, and all of it happens once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wlc
import wlr
from wlc.capture.duckdb import journal
from wlc.farm.errors import CorruptError, InvalidError, UnsupportedError
from wlc.farm.model import Ddl, Origin
from wlc.multi_master.duckdb import commits, lines, take_step
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wlc.farm.model import DdlEffect
    from wlc.multi_master.site_step import SiteStep

from tests.sites import Sites


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        "CREATE TABLE checked (id INTEGER PRIMARY KEY, n INTEGER UNIQUE CHECK (n > 0))",
        "ALTER TABLE checked RENAME n TO m",
        "ALTER TABLE checked RENAME TO renamed",
        "CREATE UNIQUE INDEX once ON renamed (M, (id + 1))",
        "CREATE SCHEMA gone; CREATE SEQUENCE gone.s; CREATE TABLE gone.t (i INTEGER DEFAULT nextval('gone.s'))",
        "DROP SCHEMA gone CASCADE",
    )
    two.take("oslo")
    assert two.take("rome") > 0
    two.write("rome", "INSERT INTO made VALUES (3, 'c', 9)")
    two.exchange()
    two.refuse_differences("made", "copied")
    assert two.rows("rome", "made") == [(1, "a", 7), (2, "b", 8), (3, "c", 9)]
    assert wlc.status(two.file("rome")).bypassed == {}
    # A site runs the statements, and says the same of what they did.
    said = effects(two, "rome")
    assert len(said) > 10
    assert said == effects(two, "oslo")[-len(said) :]
    for site in two.names:
        two.replica_equals(site)


def effects(sites: Sites, site: str) -> list[tuple[DdlEffect, ...]]:
    """What all schema statements in the log of a site did."""
    log = sites.log(site)
    transactions = (each for number in log.batch_numbers() for each in log.read_batch(number)[0].transactions)
    statements = (record for each in transactions for record in each.records if isinstance(record, Ddl))
    return [ddl.does for ddl in statements]


def test_only_the_primary_writes_tables_without_a_key(two: Sites) -> None:
    with pytest.raises(InvalidError, match=r"site rome cannot write main\.bag"):
        two.write("rome", "INSERT INTO bag VALUES ('rome')")
    two.refuse_differences("bag")


def test_rows_of_a_keyless_table_are_refused_whoever_published_them(
    two: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = two.rows("oslo", "bag")
    with monkeypatch.context() as patch:
        patch.setattr(commits.SiteCommits, "refuse_rows", lambda *_: None)
        two.write("rome", "INSERT INTO bag VALUES ('rome')")
    with pytest.raises(CorruptError, match=r"site rome has published rows of main\.bag, which has no primary key"):
        two.take("oslo")
    assert two.rows("oslo", "bag") == before
    # The other tests go on with these sites.
    monkeypatch.setattr(take_step, "_refuse_keyless", lambda *_: None)
    two.take("oslo")


@pytest.mark.slow
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


def vector_of(sites: Sites, site: str) -> dict[str, int]:
    """Return what a site's file says that it contains."""
    with wlc.connect(sites.file(site)) as connection:
        state = connection._shared.require_state()
    assert state.site is not None
    return {**state.site.contained, state.history: state.tick}


@pytest.mark.slow
def test_a_failed_take_changes_nothing_and_the_next_one_goes_on(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    two.write("rome", "INSERT INTO a VALUES (50, 'once', 1)")
    wlc.flush(two.file("rome"))
    before, vector = repr(two.rows("oslo", "a")), vector_of(two, "oslo")
    for place in (journal, "add_entries"), (journal, "write_state"), (lines, "journal_images"), (lines, "add"):

        def broken(*_: object, **__: object) -> None:
            raise OSError("broken")

        with monkeypatch.context() as patch:
            patch.setattr(*place, broken)
            with pytest.raises(wlc.UnavailableError, match="broken"):
                two.take("oslo")
        assert repr(two.rows("oslo", "a")) == before
        assert wlc.status(two.file("oslo")).unpublished == 0
        assert vector_of(two, "oslo") == vector
    assert two.take("oslo") == 1
    rome = wlc.status(two.file("rome"))
    assert vector_of(two, "oslo")[rome.history] == rome.tick > vector.get(rome.history, 0)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_meets_an_open_transaction_waits_for_its_end(two: Sites) -> None:
    """What comes before it is taken, and who takes in the background goes on."""

    def wait_for(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def taken() -> list[object]:
        with user.cursor() as other:
            return [key for (key,) in other.execute("SELECT id FROM a WHERE v = 'open' ORDER BY id").fetchall()]

    two.write("oslo", "INSERT INTO a VALUES (71, 'one', 1), (72, 'two', 1)")
    two.exchange()
    with wlc.connect(two.file("oslo"), take=True, beat_s=0.05) as user:
        user.execute("BEGIN; DELETE FROM a WHERE id = 71")
        changes = (f"UPDATE a SET v = 'open' WHERE id = {key}" for key in (72, 71))
        two.write("rome", *changes, "INSERT INTO a VALUES (73, 'open', 1)")
        wait_for(lambda: user.wlc.failure is not None)
        assert "has changed rows that tick" in str(user.wlc.failure)
        assert taken() == [72]
        user.execute("COMMIT")
        wait_for(lambda: taken() == [71, 72, 73])
    two.exchange()
    two.replica_equals("oslo")


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

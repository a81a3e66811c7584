"""Sites that all read each other: the newest change of each row counts, whatever way it comes; see docs/sites-rules.md.

E, X and C are cases of MySQL NDB Cluster's ndb_rpl; others name the tests of spock and 389 Directory Server that they follow.
"""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import permutations
from typing import TYPE_CHECKING
from unittest.mock import patch

import duckdb
import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.sampling import sampled
from tests.sites import Sites, clock_ahead, play, refuse_repetitions, take_from
from wlc.farm.errors import ExpiredError, InvalidError, UnavailableError, UnsupportedError
from wlc.multi_master.circle import read_circle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE p (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE bag (v VARCHAR);
    CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
    CREATE TABLE parents (k INTEGER PRIMARY KEY);
    CREATE TABLE children (k INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (k));
    CREATE TABLE indexed (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE UNIQUE INDEX once ON indexed (v);
    INSERT INTO t VALUES (1, 'first'), (2, 'first');
"""


def new_mesh(folder: Path, *others: str) -> Sites:
    """Oslo and others, where everybody may write t."""
    sites = Sites(folder)
    sites.found(SCHEMA, mesh=True)
    wlc.set_rule("sales", "t", "newest", farm=sites.farm)
    for site in others:
        sites.join(site)
    # Once each has read the others' first batches, nothing is left to say.
    sites.exchange()
    return sites


@pytest.mark.slow
def test_an_older_change_is_reported_where_it_meets_the_newer_one(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    sites.write("rome", "UPDATE t SET v = 'rome' WHERE k = 1", "DELETE FROM t WHERE k = 2")
    sites.write("oslo", "UPDATE t SET v = 'oslo' WHERE k < 3")
    take_from(sites, "rome>paris", "paris>oslo")
    found = wlc.exceptions(sites.file("oslo"))
    # The author is named, whoever passed it on.
    assert [(row.source, row.key, row.op_type, row.new, row.local) for row in found] == [
        ("rome", {"k": 1}, "UPDATE_ROW", {"k": 1, "v": "rome"}, {"k": 1, "v": "oslo"}),
        ("rome", {"k": 2}, "DELETE_ROW", None, {"k": 2, "v": "oslo"}),
    ]
    assert [(c.site, c.rule, c.name, c.value) for c in wlc.conflicts(sites.file("oslo"))] == [
        ("paris", "newest", "older", 2)
    ]
    # Rome's own was newer once and is overwritten there, without a word.
    sites.exchange()
    assert wlc.exceptions(sites.file("rome")) == []
    # It can be written again all the same, and is the newest then.
    assert wlc.resubmit(sites.file("oslo"), f"rome:{found[0].source_tick}:{found[0].count}") == 1
    sites.exchange()
    sites.refuse_differences("t")
    assert dict(sites.rows("paris", "t")) == {1: "rome", 2: "oslo"}


@pytest.mark.slow
def test_c3_rings_and_chains_that_break(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    ring = ("oslo>rome", "rome>paris", "paris>oslo")
    for site in sites.names:
        sites.write(site, f"INSERT INTO t SELECT {len(site)}0 + range, '{site}' FROM range(3)")
    # Simplex: in a ring each change goes around once, then there is silence.
    assert take_from(sites, *ring, *ring, *ring) == [1, 2, 2, 1, 0, 0, 0, 0, 0]
    sites.refuse_differences("t")
    # Two channels: the other way around at the same time.
    for site in sites.names:
        sites.write(site, f"UPDATE t SET v = '{site} again' WHERE k = 1")
    both = ("oslo>rome", "oslo>paris", "rome>paris", "rome>oslo", "paris>oslo", "paris>rome")
    assert sum(take_from(sites, *both)) == 6
    assert take_from(sites, *both) == [0] * 6
    sites.refuse_differences("t")
    # break_3_chain: the line from rome to paris is cut, and paris reads oslo's log from where its vector says.
    sites.write("oslo", "UPDATE t SET v = 'chain' WHERE k = 1")
    take_from(sites, "oslo>rome", "rome>paris")
    sites.write("oslo", "UPDATE t SET v = 'chain 2' WHERE k = 1", "UPDATE t SET v = 'chain 3' WHERE k = 2")
    assert take_from(sites, "oslo>rome", "oslo>paris", "rome>paris") == [2, 2, 0]
    sites.refuse_differences("t")
    # What two logs hold is taken once, and counted once by who only looks.
    sites.write("rome", "UPDATE t SET v = 'twice' WHERE k = 1")
    take_from(sites, "rome>paris")
    expected = [(each.transactions, each.rows) for each in wlc.take(sites.file("oslo"), dry_run=True)]
    assert [(each.transactions, each.rows) for each in wlc.take(sites.file("oslo"))] == expected
    assert sum(count for count, _ in expected) == 1
    refuse_repetitions(sites)


@pytest.mark.slow
def test_four_sites_as_389_ds_accepts_them(tmp_path: Path) -> None:
    """Add, modify, delete and rename over four masters; one that pauses; a double deletion; a table that comes late."""
    sites = new_mesh(tmp_path, "rome", "paris", "york")
    for number, site in enumerate(sites.names):
        sites.write(site, f"INSERT INTO t VALUES (1{number}, '{site}')")
    sites.exchange()
    for number, site in enumerate(reversed(sites.names)):
        sites.write(
            site, f"UPDATE t SET v = 'by {site}' WHERE k = 1{number}", f"UPDATE t SET k = 2{number} WHERE k = 1{number}"
        )
    sites.exchange()
    sites.refuse_differences("t")
    assert {k for k, _ in sites.rows("rome", "t")} == {1, 2, 20, 21, 22, 23}
    # York pauses, and takes it all when it goes on.
    sites.write("york", "UPDATE t SET v = 'york' WHERE k = 1")
    for name in ("oslo", "rome", "paris"):
        sites.write(name, f"UPDATE t SET v = '{name} while york pauses' WHERE k = 2")
        sites.take(name)
    sites.write("rome", "DELETE FROM t WHERE k = 20")
    sites.write("york", "DELETE FROM t WHERE k = 20")
    sites.exchange()
    sites.refuse_differences("t")
    assert dict(sites.rows("york", "t"))[1] == "york"
    # A table that comes late arrives through another site, and everybody writes it.
    sites.write("oslo", "CREATE TABLE late (k INTEGER PRIMARY KEY, v VARCHAR)", "INSERT INTO late VALUES (1, 'oslo')")
    take_from(sites, "oslo>rome", "rome>york")
    assert sites.rows("york", "late") == [(1, "oslo")]
    wlc.set_rule("sales", "late", "newest", farm=sites.farm)
    sites.exchange()
    sites.write("york", "UPDATE late SET v = 'york'")
    sites.exchange()
    sites.refuse_differences("t", "late")
    assert sites.rows("oslo", "late") == [(1, "york")]
    refuse_repetitions(sites)


@pytest.mark.slow
def test_a_site_that_joined_after_a_deletion_knows_of_it(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome")
    sites.write("rome", "UPDATE t SET v = 'older' WHERE k = 1")
    sites.write("oslo", "DELETE FROM t WHERE k = 1", "UPDATE t SET v = 'newer' WHERE k = 2")
    wlc.flush(sites.file("oslo"))
    wlc.snapshot(sites.file("oslo"))
    sites.join("york")
    sites.write("york", "INSERT INTO t VALUES (9, 'york')")
    # What york began with, rome does not have, and finds in oslo's log.
    with pytest.raises(ExpiredError, match="the past of batch 1 of site york"):
        take_from(sites, "york>rome")
    sites.write("york", "DELETE FROM t WHERE k = 9")
    # York has nothing of key 1, and reads rome's change first.
    assert take_from(sites, "rome>york") == [1]
    assert sites.rows("york", "t") == [(2, "newer")]
    assert [row.op_type for row in wlc.exceptions(sites.file("york"))] == ["UPDATE_ROW"]
    # What is newer than the deletion brings the row back, everywhere.
    sites.write("york", "INSERT INTO t VALUES (1, 'york')")
    sites.exchange()
    sites.refuse_differences("t")
    assert sites.rows("rome", "t") == [(1, "york"), (2, "newer")]


@pytest.mark.slow
def test_deletions_are_kept_until_all_contain_them(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    sites.write("rome", "UPDATE t SET v = 'older' WHERE k = 1")
    sites.write("oslo", "DELETE FROM t WHERE k = 1")
    take_from(sites, "oslo>paris")
    for site in ("oslo", "paris"):
        sites.write(site, *(["UPDATE t SET v = 'more' WHERE k = 2"] if site == "oslo" else []))
        wlc.snapshot(sites.file(site))
        wlc.prune(sites.log(site).url, keep_for="0s")
    sites.exchange()
    sites.refuse_differences("t")
    assert sites.rows("paris", "t") == [(2, "more")]
    inherited = "duckdb_tables() WHERE schema_name = 'wlc' AND table_name = 'inherited'"
    assert sites.rows("paris", inherited)
    # Once all have it, nothing of the log is needed any more, and nothing of what came before it.
    sites.exchange()
    wlc.snapshot(sites.file("paris"))
    wlc.prune(sites.log("paris").url, keep_for="0s")
    assert len(sites.log("paris").batch_numbers()) <= 2
    for site in ("paris", "rome", "oslo"):
        sites.write(site, f"UPDATE t SET v = '{site}' WHERE k = 2")
    sites.exchange()
    sites.refuse_differences("t")
    assert sites.rows("paris", "t") == [(2, "oslo")]
    assert sites.rows("paris", inherited) == []
    assert sites.rows("rome", inherited)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=70 * 365)], ids=["an hour", "70 years"])
def test_a_clock_that_is_ahead_waits_and_wins_nothing_for_ever(tmp_path: Path, ahead: timedelta) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    sites.write("rome", "UPDATE t SET v = 'on time' WHERE k = 1")
    wlc.flush(sites.file("rome"))
    with clock_ahead(ahead):
        sites.write("rome", "UPDATE t SET v = 'ahead' WHERE k = 2")
        wlc.flush(sites.file("rome"))
    sites.write("paris", "UPDATE t SET v = 'paris' WHERE k = 2")
    wlc.flush(sites.file("paris"))
    with pytest.raises(UnavailableError, match=r"site rome committed tick \d+ at .* waits") as waits:
        sites.take("oslo")
    assert waits.value.hint is not None
    assert "--site rome --again" in waits.value.hint
    assert [(each.site, each.transactions) for each in waits.value.done] == [("paris", 1)]
    # What came before it is there, and what others wrote.
    assert sites.rows("oslo", "t") == [(1, "on time"), (2, "paris")]
    # It does not come through anybody else, either.
    with pytest.raises(UnavailableError):
        sites.take("paris")
    assert take_from(sites, "paris>oslo") == [0]
    # When its time has come, it is the newest.
    with clock_ahead(ahead):
        sites.take("oslo")
        sites.take("paris")
    assert sites.rows("paris", "t") == [(1, "on time"), (2, "ahead")]


@pytest.mark.slow
def test_what_follows_on_a_change_is_newer_with_a_clock_that_is_behind(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome")
    with clock_ahead(timedelta(minutes=4)):
        sites.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 1")
        wlc.flush(sites.file("oslo"))
    with clock_ahead(timedelta(seconds=-30)):
        sites.take("rome")
        sites.write("rome", "UPDATE t SET v = 'rome' WHERE k = 1")
        wlc.flush(sites.file("rome"))
    sites.exchange()
    sites.refuse_differences("t")
    assert dict(sites.rows("oslo", "t"))[1] == "rome"
    # So is what a new site changes at once, whose clock is behind, too.
    with clock_ahead(timedelta(seconds=-30)):
        sites.join("york")
        sites.write("york", "UPDATE t SET v = 'york' WHERE k = 1")
    sites.exchange()
    assert dict(sites.rows("oslo", "t"))[1] == "york"


@pytest.mark.slow
def test_what_a_mesh_refuses(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome")
    farm = sites.farm
    for table, why in (
        ("u", "a UNIQUE constraint"),
        ("parents", "a FOREIGN KEY"),
        ("children", "a FOREIGN KEY"),
        ("indexed", "a UNIQUE index"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            wlc.set_rule("sales", table, "newest", farm=farm)
    with pytest.raises(InvalidError, match="no primary key"):
        wlc.set_rule("sales", "bag", "newest", farm=farm)
    with pytest.raises(InvalidError, match="is a mesh of sites, where rule epoch has no meaning"):
        wlc.set_rule("sales", "t", "epoch", farm=farm)
    with pytest.raises(UnsupportedError, match="role primary has no meaning"):
        wlc.set_role("sales", "rome", "primary", lost="oslo", farm=farm)
    with pytest.raises(UnsupportedError, match="new sites begin with the rows of oslo"):
        wlc.joined_from(sites.file("york"), name="sales", farm=farm, site="york", start="rome")
    for statement, why in (
        ("INSERT INTO p VALUES (1, 'rome')", "has no rule: only the primary, oslo, can"),
        ("INSERT INTO bag VALUES ('rome')", "has no primary key: only the primary, oslo, can"),
        ("CREATE TABLE mine (k INTEGER)", "only site oslo of sales can"),
    ):
        with pytest.raises(InvalidError, match=why):
            sites.write("rome", statement)
    sites.write("oslo", "UPDATE p SET v = 'oslo'", "INSERT INTO bag VALUES ('oslo')")
    for statement, error, why in (
        ("CREATE UNIQUE INDEX names ON t (k, v)", UnsupportedError, "cannot have a UNIQUE constraint"),
        ("CREATE TABLE more (k INTEGER REFERENCES t (k))", UnsupportedError, "cannot have a FOREIGN KEY"),
        (
            "BEGIN; ALTER TABLE p ADD COLUMN n INTEGER; UPDATE t SET v = 'x'; COMMIT",
            InvalidError,
            "cannot write rows of main.t",
        ),
    ):
        with pytest.raises(error, match=why):
            sites.write("oslo", statement)
    # A star stays one.
    star = tmp_path / "star"
    star.mkdir()
    other = Sites(star)
    other.found()
    other.join("rome")
    with pytest.raises(InvalidError, match="where rule newest has no meaning"):
        wlc.set_rule("sales", "a", "newest", farm=other.farm)
    with pytest.raises(InvalidError, match="has other sites, which is a star"):
        wlc.master(other.file("oslo"), site="oslo", mesh=True)


def test_a_master_that_is_alone_becomes_a_mesh(tmp_path: Path) -> None:
    """Its log has no line more than that of any master until another site joins."""
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    plain = (sites.log("oslo").read_batch(number) for number in sites.log("oslo").batch_numbers())
    assert all(batch.term is None and not batch.taken for batch, _ in plain)
    wlc.master(sites.file("oslo"), site="oslo", mesh=True)
    wlc.master(sites.file("oslo"), site="oslo", mesh=True)
    assert read_circle(sites.log("oslo")).is_mesh
    sites.write("oslo", "UPDATE t SET v = 'alone' WHERE k = 1")
    wlc.flush(sites.file("oslo"))
    batch = sites.log("oslo").read_batch(1)[0]
    assert (batch.term, batch.own, batch.taken, set(batch.vector)) == (None, None, (), {batch.history})


@pytest.mark.slow
def test_a_site_leaves_and_another_begins_anew(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    sites.write("rome", "UPDATE t SET v = 'rome' WHERE k = 1")
    wlc.flush(sites.file("rome"))
    with pytest.raises(InvalidError, match="has read site rome up to batch"):
        wlc.leave("sales", "rome", farm=sites.farm)
    sites.exchange()
    wlc.leave("sales", "rome", farm=sites.farm)
    sites.names.remove("rome")
    sites.write("paris", "UPDATE t SET v = 'paris' WHERE k = 1")
    sites.exchange()
    sites.refuse_differences("t")
    sites.join("paris", again=True)
    sites.write("paris", "UPDATE t SET v = 'anew' WHERE k = 1")
    sites.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 2")
    sites.exchange()
    sites.refuse_differences("t")
    assert sites.rows("oslo", "t") == [(1, "anew"), (2, "oslo")]


@pytest.mark.slow
def test_a_site_restored_from_a_backup_gets_its_past_back(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    backup = sites.file("rome").read_bytes()
    sites.write("rome", "UPDATE t SET v = 'lost' WHERE k = 1")
    take_from(sites, "rome>paris")
    sites.file("rome").write_bytes(backup)
    wlc.master(sites.file("rome"), moved=True)
    with pytest.warns(UserWarning, match="was restored from a backup"):
        sites.take("rome")
    sites.write("rome", "UPDATE t SET v = 'after' WHERE k = 2")
    sites.exchange()
    sites.refuse_differences("t")
    assert sites.rows("oslo", "t") == [(1, "lost"), (2, "after")]
    refuse_repetitions(sites)


@pytest.mark.slow
def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    farm, oslo, rome = str(tmp_path / "farm"), str(tmp_path / "oslo.duckdb"), str(tmp_path / "rome.duckdb")
    with duckdb.connect(oslo) as connection:
        connection.execute(SCHEMA)

    def run(*arguments: str) -> str:
        assert run_app(app, "wlc", list(arguments)) == 0
        return capsys.readouterr().out

    assert run_app(app, "wlc", ["master", oslo, "--farm", farm, "--name", "sales", "--mesh"]) == 2
    assert "wlc master" in capsys.readouterr().err
    run("master", oslo, "--farm", farm, "--name", "sales", "--site", "oslo", "--mesh")
    assert "newest" in run("site", "rule", oslo, "t", "newest")
    run("site", "join", rome, "--farm", farm, "--name", "sales", "--site", "rome")
    with wlc.connect(rome) as written:
        written.execute("UPDATE t SET v = 'rome'")
    run("site", "take", rome)
    taken = json.loads(run("site", "take", oslo, "--json"))
    assert [each["transactions"] for each in taken] == [1]
    listed = json.loads(run("site", "list", oslo, "--json"))
    assert {each["site"]: sorted(each["read_by"]) for each in listed} == {"oslo": ["rome"], "rome": ["oslo"]}
    assert all(each["is_stable"] and not each["window_rows"] for each in listed)


# What the sites do one after the other, and what t holds everywhere afterwards, beside 1 and 2 as they were.
CASES: dict[str, tuple[list[str], dict[int, str | None]]] = {
    "E3 both insert": (
        ["oslo: INSERT INTO t VALUES (3, 'oslo')", "rome: INSERT INTO t VALUES (3, 'rome')"],
        {3: "rome"},
    ),
    "E4 both update": (
        ["rome: UPDATE t SET v = 'rome' WHERE k = 1", "oslo: UPDATE t SET v = 'oslo' WHERE k = 1"],
        {1: "oslo"},
    ),
    "E5 deleted last": (["oslo: UPDATE t SET v = 'oslo' WHERE k = 1", "rome: DELETE FROM t WHERE k = 1"], {1: None}),
    "E6 updated last": (["oslo: DELETE FROM t WHERE k = 1", "rome: UPDATE t SET v = 'rome' WHERE k = 1"], {1: "rome"}),
    "E8 both delete, one inserts": (
        [
            "oslo: DELETE FROM t WHERE k = 1",
            "rome: DELETE FROM t WHERE k = 1",
            "rome: INSERT INTO t VALUES (1, 'again')",
        ],
        {1: "again"},
    ),
    "E8 the one that inserts deletes first, and E10": (
        [
            "rome: DELETE FROM t WHERE k < 3",
            "rome: INSERT INTO t VALUES (1, 'again'), (2, 'a')",
            "rome: UPDATE t SET v = 'b' WHERE k = 2",
            "oslo: DELETE FROM t WHERE k = 1",
            "oslo: UPDATE t SET v = 'oslo' WHERE k = 2",
        ],
        {1: None, 2: "oslo"},
    ),
    "E9 inserted and gone": (
        [
            "oslo: INSERT INTO t VALUES (4, 'oslo')",
            "rome: INSERT INTO t VALUES (4, 'rome')",
            "rome: DELETE FROM t WHERE k = 4",
        ],
        {4: None},
    ),
    "row by row, not by transaction": (
        ["rome: UPDATE t SET v = 'rome' WHERE k < 3", "oslo: UPDATE t SET v = 'oslo' WHERE k = 2"],
        {1: "rome", 2: "oslo"},
    ),
    "a key moves": (
        ["rome: UPDATE t SET k = 7 WHERE k = 1", "oslo: UPDATE t SET v = 'oslo' WHERE k = 1"],
        {1: "oslo", 7: "first"},
    ),
    "all is deleted": (["rome: UPDATE t SET v = 'rome' WHERE k = 1", "oslo: DELETE FROM t"], {1: None, 2: None}),
    "three sites": (
        [
            "rome: UPDATE t SET v = 'rome' WHERE k = 1",
            "paris: DELETE FROM t WHERE k = 1",
            "oslo: UPDATE t SET v = 'oslo' WHERE k = 1",
            "paris: UPDATE t SET v = 'paris' WHERE k = 2",
        ],
        {1: "oslo", 2: "paris"},
    ),
    # The first change comes back to rome in oslo's log when the next one is made.
    "X1 an older change comes back": (
        [
            "rome: INSERT INTO t VALUES (5, 'old')",
            "rome: UPDATE t SET v = 'old' WHERE k = 1",
            "rome: DELETE FROM t WHERE k = 2",
            "rome>oslo",
            "rome: UPDATE t SET v = 'new' WHERE k = 5",
            "rome: DELETE FROM t WHERE k = 1",
            "rome: INSERT INTO t VALUES (2, 'new')",
            "oslo>rome",
        ],
        {1: None, 2: "new", 5: "new"},
    ),
    "X2 a row that another site inserted over and deleted": (
        [
            "rome: INSERT INTO t VALUES (5, 'rome')",
            "oslo: INSERT INTO t VALUES (5, 'oslo')",
            "oslo>rome",
            "rome: UPDATE t SET v = 'rome again' WHERE k = 5",
            "oslo: DELETE FROM t WHERE k = 5",
        ],
        {5: None},
    ),
}


@pytest.mark.slow
def test_of_concurrent_changes_the_newest_counts(tmp_path: Path) -> None:
    sites = new_mesh(tmp_path, "rome", "paris")
    for name, (steps, changed) in sampled(list(CASES.items()), 5):
        expected = {1: "first", 2: "first", **changed}
        play(sites, steps)
        sites.exchange()
        sites.refuse_differences("t")
        assert dict(sites.rows("oslo", "t")) == {k: v for k, v in expected.items() if v is not None}, name
        sites.write("oslo", "DELETE FROM t", "INSERT INTO t VALUES (1, 'first'), (2, 'first')")
        sites.exchange()
    refuse_repetitions(sites)
    for site in sites.names:
        sites.replica_equals(site, "t")
        assert all(check.outcome == "same" for check in wlc.verify_source(sites.file(site)))


# What spock and 389-ds test of several masters, in a mesh of four sites ----------------------------------------------------


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("four"))
    sites.found(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR)",
        mesh=True,
    )
    for table in ("t", "u"):
        wlc.set_rule("sales", table, "newest", farm=sites.farm)
    for name in ("rome", "paris", "york"):
        sites.join(name)
    sites.exchange()
    yield sites
    # Whatever a test has left over, the sites end equal, and each transaction is in each log once.
    sites.exchange()
    sites.refuse_differences("t", "u")
    refuse_repetitions(sites)


@pytest.mark.slow
def test_spock_bidirectional(four: Sites) -> None:
    """Inserts, updates, deletions and an emptied table in both directions, in transactions over two tables."""
    four.write("oslo", "INSERT INTO t SELECT range, 'oslo' FROM range(100, 110)")
    four.write("rome", "INSERT INTO u SELECT range, 'rome' FROM range(100, 110)")
    assert take_from(four, "oslo>rome", "rome>oslo") == [1, 1]
    four.write("rome", "BEGIN; UPDATE t SET v = 'rome' WHERE k < 105; DELETE FROM u WHERE k < 105; COMMIT")
    assert take_from(four, "rome>oslo", "oslo>rome") == [1, 0]
    four.write("oslo", "BEGIN; DELETE FROM t WHERE k < 102; INSERT INTO u VALUES (100, 'oslo'); COMMIT")
    four.write("oslo", "TRUNCATE u", "INSERT INTO u VALUES (1, 'last')")
    assert take_from(four, "oslo>rome", "rome>oslo") == [3, 0]
    for site in ("oslo", "rome"):
        assert [v for _, v in four.rows(site, "t")] == ["rome"] * 3 + ["oslo"] * 5
        assert four.rows(site, "u") == [(1, "last")]


@pytest.mark.slow
def test_spock_node_origin_cascade_and_tuple_origin(four: Sites) -> None:
    """Down a chain of hubs that write nothing themselves, a transaction keeps its origin, and so does a conflict."""
    four.write("oslo", "INSERT INTO t VALUES (200, 'oslo')")
    wlc.flush(four.file("oslo"))
    history = next(site.history for site in wlc.sites(four.file("oslo")) if site.site == "oslo")
    tick = four.log("oslo").config().tick
    four.write("york", "INSERT INTO t VALUES (200, 'york')")
    take_from(four, "oslo>rome", "rome>paris", "paris>york")
    for site in ("rome", "paris"):
        assert (history, tick) in [(each.history, each.tick) for each in four.names_of(site)]
    (row,) = wlc.exceptions(four.file("york"), table="t")
    assert (row.source, row.origin_history, row.origin_tick) == ("oslo", history, tick)
    # 389-ds cascading_test: what the end of the chain writes comes back the same way.
    take_from(four, "york>paris", "paris>rome", "rome>oslo")
    assert dict(four.rows("oslo", "t"))[200] == "york"


@pytest.mark.slow
def test_spock_025_a_row_that_changes_twice_in_one_transaction_is_no_conflict(four: Sites) -> None:
    four.exchange()
    before = {site: len(wlc.exceptions(four.file(site))) for site in four.names}
    four.write(
        "paris",
        "BEGIN; INSERT INTO t VALUES (300, 'a'); UPDATE t SET v = 'b' WHERE k = 300; DELETE FROM t WHERE k = 300;"
        " INSERT INTO t VALUES (300, 'c'); UPDATE t SET v = 'd' WHERE k = 300; COMMIT",
        "UPDATE t SET v = 'e' WHERE k = 300",
    )
    four.exchange()
    assert {dict(four.rows(site, "t"))[300] for site in four.names} == {"e"}
    assert {site: len(wlc.exceptions(four.file(site))) for site in four.names} == before


@pytest.mark.slow
def test_spock_016_progress_after_a_crash(four: Sites) -> None:
    """A site that dies between what it takes and what it tells goes on behind it."""
    four.exchange()
    four.write("rome", "INSERT INTO t VALUES (400, 'rome')")
    wlc.flush(four.file("rome"))
    told = patch("wlc.multi_master.take_round.register", side_effect=UnavailableError("died"))
    with told, pytest.raises(UnavailableError, match="died"):
        wlc.take(four.file("oslo"), site="rome")
    assert dict(four.rows("oslo", "t"))[400] == "rome"
    assert take_from(four, "rome>oslo") == [0]


ORDERS = list(permutations(("oslo", "rome", "paris")))


@pytest.mark.slow
@pytest.mark.parametrize("order", sampled(ORDERS, 2), ids="-".join)
def test_389_ds_mmr_single_value_conflict(four: Sites, order: tuple[str, str, str]) -> None:
    """Two writers, and a third one that deletes; a fourth that reads them in each order."""
    key = 600 + ORDERS.index(order)
    four.exchange()
    four.write("oslo", f"INSERT INTO t VALUES ({key}, 'first')")
    four.exchange()
    four.write("rome", f"UPDATE t SET v = 'rome' WHERE k = {key}")
    four.write("paris", f"DELETE FROM t WHERE k = {key}")
    four.write("oslo", f"UPDATE t SET v = 'oslo' WHERE k = {key}")
    take_from(four, *(f"{name}>york" for name in order))
    assert dict(four.rows("york", "t"))[key] == "oslo"

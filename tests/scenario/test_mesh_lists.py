"""What spock and 389-ds test of several masters, in a mesh of four sites; names are theirs.

Elsewhere: concurrent changes, rings, chains, acceptance over four sites, backups and clocks in `test_mesh.py`
(repl_conflict_delete_modify, csngen, 015_forward_origin_advance, backup_test, conflict_secondary_unique), trimming in
`test_deletions_are_kept_until_all_contain_them`, processes that are killed in `tests/fault/test_killed_sites.py`.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import wlc
from tests.sampling import sampled
from tests.sites import Sites, refuse_repetitions, take_from
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.vectors import contains

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("oslo", "rome", "paris", "york")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("four"))
    sites.found(
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR)",
        mesh=True,
    )
    for table in ("t", "u"):
        wlc.set_rule("sales", table, "newest", farm=sites.farm)
    for name in NAMES[1:]:
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


def test_spock_024_a_name_is_given_once(four: Sites) -> None:
    with pytest.raises(InvalidError, match="rome"):
        wlc.joined_from(four.folder / "other.duckdb", name="sales", farm=four.farm, site="rome")


@pytest.mark.slow
def test_spock_025_a_row_that_changes_twice_in_one_transaction_is_no_conflict(four: Sites) -> None:
    four.exchange()
    before = {site: len(wlc.exceptions(four.file(site))) for site in NAMES}
    four.write(
        "paris",
        "BEGIN; INSERT INTO t VALUES (300, 'a'); UPDATE t SET v = 'b' WHERE k = 300; DELETE FROM t WHERE k = 300;"
        " INSERT INTO t VALUES (300, 'c'); UPDATE t SET v = 'd' WHERE k = 300; COMMIT",
        "UPDATE t SET v = 'e' WHERE k = 300",
    )
    four.exchange()
    assert {dict(four.rows(site, "t"))[300] for site in NAMES} == {"e"}
    assert {site: len(wlc.exceptions(four.file(site))) for site in NAMES} == before


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


@pytest.mark.slow
def test_389_ds_ruvstore(four: Sites) -> None:
    """The vector of the file is that of its log, never falls, and an aborted operation does not advance it."""
    four.exchange()

    def vectors() -> tuple[dict[str, int], dict[str, int]]:
        log, file = four.log("paris"), four.file("paris")
        with wlc.connect(file) as connection:
            state = connection._shared.require_state()
        assert state.site is not None
        published = log.read_batch(log.batch_numbers()[-1])[0].vector
        return {**state.site.contained, state.history: state.tick}, dict(published)

    before, published = vectors()
    # What only repeats what it contains it has read and not published.
    assert contains(before, published)
    four.write("oslo", "INSERT INTO t VALUES (500, 'oslo')")
    wlc.flush(four.file("oslo"))
    aborted = patch("wlc.multi_master.duckdb.take_step._commit", side_effect=UnavailableError("aborted"))
    with aborted, pytest.raises(UnavailableError, match="aborted"):
        wlc.take(four.file("paris"), site="oslo")
    assert vectors() == (before, published)
    assert 500 not in dict(four.rows("paris", "t"))
    assert take_from(four, "oslo>paris") == [1]
    four.write("paris", "UPDATE t SET v = 'paris' WHERE k = 500")
    wlc.flush(four.file("paris"))
    after, later = vectors()
    for vector, earlier in ((after, before), (later, published), (after, later)):
        assert contains(vector, earlier)
    own = four.log("paris").config()
    assert (after[own.history], later[own.history]) == (own.tick, own.tick)
    assert not contains(before, after)


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

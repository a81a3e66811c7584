"""Three sites in processes of their own move money between the same accounts, and are killed at any moment.

With the rule `epoch_trans` no transfer is taken in part: at the primary the money is the same at every tick, at a
secondary whenever all that it wrote has been judged, and everywhere when all is quiet. What was rejected is reported.
DBFARM_SECONDS=3600 goes on for longer.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import DEADLINE_S, Program, seed
from tests.scratch import attached
from tests.sites import Sites
from wlc.dialect.sql import literal
from wlc.farm.model import Change
from wlc.multi_master.circle import read_circle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wlc.farm.model import Batch

pytestmark = pytest.mark.slow

# However slow the machine is, so many times a site is killed, and no more than these if what is tried still did not happen.
KILLS_MIN, KILLS_MAX = 2, 40
ACCOUNTS, AMOUNT = 12, 100
TOTAL = ACCOUNTS * AMOUNT
SITES = ("oslo", "paris", "rome")

WRITER = """
import faulthandler, random, sys, time
import wlc

file, seed, accounts = sys.argv[1:]
chance = random.Random(seed)
with wlc.connect(file) as connection:
    print("ready", flush=True)
    while True:
        # One that hangs says where before the test gives up; on a busy machine, a round can take minutes.
        faulthandler.dump_traceback_later(280, exit=True)
        # Without a change of its own now and then, so that it sees the verdict on all that it has written.
        for _ in range(chance.choice([0, 0, 1, 2, 4])):
            one, other = chance.sample(range(int(accounts)), 2)
            connection.execute(
                f"BEGIN; UPDATE accounts SET amount = amount - 1 WHERE id = {one};"
                f" UPDATE accounts SET amount = amount + 1 WHERE id = {other}; COMMIT"
            )
        try:
            wlc.take(file)
        except wlc.UnavailableError:
            # A site that becomes the primary takes over in its own time.
            pass
        print("took", flush=True)
        time.sleep(0.2)
"""


def test_money_stays_while_sites_are_killed(tmp_path: Path) -> None:
    _run(tmp_path, kills=3, seconds=20)


def test_money_stays_while_the_primary_changes(tmp_path: Path) -> None:
    _check_changes(tmp_path, kills=2, seconds=60)


@pytest.mark.deep
def test_money_stays_while_the_primary_changes_for_ten_minutes(tmp_path: Path) -> None:
    _check_changes(tmp_path, kills=1_000_000, seconds=float(os.environ.get("DBFARM_SECONDS", "600")))


def _check_changes(folder: Path, *, kills: int, seconds: float) -> None:
    """Another site becomes the primary while all write, by a command that is killed, too: every term has one primary."""
    sites = _killed(folder, kills=kills, seconds=seconds, meanwhile=_change_primary, is_enough=_has_changed)
    terms: dict[int, str] = {}
    for site in SITES:
        rows = sites.rows(site, "accounts")
        assert sum(int(str(amount)) for _, amount in rows) == TOTAL, f"{site}: {rows}"
        ends = [batch.handover for batch in _batches(sites, site) if batch.handover is not None]
        for end in ends:
            assert terms.setdefault(end.term, end.to) == end.to
        sites.replica_equals(site, "accounts")
        assert set(Counter((each.history, each.tick) for each in sites.names_of(site)).values()) == {1}
    circle = read_circle(sites.log("oslo"))
    assert terms
    assert circle.primary == terms[circle.term]
    print(f"{circle.term - 1} changes of the primary")


def _has_changed(sites: Sites) -> bool:
    return read_circle(sites.log("oslo")).term > 1


def _change_primary(sites: Sites, chance: random.Random) -> None:
    circle = read_circle(sites.log("oslo"))
    to = chance.choice([site for site in SITES if site != circle.primary])
    command = Program("cli.wlc", "site", "role", sites.log("oslo").url, to, "primary", "--lost", circle.primary)
    # It takes about a second to load, and some calls of the store after it. The first one is left alone.
    with suppress(subprocess.TimeoutExpired):
        command.process.wait(DEADLINE_S if circle.term == 1 else chance.choice([chance.uniform(0.5, 3), DEADLINE_S]))
    if command.process.poll() is None:
        command.kill()
        return
    assert command.end() == 0, command.errors


@pytest.mark.deep
def test_money_stays_while_sites_are_killed_for_ten_minutes(tmp_path: Path) -> None:
    _run(tmp_path, kills=1_000_000, seconds=float(os.environ.get("DBFARM_SECONDS", "600")))


@pytest.mark.deep
def test_sites_of_a_mesh_agree_after_they_were_killed(tmp_path: Path) -> None:
    """Of two transfers at the same time, one may stay in part; which, all say alike."""
    sites = _killed(tmp_path, kills=1_000_000, seconds=float(os.environ.get("DBFARM_SECONDS", "120")), is_mesh=True)
    for site in SITES:
        assert set(Counter((each.history, each.tick) for each in sites.names_of(site)).values()) == {1}
        sites.replica_equals(site, "accounts")
    own = {each for site in SITES for each in sites.names_of(site)}
    assert all(set(sites.names_of(site)) == own for site in SITES)


def _run(folder: Path, *, kills: int, seconds: float) -> None:
    sites = _killed(folder, kills=kills, seconds=seconds, is_enough=_has_met_conflicts)
    for site in SITES:
        rows = sites.rows(site, "accounts")
        assert sum(int(str(amount)) for _, amount in rows) == TOTAL, f"{site}: {rows}"
    count, rejected = _check_money_of_primary(sites), _check_rejected(sites)
    assert rejected > 0
    print(f"{count} transactions, {rejected} of them rejected")
    for site in SITES[1:]:
        ticks = _check_money_of_secondary(sites, site)
        print(f"{len(ticks)} ticks of {site} without anything that waits for a verdict")
        assert ticks
        for tick in {ticks[0], ticks[len(ticks) // 2], ticks[-1]}:
            into = folder / f"{site} at {tick}.duckdb"
            wlr.replicate(sites.log(site).url, into=into, tick=tick, register=False)
            with attached(into) as connection:
                assert connection.execute("SELECT sum(amount) FROM accounts").fetchall() == [(TOTAL,)]


def _has_met_conflicts(sites: Sites) -> bool:
    """Say whether something was rejected, and every secondary has known a verdict on all that it had written."""
    return not all(_at_primary(sites).values()) and all(_check_money_of_secondary(sites, site) for site in SITES[1:])


def _killed(
    folder: Path,
    *,
    kills: int,
    seconds: float,
    is_mesh: bool = False,
    meanwhile: Callable[[Sites, random.Random], None] = lambda sites, chance: None,
    is_enough: Callable[[Sites], bool] = lambda sites: True,
) -> Sites:
    """Return sites that hold the same, after they have moved money and were killed; `meanwhile` is done between kills.

    They go on until it `is_enough`.
    """
    sites = Sites(folder)
    sites.found(
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, amount INTEGER);"
        f"INSERT INTO accounts SELECT range, {AMOUNT} FROM range({ACCOUNTS})",
        mesh=is_mesh,
    )
    for site in SITES[1:]:
        sites.join(site)
    wlc.set_rule("sales", "accounts", "newest" if is_mesh else "epoch_trans", farm=sites.farm)
    # They know the rule before they write.
    sites.exchange()
    chance = random.Random(seed())
    running = {site: _started(sites, site, chance) for site in SITES}
    try:
        deadline, done = time.monotonic() + seconds, 0
        while (
            done < KILLS_MIN
            or (done < kills and time.monotonic() < deadline)
            or (done < KILLS_MAX and not is_enough(sites))
        ):
            site = chance.choice(SITES)
            running[site].wait_for("took")
            time.sleep(chance.random() * 0.3)
            running[site].kill()
            meanwhile(sites, chance)
            running[site] = _started(sites, site, chance)
            done += 1
    finally:
        for each in running.values():
            # The output of one that ended by itself has been read to its end.
            if each.process.poll() is None:
                each.kill()
    for site in SITES:
        wlc.flush(sites.file(site))
    if not is_mesh:
        # A new primary takes over before the others go on.
        sites.take(read_circle(sites.log("oslo")).primary)
    sites.exchange()
    sites.refuse_differences("accounts")
    print(f"{done} kills")
    return sites


def _started(sites: Sites, site: str, chance: random.Random) -> Program:
    running = Program(sites.file(site), chance.randint(1, 10**9), ACCOUNTS, text=WRITER)
    running.wait_for("ready")
    return running


def _batches(sites: Sites, site: str) -> list[Batch]:
    log = sites.log(site)
    return [log.read_batch(number)[0] for number in log.batch_numbers()]


def _money(sites: Sites, site: str, batch: Batch) -> Counter[int]:
    """Return what each transaction of a batch added to the money."""
    change: Counter[int] = Counter()
    log = sites.log(site)
    for file in batch.files:
        local = log.fetch(file)
        with duckdb.connect() as connection:
            added = connection.execute(
                f"SELECT _tick, sum(_weight * amount)::BIGINT FROM read_parquet({literal(str(local))}) GROUP BY ALL"
            )
            change.update(dict(added.fetchall()))
        log.release(local)
    return change


def _check_money_of_primary(sites: Sites) -> int:
    """Check the money at every tick of the primary; returns how many transactions all sites have made."""
    money = TOTAL
    for batch in _batches(sites, "oslo"):
        change = _money(sites, "oslo", batch)
        for transaction in batch.transactions:
            money += change[transaction.tick]
            assert money == TOTAL, f"tick {transaction.tick} of oslo"
    return sum(t.origin is None for site in SITES for batch in _batches(sites, site) for t in batch.transactions)


def _check_money_of_secondary(sites: Sites, site: str) -> list[int]:
    """Check the money at each tick of a secondary at which it knew the verdict on all that it had written.

    Returns:
        These ticks, but for those before the first one that it wrote, in order.
    """
    primary = _batches(sites, "oslo")
    ends = [batch.last for batch in primary]
    money, last_own, contained, checked = TOTAL, 0, 0, list[int]()
    for batch in _batches(sites, site):
        change = _money(sites, site, batch)
        for transaction in batch.transactions:
            origin = transaction.origin
            money += change[transaction.tick]
            last_own = transaction.tick if origin is None else last_own
            if origin is not None and origin.history == primary[0].history:
                contained = max(contained, origin.tick)
            # What the primary had judged at the end of the last batch that the site has taken whole.
            known = bisect_right(ends, contained)
            judged = primary[known - 1].vector.get(batch.history, 0) if known else 0
            if 0 < last_own <= judged:
                assert money == TOTAL, f"tick {transaction.tick} of {site}, which knows tick {contained} of oslo"
                checked.append(transaction.tick)
        contained = max(contained, batch.vector.get(primary[0].history, 0))
    return checked


def _at_primary(sites: Sites) -> dict[tuple[str, int], bool]:
    """Return the names of all that the primary has judged, and whether it was accepted."""
    return {
        (t.origin.history, t.origin.tick): any(isinstance(record, Change) for record in t.records)
        for batch in _batches(sites, "oslo")
        for t in batch.transactions
        if t.origin is not None
    }


def _check_rejected(sites: Sites) -> int:
    """Every transfer is at the primary once: whole, or not at all and reported; returns how many were rejected."""
    reported = {(row.origin_history, row.origin_tick) for row in wlc.exceptions(sites.file("oslo"))}
    at_primary = _at_primary(sites)
    names = Counter(sites.names_of("oslo"))
    assert set(names.values()) == {1}
    own = {
        (batch.history, t.tick)
        for site in SITES[1:]
        for batch in _batches(sites, site)
        for t in batch.transactions
        if t.origin is None and t.committed is not None
    }
    assert own == set(at_primary)
    assert {name for name, is_whole in at_primary.items() if not is_whole} == reported
    return len(reported)

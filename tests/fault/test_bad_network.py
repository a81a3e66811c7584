"""A master and a replica go on through a network that loses requests, answers and parts of them."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.fault.processes import rounds, seed
from tests.fault.trial import check_log
from tests.oracle import Contents, contents, file_contents
from tests.proxy import FAULTS, proxy_to
from wlc.farm.database import open_database
from wlc.farm.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.proxy import Proxy

pytestmark = pytest.mark.slow

MOST_S = 12.0


@pytest.fixture
def proxy(s3_environment: str) -> Iterator[Proxy]:
    with proxy_to(s3_environment) as running:
        yield running


class Master:
    """A master that writes, and remembers what it contained after every transaction."""

    def __init__(self, source: Path, rng: random.Random) -> None:
        self.connection = wlc.connect(source)
        self.catalog = self.connection.execute("SELECT current_database()").fetchall()[0][0]
        self.rng = rng
        self.number = 0
        self.contained: dict[int, Contents] = {0: self.contents()}

    def contents(self) -> Contents:
        return contents(self.connection, self.catalog)

    def commit(self) -> None:
        self.number += 1
        number, most = self.number, self.rng.randrange(1, 200)
        self.connection.execute("BEGIN")
        self.connection.execute("INSERT INTO ledger VALUES (?)", [number])
        match self.rng.randrange(5):
            case 0:
                self.connection.execute("UPDATE account SET amount = amount + ? WHERE id % 3 = 0", [number])
            case 1:
                self.connection.execute("INSERT INTO note SELECT 'note ' || i FROM range(?) r(i)", [most])
            case 2:
                self.connection.execute("DELETE FROM note WHERE rowid % 7 = ?", [number % 7])
            case 3:
                self.connection.execute(f"CREATE OR REPLACE TABLE made AS SELECT {number} AS number, * FROM account")
        self.connection.execute("COMMIT")
        self.contained[self.connection._shared.last_tick] = self.contents()


def attempt(call: Callable[[], object], outcomes: Counter[str]) -> bool:
    """A call succeeds, or says that the farm is not available now; it never sees anything else."""
    try:
        call()
    except UnavailableError as error:
        assert error.hint
        outcomes[f"{call.__name__} failed"] += 1
        return False
    outcomes[call.__name__] += 1
    return True


def new_master(source: Path, farm: str, options: dict[str, object], beat_s: float) -> None:
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE ledger (number INTEGER); CREATE TABLE note (text VARCHAR)")
        connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, amount BIGINT)")
        connection.execute("INSERT INTO account SELECT i, 0 FROM range(20) r(i)")
    wlc.master(source, farm=farm, beat_s=beat_s, storage_options=options)


def test_the_outcome_of_a_commit_is_never_guessed(proxy: Proxy, s3_url: str, tmp_path: Path) -> None:
    """No try to create a log file gets through, or gets an answer; then nor does the question whether it is there."""
    source, replica, outcomes = tmp_path / "bank.duckdb", tmp_path / "replica.duckdb", Counter[str]()
    options: dict[str, object] = {"endpoint_url": proxy.url, "config_kwargs": {"retries": {"max_attempts": 0}}}
    new_master(source, s3_url, options, 300)
    kind, methods, has_begun = "", "", False

    def fault(method: str, path: str) -> str:
        nonlocal has_begun
        is_log = re.search(r"/bank_\d{12}(\?|$)", path) is not None
        has_begun |= is_log and method == "PUT"
        return kind if is_log and has_begun and method in methods else ""

    def flush() -> object:
        return wlc.flush(source)

    with wlc.connect(source) as connection:
        cases = [*itertools.product(("drop", "lose"), ("PUT", "PUT HEAD")), ("503", "PUT")]
        for number, (kind, methods) in enumerate(cases, 1):  # noqa: B007 - the server looks at them
            has_begun = False
            connection.execute("INSERT INTO ledger VALUES (?)", [number])
            proxy.fault = fault
            attempt(flush, outcomes)
            proxy.fault = lambda method, path: ""
            assert flush() is not None
            assert wlr.replicate(f"{s3_url}/bank", into=replica).tick == number
    assert outcomes["flush"]
    assert outcomes["flush failed"]
    assert file_contents(replica) == file_contents(source)
    assert check_log(open_database("bank", s3_url)) == len(cases)


def test_nothing_is_lost_or_repeated_by_a_bad_network(proxy: Proxy, s3_url: str, tmp_path: Path) -> None:
    rng, source, replica = random.Random(seed()), tmp_path / "bank.duckdb", tmp_path / "replica.duckdb"
    # The client tries again by itself only where the connection broke: what a server answers is seen by the product.
    options: dict[str, object] = {"endpoint_url": proxy.url, "config_kwargs": {"retries": {"max_attempts": 0}}}
    new_master(source, s3_url, options, 0.3)
    master, outcomes, faults = Master(source, rng), Counter[str](), Counter[str]()

    weather, kinds, kind, left = 0.0, itertools.cycle(FAULTS), "", 0

    def fault(method: str, path: str) -> str:
        nonlocal kind, left
        left -= 1
        if left < 0:
            # Writes are few, and what they are about is whether something was published.
            kind = next(kinds) if rng.random() < weather * (5 if method == "PUT" else 1) else ""
            # Some last longer than the client tries again by itself.
            left = rng.choice((0, 0, 2, 3)) if kind else 0
        faults[kind] += 1
        return kind

    def flush() -> object:
        return wlc.flush(source)

    def snapshot() -> object:
        return wlc.snapshot(source)

    def replicate() -> object:
        return wlr.replicate(f"{s3_url}/bank", into=replica, storage_options=options)

    def prune() -> object:
        return wlc.prune(f"{s3_url}/bank", keep_for="0s", storage_options=options)

    replicate()
    proxy.fault = fault
    deadline, done = time.monotonic() + MOST_S, 0
    while done < rounds(18) and time.monotonic() < deadline:
        done, weather = done + 1, rng.choice((0.02, 0.05, 0.1))
        for _ in range(rng.randrange(1, 4)):
            master.commit()
        attempt(rng.choice((flush, flush, flush, snapshot, prune)), outcomes)
        attempt(replicate, outcomes)
        assert file_contents(replica) == master.contained[wlr.tick(replica)]
    print(done, "rounds,", dict(outcomes), dict(faults))
    proxy.fault = lambda method, path: ""
    flush()
    replicate()
    final = master.contents()
    master.connection.close()
    assert file_contents(replica) == final == file_contents(source)
    assert wlr.tick(replica) == wlc.tick(f"{s3_url}/bank") == max(master.contained)
    assert final["main.ledger"] == Counter((str(n),) for n in range(1, master.number + 1))
    assert faults.total() > faults[""] > 0, "there was something to survive"
    assert check_log(open_database("bank", s3_url)) == max(master.contained)


LOGIN = (200, {"Content-Type": "text/html"}, b"<html><body>Please log in</body></html>")
# What a proxy answers with its login page, and which steps then cannot succeed.
REQUESTS = {
    r"PUT .*\.parquet": {"flush", "snapshot", "ship"},
    "PUT|POST": {"flush", "snapshot", "ship"},
    "GET .*list-type=2": {"ship"},
    "": {"flush", "snapshot", "ship", "replicate"},
}


def test_nothing_believes_a_login_page(proxy: Proxy, s3_url: str, tmp_path: Path) -> None:
    source, relay, replica = tmp_path / "bank.duckdb", f"{s3_url}/relay", tmp_path / "replica.duckdb"
    options: dict[str, object] = {"endpoint_url": proxy.url, "config_kwargs": {"retries": {"max_attempts": 0}}}
    new_master(source, s3_url, options, 300)
    steps = {
        "flush": lambda: wlc.flush(source),
        "snapshot": lambda: wlc.snapshot(source),
        "ship": lambda: wlc.ship(f"{s3_url}/bank", to=relay, storage_options=options, target_options=options),
        "replicate": lambda: wlr.replicate(f"{relay}/bank", into=replica, storage_options=options, register=False),
    }
    outcomes: Counter[str] = Counter()
    with wlc.connect(source) as connection:
        for asked, failing in REQUESTS.items():
            connection.execute("INSERT INTO ledger VALUES (1)")
            for name, step in steps.items():
                step.__name__ = name
                proxy.answers = lambda method, path, asked=asked: LOGIN if re.match(asked, f"{method} {path}") else None
                if attempt(step, outcomes):
                    assert name not in failing, asked
                proxy.answers = lambda _method, _path: None
                assert attempt(step, outcomes)
    for place in (s3_url, relay):
        assert wlr.verify_farm("bank", farm=place, full=True).problems == ()
    assert file_contents(replica) == file_contents(source)

"""How many requests an operation makes does not depend on how long the log is. No test asserts speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.requests import counted_accesses, counted_listings, counted_requests
from wlc.tiers.attachment import Keepalive
from wlc.tiers.choice import IDLE_REGISTRY_REQUESTS, IDLE_ROUND_REQUESTS
from wlc.tiers.upstreams import ORIGIN

if TYPE_CHECKING:
    from pathlib import Path


def make_master(folder: Path, farm: str) -> Path:
    source = folder / "sales.duckdb"
    wlc.master(source, farm=farm, beat_s=0, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    return source


def write(source: Path, values: range) -> None:
    """One batch for each value."""
    with wlc.connect(source) as connection:
        for value in values:
            connection.execute(f"INSERT INTO t VALUES ({value})")


@pytest.mark.slow
@pytest.mark.parametrize("into", ["copy.duckdb", "lake"])
def test_a_replication_without_news_asks_four_times_however_long_the_log_is(tmp_path, s3_url, into) -> None:
    source, copy = make_master(tmp_path, s3_url), tmp_path / into
    counts = []
    for values in (range(1), range(1, 8)):
        write(source, values)
        wlr.replicate("sales", farm=s3_url, into=copy, register=False)
        with counted_requests() as made:
            assert wlr.replicate(into=copy, register=False).transactions == 0
        counts.append(made.total())
        assert made.total() <= 4, made
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_a_flush_asks_the_same_however_long_the_log_is(tmp_path, s3_url) -> None:
    source = make_master(tmp_path, s3_url)
    counts = []
    for values in (range(1), range(1, 8)):
        write(source, values)
        with counted_requests() as made:
            wlc.flush(source)
        counts.append(made)
    assert counts[0] == counts[1]
    assert counts[0].total() <= 4


@pytest.mark.slow
def test_a_directory_with_the_log_is_not_listed(tmp_path) -> None:
    farm = str(tmp_path / "farm")
    source, copy = make_master(tmp_path, farm), tmp_path / "copy.duckdb"
    wlr.replicate("sales", farm=farm, into=copy)
    with counted_listings() as made:
        write(source, range(3))
        wlc.flush(source)
        wlr.replicate(into=copy)
        assert wlr.replicate(into=copy).transactions == 0
    assert made == {}


@pytest.mark.slow
def test_batches_and_files_of_a_bucket_are_read_side_by_side(tmp_path, s3_url, monkeypatch) -> None:
    source = make_master(tmp_path, s3_url)
    write(source, range(40))
    busy = most = 0

    from wlc.farm.store.s3 import S3Store

    for name in ("read", "fetch"):
        ask = getattr(S3Store, name)

        def count(*arguments, ask=ask, **options):
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            try:
                return ask(*arguments, **options)
            finally:
                busy -= 1

        monkeypatch.setattr(S3Store, name, count)
    with counted_requests() as made:
        assert wlr.replicate("sales", farm=s3_url, into=tmp_path / "copy.duckdb", register=False).tick == 41
    assert most > 4
    with duckdb.connect(str(tmp_path / "copy.duckdb")) as connection:
        assert connection.execute("SELECT count(*), sum(i) FROM t").fetchall() == [(40, 780)]
    # Each log file and each data file is read once; the first and the last log file say where to begin and end.
    assert sum(number for asked, number in made.items() if "wlc_logs" in asked) <= 85 + 8, made


@pytest.mark.slow
def test_a_process_tests_the_store_of_a_lake_once(tmp_path, s3_url) -> None:
    source, lake = make_master(tmp_path, str(tmp_path / "farm")), f"{s3_url}/lake"
    writes = []
    for values in (range(1), range(1, 2), range(2, 3)):
        write(source, values)
        with counted_requests() as made:
            wlr.replicate(source, into=lake)
        writes.append(sum(number for asked, number in made.items() if asked == "PutObject farm/lake/wlr.lease"))
    # A new lake takes the lease twice, and once the store must refuse two ways to overwrite it.
    assert writes == [4, 1, 1]


def test_defect_f_an_idle_follower_asks_six_times_a_minute_at_most(tmp_path) -> None:
    """On the default beat, with its registration and what it says between rounds, where that costs most."""
    source, hq, other = tmp_path / "sales.duckdb", "memory://idle-hq", "memory://idle-other"
    wlc.master(source, farm=hq, create=True)
    with wlc.connect(source) as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    wlc.flush(source)
    wlc.ship("sales", farm=hq, to=other)
    # Nobody reads the place that holds the registry, which has been asked by everybody already.
    wlc.set_upstream("sales", ORIGIN, is_active=False, farm=hq)
    alive, beat_s = Keepalive(), wlc.beat(source)
    one: dict[str, Any] = {"upstream": "auto", "keepalive": alive}
    two: dict[str, Any] = {"registry": [f"{hq}/sales", f"{other}/sales"], "keepalive": alive}
    for registries, read in (
        (1, lambda: wlr.replicate("sales", farm=hq, into=tmp_path / "copy.duckdb", **one)),
        (1, lambda: wlr.feed("sales", farm=hq, to=str(tmp_path / "out.jsonl"), **one)),
        (1, lambda: wlc.ship("sales", farm=hq, to="memory://idle-relay", **one)),
        (2, lambda: wlc.ship("sales", farm=hq, to="memory://idle-relay", **two)),
    ):
        read()
        with counted_accesses() as of_round:
            read()
        assert 8 <= of_round.total() <= IDLE_ROUND_REQUESTS + (registries - 1) * IDLE_REGISTRY_REQUESTS, of_round
        with counted_accesses() as of_keepalive:
            assert all(said.renewed().version for said in alive._registrations)
        assert of_keepalive.total() == registries
        assert alive.interval_s is not None
        assert (of_round.total() / beat_s + registries / alive.interval_s) * 60 <= 6, of_round

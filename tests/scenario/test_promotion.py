"""The master's machine is gone: a replica becomes the master, readers go on, and the former master learns of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlr import app
from tests.lake import lake_contents
from tests.new_master import new_master
from tests.oracle import file_contents
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.history import entries
from wlc.farm.registry import replicas

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


class Shop:
    """A master `shop.duckdb` with its farm beside it, and what reads from there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.master, self.copy = folder, folder / "shop.duckdb", folder / "copy.duckdb"
        self.url = str(folder / "farm" / "shop")
        with new_master(self.master) as connection:
            connection.execute("CREATE SEQUENCE s; CREATE TABLE t (i INTEGER PRIMARY KEY, word VARCHAR)")
            connection.execute("CREATE VIEW w AS FROM t; CREATE INDEX by_word ON t (word)")
        self.write(self.master, "a")

    @property
    def database(self) -> FarmDatabase:
        return open_database(self.url)

    def write(self, file: Path, *words: str) -> None:
        """Each is a transaction, and all of them are published."""
        with wlc.connect(file) as connection:
            for word in words:
                connection.execute("INSERT INTO t VALUES (nextval('s'), ?)", [word])
        wlc.flush(file)

    def replicate(self, name: str, tick: int | None = None) -> Path:
        into = self.folder / name
        wlr.replicate(self.url, into=into, tick=tick)
        return into

    def lose_master(self) -> None:
        (self.folder / "away").mkdir()
        self.master.rename(self.folder / "away" / "shop.duckdb")

    def find_master(self) -> Path:
        (self.folder / "away" / "shop.duckdb").rename(self.master)
        return self.master


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def words(file: Path) -> list[tuple[int, str]]:
    with duckdb.connect(str(file), read_only=True) as connection:
        return connection.execute("SELECT i, word FROM t ORDER BY i").fetchall()


def test_a_copy_becomes_the_master(shop: Shop) -> None:
    shop.replicate("copy.duckdb")
    assert wlr.promote(shop.copy).history == shop.database.config().history
    shop.write(shop.copy, "b")
    assert words(shop.copy) == [(1, "a"), (2, "b")]


@pytest.mark.slow
def test_a_copy_becomes_the_master_and_readers_go_on(shop: Shop) -> None:
    other, lake = shop.replicate("other.duckdb"), shop.replicate("lake")
    shop.replicate("copy.duckdb")
    shop.lose_master()
    tick = wlr.tick(shop.copy)
    assert wlr.promote(shop.copy, dry_run=True).is_dry_run
    assert wlr.tick(shop.copy) == tick
    done = wlr.promote(shop.copy)
    assert (done.tick, done.lost, done.history) == (tick, 0, shop.database.config().history)
    shop.write(shop.copy, "b")
    assert words(shop.copy) == [(1, "a"), (2, "b")]
    for reader in (other, lake):
        assert wlr.replicate(into=reader).tick == wlc.tick(shop.url)
    assert file_contents(other) == file_contents(shop.copy) == lake_contents(lake)
    assert wlr.verify_farm(shop.url, full=True).problems == ()
    assert {found.target.rpartition("/")[2] for found in replicas(shop.database)} == {"other.duckdb", "lake"}


@pytest.mark.slow
def test_the_former_master_is_fenced_off(shop: Shop) -> None:
    shop.replicate("copy.duckdb")
    connection = wlc.connect(shop.master)
    wlr.promote(shop.copy)
    connection.execute("INSERT INTO t VALUES (nextval('s'), 'late')")
    with pytest.raises(
        FencedError, match=f"a copy, {shop.copy} on .* is the master of shop since 20.* promoted it"
    ) as caught:
        wlc.flush(shop.master)
    assert f"wlc stop {shop.master} --rest-to FOLDER" in str(caught.value.hint)
    with pytest.raises(FencedError, match="is the master of shop since"):
        connection.execute("INSERT INTO t VALUES (nextval('s'), 'later')")
    with pytest.raises(FencedError):
        connection.close()
    shop.write(shop.copy, "b")
    assert words(shop.copy) == [(1, "a"), (2, "b")]


@pytest.mark.slow
@pytest.mark.parametrize("dies", [None, "create_config", "publish", "publish_snapshot"])
def test_what_the_former_master_did_not_publish_is_kept(
    shop: Shop, dies: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.replicate("copy.duckdb")
    end = wlc.tick(shop.url)
    shop.lose_master()
    wlr.promote(shop.copy)
    connection = wlc.connect(shop.find_master())
    connection.execute("INSERT INTO t VALUES (nextval('s'), 'b')")
    with pytest.raises(FencedError):
        connection.close()
    rest = shop.folder / "rest"
    if dies is not None:
        with monkeypatch.context() as patch:
            patch.setattr(FarmDatabase, dies, _die)
            with pytest.raises(RuntimeError):
                wlc.stop(shop.master, rest_to=rest)
    before = shop.database.config(), shop.database.batch_numbers()
    done = wlc.stop(shop.master, rest_to=rest)
    assert (done.state, done.farm, done.tick) == ("stopped", str(rest / "shop"), end + 1)
    kept = shop.folder / "kept.duckdb"
    wlr.replicate(done.farm, into=kept)
    assert words(kept) == [(1, "a"), (2, "b")]
    listed = [(found.transaction.tick, found.what) for found in entries(open_database(done.farm))]
    assert listed[-2:] == [(end + 1, "change"), (end + 1, "sequence")]
    assert wlr.verify_farm(done.farm, full=True).problems == ()
    assert (shop.database.config(), shop.database.batch_numbers()) == before


def _die(*_: object, **__: object) -> None:
    raise RuntimeError


@pytest.mark.slow
def test_only_a_master_that_was_fenced_off_keeps_its_rest(shop: Shop) -> None:
    with pytest.raises(InvalidError, match="where its pending transactions are published") as caught:
        wlc.stop(shop.master, rest_to=shop.folder / "rest")
    assert caught.value.hint == f"wlc stop {shop.master}"
    assert wlc.status(shop.master).state == "active"


@pytest.mark.slow
def test_a_copy_of_the_past_becomes_the_master(shop: Shop) -> None:
    shop.write(shop.master, "b")
    tick = wlc.tick(shop.url)
    shop.write(shop.master, "wrong", "wrong too")
    behind, ahead = shop.replicate("behind.duckdb", tick=tick - 1), shop.replicate("ahead.duckdb")
    shop.replicate("copy.duckdb", tick=tick)
    with pytest.raises(InvalidError, match="with 2 transactions more") as caught:
        wlr.promote(shop.copy)
    assert f"wlr promote {shop.copy} --lose 2" in str(caught.value.hint)
    assert wlr.promote(shop.copy, lose=2).lost == 2
    shop.write(shop.copy, "c")
    wlr.replicate(into=behind)
    assert words(behind) == words(shop.copy) == [(1, "a"), (2, "b"), (3, "c")]
    with pytest.raises(InvalidError, match=f"continues at tick {tick}.*with 2 transactions that count no more"):
        wlr.replicate(into=ahead)
    wlr.replicate(into=ahead, rebase=True)
    assert words(ahead) == words(shop.copy)
    assert words(shop.replicate("new.duckdb")) == words(shop.copy)
    assert words(shop.replicate("old.duckdb", tick=tick + 2))[2:] == [(3, "wrong"), (4, "wrong too")]
    assert wlr.verify_farm(shop.url, full=True).problems == ()


@pytest.mark.slow
def test_the_former_master_comes_first(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It publishes after the copy was found to be level with the log."""
    shop.replicate("copy.duckdb")
    publish = FarmDatabase.publish

    def late(database: FarmDatabase, batch: object, files: object) -> str:
        monkeypatch.setattr(FarmDatabase, "publish", publish)
        shop.write(shop.master, "b")
        return publish(database, batch, files)  # type: ignore[arg-type]

    monkeypatch.setattr(FarmDatabase, "publish", late)
    with pytest.raises(UnavailableError, match="was published meanwhile"):
        wlr.promote(shop.copy)
    with pytest.raises(InvalidError, match="with 1 transaction more"):
        wlr.promote(shop.copy)
    wlr.replicate(into=shop.copy)
    wlr.promote(shop.copy)
    shop.write(shop.copy, "c")
    assert words(shop.copy) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.slow
def test_one_of_two_copies_is_promoted(shop: Shop) -> None:
    shop.replicate("copy.duckdb")
    second = shop.replicate("second.duckdb")
    wlr.promote(shop.copy)
    with pytest.raises(InvalidError, match="with 1 transaction more"):
        wlr.promote(second)
    wlr.replicate(into=second)
    assert wlr.promote(second).former is not None
    with pytest.raises(InvalidError, match="was the master of shop, and is no replica"):
        wlr.promote(shop.copy)


@pytest.mark.slow
def test_a_master_stays_one(shop: Shop) -> None:
    with pytest.warns(UserWarning, match="is the master of shop already"):
        assert wlr.promote(shop.master).history is None


def own_table(shop: Shop) -> None:
    shop.replicate("copy.duckdb")
    with duckdb.connect(str(shop.copy)) as connection:
        connection.execute("CREATE TABLE mine (i INTEGER); CREATE VIEW own AS SELECT 1; CREATE SEQUENCE q")


def unlocked(shop: Shop) -> None:
    wlr.unlock(shop.replicate("copy.duckdb"))


def chosen(shop: Shop) -> None:
    wlr.replicate(shop.url, into=shop.copy, filters=wlr.row_filters(where=["t: i > 0"]))


def some_tables(shop: Shop) -> None:
    wlr.replicate(shop.url, into=shop.copy, tables=["main.t"])


def in_use(shop: Shop) -> None:
    connection = duckdb.connect(str(shop.replicate("copy.duckdb")))
    connection.execute("SELECT 1")
    shop.connection = connection  # type: ignore[attr-defined]


def relay(shop: Shop) -> None:
    wlc.ship(shop.url, to=str(shop.folder / "relay"), upstream="auto")
    wlr.replicate(str(shop.folder / "relay" / "shop"), into=shop.copy)


def attached(shop: Shop) -> None:
    wlr.replicate(shop.url, into=shop.copy, upstream="auto")


def lake(shop: Shop) -> None:
    shop.copy = shop.replicate("lake")


def sites(shop: Shop) -> None:
    wlc.stop(shop.master)
    wlc.master(shop.master, site="oslo")
    shop.replicate("copy.duckdb")
    wlc.join(shop.replicate("second.duckdb"), name=shop.url, site="rome")


def derived(shop: Shop) -> None:
    wlr.derive(shop.url, "part", tables=["main.t"])
    wlr.replicate(str(shop.folder / "farm" / "part"), into=shop.copy)


def nothing(shop: Shop) -> None:
    assert not shop.copy.exists()


def former_past(shop: Shop) -> None:
    shop.replicate("copy.duckdb")
    wlc.stop(shop.master)
    wlc.master(shop.master)


@pytest.mark.slow
@pytest.mark.parametrize(
    "prepare, error, hint",
    [
        (own_table, "objects of its owner.*: sequence main.q, table main.mine, view main.own", "another file"),
        (unlocked, "was unlocked, so that its owner can have written to it", "wlr replicate .*/shop --into NEW.duckdb"),
        (chosen, "holds chosen rows, columns or values", "--into NEW.duckdb"),
        (some_tables, "holds chosen tables", "--into NEW.duckdb"),
        (in_use, "in use|open", ""),
        (relay, "reads the relay", "wlr replica switch .*copy.duckdb URL-OF-THE-FARM/shop"),
        (attached, "chooses the place that it reads", "wlr replicate --into .*copy.duckdb --upstream none"),
        (lake, "is a Parquet replica", "--into FILE.duckdb"),
        (sites, "has several masters", "wlc site role .* SITE primary --lost PRIMARY"),
        (derived, "is derived from another database", "wlc farm derive DB --as part"),
        (nothing, "there is no replica", "wlr replicate MASTER --into"),
        (former_past, "the history ended at tick", "wlr replicate --into .*copy.duckdb --rebase"),
    ],
)
def test_what_is_no_copy_of_the_database_is_refused(
    shop: Shop, prepare: object, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(shop)  # type: ignore[operator]
    before = shop.database.config(), shop.database.batch_numbers()
    with pytest.raises(FarmError, match=error) as caught:
        wlr.promote(shop.copy)
    assert (shop.database.config(), shop.database.batch_numbers()) == before
    capsys.readouterr()
    assert run_app(app, "wlr", ["promote", str(shop.copy), "--yes"]) != 0
    assert caught.value.message in capsys.readouterr().err
    if hint:
        assert re.search(hint, str(caught.value.hint))


@pytest.mark.slow
def test_a_command_asks_first(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.replicate("copy.duckdb", tick=wlc.tick(shop.url) - 1)
    assert run_app(app, "wlr", ["promote", str(shop.copy), "--lose", "1"]) != 0
    said = capsys.readouterr().err
    assert "1 transaction behind it count no more" in said
    assert f"hint: wlr promote {shop.copy} --lose 1 --yes" in said
    assert wlr.tick(shop.copy) == wlc.tick(shop.url) - 1
    assert run_app(app, "wlr", ["promote", str(shop.copy), "--lose", "1", "--yes"]) == 0
    assert wlc.status(shop.copy).state == "active"


@pytest.mark.slow
def test_a_new_replica_begins_with_the_snapshot_of_the_promotion(shop: Shop) -> None:
    shop.replicate("copy.duckdb")
    wlr.promote(shop.copy)
    assert shop.database.snapshot_ticks()[-1] == shop.database.config().tick
    shop.write(shop.copy, "b")
    assert words(shop.replicate("new.duckdb")) == [(1, "a"), (2, "b")]


@pytest.mark.slow
@pytest.mark.parametrize("lose", [0, 1])
def test_all_that_reads_goes_on(shop: Shop, lose: int) -> None:
    """Lakes, feeds, relays and their readers, derived databases, and replicas that go back, from what counts."""
    lake, other = shop.replicate("lake"), shop.replicate("other.duckdb")
    feed, relay = shop.folder / "feed.jsonl", str(shop.folder / "relay")
    wlr.feed(shop.url, to=str(feed))
    wlc.ship(shop.url, to=relay)
    below = shop.folder / "below.duckdb"
    wlr.replicate(f"{relay}/shop", into=below)
    wlr.derive(shop.url, "part", tables=["main.t"])
    shop.replicate("copy.duckdb")
    tick = wlc.tick(shop.url)
    if lose:
        shop.write(shop.master, "wrong")
    wlr.promote(shop.copy, lose=lose)
    shop.write(shop.copy, "b")
    expected = [(1, "a"), (2, "b")]
    wlr.replicate(into=lake)
    wlr.replicate(into=other)
    assert lake_contents(lake) == file_contents(other) == file_contents(shop.copy)
    wlr.feed(shop.url, to=str(feed))
    assert [json.loads(line)["after"]["word"] for line in feed.read_text().splitlines() if '"after"' in line] == [
        "a",
        "b",
    ]
    wlc.ship(shop.url, to=relay)
    wlr.replicate(into=below)
    assert words(below) == expected
    wlr.derive(shop.url, "part")
    part = shop.folder / "part.duckdb"
    wlr.replicate(str(shop.folder / "farm" / "part"), into=part)
    assert words(part) == expected
    assert wlr.replicate(into=other, tick=tick).tick == tick
    assert words(other) == expected[:1]
    assert wlr.replicate(into=other).tick == wlc.tick(shop.url)
    assert words(other) == expected
    changes = [(row["word"], row["_weight"]) for found in _changes(shop, tick) for row in found.to_pylist()]
    assert changes == ([] if lose else [("b", 1)])
    assert wlr.drill(shop.url, tick=tick).is_sound
    assert wlr.drill(shop.url).is_sound
    assert wlr.verify_farm(f"{relay}/shop", full=True).problems == ()


def _changes(shop: Shop, tick: int) -> list[pa.RecordBatch]:
    """Read a range of ticks; a reader of ranges refuses one in which ticks do not count."""
    try:
        return list(wlr.changes(shop.url, "t", since=tick))
    except InvalidError as error:
        assert "no changes lead" in error.message
        return []

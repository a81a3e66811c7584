"""Signs of life: one after some seconds, then whenever nothing was published for a while, and one at the end."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from wlc.farm.clock import utc_now
from wlc.farm.config import STARTED, first_config
from wlc.farm.database import open_database
from wlc.farm.health import Health, Proof, Sign, change_health, note_proof, read_health
from wlc.farm.paths import HEALTH
from wlc.masters.master_state import Fence, MasterState
from wlc.masters.signs import Signs, giving_signs, is_wanted, note_flushed

SECOND = timedelta(seconds=1)


class Master:
    """What a publisher knows of its source."""

    def __init__(self, **changes):
        empty = MasterState("memory://signs", "sales", "h1", 0, 0, "", None, {}, None, 1.0, "wlc_logs", state=STARTED)
        self.state = replace(empty, **changes)

    def require_state(self) -> MasterState:
        return self.state

    def __str__(self):
        return "/srv/sales.duckdb"


@pytest.fixture
def database(tmp_path):
    found = open_database("sales", str(tmp_path))
    found.create_config(replace(first_config("sales"), history="h1"))
    return found


@pytest.fixture
def calls(database, monkeypatch):
    """The requests for the object, in order."""
    made = []
    for name in ("read_versioned", "replace"):
        asked = getattr(database.store, name)

        def noted(path, *arguments, name=name, asked=asked):
            if path == HEALTH:
                made.append(name)
            return asked(path, *arguments)

        monkeypatch.setattr(database.store, name, noted, raising=False)
    return made


def wait_for(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_publisher_says_that_it_is_there_and_that_it_closed(database):
    change_health(database, lambda health: replace(health, sign_every=SECOND))
    with giving_signs(Master(), database):
        wait_for(lambda: read_health(database).publisher is not None)
        first = read_health(database).publisher
        assert (first.history, first.source, first.is_closed, first.failure) == ("h1", "/srv/sales.duckdb", False, "")
        wait_for(lambda: read_health(database).publisher.seen > first.seen)
    assert read_health(database).publisher.is_closed


def test_one_that_fails_does_not_say_that_it_closed(database):

    def run():
        with giving_signs(Master(), database):
            wait_for(lambda: read_health(database).publisher is not None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    assert not read_health(database).publisher.is_closed


def test_a_sign_is_one_request(database, calls):
    given = Signs(Master(), lambda: database)
    given._give()
    assert calls == ["read_versioned", "replace"]
    given._give()
    given._give()
    assert calls == ["read_versioned", "replace", "replace", "replace"]
    given.close()
    assert calls[4:] == ["replace"]
    # The next session has nothing to add.
    Signs(Master(), lambda: database).close()
    assert calls[5:] == ["read_versioned"]


def test_settings_and_proofs_that_others_write_survive(database):
    given = Signs(Master(), lambda: database)
    given._give()
    change_health(database, lambda health: replace(health, expect_every=SECOND))
    note_proof(database, verified=Proof(utc_now(), 7))
    given.close()
    found = read_health(database)
    assert (found.expect_every, found.verified.tick, found.publisher.is_closed) == (SECOND, 7, True)
    note_proof(database, drilled=Proof(utc_now(), 8))
    assert (read_health(database).verified.tick, read_health(database).drilled.tick) == (7, 8)


@pytest.mark.parametrize(
    "changes", [{"history": "h0"}, {"state": STARTED + 1}, {"fence": Fence("another master", "")}], ids=str
)
def test_a_former_master_says_nothing(database, changes):
    Signs(Master(**changes), lambda: database)._give()
    assert read_health(database) == Health()


def test_no_signs_where_they_are_not_wanted(database):
    change_health(database, lambda health: replace(health, sign_every=timedelta(0)))
    given = Signs(Master(), lambda: database)
    given.start(timedelta(0))
    given._thread.join(60)
    given.close()
    assert read_health(database).publisher is None


def test_a_publication_says_as_much(database, calls):
    master = Master(clock=utc_now())
    given = Signs(master, lambda: database)
    given.start(timedelta(0))
    wait_for(lambda: "replace" in calls)
    given.stop()
    # The first sign ends what the last session said; then a commit of this minute is enough.
    assert calls == ["read_versioned", "replace"]


def test_why_it_cannot_publish_is_said_at_once(database):
    change_health(database, lambda health: replace(health, sign_every=SECOND))
    failure = ""
    given = Signs(Master(clock=utc_now() + timedelta(hours=1)), lambda: database, lambda: failure)
    given.start(timedelta(0))
    wait_for(lambda: read_health(database).publisher is not None)
    failure = "disk full"
    wait_for(lambda: read_health(database).publisher.failure == "disk full")
    given.close()
    assert not read_health(database).publisher.is_closed


def test_a_farm_that_is_away_is_no_failure(tmp_path):
    away = open_database("sales", str(tmp_path / "nowhere"))
    Signs(Master(), lambda: away).close()
    assert not (tmp_path / "nowhere").exists()


def test_a_flush_after_a_death_says_that_all_is_published(database):
    old = Sign("h1", utc_now() - timedelta(hours=1), "/srv/sales.duckdb", "ada", "ann")
    change_health(database, lambda health: replace(health, publisher=old))
    note_flushed(Master(clock=utc_now()), database)
    assert read_health(database).publisher == old
    note_flushed(Master(), database)
    assert read_health(database).publisher.is_closed


SIGN = Sign("h1", utc_now(), "/srv/sales.duckdb", "ada", "ann")
CLOSED = replace(SIGN, is_closed=True)


@pytest.mark.parametrize(
    ("last", "sign", "expected"),
    [
        (None, CLOSED, True),
        (SIGN, SIGN, True),
        (SIGN, CLOSED, True),
        (CLOSED, SIGN, True),
        (CLOSED, CLOSED, False),
        (replace(CLOSED, history="h0"), CLOSED, True),
    ],
)
def test_what_is_known_is_not_said_again(last, sign, expected):
    assert is_wanted(Health(publisher=last), sign) is expected
    assert not is_wanted(Health(publisher=last, sign_every=timedelta(0)), sign)

"""The threads of the service: one that fails, hangs or is changed leaves the others alone."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from wlc.farm.clock import utc_now
from wlc.farm.errors import CorruptError, UnavailableError
from wlr.service import supervisor
from wlr.service.health import failure_environment, run_on_failure
from wlr.service.job_states import Board, Done, Observed, ServiceMemory, WorkStanding, memory_file
from wlr.service.jobs import FOLLOW, POLICY, PRUNE, SNAPSHOT, VERIFY, Work
from wlr.service.settings import ServiceOptions, ServiceSettings
from wlr.service.supervisor import Service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PATIENCE_S = 60.0


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@dataclass
class Desk:
    """Works by hand, under a service that takes them from here."""

    folder: Path
    works: list[Work] = field(default_factory=list)
    rounds: list[str] = field(default_factory=list)
    options: ServiceOptions = field(default_factory=ServiceOptions)
    board: Board = field(default_factory=Board)

    @property
    def settings(self) -> ServiceSettings:
        return ServiceSettings(self.options, {}, {})

    def service(self) -> Service:
        return Service(self.settings, self.board, ServiceMemory(self.folder / "memory.json"))

    def work(self, item: str, *, fails: Exception | None = None, given: object = None, **fields) -> Work:
        def do_round(turn) -> Done:
            self.rounds.append(item)
            if fails:
                raise fails
            return Done(len(self.rounds), transactions=1, facts={"tick": len(self.rounds)})

        return Work(item, FOLLOW, given, **{"do_round": do_round, "beat_s": lambda: 0.0, **fields})


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(tmp_path)
    monkeypatch.setattr(supervisor, "works_of", lambda _: list(made.works))
    return made


def test_a_work_that_fails_does_not_stop_another_and_is_logged_once(desk: Desk, caplog) -> None:
    caplog.set_level(logging.INFO)
    desk.works = [
        desk.work("bad", fails=UnavailableError("the farm is away", hint="wlc doctor bad")),
        desk.work("good"),
    ]
    service = desk.service()
    service.start()
    until(lambda: desk.rounds.count("good") >= 3 and desk.rounds.count("bad") >= 2)
    assert service.is_alive
    service.stop()
    bad, good = desk.board.all()
    assert bad.failures == {"UnavailableError": desk.rounds.count("bad")}
    assert bad.failing_since is not None
    assert (good.failing_since, good.transactions) == (None, desk.rounds.count("good"))
    assert [line for line in caplog.messages if line.startswith("bad")] == ["bad follow: the farm is away"]


def test_the_round_at_hand_is_finished_and_long_work_ends_where_it_may(desk: Desk) -> None:
    is_in, may_go = threading.Event(), threading.Event()

    def apply(turn) -> Done:
        is_in.set()
        assert may_go.wait(PATIENCE_S)
        return Done(7)

    def drill(turn) -> Done:
        while True:
            turn.progress(0, 1)
            time.sleep(0.01)

    desk.works = [desk.work("copy", do_round=apply), desk.work("farm", do_round=drill, is_heavy=True)]
    service = desk.service()
    service.start()
    assert is_in.wait(PATIENCE_S)
    waits = []

    def waiting() -> None:
        waits.append(1)
        may_go.set()

    service.stop(waiting)
    assert waits
    copy, farm = desk.board.all()
    assert copy.tick == 7
    assert (farm.failing_since, farm.last_success) == (None, None)


def test_the_service_ends_after_its_observers(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_OBSERVE_FIRST_S", 0.0)
    is_observing, has_observed = threading.Event(), threading.Event()

    def observe(_: WorkStanding) -> Observed:
        is_observing.set()
        time.sleep(0.3)
        has_observed.set()
        return Observed()

    desk.works = [desk.work("one", observe=observe)]
    service = desk.service()
    service.start()
    assert is_observing.wait(PATIENCE_S)
    service.stop()
    assert has_observed.is_set()


def test_other_settings_end_and_begin_only_what_they_change(desk: Desk) -> None:
    desk.works = [
        desk.work("same"),
        desk.work("changed", given=1),
        desk.work("gone"),
        desk.work("bad", fails=CorruptError("x")),
    ]
    service = desk.service()
    service.start()
    until(lambda: len(desk.board.failing()) == 1 and set(desk.rounds) == {"same", "changed", "gone", "bad"})
    before = {thread.name: thread for thread in threading.enumerate()}
    desk.works = [
        desk.work("same"),
        desk.work("changed", given=2),
        desk.work("new"),
        desk.work("bad", fails=CorruptError("x")),
    ]
    tried = desk.rounds.count("bad")
    assert service.change(desk.settings) == 3
    until(lambda: "new" in desk.rounds and desk.rounds.count("bad") > tried)
    after = {thread.name: thread for thread in threading.enumerate()}
    assert after["same follow"] is before["same follow"]
    assert after["changed follow"] is not before["changed follow"]
    assert "gone follow" not in after
    assert [standing.item for standing in desk.board.all()] == ["bad", "changed", "new", "same"]
    service.stop()


def test_scheduled_work_waits_for_its_replica_is_done_once_and_remembered(desk: Desk) -> None:
    is_made = threading.Event()

    def follow(turn) -> Done:
        if not is_made.is_set():
            raise UnavailableError("not made yet")
        return Done(1)

    def verify(turn) -> Done:
        assert is_made.is_set()
        desk.rounds.append("verify")
        return Done()

    every = timedelta(hours=1)
    verifying = Work("copy", VERIFY, None, verify, every, is_heavy=True, follows=(FOLLOW,))
    desk.works = [desk.work("copy", do_round=follow), verifying]
    service = desk.service()
    service.start()
    until(desk.board.failing)
    is_made.set()
    until(lambda: desk.rounds)
    service.stop()
    again = desk.service()
    again.start()
    until(lambda: desk.board.get(("copy", FOLLOW)).last_success)
    time.sleep(0.7)
    again.stop()
    assert desk.rounds == ["verify"]
    assert desk.board.get(("copy", VERIFY)).last_success is not None


@pytest.mark.parametrize("fails", [None, POLICY, SNAPSHOT])
def test_works_that_depend_on_each_other_go_in_order_whatever_thread_is_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, fails: str | None
) -> None:
    monkeypatch.setattr(supervisor, "_LOOK_EVERY_S", 0.01)
    every, left = timedelta(hours=1), [fails]

    def work(name: str, *follows: str) -> Work:
        def do_round(turn) -> Done:
            desk.rounds.append(name)
            if name in left:
                left.remove(name)
                raise UnavailableError("away")
            return Done()

        is_once = name == POLICY
        schedule = None if is_once else every
        return Work("db", name, None, do_round, schedule, beat_s=lambda: 0.0, is_once=is_once, follows=follows)

    desk.works = [work(PRUNE, POLICY, SNAPSHOT), work(SNAPSHOT, POLICY), work(POLICY)]
    service = desk.service()
    service.start()
    until(lambda: {POLICY, PRUNE, SNAPSHOT} == {each.work for each in desk.board.all() if each.last_success})
    service.stop()
    tried = {None: [], POLICY: [POLICY], SNAPSHOT: []}[fails]
    # A snapshot that fails is tried again, and does not keep the log from being pruned.
    after = {None: [SNAPSHOT, PRUNE], POLICY: [SNAPSHOT, PRUNE], SNAPSHOT: [SNAPSHOT, PRUNE, SNAPSHOT]}[fails]
    assert desk.rounds == [*tried, POLICY, *after]


def test_work_goes_on_after_the_clock_was_days_ahead(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_DUE_EVERY_S", 0.05)
    desk.works = [desk.work("copy", every=timedelta(seconds=0.3))]
    ServiceMemory(desk.folder / "memory.json").note(desk.works[0].key, utc_now() + timedelta(days=3))
    service = desk.service()
    service.start()
    shown = desk.board.get(desk.works[0].key).last_success
    assert shown is not None
    assert shown <= utc_now()
    until(lambda: len(desk.rounds) >= 2)
    service.stop()


def test_heavy_works_take_turns_and_the_replica_goes_on_meanwhile(desk: Desk) -> None:
    inside, most = [], []

    def heavy(turn) -> Done:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return Done()

    desk.works = [desk.work(item, do_round=heavy, is_heavy=True) for item in ("a", "b", "c")]
    service = desk.service()
    service.start()
    until(lambda: len(most) >= 6)
    service.stop()
    assert set(most) == {1}


def test_the_command_on_failure_runs_once_for_a_failure_with_a_bare_environment(desk: Desk, monkeypatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3cr3t")
    out = desk.folder / "told.json"
    code = f"import json, os; open({str(out)!r}, 'a').write(json.dumps(dict(os.environ)) + '\\n')"
    desk.options = ServiceOptions(on_failure=(sys.executable, "-c", code))
    wrong = CorruptError("batch 3 is damaged\0", hint="wlc farm verify sales")
    monkeypatch.setattr(supervisor, "pause_s", lambda error, last_s, *, is_heavy: 0.01)
    desk.works = [desk.work("bad", fails=wrong), desk.work("away", fails=UnavailableError("away"))]
    service = desk.service()
    service.start()
    until(lambda: desk.rounds.count("bad") >= 3 and desk.rounds.count("away") >= 3)
    service.stop()
    (told,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert {name: value for name, value in told.items() if name.startswith("DBFARM")} == {
        "DBFARM_ITEM": "bad",
        "DBFARM_WORK": "follow",
        "DBFARM_CLASS": "CorruptError",
        "DBFARM_MESSAGE": "batch 3 is damaged",
        "DBFARM_HINT": "wlc farm verify sales",
    }
    assert "AWS_SECRET_ACCESS_KEY" not in told


def test_a_command_that_hangs_or_is_missing_is_a_warning(desk: Desk, caplog) -> None:
    standing = replace(desk.board.get(("a", "b")))
    for command in ((sys.executable, "-c", "import time; time.sleep(600)"), (str(desk.folder / "none"),)):
        options = ServiceOptions(on_failure=command, on_failure_limit=timedelta(seconds=1))
        run_on_failure(options, standing, UnavailableError("away"))
    assert [message.split(":")[0] for message in caplog.messages] == [
        "on_failure took more than 1 s and was ended",
        "on_failure cannot be run",
    ]
    assert failure_environment(standing, OSError("disk"), {"PATH": "/bin", "WLC_SIGNING_KEY": "S"})["PATH"] == "/bin"


def test_damaged_memory_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/state:{tmp_path}/other")
    file = memory_file(tmp_path / "dbfarm.toml")
    assert file.parent == tmp_path / "state"
    file.parent.mkdir()
    for content in ("", "[]", '{"a b": 7}', '{"a b": "yesterday"}'):
        file.write_text(content)
        assert ServiceMemory(file).last(("a", "b"), utc_now()) is None

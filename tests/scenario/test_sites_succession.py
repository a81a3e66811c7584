"""The primary changes: planned, after it was lost, halfway, and again and again (ndb_rpl X3).

Docs: docs/sites-operation.md.
"""

from __future__ import annotations

import random
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.fault.processes import seed, wants_all
from tests.sites import Sites, before_call
from wlc.farm.errors import FencedError, InvalidError, UnavailableError
from wlc.masters.publish import publish
from wlc.multi_master import restored, take_round
from wlc.multi_master.circle import read_circle
from wlc.multi_master.circle_place import with_circle
from wlc.multi_master.duckdb import succeeding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

pytestmark = pytest.mark.slow

TABLES = ("t", "e")
SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE e (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE u (k INTEGER PRIMARY KEY, v VARCHAR UNIQUE);
    CREATE TABLE bag (v VARCHAR);
    INSERT INTO t VALUES (1, 'a'), (2, 'a'), (3, 'a');
    INSERT INTO e VALUES (1, 'a'), (2, 'a'), (3, 'a');
"""


class _DiedError(BaseException):
    """The process dies."""


@pytest.fixture
def three(tmp_path: Path) -> Sites:
    sites = Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    sites.join("paris")
    for table, rule in (("t", "epoch_trans"), ("e", "epoch"), ("u", "epoch")):
        wlc.set_rule(sites.file("oslo"), table, rule)
    sites.exchange()
    return sites


def hand_over(sites: Sites, to: str) -> None:
    wlc.set_role(sites.file(primary(sites)), to, "primary")


def lose(sites: Sites, to: str) -> None:
    wlc.set_role("sales", to, "primary", lost=primary(sites), farm=sites.farm)


def primary(sites: Sites) -> str:
    return read_circle(sites.log("oslo")).primary


def take_dying(sites: Sites, site: str) -> None:
    """Take, and die before what was taken is published."""
    calls: list[int] = []

    def dying(*given: object) -> object:
        calls.append(1)
        if len(calls) > 1:
            raise _DiedError
        return publish(*given)  # type: ignore[arg-type]

    with patch.object(take_round, "publish", dying), pytest.raises(_DiedError):
        sites.take(site)


def causes(sites: Sites, site: str) -> list[str]:
    return [f"{row.table} {row.op_type} {row.cause}" for row in wlc.exceptions(sites.file(site))]


@contextmanager
def before_use(module: object, name: str, do: Callable[[], object]) -> Iterator[list[str]]:
    """Do something before a module's first use of a function, as another process may."""
    real, used = getattr(module, name), list[str]()

    def late(*given: object, **named: object) -> object:
        if not used:
            used.append(name)
            do()
        return real(*given, **named)

    with patch.object(module, name, late):
        yield used


@pytest.mark.slow
def test_a_planned_change(three: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    three.write("oslo", "INSERT INTO t VALUES (4, 'waits')")
    assert run_app(app, "wlc", ["role", "sales", "rome", "primary", "--farm", three.farm]) == 2
    assert "--lost oslo" in capsys.readouterr().err
    assert run_app(app, "wlc", ["role", str(three.file("rome")), "rome", "primary"]) == 2
    assert run_app(app, "wlc", ["role", str(three.file("oslo")), "rome", "primary"]) == 0
    assert run_app(app, "wlc", ["role", str(three.file("oslo")), "rome", "primary"]) == 0
    circle = read_circle(three.log("oslo"))
    assert (circle.primary, circle.term, circle.ddl) == ("rome", 2, "rome")
    # Nobody takes for a verdict what Rome wrote before it takes over.
    three.write("paris", "UPDATE t SET v = 'paris' WHERE k = 1")
    with pytest.raises(UnavailableError, match="rome is the primary since term 2, and has not taken over"):
        three.take("paris")
    assert three.rows("paris", "t")[3] == (4, "waits")
    three.take("rome")
    three.exchange()
    three.refuse_differences(*TABLES)
    assert three.rows("oslo", "t") == [(1, "paris"), (2, "a"), (3, "a"), (4, "waits")]
    before = [three.log(site).batch_numbers() for site in three.names]
    three.exchange()
    assert [three.log(site).batch_numbers() for site in three.names] == before
    # What belongs to the primary has moved with it.
    with pytest.raises(InvalidError, match="rome"):
        three.write("oslo", "ALTER TABLE e ADD COLUMN w INTEGER")
    three.write("rome", "ALTER TABLE e ADD COLUMN w INTEGER", "INSERT INTO bag VALUES ('rome')")
    wlc.flush(three.file("rome"))
    wlc.set_rule("sales", "bag", "owner", site="rome", farm=three.farm)
    three.exchange()
    assert three.rows("paris", "bag") == [("rome",)]
    three.join("berlin")
    three.write("berlin", "INSERT INTO t VALUES (5, 'berlin')")
    three.exchange()
    three.refuse_differences(*TABLES, "bag")
    for site in three.names:
        three.replica_equals(site, *TABLES, "bag")
    wlc.leave("sales", "oslo", farm=three.farm)
    assert [site.site for site in wlc.sites("sales", farm=three.farm)] == ["rome", "paris", "berlin"]


@pytest.mark.slow
def test_a_successor_judges_itself_first(three: Sites) -> None:
    """What Paris wrote and Oslo never read is judged by Oslo's log; Rome, which contains that, does not skip it."""
    three.write("paris", "UPDATE e SET v = 'paris' WHERE k = 1", "INSERT INTO t VALUES (7, 'paris')")
    three.write("paris", "UPDATE t SET v = 'paris' WHERE k IN (1, 2)", "UPDATE t SET v = 'after' WHERE k = 2")
    wlc.flush(three.file("paris"))
    three.write("oslo", "UPDATE e SET v = 'oslo' WHERE k = 1", "UPDATE t SET v = 'oslo' WHERE k = 1")
    wlc.flush(three.file("oslo"))
    three.take("rome")
    lose(three, "paris")
    three.take("paris")
    assert causes(three, "paris") == [
        "main.e UPDATE_ROW DATA_IN_CONFLICT",
        "main.t UPDATE_ROW TRANS_IN_CONFLICT",
        "main.t UPDATE_ROW TRANS_IN_CONFLICT",
        "main.t UPDATE_ROW TRANS_IN_CONFLICT",
    ]
    assert three.rows("paris", "t") == [(1, "oslo"), (2, "a"), (3, "a"), (7, "paris")]
    three.exchange()
    three.refuse_differences(*TABLES)
    assert three.rows("rome", "e")[0] == (1, "oslo")
    for site in three.names:
        three.replica_equals(site, *TABLES)
    (rejected, *_) = wlc.exceptions(three.file("paris"))
    assert wlc.resubmit(three.file("paris"), rejected.id) == 1
    assert three.rows("paris", "e")[0] == (1, "paris")


@pytest.mark.slow
def test_a_fenced_primary_goes_on_as_a_secondary_and_is_judged(three: Sites) -> None:
    """Halted for an hour with transactions that it has not published, and with verdicts that nobody has seen."""
    three.write("paris", "UPDATE t SET v = 'paris' WHERE k IN (2, 3)", "INSERT INTO e VALUES (8, 'paris')")
    wlc.flush(three.file("paris"))
    with wlc.connect(three.file("oslo")) as halted:
        halted.execute("UPDATE t SET v = 'oslo' WHERE k = 2")
        halted.execute("UPDATE e SET v = 'oslo' WHERE k = 1")
        with patch.object(take_round, "publish"):
            # Oslo rejects Paris's first transaction, takes the second, and publishes neither.
            assert three.take("oslo") == 2
        halted.execute("UPDATE e SET v = 'oslo' WHERE k = 8")
        halted.execute("INSERT INTO t VALUES (5, 'oslo')")
        lose(three, "rome")
        _rome_leads(three)
        # It goes on, and nobody waits for it.
        halted.execute("INSERT INTO t VALUES (6, 'oslo')")
    assert read_circle(three.log("oslo")).site("oslo").histories[-1].parent is not None
    three.exchange()
    three.refuse_differences(*TABLES)
    # What Rome and Paris had committed when Rome took over comes before what Oslo has not published.
    assert three.rows("oslo", "t") == [(1, "a"), (2, "paris"), (3, "paris"), (5, "oslo"), (6, "oslo")]
    assert three.rows("oslo", "e") == [(1, "rome"), (2, "a"), (3, "a"), (8, "paris")]
    assert causes(three, "rome") == [
        "main.t UPDATE_ROW TRANS_IN_CONFLICT",
        "main.e UPDATE_ROW DATA_IN_CONFLICT",
        "main.e WRITE_ROW ROW_ALREADY_EXISTS",
    ]
    for site in three.names:
        three.replica_equals(site, *TABLES)


def _rome_leads(three: Sites) -> None:
    three.write("rome", "UPDATE e SET v = 'rome' WHERE k = 1")
    three.take("rome")
    assert three.rows("rome", "t") == [(1, "a"), (2, "paris"), (3, "paris")]


@pytest.mark.slow
def test_what_only_a_primary_writes_keeps_it_fenced(three: Sites) -> None:
    halted = wlc.connect(three.file("oslo"))
    halted.execute("INSERT INTO bag VALUES ('oslo')")
    lose(three, "rome")
    fenced = r"changes rows of main\.bag, which has no primary key"
    with pytest.raises(FencedError, match=fenced) as caught:
        wlc.flush(three.file("oslo"))
    assert "write that again at rome" in (caught.value.hint or "")
    with pytest.raises(FencedError, match="refuses writes"):
        halted.execute("INSERT INTO bag VALUES ('oslo')")
    with pytest.raises(FencedError, match=fenced):
        halted.close()
    three.names.remove("oslo")
    three.take("rome")
    three.exchange()
    three.refuse_differences(*TABLES)


@pytest.mark.slow
def test_what_does_not_fit_is_rejected_as_a_whole(three: Sites) -> None:
    """Without the rejected row, the accepted one breaks a constraint."""
    three.write("oslo", "INSERT INTO u VALUES (1, 'one'), (2, 'two')")
    three.exchange()
    three.write("paris", "UPDATE u SET v = 'free' WHERE k = 1", "INSERT INTO u VALUES (3, 'one')")
    wlc.flush(three.file("paris"))
    three.write("oslo", "UPDATE u SET v = 'one' WHERE k = 1", "UPDATE u SET v = 'ONE' WHERE k = 2")
    lose_after = three.log("oslo")
    wlc.flush(three.file("oslo"))
    assert lose_after.batch_numbers()
    lose(three, "paris")
    three.take("paris")
    three.exchange()
    three.refuse_differences("u")
    assert "main.u WRITE_ROW constraint" in causes(three, "paris")


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "most"), [(2, 5), (4, 1)])
def test_what_does_not_fit_without_what_is_rejected_is_rejected_and_nothing_else(
    three: Sites, rows: int, most: int
) -> None:
    """Of many the first are told from the others, and all that follow go."""
    three.write("oslo", f"INSERT INTO u SELECT k, 'value ' || k FROM range({rows}) AS r (k)")
    three.exchange()
    used = [
        f"BEGIN; INSERT INTO u VALUES ({100 + k}, 'value {k}'); INSERT INTO u VALUES ({200 + k}, 'with {k}'); COMMIT"
        for k in range(rows)
    ]
    three.write(
        "paris",
        "INSERT INTO u VALUES (300, 'before')",
        f"BEGIN; UPDATE t SET v = 'paris' WHERE k = 1; UPDATE u SET v = 'left ' || k WHERE k < {rows}; COMMIT",
        *used[:1],
        "INSERT INTO u VALUES (301, 'between')",
        *used[1:],
        "INSERT INTO u VALUES (302, 'behind')",
    )
    wlc.flush(three.file("paris"))
    three.write("oslo", "UPDATE t SET v = 'oslo' WHERE k = 1")
    wlc.flush(three.file("oslo"))
    lose(three, "paris")
    with patch.object(succeeding, "_MISFITS", most):
        three.take("paris")
    three.exchange()
    three.refuse_differences("t", "u")
    behind = [(302, "behind")] if rows < most else []
    expected = [*((k, f"value {k}") for k in range(rows)), (300, "before"), (301, "between"), *behind]
    assert three.rows("paris", "u") == expected
    misfits = {each.key["k"] for each in wlc.exceptions(three.file("paris")) if each.cause == "constraint"}
    assert misfits == {*range(100, 100 + rows), *range(200, 200 + rows), *({302} if not behind else ())}


@pytest.mark.slow
@pytest.mark.parametrize("who", ["oslo publishes", "rome takes", "paris takes", "again"])
def test_a_change_that_died_half_way_is_finished_by_whoever_meets_it(three: Sites, who: str) -> None:
    three.write("oslo", "INSERT INTO t VALUES (4, 'oslo')")
    with patch("wlc.multi_master.handover.change_circle", side_effect=_DiedError), pytest.raises(_DiedError):
        lose(three, "rome")
    assert primary(three) == "oslo"
    if who == "oslo publishes":
        wlc.flush(three.file("oslo"))
    elif who == "again":
        lose(three, "rome")
    elif who == "rome takes":
        three.take("rome")
    else:
        with pytest.raises(UnavailableError):
            three.take("paris")
    assert primary(three) == "rome"
    three.take("rome")
    wlc.flush(three.file("oslo"))
    three.exchange()
    three.refuse_differences(*TABLES)
    assert (4, "oslo") in three.rows("paris", "t")


@pytest.mark.slow
def test_a_successor_that_never_took_over_decides_nothing(three: Sites) -> None:
    three.write("rome", "UPDATE e SET v = 'rome' WHERE k = 1", "UPDATE e SET v = 'rome' WHERE k = 2")
    wlc.flush(three.file("rome"))
    three.write("oslo", "UPDATE e SET v = 'oslo' WHERE k = 1")
    wlc.flush(three.file("oslo"))
    lose(three, "rome")
    lose(three, "paris")
    assert [reign.is_effective for reign in read_circle(three.log("oslo")).reigns] == [True, False]
    three.take("paris")
    three.exchange()
    three.refuse_differences(*TABLES)
    assert three.rows("rome", "e")[:2] == [(1, "oslo"), (2, "rome")]
    assert causes(three, "paris") == ["main.e UPDATE_ROW DATA_IN_CONFLICT"]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(take_round, "take_over"), (take_round, "founder_of")])
def test_a_successor_is_succeeded_before_it_has_taken_over(three: Sites, module: object, name: str) -> None:
    """It reads no more what only a primary reads, and does not take the end of its own log for a restored backup."""
    with before_use(module, name, lambda: lose(three, "oslo")):
        succeed(three, 1, nullcontext([]))


@pytest.mark.deep
def test_a_successor_is_succeeded_before_any_call_of_the_store(three: Sites) -> None:
    def succeeded(number: int) -> list[str]:
        return succeed(three, number, before_call(number, lambda: lose(three, "oslo")))

    # Undisturbed, it makes the most calls.
    calls = len(succeeded(0))
    assert calls > 20
    for number in range(1, calls + 1):
        succeeded(number)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(restored, "read_newest"), (take_round, "SiteLog")])
def test_a_primary_is_succeeded_while_it_takes(three: Sites, module: object, name: str) -> None:
    """What others have of its successor is no lie, and it was not restored from a backup: it is a secondary now."""
    succeed_meanwhile(three, 1, lambda change: before_use(module, name, change))


def test_what_a_round_failed_with_is_named_though_nothing_can_be_read(three: Sites) -> None:
    known = iter([with_circle])

    def once(*given: Any) -> object:
        found = next(known, None)
        if found is None:
            raise UnavailableError("circle.json does not answer")
        return found(*given)

    with (
        patch.object(take_round, "with_circle", once),
        patch.object(take_round, "SiteLog", side_effect=UnavailableError("the log does not answer")),
        pytest.raises(UnavailableError, match="the log does not answer"),
    ):
        three.take("oslo")


@pytest.mark.deep
def test_a_primary_is_succeeded_before_any_call_of_the_store(three: Sites) -> None:
    number = calls = 1
    while number <= calls:
        calls = len(succeed_meanwhile(three, number, partial(before_call, number)))
        number += 1
    assert number > 20


def succeed_meanwhile(
    sites: Sites, number: int, meanwhile: Callable[[Callable[[], object]], AbstractContextManager[list[str]]]
) -> list[str]:
    """Let the primary take while another site leads, and the third goes by that; it has verdicts that nobody saw."""
    leader = primary(sites)
    successor, third = (site for site in sites.names if site != leader)
    for site in sites.names:
        sites.write(site, f"UPDATE t SET v = '{site} {number}' WHERE k = 1")
    sites.write(third, f"INSERT INTO t VALUES ({10 + number}, '{third}')")
    wlc.flush(sites.file(third))
    take_dying(sites, leader)

    def change() -> None:
        lose(sites, successor)
        sites.take(successor)
        sites.take(third)

    with meanwhile(change) as calls:
        sites.take(leader)
    sites.take(primary(sites))
    sites.exchange()
    sites.refuse_differences(*TABLES)
    assert (10 + number, third) in sites.rows(leader, "t")
    return calls


def succeed(sites: Sites, number: int, meanwhile: AbstractContextManager[list[str]]) -> list[str]:
    """Let Paris take as the primary while Oslo becomes the primary again, of which Paris has not heard."""
    for site in sites.names:
        sites.write(site, f"UPDATE t SET v = '{site} {number}' WHERE k = 1")
    sites.write("rome", f"INSERT INTO t VALUES ({10 + number}, 'rome')")
    lose(sites, "paris")
    with meanwhile as calls, suppress(UnavailableError):
        sites.take("paris")
    sites.write("paris", f"INSERT INTO t VALUES ({1000 + number}, 'paris')")
    if primary(sites) == "paris":
        lose(sites, "oslo")
    # It reads Paris before Rome.
    sites.take("oslo")
    sites.exchange()
    sites.refuse_differences(*TABLES)
    assert {(10 + number, "rome"), (1000 + number, "paris")} <= set(sites.rows("oslo", "t"))
    return calls


@pytest.mark.slow
def test_x3_roles_are_swapped_four_times(three: Sites) -> None:
    """role_var and epoch: conflicts are decided for whoever is the primary then, and all end equal."""
    for number, (winner, loser) in enumerate([("rome", "oslo"), ("oslo", "rome")] * 2):
        hand_over(three, winner)
        three.take(winner)
        three.exchange()
        before = len(causes(three, winner))
        for site in (loser, winner):
            three.write(site, f"UPDATE t SET v = '{site} {number}' WHERE k = 1", f"DELETE FROM e WHERE k = {number}")
            three.write(site, f"INSERT INTO e VALUES ({10 + number}, '{site}')")
            wlc.flush(three.file(site))
        three.exchange()
        three.refuse_differences(*TABLES)
        assert three.rows("paris", "t")[0] == (1, f"{winner} {number}")
        assert (10 + number, winner) in three.rows("paris", "e")
        assert len(causes(three, winner)) - before == (3 if number in (1, 2, 3) else 2)
    circle = read_circle(three.log("oslo"))
    assert (circle.term, circle.primary) == (5, "oslo")


@pytest.mark.slow
def test_changes_of_primary_by_chance(tmp_path: Path) -> None:
    """Writers, takes, takes that die, and changes of primary in any order: all sites end equal."""
    for trial in range(12 if wants_all() else 1):
        chance = random.Random(f"{seed()} {trial}")
        sites = Sites(tmp_path / str(trial))
        sites.folder.mkdir()
        sites.found(SCHEMA)
        for site in ("rome", "paris"):
            sites.join(site)
        for table, rule in (("t", "epoch_trans"), ("e", "epoch")):
            wlc.set_rule("sales", table, rule, farm=sites.farm)
        sites.exchange()
        story = [_disturb(sites, chance, number) for number in range(25)]
        sites.take(primary(sites))
        sites.exchange()
        try:
            sites.refuse_differences(*TABLES)
            sites.replica_equals(chance.choice(sites.names), *TABLES)
        except AssertionError as error:
            raise AssertionError(story) from error


def _disturb(sites: Sites, chance: random.Random, number: int) -> tuple[str, ...]:
    site = chance.choice(sites.names)
    what = chance.choice(["write"] * 4 + ["flush", "take", "take", "die", "hand over", "lose"])
    try:
        if what == "write":
            statements = [_statement(chance, number) for _ in range(chance.randint(1, 3))]
            script = "; ".join(["BEGIN", *statements, "COMMIT"])
            with wlc.connect(sites.file(site)) as connection:
                connection.execute(script)
                # Otherwise it is published when the connection is closed.
                other = chance.choice([None, None, *sites.names])
                if other not in (None, primary(sites)):
                    lose(sites, other)
            return site, script, str(other)
        if what == "flush":
            wlc.flush(sites.file(site))
        elif what == "take":
            sites.take(site)
        elif what == "die":
            take_dying(sites, site)
        elif site != primary(sites):
            (hand_over if what == "hand over" else lose)(sites, site)
    except UnavailableError as error:
        assert "has not taken over yet" in error.message
    return site, what


def _statement(chance: random.Random, number: int) -> str:
    table, key = chance.choice(TABLES), chance.randint(1, 5)
    return chance.choice(
        [
            f"INSERT INTO {table} VALUES ({key}, '{number}') ON CONFLICT DO NOTHING",
            f"UPDATE {table} SET v = '{number}' WHERE k = {key}",
            f"UPDATE {table} SET v = '{number}' WHERE k IN ({key}, {key % 5 + 1})",
            f"DELETE FROM {table} WHERE k = {key}",
        ]
    )

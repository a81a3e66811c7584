"""The primary changes: planned, after it was lost, halfway, and again and again (ndb_rpl X3); and the roles of the others.

Docs: docs/sites-operation.md.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.fault.processes import wants_all
from tests.sites import Sites, counted
from wlc.farm.errors import FencedError, InvalidError, UnavailableError
from wlc.masters.publish import publish
from wlc.multi_master import restored, take_round
from wlc.multi_master.circle import read_circle
from wlc.multi_master.circle_place import with_circle
from wlc.multi_master.duckdb import succeeding
from wlc.multi_master.missing_steps import SiteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wlc.multi_master.site_step import SiteStep


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
    assert run_app(app, "wlc", ["site", "role", "sales", "rome", "primary", "--farm", three.farm]) == 2
    assert "--lost oslo" in capsys.readouterr().err
    assert run_app(app, "wlc", ["site", "role", str(three.file("rome")), "rome", "primary"]) == 2
    assert run_app(app, "wlc", ["site", "role", str(three.file("oslo")), "rome", "primary"]) == 0
    assert run_app(app, "wlc", ["site", "role", str(three.file("oslo")), "rome", "primary"]) == 0
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
@pytest.mark.parametrize("who", ["oslo publishes", "paris takes", "again"])
def test_a_change_that_died_half_way_is_finished_by_whoever_meets_it(three: Sites, who: str) -> None:
    three.write("oslo", "INSERT INTO t VALUES (4, 'oslo')")
    with patch("wlc.multi_master.handover.change_circle", side_effect=_DiedError), pytest.raises(_DiedError):
        lose(three, "rome")
    assert primary(three) == "oslo"
    if who == "oslo publishes":
        wlc.flush(three.file("oslo"))
    elif who == "again":
        lose(three, "rome")
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
    assert [former_term.is_effective for former_term in read_circle(three.log("oslo")).former_terms] == [True, False]
    three.take("paris")
    three.exchange()
    three.refuse_differences(*TABLES)
    assert three.rows("rome", "e")[:2] == [(1, "oslo"), (2, "rome")]
    assert causes(three, "paris") == ["main.e UPDATE_ROW DATA_IN_CONFLICT"]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(take_round, "take_over"), (take_round, "founder_of")])
def test_a_successor_is_succeeded_before_it_has_taken_over(three: Sites, module: object, name: str) -> None:
    """It reads no more what only a primary reads, and does not take the end of its own log for a restored backup."""
    for site in three.names:
        three.write(site, f"UPDATE t SET v = '{site}' WHERE k = 1")
    three.write("rome", "INSERT INTO t VALUES (11, 'rome')")
    lose(three, "paris")
    # Paris takes as the primary and has not heard of that.
    with before_use(module, name, lambda: lose(three, "oslo")), suppress(UnavailableError):
        three.take("paris")
    three.write("paris", "INSERT INTO t VALUES (1001, 'paris')")
    # It reads Paris before Rome.
    three.take("oslo")
    three.exchange()
    three.refuse_differences(*TABLES)
    assert {(11, "rome"), (1001, "paris")} <= set(three.rows("oslo", "t"))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), [(restored, "read_newest"), (take_round, "SiteLog")])
def test_a_primary_is_succeeded_while_it_takes(three: Sites, module: object, name: str) -> None:
    """What others have of its successor is no lie, and it was not restored from a backup: it is a secondary now."""
    for site in three.names:
        three.write(site, f"UPDATE t SET v = '{site}' WHERE k = 1")
    three.write("paris", "INSERT INTO t VALUES (11, 'paris')")
    wlc.flush(three.file("paris"))
    # Oslo has verdicts that nobody saw.
    take_dying(three, "oslo")

    def change() -> None:
        lose(three, "rome")
        three.take("rome")
        three.take("paris")

    with before_use(module, name, change):
        three.take("oslo")
    three.take(primary(three))
    three.exchange()
    three.refuse_differences(*TABLES)
    assert (11, "paris") in three.rows("oslo", "t")


@pytest.mark.slow
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


@pytest.mark.slow
def test_x3_roles_are_swapped_and_swapped_back(three: Sites) -> None:
    """role_var and epoch: conflicts are decided for whoever is the primary then, and all end equal."""
    swaps = [("rome", "oslo"), ("oslo", "rome")] * (2 if wants_all() else 1)
    for number, (winner, loser) in enumerate(swaps):
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
    assert (circle.term, circle.primary) == (1 + len(swaps), "oslo")


@pytest.mark.slow
def test_c1_roles(three: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    """role_var: every transition of a role that is legal, and every other one."""
    for site, role, code in (
        ("rome", "secondary", 0),
        ("rome", "pass", 2),
        ("rome", "none", 0),
        ("rome", "pass", 0),
        ("rome", "secondary", 2),
        ("rome", "primary", 2),
        ("rome", "none", 0),
        ("rome", "secondary", 0),
        ("oslo", "secondary", 2),
        ("oslo", "none", 2),
        ("oslo", "primary", 0),
        ("rome", "slave", 2),
    ):
        assert run_app(app, "wlc", ["site", "role", str(three.file("oslo")), site, role]) == code, (site, role)
        assert code == 0 or "hint" in (err := capsys.readouterr().err)
        if (site, role) == ("rome", "pass") and code:
            # Typed as it is, without a farm in the environment.
            assert f"hint: wlc site role {three.log('oslo').url} rome none" in err
    assert [site.role for site in read_circle(three.log("oslo")).sites] == ["primary", "secondary", "secondary"]


@pytest.mark.slow
def test_c1_a_role_that_changes_while_a_site_takes_holds_from_its_next_round(
    three: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.write("oslo", "INSERT INTO u VALUES (4, 'first')")
    wlc.flush(three.file("oslo"))
    steps = SiteLog.steps

    def changing(log: SiteLog) -> Iterator[SiteStep]:
        wlc.set_role("sales", "rome", "none", farm=three.farm)
        yield from steps(log)

    with monkeypatch.context() as patch:
        patch.setattr(SiteLog, "steps", changing)
        assert three.take("rome") > 0
    three.write("oslo", "INSERT INTO u VALUES (5, 'second')")
    wlc.flush(three.file("oslo"))
    assert three.take("rome") == 0
    assert (4, "first") in three.rows("rome", "u")
    wlc.set_role("sales", "rome", "secondary", farm=three.farm)
    three.exchange()
    three.refuse_differences("u")


@pytest.mark.slow
def test_x4_pass(three: Sites) -> None:
    """A site whose role is pass is read and judged by nobody: nothing stops, and nothing promises that it is equal."""
    for role in ("none", "pass"):
        wlc.set_role("sales", "rome", role, farm=three.farm)
    with counted(three):
        three.write("oslo", "UPDATE e SET v = 'oslo' WHERE k = 1", "DELETE FROM e WHERE k IN (2, 3)")
        three.write("rome", "UPDATE e SET v = 'rome' WHERE k IN (1, 2)", "DELETE FROM e WHERE k = 3")
        wlc.flush(three.file("rome"))
        three.exchange()
    assert causes(three, "oslo") == []
    assert three.rows("oslo", "e") == [(1, "rome"), (2, "rome")]
    for role in ("none", "secondary"):
        wlc.set_role("sales", "rome", role, farm=three.farm)
    three.exchange()
    three.write("oslo", "DELETE FROM e")
    three.exchange()
    three.refuse_differences("e")


@pytest.mark.slow
def test_a_new_primary_reads_a_log_whose_beginning_was_pruned(tmp_path: Path) -> None:
    """It has what was pruned through the former primary, and has never read the log itself."""
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)")
    sites.join("rome")
    sites.join("paris")
    wlc.set_rule("sales", "t", "epoch", farm=sites.farm)
    sites.exchange()
    for number, site in enumerate(sites.names):
        sites.write(site, f"INSERT INTO t VALUES ({number}, 1)")
    for _ in range(2):
        for site in sites.names:
            sites.take(site)
    wlc.snapshot(sites.file("paris"))
    assert wlc.prune(sites.file("paris"), keep_for="0s").delete_batches == (1,)
    wlc.set_role(sites.file("oslo"), "rome", "primary")
    sites.write("rome", "INSERT INTO t VALUES (4, 1)")
    sites.take("rome")
    sites.exchange()
    sites.write("paris", "INSERT INTO t VALUES (5, 1)")
    sites.exchange()
    sites.refuse_differences("t")
    assert len(sites.rows("rome", "t")) == 5

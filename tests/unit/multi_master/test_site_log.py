"""What a site takes of another one's log, and what it refuses, whoever wrote it."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation.source import master_state
from wlc.farm.config import first_config
from wlc.farm.database import FarmDatabase, describe_file, open_database
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.model import (
    Batch,
    Change,
    Clear,
    Column,
    DbObject,
    Ddl,
    DroppedObject,
    Layout,
    Name,
    Origin,
    RenamedObject,
    TableFile,
    Taken,
    Transaction,
)
from wlc.farm.paths import data_path
from wlc.farm.store.memory import MemoryStore
from wlc.multi_master import missing_steps
from wlc.multi_master.administration import founder_of_database, leave
from wlc.multi_master.circle import MESH, OWNER, STAR, CircleSite, Rule, SiteHistory, circle_object, with_rule
from wlc.multi_master.circle_place import SiteState
from wlc.multi_master.duckdb.commits import SiteCommits
from wlc.multi_master.membership import founded, with_role, with_site
from wlc.multi_master.missing_steps import MeshLog, SiteLog
from wlc.multi_master.site_step import SiteStep

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HERS = SiteHistory("rome")
NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
ME = "oslo"


def new_database() -> FarmDatabase:
    return FarmDatabase("rome", MemoryStore(f"memory://{uuid.uuid4()}/rome"))


@dataclass
class RomesLog:
    """The log of site rome, with history `rome`, published batch by batch."""

    database: FarmDatabase = field(default_factory=new_database)
    chain: str = ""
    number: int = 0
    vector: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.database.create_config(replace(first_config("rome"), history="rome"))

    def publish_rows(self, tick: int, rows: int, folder: Path) -> None:
        """Publish a transaction with so many row images, which nobody looks at."""
        table, path = Name("main", "t"), data_path("rome", self.number + 1, 0)
        local = folder / "rows"
        local.write_bytes(b"PAR1")
        file = TableFile(describe_file(local, path, rows), table, Layout((Column("k", "INTEGER"),), ()))
        transaction = replace(made(tick), records=(Change(table, path, rows, 0),))
        self.publish(transaction, files=(file,), local={path: local})

    def publish(self, *transactions: Transaction, local: Mapping[str, Path] | None = None, **changes: Any) -> None:
        self.number += 1
        self.vector = {**self.vector, "rome": transactions[-1].tick}
        for origin in (t.origin for t in transactions if t.origin):
            self.vector[origin.history] = max(self.vector.get(origin.history, 0), origin.tick)
        batch = Batch(
            "rome",
            self.number,
            "rome",
            transactions[0].tick,
            transactions[-1].tick,
            self.chain,
            "rome",
            transactions,
            vector=dict(self.vector),
        )
        self.chain = self.database.publish(replace(batch, **changes), local or {})

    def read(
        self,
        contained: Mapping[str, int],
        *,
        own_last: int = 9,
        proof: Taken | None = None,
        is_primary: bool = False,
        may_change_schema: bool = False,
        mesh: dict[str, str] | None = None,
    ) -> SiteLog:
        """Read it in a star, or in a mesh with rules for tables, where paris has published 7 ticks."""
        circle = with_site(founded("sales", "oslo", ME, NOW, MESH if mesh is not None else STAR), "rome", HERS, NOW)
        circle = with_site(circle, "paris", SiteHistory("paris"), NOW) if mesh is not None else circle
        for table, rule in (mesh or {}).items():
            circle = with_rule(circle, Rule(Name("main", table), rule, "paris" if rule == OWNER else ""))
        site: CircleSite = circle.site("rome")
        published = {"paris": 7, "rome": 99, ME: 9}
        log = None if mesh is None else MeshLog(circle, "rome", NOW, lambda history, _: published.get(history))
        return SiteLog(
            self.database,
            site,
            ME,
            own_last,
            contained,
            proof,
            circle.lineage(),
            is_primary,
            may_change_schema,
            mesh=log,
        )


def made(tick: int, origin: Origin | None = None, *, clears: bool = False, committed: datetime = NOW) -> Transaction:
    records = (Clear(Name("main", "t"), 1),) if clears else ()
    return Transaction(tick, "ann", NOW, committed, records, origin)


def named(steps: list[SiteStep]) -> list[list[tuple[str, int]]]:
    return [[(each.origin.history, each.origin.tick) for each in step.transactions] for step in steps]


def test_what_is_missing_is_taken_in_the_order_of_the_log() -> None:
    log = RomesLog()
    log.publish(made(1), made(2, Origin(ME, 3)))
    log.publish(made(3), made(4, Origin(ME, 5)), made(6))
    read = log.read({})
    steps = list(read.steps())
    # Its own ticks are echoes, and the history's tick is contained although its transaction was an echo.
    (step,) = steps
    assert named(list(step.parts)) == [[("rome", 1)], [("rome", 3), ("rome", 6)]]
    assert step.contained == {"rome": 6}
    assert step.proof == Taken("rome", "rome", 6, 2, log.chain)
    assert [each.line for each in step.transactions] == [1, 2, 3]
    # The author of 3 had seen tick 3 of this site, and not yet 5; that of 6 had.
    assert [each.past.get(ME) for each in step.transactions] == [2, 3, 5]
    again = log.read(read.contained, proof=read.proof)
    assert list(again.steps()) == []


def test_only_echoes_move_the_position_and_nothing_else() -> None:
    log = RomesLog()
    log.publish(made(1))
    first = log.read({})
    list(first.steps())
    log.publish(made(2, Origin(ME, 3)))
    (step,) = log.read(first.contained, proof=first.proof).steps()
    assert (step.transactions, step.contained, step.proof) == (
        (),
        {"rome": 2},
        Taken("rome", "rome", 2, 2, log.chain),
    )


def test_long_rounds_are_cut_and_a_transaction_that_clears_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_steps, "STEP_TRANSACTIONS", 2)
    monkeypatch.setattr(missing_steps, "JOINED_TRANSACTIONS", 2)
    log = RomesLog()
    log.publish(*(made(tick, clears=tick == 4) for tick in range(1, 7)))
    steps = list(log.read({}, may_change_schema=True).steps())
    assert named(steps) == [[("rome", 1), ("rome", 2)], [("rome", 3)], [("rome", 4)], [("rome", 5), ("rome", 6)]]
    assert [step.is_alone for step in steps] == [False, False, True, False]
    assert [step.contained["rome"] for step in steps] == [2, 3, 4, 6]
    # A round that was broken off begins with the batch again.
    assert [step.proof for step in steps[:-1]] == [None] * 3
    assert named(list(log.read({"rome": 3}, may_change_schema=True).steps())) == [
        [("rome", 4)],
        [("rome", 5), ("rome", 6)],
    ]


def test_small_steps_of_batches_are_joined_up_to_what_a_step_may_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(missing_steps, "JOINED_TRANSACTIONS", 3)
    monkeypatch.setattr(missing_steps, "JOINED_ROWS", 10)
    log = RomesLog()
    log.publish(made(1))
    log.publish(made(2), made(3))
    proofs = [Taken("rome", "rome", 3, 2, log.chain)]
    # A fourth transaction, a tick that is an echo, eleven rows, and a table that is emptied.
    log.publish(made(4))
    log.publish(made(5, Origin(ME, 2)))
    proofs += [Taken("rome", "rome", 5, 4, log.chain)]
    log.publish_rows(6, 10, tmp_path)
    log.publish_rows(7, 1, tmp_path)
    proofs += [Taken("rome", "rome", 6, 5, log.database.read_batch(5)[1]), Taken("rome", "rome", 7, 6, log.chain)]
    log.publish(made(8, clears=True))
    log.publish(made(9))
    steps = list(log.read({}, may_change_schema=True).steps())
    assert [[tick for _, tick in step] for step in named(steps)] == [[1, 2, 3], [4, 6], [7], [8], [9]]
    assert [step.proof for step in steps[:2]] == [proofs[0], proofs[2]]
    # Halves of a step are steps of the log.
    halves = [SiteStep.joined(steps[1].parts[:1]), SiteStep.joined(steps[1].parts[1:])]
    assert [(half.contained, half.proof, half.parts) for half in halves] == [
        ({"rome": 5}, proofs[1], ()),
        ({"rome": 6}, proofs[2], ()),
    ]


@pytest.mark.parametrize(("tick", "seen"), [(3, 5), (4, 4)])
def test_what_a_history_has_again_or_has_not_seen_is_not_joined_with_what_was_before(tick: int, seen: int) -> None:
    log = RomesLog()
    log.publish(made(1, Origin("paris", 4)))
    log.publish(made(2, Origin("paris", 5)), made(3))
    parent = Origin("rome", 1) if seen < 5 else Origin("rome", 3)
    log.vector = {"rome": parent.tick, "paris": seen}
    log.publish(made(tick), history="rome-2", vector={"rome-2": tick, **log.vector}, parent=parent)
    read = log.read({}, is_primary=True)
    read.site = replace(read.site, histories=(*read.site.histories, SiteHistory("rome-2", parent)))
    steps = list(read.steps())
    assert named(steps) == [[("paris", 4), ("paris", 5), ("rome", 3)], [("rome-2", tick)]]
    assert steps[1].transactions[0].past["paris"] == seen


def test_what_comes_before_a_damaged_batch_is_taken() -> None:
    log = RomesLog()
    log.publish(made(1))
    log.publish(made(2))
    log.publish(made(2), vector={"rome": 2})
    read = log.read({})
    taken: list[SiteStep] = []
    with pytest.raises(CorruptError, match="batch 3 .* begins with a tick that was published before"):
        taken.extend(read.steps())
    assert named(taken) == [[("rome", 1), ("rome", 2)]]
    assert read.proof == taken[0].proof


def test_rolled_back_transactions_are_contained_and_not_taken() -> None:
    log = RomesLog()
    log.publish(made(1), Transaction(2, "ann", NOW, None))
    (step,) = log.read({}).steps()
    assert (named([step]), step.contained) == ([[("rome", 1)]], {"rome": 2})


def test_another_past_is_refused() -> None:
    log = RomesLog()
    log.publish(made(1))
    log.publish(made(2))
    with pytest.raises(FencedError, match="another past"):
        list(log.read({"rome": 1}, proof=Taken("rome", "rome", 1, 1, "0" * 64)).steps())
    log.publish(made(3), history="other", vector={"other": 3})
    with pytest.raises(FencedError, match="history other"):
        list(log.read({"rome": 2}).steps())


def test_a_log_that_lost_what_was_taken_is_refused() -> None:
    log = RomesLog()
    log.publish(made(1))
    log.publish(made(2))
    proof = Taken("rome", "rome", 2, 2, log.chain)
    log.database.delete_batch(2)
    with pytest.raises(FencedError, match="another past: batch 2 is not the one"):
        list(log.read({"rome": 2}, proof=proof).steps())


def test_only_the_site_that_may_changes_the_schema_or_empties_a_table() -> None:
    log = RomesLog()
    log.publish(made(1), made(2, clears=True))
    with pytest.raises(CorruptError, match="site rome changes the schema or empties a table in tick 2"):
        list(log.read({}).steps())


def test_a_table_with_a_rule_is_neither_renamed_nor_dropped() -> None:
    table, other = Name("main", "t"), Name("main", "other")
    circle = with_rule(founded("sales", ME, ME, NOW), Rule(table, "epoch"))
    site = SiteState(ME, ".", circle=circle)

    def commits(site: SiteState) -> SiteCommits:
        state = master_state("", "sales", ME, NOW, 0, site)
        return SiteCommits(lambda: state)

    found = DbObject("TABLE", table)
    renamed = Ddl("ALTER TABLE", other, "ALTER TABLE t RENAME TO other", does=(RenamedObject(found, other),))
    dropped = Ddl("DROP TABLE", table, "DROP TABLE t", does=(DroppedObject(found),))
    for record in (renamed, dropped):
        with pytest.raises(InvalidError, match=r"cannot rename or drop main\.t, which has the rule epoch"):
            commits(site).refuse_schema_change([record], [other])
        # It is there again when the transaction ends.
        commits(site).refuse_schema_change([record], [other, Name("main", "T")])
    commits(replace(site, circle=founded("sales", ME, ME, NOW))).refuse_schema_change([renamed], [other])
    with pytest.raises(InvalidError, match="site rome cannot change the schema"):
        commits(replace(site, name="rome")).refuse_schema_change([Clear(other, 1)], [other])


def test_a_site_leaves_when_the_primary_has_read_it_whatever_its_role_and_the_name_of_the_farm() -> None:
    url = f"memory://{uuid.uuid4()}/sites/sales"
    circle = with_site(founded("sales", ME, ME, NOW), "rome", SiteHistory("rome"), NOW)
    circle_object(open_database(url)).change(lambda _: with_role(circle, "rome", "none"))
    RomesLog(open_database(f"{url}/sites/rome")).publish(made(1))
    assert [founder_of_database(f"{url}{site}", None, None).url for site in ("", "/sites/rome")] == [url, url]
    with pytest.raises(InvalidError, match="site oslo has read site rome up to batch 0 of 1") as refused:
        leave(url, "rome")
    assert str(refused.value.hint).startswith(f"wlc site role {url} rome secondary; run wlc site take at oslo")


def test_own_ticks_that_only_others_have_are_noticed() -> None:
    log = RomesLog()
    log.publish(made(1, Origin(ME, 9)))
    with pytest.raises(FencedError, match="was restored from a backup"):
        list(log.read({}, own_last=7).steps())


def test_what_was_pruned_is_not_lost_in_silence() -> None:
    log = RomesLog()
    for tick in (1, 2, 3):
        log.publish(made(tick))
    log.database.delete_batch(1)
    log.database.delete_batch(2)
    with pytest.raises(ExpiredError, match="begins with batch 3"):
        list(log.read({"rome": 1}).steps())
    with pytest.raises(ExpiredError, match="begins with batch 3"):
        list(log.read({"rome": 1}, proof=Taken("rome", "rome", 1, 1, "0" * 64)).steps())
    before = log.database.read_batch(3)[0].previous
    assert named(list(log.read({"rome": 2}, proof=Taken("rome", "rome", 2, 2, before)).steps())) == [[("rome", 3)]]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vector": {"rome": 2, ME: 3, "paris": 99}}, "only the primary could have given"),
        ({"vector": {"rome": 2}}, "contains less than the one before"),
    ],
)
def test_a_vector_that_cannot_be_is_refused(changes: dict[str, Any], problem: str) -> None:
    log = RomesLog()
    log.publish(made(1, Origin(ME, 3)))
    log.publish(made(2), **changes)
    with pytest.raises(CorruptError, match=problem):
        list(log.read({}).steps())


@pytest.mark.parametrize(
    ("origins", "contained", "problem"),
    [
        ([[None], [None]], {}, "batch 2 of site rome begins with a tick that was published before"),
        ([[Origin("paris", 5)], [Origin("paris", 4)]], {}, "batch 2 .* tick 4 of history paris, which came before"),
        ([[Origin("paris", 5), Origin("paris", 5)]], {}, "batch 1 .* tick 5 of history paris, which came before"),
        # That the reader contains both does not make it a log.
        ([[Origin("paris", 5)], [None], [Origin("paris", 3)]], {"paris": 9}, "batch 3 .* tick 3 of history paris"),
    ],
)
def test_a_log_that_holds_a_transaction_twice_is_refused(
    origins: list[list[Origin | None]], contained: dict[str, int], problem: str
) -> None:
    log = RomesLog()
    ticks = iter((1, 1) if "published before" in problem else range(1, 9))
    for batch in origins:
        log.publish(*(made(next(ticks), origin) for origin in batch))
    taken: list[object] = []
    with pytest.raises(CorruptError, match=problem):
        taken.extend(log.read(contained, is_primary=True).steps())


def test_a_transaction_that_its_vector_does_not_contain_is_refused() -> None:
    log = RomesLog()
    log.publish(made(1, Origin("paris", 7)), vector={"rome": 1})
    with pytest.raises(CorruptError, match="tick 7 of history paris"):
        list(log.read({}, is_primary=True).steps())
    believed = RomesLog()
    believed.publish(made(1, Origin("paris", 7)))
    assert named(list(believed.read({}, is_primary=True).steps())) == [[("paris", 7)]]


# In a mesh -----------------------------------------------------------------------------------------------------------


def test_in_a_mesh_transactions_of_others_come_through_a_log_and_count_as_theirs() -> None:
    log = RomesLog()
    log.publish(made(1), made(2, Origin("paris", 5)), made(3, Origin(ME, 2)))
    log.publish(made(4, Origin("paris", 7)))
    read = log.read({}, mesh={"t": "newest", "mine": "owner"})
    assert named(list(read.steps())) == [[("rome", 1), ("paris", 5), ("paris", 7)]]
    assert read.contained == {"rome": 4, "paris": 7}


@pytest.mark.parametrize(
    ("transaction", "error", "problem"),
    [
        (made(2, Origin("paris", 8)), CorruptError, "tick 8 of history paris, which site paris has not"),
        (made(2, Origin("ghost", 1)), CorruptError, "tick 1 of history ghost, which no site has"),
        (made(2, clears=True), CorruptError, "changes the schema or empties a table"),
        (made(2, committed=NOW + timedelta(minutes=5, seconds=1)), UnavailableError, "site rome committed"),
        (
            made(2, Origin("paris", 5, NOW + timedelta(days=70 * 365))),
            UnavailableError,
            "site paris committed tick 5 .* the rest of the log of site rome waits",
        ),
    ],
)
def test_in_a_mesh_a_log_is_believed_up_to_what_its_authors_may_not_do(
    transaction: Transaction, error: type[FarmError], problem: str
) -> None:
    log = RomesLog()
    log.publish(made(1), transaction)
    read, taken = log.read({}, mesh={"t": "newest", "mine": "owner"}), []
    with pytest.raises(error, match=problem):
        taken += list(read.steps())
    assert "paris" not in read.contained
    # Until its time has come, what is before it is taken.
    assert read.contained == ({"rome": 1} if error is UnavailableError else {})


@pytest.mark.parametrize(
    ("vector", "error", "problem"),
    [
        ({"rome": 2, "paris": 7}, CorruptError, "claims to contain ticks that its log does not hold"),
        ({"paris": 1, "rome": 2}, CorruptError, "contains less than the one before"),
    ],
)
def test_in_a_mesh_a_vector_is_what_the_log_holds(vector: dict[str, int], error: type[FarmError], problem: str) -> None:
    log = RomesLog()
    log.publish(made(1, Origin("paris", 5)))
    log.publish(made(2), vector={**({"paris": 5} if "paris" not in vector else {}), **vector})
    read = log.read({"paris": 5}, mesh={"t": "newest"})
    with pytest.raises(error, match=problem):
        list(read.steps())
    assert read.contained == {"rome": 1, "paris": 5}


def test_in_a_mesh_a_log_waits_for_what_came_before_it() -> None:
    log = RomesLog()
    log.publish(made(1, Origin("paris", 5)))
    log.publish(made(2))
    log.database.delete_batch(1)
    with pytest.raises(ExpiredError, match="was pruned"):
        list(log.read({"rome": 1, "paris": 4}, mesh={"t": "newest"}).steps())
    # It came through another log.
    assert named(list(log.read({"rome": 1, "paris": 5}, mesh={"t": "newest"}).steps())) == [[("rome", 2)]]


@pytest.mark.parametrize(
    ("table", "origin", "is_allowed"),
    [
        ("t", "rome", True),
        ("t", "paris", True),
        ("mine", "paris", True),
        ("mine", "rome", False),
        ("unruled", ME, True),
        ("unruled", "rome", False),
        ("unruled", "paris", False),
    ],
)
def test_in_a_mesh_a_site_writes_only_its_tables_through_whatever_log(
    table: str, origin: str, is_allowed: bool
) -> None:
    log = RomesLog()
    mesh = log.read({}, mesh={"t": "newest", "mine": "owner"}).mesh
    assert mesh is not None
    transaction = replace(made(1), records=(Change(Name("main", table), "x", 1, 0),))
    with nullcontext() if is_allowed else pytest.raises(CorruptError, match=f"rows of main.{table} that site {origin}"):
        mesh.refuse_forbidden(log.database, Origin(origin, 1), transaction)

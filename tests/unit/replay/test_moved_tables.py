from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from wlc.farm.model import (
    AlteredObject,
    Change,
    CreatedObject,
    DbObject,
    Ddl,
    Digest,
    DroppedObject,
    Layout,
    Name,
    Record,
    RenamedObject,
    Transaction,
)
from wlr.replay.fold.tally import Held, Tally, Uncompared
from wlr.replay.moved_tables import EnteringTable, with_moved
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.step import Mark, Step

AT = datetime(2026, 1, 1, tzinfo=UTC)
DAILY = Name("main", "daily")
CREATED = Ddl(
    "CREATE TABLE",
    DAILY,
    "CREATE TABLE daily (a INTEGER)",
    layout=Layout(()),
    does=(CreatedObject(DbObject("TABLE", DAILY)),),
)


def table(name: str, kind: str = "TABLE") -> DbObject:
    return DbObject(kind, Name("main", name))


def renamed(old: str, new: str, kind: str = "TABLE") -> Ddl:
    does = (RenamedObject(table(old, kind), Name("main", new)),)
    return Ddl(f"ALTER {kind}", Name("main", new), f"{old} becomes {new}", does=does)


def dropped(name: str) -> Ddl:
    does = (DroppedObject(table(name)),)
    return Ddl("DROP TABLE", Name("main", name), f"{name} goes", does=does)


def altered(name: str, *steps: tuple[str | None, str | None]) -> Ddl:
    does = (AlteredObject(table(name), columns=steps),)
    return Ddl("ALTER TABLE", Name("main", name), f"{name} is altered", does=does)


def written(*records: Record, held: str = "") -> tuple[list[str], list[tuple[str, str, int]]]:
    """Return the statements and changes that are left, and what was restored from how many records."""
    asked: list[tuple[str, str, int]] = []

    def restore(part: Transaction, old: Name, new: Name) -> EnteringTable:
        asked.append((str(old), str(new), len(part.records)))
        return EnteringTable((CREATED,), None, Path())

    step = Step((Transaction(7, "ann", AT, AT, records),), {}, (Mark(7, "h", 1, "", 7),), "sales")
    names = [name.encode() for name in held.split()]
    whole, _ = with_moved(step, ["main.daily"], lambda name: name.folded[1] in names, restore)
    return [r.statement if isinstance(r, Ddl) else str(r) for r in whole.transactions[0].records], asked


@pytest.mark.parametrize(
    "record, held, left, restored",
    [
        (renamed("tmp", "daily"), "", [CREATED.statement], [("main.tmp", "main.daily", 1)]),
        (renamed("Daily", "old"), "daily", ['DROP TABLE "main"."Daily"'], []),
        (renamed("a", "b"), "daily", [], []),
        (altered("a", (None, "daily")), "daily", [], []),
        (altered("a", ("x", "daily")), "daily", [], []),
        (altered("a"), "daily", [], []),
        (dropped("a"), "daily", [], []),
        (altered("daily", (None, "c")), "daily", ["daily is altered"], []),
        (dropped("daily"), "daily", ["daily goes"], []),
        (renamed("tmp", "daily", "VIEW"), "", ["tmp becomes daily"], []),
        # A table that should be there, and is not, is an error of the replica's, which the engine reports.
        (dropped("daily"), "", ["daily goes"], []),
        # With a schema go tables that the replica has, and others.
        (
            Ddl("DROP SCHEMA", Name("s", "s"), "s goes", does=(*dropped("daily").does, *dropped("a").does)),
            "daily",
            ["s goes"],
            [],
        ),
    ],
)
def test_one_statement(record: Ddl, held: str, left: list[str], restored: list[tuple[str, str, int]]) -> None:
    assert written(record, held=held) == (left, restored)


def test_a_swap_back_and_forth_in_one_transaction() -> None:
    rows = Change(DAILY, "p", 1, 0)
    found, asked = written(
        renamed("daily", "old"),
        renamed("tmp", "daily"),
        rows,
        renamed("daily", "tmp"),
        renamed("old", "daily"),
        dropped("tmp"),
        held="daily",
    )
    gone = 'DROP TABLE "main"."daily"'
    assert found == [gone, CREATED.statement, str(rows), gone, CREATED.statement]
    assert asked == [("main.tmp", "main.daily", 2), ("main.old", "main.daily", 5)]


def test_a_table_created_in_the_transaction_is_there() -> None:
    found, asked = written(CREATED, renamed("daily", "other"))
    assert found == [CREATED.statement, 'DROP TABLE "main"."daily"']
    assert asked == []


def test_a_table_that_goes_with_its_schema_is_there_no_more() -> None:
    gone = Ddl("DROP SCHEMA", Name("s", "s"), "s goes", does=dropped("daily").does)
    found, asked = written(gone, renamed("tmp", "daily"), held="daily")
    assert found == ["s goes", CREATED.statement]
    assert asked == [("main.tmp", "main.daily", 2)]


def settled(
    digests: dict[Name, Digest | None], present: set[Name], *, known: dict[Name, Held], skips: bool = False
) -> dict[Name, Held]:
    transaction = Transaction(7, "ann", AT, AT, (CREATED,))
    skipped = frozenset({7}) if skips else frozenset()
    step = Step((transaction,), {}, (Mark(7, "h", 1, "", 7),), "sales", skipped, digests=digests)
    return Tally(known, names_digests=True).settle(step, present, ["main.daily"])


def test_a_step_that_leaves_a_replica_without_a_table_of_its_own_is_refused() -> None:
    daily, other = Name("main", "daily"), Name("main", "other")
    with pytest.raises(StepError, match="not in the replica") as caught:
        settled({daily: Digest(1, 5)}, set(), known={})
    assert caught.value.table == "main.daily"
    assert settled({other: Digest(1, 5)}, set(), known={}) == {}
    assert settled({daily: Digest(1, 5)}, {daily}, known={}) == {daily: Digest(1, 5)}
    # An accepted transaction should have created it: verify shows that.
    marked = settled({daily: Digest(1, 5)}, set(), known={}, skips=True)
    assert marked == {daily: Uncompared.ACCEPTED}
    assert settled({daily: Digest(2, 6)}, set(), known=marked) == marked

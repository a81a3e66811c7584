from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from wlc.farm.model import Change, Ddl, Digest, Layout, Name, Record, Transaction
from wlr.fold.tally import Held, Tally, Uncompared
from wlr.moved_tables import EnteringTable, with_moved
from wlr.plan.failure import StepError
from wlr.plan.patterns import exactly, matches
from wlr.plan.step import Mark, Step

AT = datetime(2026, 1, 1, tzinfo=UTC)
CREATED = Ddl("CREATE TABLE", Name("main", "daily"), "CREATE TABLE daily (a INTEGER)", layout=Layout(()))


def ddl(statement: str, name: str = "x") -> Ddl:
    return Ddl(" ".join(statement.split()[:2]), Name("main", name), statement)


def written(*records: Record | str, held: str = "") -> tuple[list[str], list[tuple[str, str, int]]]:
    """Return the statements and changes that are left, and what was restored from how many records."""
    asked: list[tuple[str, str, int]] = []

    def restore(part: Transaction, old: Name, new: Name) -> EnteringTable:
        asked.append((str(old), str(new), len(part.records)))
        return EnteringTable((CREATED,), None, Path())

    listed = tuple(ddl(record) if isinstance(record, str) else record for record in records)
    step = Step((Transaction(7, "ann", AT, AT, listed),), {}, (Mark(7, "h", 1, "", 7),), "sales")
    names = [name.encode() for name in held.split()]
    whole, _ = with_moved(step, ["main.daily"], lambda name: name.folded[1] in names, restore)
    return [r.statement if isinstance(r, Ddl) else str(r) for r in whole.transactions[0].records], asked


@pytest.mark.parametrize(
    "statement, held, left, restored",
    [
        ("ALTER TABLE tmp RENAME TO daily", "", [CREATED.statement], [("main.tmp", "main.daily", 1)]),
        ("/* a */ alter table if exists sales.main.tmp RENAME to daily", "", [CREATED.statement], 1),
        ('ALTER TABLE "Daily" RENAME TO "old"', "daily", ['DROP TABLE "main"."Daily"'], []),
        ("ALTER TABLE a RENAME TO b", "daily", [], []),
        ("ALTER TABLE a ADD COLUMN daily INTEGER", "daily", [], []),
        ("ALTER TABLE a RENAME COLUMN x TO daily", "daily", [], []),
        ("DROP TABLE a", "daily", [], []),
        ("ALTER TABLE daily ADD COLUMN c INTEGER", "daily", ["ALTER TABLE daily ADD COLUMN c INTEGER"], []),
        ("DROP TABLE daily", "daily", ["DROP TABLE daily"], []),
        ("ALTER VIEW tmp RENAME TO daily", "", ["ALTER VIEW tmp RENAME TO daily"], []),
        # A table that should be there, and is not, is an error of the replica's, which the engine reports.
        ("DROP TABLE daily", "", ["DROP TABLE daily"], []),
    ],
)
def test_one_statement(statement: str, held: str, left: list[str], restored: object) -> None:
    found, asked = written(statement, held=held)
    assert found == left
    assert (asked if isinstance(restored, list) else len(asked)) == restored


def test_a_swap_back_and_forth_in_one_transaction() -> None:
    rows = Change(Name("main", "daily"), "p", 1, 0)
    found, asked = written(
        "ALTER TABLE daily RENAME TO old",
        "ALTER TABLE tmp RENAME TO daily",
        rows,
        "ALTER TABLE daily RENAME TO tmp",
        "ALTER TABLE old RENAME TO daily",
        "DROP TABLE tmp",
        held="daily",
    )
    dropped = 'DROP TABLE "main"."daily"'
    assert found == [dropped, CREATED.statement, str(rows), dropped, CREATED.statement]
    assert asked == [("main.tmp", "main.daily", 2), ("main.old", "main.daily", 5)]


def test_a_table_created_in_the_transaction_is_there() -> None:
    found, asked = written(CREATED, "ALTER TABLE daily RENAME TO other")
    assert found == [CREATED.statement, 'DROP TABLE "main"."daily"']
    assert asked == []


def test_the_pattern_of_one_table() -> None:
    pattern = exactly(Name("main", "A[b]*ä"))
    assert matches(Name("main", "a[B]*ä"), [pattern])
    assert not matches(Name("main", "ab*ä"), [pattern])
    assert not matches(Name("main", "a[b]xä"), [pattern])


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

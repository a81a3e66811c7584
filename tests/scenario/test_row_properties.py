"""What is read, followed, compared, accepted and applied later is what plain Python says, for rows of many types."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wlr
from tests.conformance.targets import ParquetKind
from tests.handmade import HandmadeFarm, Rows
from tests.sampling import machine_settings
from tests.scenario.test_diff import expected
from tests.scenario.test_row_filters import KINDS
from wlc.dialect.sql import literal

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tests.conformance.targets import Kind

Row = tuple[str | None, ...]
Bag = Counter[Row]
# Columns beside the key, with texts of values. Some of them are equal in SQL, and are not the same.
VALUES = {
    "VARCHAR": ["", "a", "it's \\"],
    "DOUBLE": ["-0.0", "0.0", "nan", "1.5"],
    "DECIMAL(9,2)": ["-1.50", "0.00"],
    "HUGEINT": ["170141183460469231731687303715884105727", "-1"],
    "INTERVAL": ["30 days", "1 month"],
    "TIMESTAMP WITH TIME ZONE": ["2026-01-01 00:00:00+00", "1969-12-31 23:59:59.999999+00"],
    "BOOLEAN": ["true", "false"],
    "BLOB": ["\\x00\\xFF", ""],
    "ENUM('x', 'y')": ["x", "y"],
    "INTEGER[]": ["[1, NULL]", "[]"],
    "STRUCT(a DOUBLE, b VARCHAR)": ["{'a': -0.0, 'b': NULL}", "{'a': 0.0, 'b': NULL}"],
}
KEYS = {
    "INTEGER": ["1", "2", "3", "4"],
    "VARCHAR": ["", "a", "A", "b"],
    "UUID": [f"00000000-0000-0000-0000-00000000000{n}" for n in range(4)],
    "TIMESTAMP": [f"2026-01-0{n} 00:00:00" for n in range(1, 5)],
}
TYPES = tuple(VALUES)
COLUMNS = [f"c{number}" for number in range(len(TYPES))]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param](request)


class Table:
    """A table in plain Python: rows as texts of their values, the key first."""

    def __init__(self, draw: random.Random, key: str, *, has_key: bool) -> None:
        self.draw, self.key, self.has_key = draw, key, has_key
        self.types = (key, *TYPES)
        self.rows: Bag = Counter()

    @property
    def statement(self) -> str:
        primary = "PRIMARY KEY" if self.has_key else ""
        others = ", ".join(f"{name} {declared}" for name, declared in zip(COLUMNS, TYPES, strict=True))
        return f"CREATE TABLE t (k {self.key} {primary}, {others})"

    def row(self, key: str | None) -> Row:
        return (key, *(self.draw.choice([None, *VALUES[declared]]) for declared in TYPES))

    def transaction(self) -> tuple[Bag, Bag]:
        """Change some rows; return what came and what went, in which a row may come and go again."""
        added: Bag = Counter()
        removed: Bag = Counter()
        for _ in range(self.draw.randrange(1, 5)):
            present = list(self.rows.elements())
            key = self.draw.choice(KEYS[self.key] if self.has_key else [None, *KEYS[self.key][:1]])
            if present and self.draw.random() < 0.55:
                gone = self.draw.choice(present)
                removed[gone] += 1
                self.rows -= Counter([gone])
                if self.draw.random() < 0.3:
                    continue
                place = self.draw.randrange(1, len(gone))
                key, new = gone[0], list(gone)
                new[place] = self.draw.choice([None, *VALUES[self.types[place]]])
                row = tuple(new)
            else:
                row = self.row(key)
            if not (self.has_key and any(row[0] == each[0] for each in self.rows)):
                added[row] += 1
                self.rows[row] += 1
        return added, removed

    def images(self, change: tuple[Bag, Bag]) -> Rows:
        return Rows("t", *(tuple(map(self._sql, part.elements())) for part in change))

    def _sql(self, row: Row) -> str:
        values = ("NULL" if v is None else literal(v) for v in row)
        return ", ".join(f"CAST({v} AS {declared})" for v, declared in zip(values, self.types, strict=True))

    @property
    def texts(self) -> str:
        """SQL of a row's texts, also of values that a format of Arrow has no type for."""
        named = zip(("k", *COLUMNS), self.types, strict=True)
        return ", ".join(f"CAST(CAST({name} AS {declared}) AS VARCHAR)" for name, declared in named)

    def held(self, relation: duckdb.DuckDBPyRelation) -> Bag:
        return Counter(relation.project(self.texts).fetchall())

    def applied(self, rows: Bag, change: tuple[Bag, Bag]) -> Bag | None:
        """Return rows after a transaction, None if it does not fit them."""
        added, removed = change[0] - change[1], change[1] - change[0]
        if removed - rows:
            return None
        after = (rows - removed) + added
        if self.has_key and len({row[0] for row in after}) < after.total():
            return None
        return after


def tables() -> st.SearchStrategy[Table]:
    draws = st.randoms(use_true_random=False)
    return st.builds(lambda d, k, h: Table(d, k, has_key=h), draws, st.sampled_from(sorted(KEYS)), st.booleans())


def test_texts_are_those_of_duckdb() -> None:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for declared, texts in (VALUES | KEYS).items():
            for text in texts:
                query = f"SELECT CAST(CAST({literal(text)} AS {declared}) AS VARCHAR)"
                assert connection.execute(query).fetchall() == [(text,)]


@pytest.mark.slow
def test_moments_changes_and_differences(tmp_path_factory: pytest.TempPathFactory) -> None:
    @machine_settings(2)
    @given(tables())
    def check(table: Table) -> None:
        farm, at = HandmadeFarm(tmp_path_factory.mktemp("farm")), {1: Counter[Row]()}
        farm.publish([table.statement])
        for batch in range(3):
            made = []
            for _ in range(3):
                made.append([table.images(table.transaction())])
                at[farm.tick + len(made)] = table.rows.copy()
            farm.publish(*made)
            if batch == 1 and table.draw.random() < 0.5:
                wlr.snapshot_from_log(farm.url, engine="local")
        for tick in table.draw.sample(sorted(at), 3):
            assert table.held(wlr.read(farm.url, "t", tick=tick)) == at[tick], tick
        for _ in range(2):
            first, last = sorted(table.draw.sample(sorted(at), 2))
            total = at[first].copy()
            for weight, row in changes(table, list(wlr.changes(farm.url, "t", since=first, until=last))):
                total[row] += weight
            assert {row: count for row, count in total.items() if count} == at[last], (first, last)
            check_difference(table, farm.url, at, first, last)

    check()


def changes(table: Table, batches: Sequence[pa.RecordBatch]) -> list[tuple[int, Row]]:
    if not batches:
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.from_arrow(pa.Table.from_batches(batches))
        return [(weight, tuple(row)) for weight, *row in found.project(f"_weight, {table.texts}").fetchall()]


def check_difference(table: Table, place: str, at: dict[int, Bag], first: int, last: int) -> None:
    rows = expected(at[first], at[last], has_key=table.has_key)
    found = wlr.differing_rows(place, first, last, "t").project(f"_change, {table.texts}")
    assert Counter(found.fetchall()) == rows, (first, last)
    counts: Counter[str] = Counter()
    for (change, *_), copies in rows.items():
        counts[change] += copies
    changed = counts["changed to"] if table.has_key else None
    counted = [wlr.TableDifference("main.t", counts["added"], counts["removed"], changed)] if rows else []
    assert wlr.diff(place, first, last) == counted


@pytest.mark.slow
def test_transactions_that_come_too_early_are_accepted_and_applied_later(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Transactions are published in another order than they were made in; those that do not fit are put off."""

    seen: Counter[str] = Counter()

    @machine_settings(2)
    @given(tables())
    def check(table: Table) -> None:
        farm, into = HandmadeFarm(tmp_path_factory.mktemp("farm")), kind.new()
        farm.publish([table.statement])
        made = [table.transaction() for _ in range(4)]
        late = table.draw.randrange(3)
        made.insert(late + 1 + table.draw.randrange(2), made.pop(late))
        rows: Bag = Counter()
        at, put_off = {1: rows}, {}
        for change in made:
            farm.publish([table.images(change)])
            if (after := table.applied(rows, change)) is None:
                with pytest.raises(wlr.ReplayError, match=f"transaction {farm.tick}"):
                    wlr.replicate(farm.url, into=into, register=False)
                put_off[wlr.accept(into).tick] = change
                seen["accepted"] += 1
            rows = rows if after is None else after
            wlr.replicate(farm.url, into=into, register=False)
            at[farm.tick] = rows
        assert wlr.status(into).accepted == tuple(put_off)
        assert table.held(wlr.read(into, "t")) == rows
        check_difference(table, into, sums(made), 1, farm.tick)
        if isinstance(kind, ParquetKind):
            return
        for tick, change in put_off.items():
            if (after := table.applied(rows, change)) is None:
                with pytest.raises(wlr.ReplayError, match=f"transaction {tick} cannot be applied"):
                    wlr.retry(into, tick)
                continue
            rows = after
            seen["applied"] += 1
            assert [each.tick for each in wlr.retry(into, tick)] == [tick]
            assert table.held(wlr.read(into, "t")) == rows
        if not wlr.status(into).accepted:
            assert rows == table.rows
            assert {check.outcome for check in wlr.verify(into).tables} <= {"same", "unknown"}

    check()
    assert seen["accepted"]
    assert seen["applied"] or isinstance(kind, ParquetKind)


def sums(made: Sequence[tuple[Bag, Bag]]) -> dict[int, Bag]:
    """What the log adds up to at its beginning and at its end, whatever a replica has applied of it."""
    total: Bag = Counter()
    for added, removed in made:
        total.update(added)
        total.subtract(removed)
    return {1: Counter(), 1 + len(made): +total}

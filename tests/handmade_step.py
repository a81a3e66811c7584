"""A primary whose tables and window a test fills, to judge steps that the test spells out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import journal
from wlc.capture.duckdb.journal import CapturedTable
from wlc.dialect.sql import literal
from wlc.farm.model import Column, Layout, Name, Origin
from wlc.multi_master.duckdb import conflict_window, judging, rejected_rows, verdicts
from wlc.multi_master.duckdb.rejected_rows import Detection
from wlc.multi_master.duckdb.verdicts import Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

P, S = "p" * 32, "s" * 32
LAYOUT = Layout((Column("k", "INTEGER", nullable=False), Column("v", "VARCHAR")), ("k",))
CUT, CAUGHT_UP = {P: 10}, {P: 20}

# One row that a transaction changes: table, key, value before, value after; None where there is no row.
Row = tuple[str, int, str | None, str | None]


@dataclass(frozen=True)
class HandmadeTable:
    table: CapturedTable
    lines: str
    reads: str | None = None


@dataclass
class HandmadePrimary:
    """A primary whose tables and window a test fills."""

    names: Sequence[str] = ("t",)
    rules: Mapping[str, str] = field(default_factory=lambda: {"t": "epoch"})

    def __post_init__(self) -> None:
        self.connection = duckdb.connect()
        self.tables = {
            name: CapturedTable(number, "memory", Name("main", name), LAYOUT)
            for number, name in enumerate(self.names, start=1)
        }
        for name in self.names:
            self.connection.execute(f"CREATE TABLE {name} (k INTEGER PRIMARY KEY, v VARCHAR)")
        conflict_window.create(self.connection)

    def rows(self, table: str, **rows: str) -> None:
        for key, value in rows.items():
            self.connection.execute(f"INSERT INTO {table} VALUES (?, ?)", [int(key[1:]), value])

    def number(self, table: str, key: int) -> int:
        """Return the number of a row by its table and key."""
        number = conflict_window.key_sql(
            self.tables[table].name, conflict_window.key_columns(LAYOUT), [f"{key}::INTEGER"]
        )
        return int(self.connection.execute(f"SELECT {number}").fetchall()[0][0])

    def line(self, table: str, key: int, *, tick: int = 20, history: str = P) -> None:
        """Put a line on a key into the window."""
        named = f"{self.number(table, key)} AS key, '{history}' AS history, {tick} AS tick"
        self.connection.execute(f"INSERT INTO {conflict_window.WINDOW} BY NAME SELECT {named}")

    def reset(self, rows: Mapping[str, Mapping[int, str]], lines: Sequence[tuple[str, int, str, int]]) -> None:
        """Replace all rows, and all lines of the window: table, key, history and tick."""
        conflict_window.create(self.connection)
        for name, held in rows.items():
            self.connection.execute(f"DELETE FROM {name}")
            self._insert(name, [(key, literal(value)) for key, value in held.items()])
        numbers = {(table, key): self.number(table, key) for table, key, _, _ in lines}
        named = [(numbers[table, key], f"'{of}'", tick) for table, key, of, tick in lines]
        self._insert(f"{conflict_window.WINDOW} (key, history, tick)", named)

    def _insert(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            values = ", ".join(f"({', '.join(map(str, row))})" for row in rows)
            self.connection.execute(f"INSERT INTO {table} VALUES {values}")

    def judge(
        self,
        *transactions: Sequence[Row],
        past: Mapping[str, int] | Sequence[Mapping[str, int]] = CUT,
        reads: Sequence[tuple[int, str, int, bool]] = (),
        reads_past: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
        history: str = S,
        ticks: Sequence[int] = (),
    ) -> dict[str, int]:
        """Judge transactions of a site; returns the counters by name."""
        seen = self._seen(transactions, past, reads_past, history, ticks)
        self.found: verdicts.Verdicts = verdicts.judge(
            self.connection, seen, self._step(transactions, reads), self._named_rules()
        )
        return {name: count for (_, name), count in self.found.counts.items()}

    def _seen(
        self, transactions: Sequence[object], past: Any, reads_past: Any, history: str = S, ticks: Sequence[int] = ()
    ) -> list[Seen]:
        """Return what the site had seen when it committed each transaction, and when each began."""
        pasts, began = (self._of_each(transactions, of) for of in (past, reads_past))
        numbers = ticks or range(1, len(transactions) + 1)
        return [
            Seen(line, Origin(history, tick), {history: tick - 1, **each}, read)
            for line, (tick, each, read) in enumerate(zip(numbers, pasts, began, strict=True), start=1)
        ]

    @staticmethod
    def _of_each(transactions: Sequence[object], value: Any) -> Sequence[Any]:
        """Return the values of transactions, or the one that is that of all."""
        return [value] * len(transactions) if value is None or isinstance(value, Mapping) else value

    def count(
        self,
        *transactions: Sequence[Row],
        past: Mapping[str, int] | Sequence[Mapping[str, int]] = CUT,
        reads: Sequence[tuple[int, str, int, bool]] = (),
        reads_past: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    ) -> dict[str, int]:
        """Judge transactions of a site, and answer; returns what users see counted, by name."""
        journal.install(self.connection, "memory")
        for table in self.tables.values():
            journal.add_layout(self.connection, table)
        seen = self._seen(transactions, past, reads_past)
        where = Detection("memory", "oslo", "rome", datetime(2026, 5, 4, tzinfo=UTC))
        judging.judge(self.connection, where, seen, self._step(transactions, reads), self._named_rules())
        return {counter.name: counter.value for counter in rejected_rows.counters(self.connection, "memory")}

    def _named_rules(self) -> dict[Name, str]:
        return {Name("main", name): rule for name, rule in self.rules.items()}

    def _step(
        self, transactions: Sequence[Sequence[Row]], reads: Sequence[tuple[int, str, int, bool]]
    ) -> list[HandmadeTable]:
        """Load the images of a step."""
        found = []
        for name, table in self.tables.items():
            lines, read = f'temp."lines {name}"', f'temp."reads {name}"'
            columns = "c0 INTEGER, c1 VARCHAR"
            self.connection.execute(
                f"CREATE OR REPLACE TEMP TABLE {lines[5:]} (_line BIGINT, _weight TINYINT, {columns});"
                f"CREATE OR REPLACE TEMP TABLE {read[5:]} (_line BIGINT, exclusive BOOLEAN, {columns})"
            )
            images = [
                (line, weight, key, literal(value))
                for line, rows in enumerate(transactions, start=1)
                for of, key, old, new in rows
                for weight, value in ((-1, old), (1, new))
                if of == name and value is not None
            ]
            self._insert(lines, images)
            self._insert(read, [(line, exclusive, key, "''") for line, of, key, exclusive in reads if of == name])
            found.append(HandmadeTable(table, lines, read if reads else None))
        return found

    def rejected(self, columns: str = "line, op, cause") -> list[tuple[Any, ...]]:
        return self.connection.execute(f"SELECT {columns} FROM {verdicts.REJECTED} ORDER BY line, number").fetchall()

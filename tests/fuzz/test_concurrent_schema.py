"""Random statements that three connections run in turns, with schema changes among them, beside DuckDB alone.

Every statement ends as it does in plain DuckDB, and rows and catalog are the same in the end, also in a replica. One
difference is meant: the capture refuses as a conflict what DuckDB accepts although the images of a row would be wrong,
as a row that one transaction updates and another one removes. Plain DuckDB then rolls its transaction back, too.

The connections share one thread. In threads of their own, DuckDB 2.0.1 alone ends within seconds in `FATAL Error: Failed
to delete all rows from index`, when rows of an indexed table are removed beside schema changes.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.oracle import contents, file_contents
from tests.sampling import EXAMPLES, sampled

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

STEPS, CONNECTIONS = 150, 3
# They met faults when the test was written.
SEEDS = [5, 7, 9, 29]
TABLES = ["t", '"a b"']
VALUES = {
    "INTEGER": "7",
    "DECIMAL(9,2)": "12.25",
    "DATE": "DATE '2020-01-05'",
    "VARCHAR": "'v'",
    "DOUBLE": "-0.0",
    "INTEGER[]": "[1, 2]",
    "STRUCT(a INTEGER)": "{'a': 1}",
}
OTHER = (duckdb.CatalogException, duckdb.BinderException, duckdb.ConversionException, duckdb.DependencyException)
CATALOG = """
    SELECT 'table', table_name, sql FROM duckdb_tables() WHERE database_name = 'shop' AND schema_name = 'main'
    UNION ALL SELECT 'view', view_name, sql FROM duckdb_views()
        WHERE database_name = 'shop' AND schema_name = 'main' AND NOT internal
    UNION ALL SELECT 'index', index_name, sql FROM duckdb_indexes()
        WHERE database_name = 'shop' AND schema_name = 'main' ORDER BY ALL
"""


class Statements:
    """Statements at random; the rows fit the table as plain DuckDB has it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def next(self, columns: list[tuple[str, str]], table: str, *, is_open: bool) -> str:
        if self.chance.random() < (0.16 if is_open else 0.5):
            return self.chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]) if is_open else "BEGIN"
        if not columns or self.chance.random() < 0.27:
            return self._schema(table)
        return self._rows(columns, table)

    def _schema(self, table: str) -> str:
        pick, number = self.chance.choice, self.chance.randrange
        column, kind = f"c{number(4)}", pick(list(VALUES))
        others = ", ".join(f"c{place} {pick(list(VALUES))}" for place in range(1 + number(3)))
        layout = f"k INTEGER{pick(['', ' PRIMARY KEY', ' NOT NULL'])}, {others}"
        return pick(
            [
                f"CREATE TABLE IF NOT EXISTS {table} ({layout})",
                f"CREATE TABLE IF NOT EXISTS {table} ({layout})",
                f"CREATE OR REPLACE TABLE {table} ({layout})",
                f"CREATE OR REPLACE TABLE {table} AS SELECT i AS k, 'x' || i AS c0 FROM range(5) AS r(i)",
                f"DROP TABLE IF EXISTS {table}",
                f"ALTER TABLE {table} ADD COLUMN {column} {kind}",
                f"ALTER TABLE {table} DROP COLUMN {column}",
                f"ALTER TABLE {table} RENAME {column} TO c{number(4)}",
                f"ALTER TABLE {table} ALTER {column} TYPE {kind}",
                f"ALTER TABLE {table} ALTER k SET NOT NULL",
                f"ALTER TABLE {table} RENAME TO {pick(TABLES)}",
                f"CREATE INDEX i{number(2)} ON {table} (k)",
                f"DROP INDEX IF EXISTS i{number(2)}",
                f"CREATE OR REPLACE VIEW v AS SELECT k FROM {table}",
            ]
        )

    def _rows(self, columns: list[tuple[str, str]], table: str) -> str:
        pick = self.chance.choice
        rows = ", ".join(self._row(columns) for _ in range(pick([1, 1, 3, 9])))
        changed, kind = pick(columns)
        value = self._value(changed, kind)
        some = f"WHERE k % {1 + self.chance.randrange(4)} = 0"
        return pick(
            [
                *[f"INSERT INTO {table} VALUES {rows}"] * 4,
                f"INSERT OR REPLACE INTO {table} VALUES {self._row(columns)}",
                *[f"UPDATE {table} SET {changed} = {value} {some}"] * 3,
                *[f"DELETE FROM {table} {some}"] * 2,
                f"DELETE FROM {table}",
                f"TRUNCATE {table}",
                f"SELECT count(*) FROM {table}",
            ]
        )

    def _row(self, columns: list[tuple[str, str]]) -> str:
        return f"({', '.join(self._value(name, kind) for name, kind in columns)})"

    def _value(self, column: str, kind: str) -> str:
        return str(self.chance.randrange(50)) if column == "k" else VALUES[kind]


def outcome(connection: Any, statement: str) -> tuple[str, str]:
    """Run a statement, and return how it ended, and DuckDB's words; an error of another class is a fault."""
    try:
        connection.execute(statement).fetchall()
    except duckdb.TransactionException as error:
        return "other" if "is aborted" in str(error) else "conflict", str(error)
    except duckdb.ConstraintException as error:
        return "constraint", str(error)
    except OTHER as error:
        return "other", str(error)
    except (duckdb.Error, wlc.FarmError) as error:
        return type(error).__name__, str(error)
    return "done", ""


def columns(connection: Any, table: str) -> list[tuple[str, str]]:
    query = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? AND schema_name = 'main'"
    try:
        return connection.execute(f"{query} ORDER BY column_index", [table.strip('"')]).fetchall()
    except duckdb.TransactionException:
        return []


class Beside:
    """The same connections twice, captured and to a database of plain DuckDB; each pair runs the same statements."""

    def __init__(self, captured: list[Any], plain: list[Any], seed: int) -> None:
        self.pairs = list(zip(captured, plain, strict=True))
        self.statements = Statements(seed)
        self.is_open = [False] * len(self.pairs)
        self.done: list[str] = []

    def step(self) -> None:
        chance = self.statements.chance
        number, table = chance.randrange(len(self.pairs)), chance.choice(TABLES)
        captured, plain = self.pairs[number]
        statement = self.statements.next(columns(plain, table), table, is_open=self.is_open[number])
        self.done.append(f"{number}: {statement}")
        found = outcome(captured, statement)
        if found[0] == "conflict" and "by another one after it began" in found[1]:
            # DuckDB reports it at the commit, or never.
            self._roll_back(number, captured if statement != "COMMIT" else None)
            return
        expected = outcome(plain, statement)
        assert found[0] == expected[0], (found, expected, self.done)
        if statement in ("BEGIN", "COMMIT", "ROLLBACK"):
            self.is_open[number] = statement == "BEGIN"
        elif self.is_open[number] and expected[0] != "done" and chance.random() < 0.5:
            self._roll_back(number, captured)

    def _roll_back(self, number: int, captured: Any = None) -> None:
        for connection in (captured, self.pairs[number][1]) if self.is_open[number] else ():
            if connection is not None:
                connection.execute("ROLLBACK")
        self.is_open[number] = False

    def end(self) -> None:
        for number in range(len(self.pairs)):
            self._roll_back(number, self.pairs[number][0])


@pytest.mark.parametrize("seed", range(EXAMPLES) if EXAMPLES else sampled(SEEDS, 2))
def test_what_connections_do_in_turns_ends_as_in_duckdb(tmp_path: Path, seed: int) -> None:
    source, beside = tmp_path / "shop.duckdb", tmp_path / "plain" / "shop.duckdb"
    beside.parent.mkdir()
    wlc.master(source, create=True, beat_s=1e6)
    with ExitStack() as stack:
        captured = [stack.enter_context(wlc.connect(source))]
        plain = [stack.enter_context(duckdb.connect(beside))]
        for connections in (captured, plain):
            # A table that does not exist could be a variable of this test.
            connections[0].execute("SET GLOBAL python_enable_replacements = false")
            connections += [stack.enter_context(connections[0].cursor()) for _ in range(CONNECTIONS - 1)]
        run = Beside(captured, plain, seed)
        for _ in range(STEPS):
            run.step()
        run.end()
        assert contents(captured[0], "shop") == contents(plain[0], "shop")
        assert captured[0].execute(CATALOG).fetchall() == plain[0].execute(CATALOG).fetchall()
    wlr.replicate(source, into=tmp_path / "replica.duckdb")
    assert file_contents(tmp_path / "replica.duckdb") == file_contents(source)

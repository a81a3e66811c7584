"""How fast a replica rolls forward, beside DuckDB applying the same net changes by hand."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

import wlr
from tests.bench import tables
from tests.bench.measure import Line, Setting, compare, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 5_000_000
# At least half the speed.
GOAL = 2.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Statements, each a transaction, that lead from one state of the table to the next."""

    name: str
    statements: tuple[str, ...]


def stages(rows: int) -> list[Stage]:
    """What happens to a table of `rows` rows, in this order."""
    fifth = rows // 5
    pieces = min(200, fifth)
    step = fifth // pieces
    mixed = []
    for number in range(pieces):
        low = rows // 2 + number * step // 2
        first = 2 * rows + number * step
        mixed += [
            tables.insert_sql(first, first + step),
            f"UPDATE t SET a = a + 1, b = 'changed' WHERE id >= {low} AND id < {low + step}",
            f"DELETE FROM t WHERE id >= {first} AND id < {first + step // 2}",
        ]
    return [
        Stage(f"insert {fifth:,} rows", (tables.insert_sql(rows, rows + fifth),)),
        Stage(f"update {fifth:,} rows", (f"UPDATE t SET a = a + 1 WHERE id >= {fifth} AND id < {2 * fifth}",)),
        Stage(f"delete {fifth:,} rows", (f"DELETE FROM t WHERE id >= {3 * fifth // 2} AND id < {5 * fifth // 2}",)),
        Stage(f"{len(mixed)} transactions, {pieces * step * 5 // 2:,} rows, mixed", tuple(mixed)),
    ]


def run(setting: Setting) -> Iterator[Line]:
    """Yield a new replica first, then every stage of the log."""
    rows = setting.rows(ROWS)
    folder = tables.fresh(setting.folder / "replay")
    statements = (tables.KEYED, tables.insert_sql(0, rows))
    plain = tables.make_plain(folder / "plain.duckdb", *statements)
    master = tables.make_master(tables.make_plain(folder / "t.duckdb", *statements))
    yield _new_replica(setting, folder, rows)
    # The file that is changed by hand has the same history as the replica: where rows lie in a file matters.
    by_hand = Path(shutil.copy(plain, folder / "by_hand.duckdb"))
    for stage in stages(rows):
        before = Path(shutil.copy(plain, folder / "before.duckdb"))
        tables.execute(master, *stage.statements)
        tables.make_plain(plain, *stage.statements)
        changed = _write_net(before, plain, folder)
        yield _stage(setting, folder, stage, by_hand, changed)
        assert len({_digest(path) for path in (plain, folder / "hand.duckdb", folder / "copy.duckdb")}) == 1, stage.name
        shutil.move(folder / "hand.duckdb", by_hand)
        shutil.move(folder / "copy.duckdb", folder / "replica.duckdb")


def _new_replica(setting: Setting, folder: Path, rows: int) -> Line:
    farm, replica = folder / "farm" / "t", folder / "replica.duckdb"
    snapshot = next((farm / "snapshots").rglob("*.parquet"))

    def plain() -> float:
        path = folder / "new.duckdb"
        path.unlink(missing_ok=True)
        return timed(lambda: tables.make_plain(path, tables.KEYED, f"INSERT INTO t FROM '{snapshot}'"))

    def ours() -> float:
        replica.unlink(missing_ok=True)
        return timed(lambda: wlr.replicate(str(farm), into=replica))

    return compare(f"new replica of {rows:,} rows", setting.rounds, plain, ours, GOAL, rows)


def _write_net(before: Path, after: Path, folder: Path) -> int:
    """Write what the stage took away and brought to two Parquet files; returns the number of rows in them."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{before}' AS o (READ_ONLY); ATTACH '{after}' AS n (READ_ONLY)")
        total = 0
        for name, query in (("gone", "o.t EXCEPT FROM n.t"), ("come", "n.t EXCEPT FROM o.t")):
            found = connection.execute(
                f"COPY (SELECT * FROM (FROM {query}) ORDER BY id) TO '{folder / name}.parquet' (COMPRESSION zstd)"
            )
            total += found.fetchall()[0][0]
        return total


def _digest(path: Path) -> tuple[int, int]:
    """Rows of the table and a number that depends on all of them, whatever their order."""
    with duckdb.connect(str(path), read_only=True) as connection:
        rows, digest = connection.execute("SELECT count(*), bit_xor(hash(t)) FROM t").fetchall()[0]
        return rows, digest


def _stage(setting: Setting, folder: Path, stage: Stage, before: Path, changed: int) -> Line:
    hand, copy, replica = folder / "hand.duckdb", folder / "copy.duckdb", folder / "replica.duckdb"
    statements = (
        "BEGIN",
        f"DELETE FROM t USING '{folder}/gone.parquet' g WHERE t.id = g.id",
        f"INSERT INTO t FROM '{folder}/come.parquet'",
        "COMMIT",
    )

    def plain() -> float:
        shutil.copy(before, hand)
        return timed(lambda: tables.make_plain(hand, *statements))

    def ours() -> float:
        shutil.copy(replica, copy)
        return timed(lambda: wlr.replicate(into=copy, register=False))

    return compare(stage.name, setting.rounds, plain, ours, GOAL, changed)

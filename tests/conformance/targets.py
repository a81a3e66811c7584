"""The kinds of replica that the suite of targets runs against, as their owners and readers see them.

A new engine is one more class here and one more entry of `KINDS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import duckdb
import psycopg

import wlr
from tests.handmade import HandmadeFarm, Rows
from tests.lake import any_file, surplus
from tests.oracle import replayed
from tests.postgres.cluster import Cluster, execute
from tests.postgres.held import Held, held_by_duckdb, held_by_postgres, held_in
from tests.scratch import attached
from wlc.dialect.duckdb import engine
from wlc.farm.model import Clear, Name, SequencePosition
from wlr.engine.contract import DatabaseFile, Guarded, Lake, Rebuildable, Roles
from wlr.engine.duckdb.swapping import lock_of, spare_of
from wlr.engine.postgres.replica_connection import identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Kind(ABC):
    """One engine.

    Attributes:
        noun: What messages call such a replica.
        facets: What only some targets can do, and this one can.
        refusal: What a direct write to a replicated table is refused with; "" if nothing refuses it, or nobody can write
            to a table.
        holds_own: The replica's owner can have tables there, too.
        names_keys: A conflict names the key of its row.
        bag_conflict: How a row of a table without a key that is there too few times is reported.
        is_readable_while_open: Others can read the replica while a run has it open.
        deaths: Module below `wlr.engine` or class in it, function, and the call before which a run is killed.
    """

    noun: ClassVar[str]
    facets: ClassVar[frozenset[type[Any]]]
    refusal: ClassVar[str] = ""
    holds_own: ClassVar[bool] = True
    names_keys: ClassVar[bool] = True
    bag_conflict: ClassVar[str] = r"id = 1, v = a"
    is_readable_while_open: ClassVar[bool] = True
    deaths: ClassVar[Sequence[tuple[str, str, int]]] = ()

    @abstractmethod
    def new(self) -> str:
        """Return a place where there is no replica yet."""

    @abstractmethod
    def held(self, into: str) -> Held:
        """Every row of every replicated table as a reader sees it; empty if nothing is there."""

    @abstractmethod
    def write(self, into: str, statement: str) -> None:
        """Write to the replica past `wlr`, as its owner would."""

    def left_over(self, into: str) -> list[str]:
        """Temporary files that no run needs any more."""
        return []


class DuckDBKind(Kind):
    noun = "a DuckDB file"
    facets = frozenset({DatabaseFile, Guarded, Rebuildable})
    refusal = "t belongs to a replica"
    is_readable_while_open = False
    deaths = (
        ("duckdb.build", "_load_table", 2),
        ("duckdb.build", "_finish", 1),
        ("duckdb.build", "_put_in_place", 1),
        ("duckdb.changes", "write", 2),
        ("duckdb.guard", "put_on", 2),
        ("duckdb.wlr_schema", "write", 3),
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def new(self) -> str:
        self.made += 1
        return str(self.folder / f"copy{self.made}.duckdb")

    def held(self, into: str) -> Held:
        path = self.folder / into
        return held_by_duckdb(path) if path.exists() else {}

    def write(self, into: str, statement: str) -> None:
        with duckdb.connect(into) as connection:
            connection.execute(statement)

    def left_over(self, into: str) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.name.startswith(".")]


class SwappingKind(DuckDBKind):
    """A DuckDB file whose rounds go to a second one, as if every caller said so."""

    holds_own = False
    is_readable_while_open = True

    def left_over(self, into: str) -> list[str]:
        kept = {spare_of(Path(into)).name, lock_of(Path(into)).name}
        return [name for name in super().left_over(into) if name not in kept]


class OlderDuckDBKind(DuckDBKind):
    """A DuckDB file for older readers, as if every caller said so: it has no triggers."""

    refusal = ""

    def held(self, into: str) -> Held:
        if (self.folder / into).exists():
            with attached(into) as connection:
                assert engine.storage_version(connection, Path(into).stem) == "v1.4.0"
        return super().held(into)


class ParquetKind(Kind):
    noun = "a Parquet replica"
    facets = frozenset({Lake, Rebuildable})
    holds_own = False
    names_keys = False
    bag_conflict = "1 of 3 rows to remove"
    deaths = (
        ("parquet.folder.LakeFolder", "write_version", 1),
        ("parquet.folder.LakeFolder", "replace_pointer", 1),
        ("parquet.folder.LakeFolder", "commit_pointer", 1),
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def new(self) -> str:
        self.made += 1
        return str(self.folder / f"lake{self.made}")

    def held(self, into: str) -> Held:
        path = self.folder / into
        return held_by_duckdb(any_file(path)) if (path / "wlr.pointer").exists() else {}

    def write(self, into: str, statement: str) -> None:
        raise NotImplementedError(f"the files of {into} never change")

    def left_over(self, into: str) -> list[str]:
        return surplus(into)


class PostgresKind(Kind):
    noun = "a PostgreSQL database"
    facets = frozenset({Guarded, Roles})
    refusal = r"table public\.t belongs to a replica.*wlr replica unlock"
    deaths = (
        ("postgres.wlr_schema", "write_tables", 1),
        ("postgres.wlr_schema", "write", 1),
    )

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def new(self) -> str:
        return self.cluster.create_database()

    def held(self, into: str) -> Held:
        return held_by_postgres(into)

    def write(self, into: str, statement: str) -> None:
        execute(into, statement)

    def left_over(self, into: str) -> list[str]:
        import tempfile

        with psycopg.connect(into) as connection:
            left = Path(tempfile.gettempdir()) / f"wlr-{identity(connection)}"
        return [str(left)] if left.exists() else []


# What the tests share ------------------------------------------------------------------------------------------------

T = Name("main", "t")
KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


def rows(*ids: int, v: str = "a") -> tuple[str, ...]:
    return tuple(f"{id_}, '{v}'" for id_ in ids)


def modelled(farm: HandmadeFarm, tick: int) -> Held:
    """What the database held at a tick, by the model."""
    with replayed(farm.url, tick) as (connection, catalog):
        return held_in(connection, catalog)


def in_t(*rows_: tuple[object, ...]) -> dict[str, int]:
    """Rows of table t as `Kind.held` shows them."""
    return {repr(list(row)): rows_.count(row) for row in rows_}


def replicate(farm: HandmadeFarm, into: str, tick: int | None = None) -> wlr.Replicated:
    return wlr.replicate(farm.url, into=into, tick=tick, engine="local")


def publish_everything(farm: HandmadeFarm) -> None:
    """Publish transactions of many kinds, in two batches."""
    sequence = SequencePosition(Name("main", "s"), 7)
    farm.publish(
        [KEYED, "CREATE SEQUENCE s START 5"],
        [Rows("t", rows(1, 2, 3)), sequence],
        [Rows("t", rows(2, v="b"), rows(2))],
        None,
    )
    farm.publish(
        [Rows("t", removed=rows(1)), "CREATE TABLE bag (x DOUBLE, s VARCHAR)", Rows("bag", ("0.0, 'x'",) * 3)],
        [Rows("t", rows(1, v="again"), ())],
        [Rows("t", rows(9), rows(3)), Rows("bag", ("-0.0::DOUBLE, NULL", "5, ''"), ("0.0, 'x'",) * 2)],
        [Clear(T, 3), Rows("t", rows(5))],
        [Rows("t", rows(6))],
        [Clear(Name("main", "bag"), 3)],
        ["ALTER TABLE bag ADD COLUMN z INTEGER", Rows("bag", ("1, 'y', 7",) * 4)],
        [Rows("bag", ("2, 'y', 7",), ("1, 'y', 7",) * 3)],
        ["DROP TABLE t"],
    )

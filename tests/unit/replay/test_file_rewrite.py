"""The kernel of Parquet replicas against the simplest model: a bag of rows that change one by one."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wlc.dialect.duckdb.fold import RowImages, TargetTable
from wlc.dialect.sql import literal, quote
from wlc.dialect.types import store_sql
from wlc.farm.model import Column, Layout, Name, file_column
from wlr.engine.calculator import connect
from wlr.engine.parquet.executor import place_of_added
from wlr.replay.fold import file_rewrite, unfit_changes
from wlr.replay.fold.files import FilePart, assemble
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wlr.replay.fold.file_rewrite import Merged, Piece

# Names that the kernel uses itself, that SQL has other uses for, and aliases that a struct could be taken for.
COLUMNS = (
    Column("part", "INTEGER"),
    Column("k0", "DOUBLE"),
    Column("_tick", "VARCHAR"),
    Column('q"u', "DOUBLE"),
    Column("n", "STRUCT(part INTEGER, k0 DOUBLE)"),
    Column("range", "DOUBLE[]"),
    Column("tâken", "HUGEINT"),
)
NAME = Name("main", "t")
KEYED = TargetTable(NAME, "t", Layout(COLUMNS, ("part",)))
COMPOSITE = TargetTable(NAME, "t", Layout(COLUMNS, ("k0", "_tick")))
BAG = TargetTable(NAME, "t", Layout(COLUMNS))
TABLES = [KEYED, COMPOSITE, BAG]
Row = tuple[str, ...]
FLOATS = st.sampled_from(["0.0", "'-0.0'", "'nan'", "'-inf'", "1.5"])
OTHERS = (
    st.sampled_from(["0.0", "'-0.0'", "'nan'", "NULL"]),
    st.sampled_from(
        ["{'part': 1, 'k0': 0.0}", "{'part': 1, 'k0': -0.0::DOUBLE}", "{'part': NULL, 'k0': 'nan'}", "NULL"]
    ),
    st.sampled_from(["[]", "[0.0]", "[-0.0::DOUBLE, NULL]", "NULL"]),
    st.sampled_from(["1", "-170141183460469231731687303715884105728", "NULL"]),
)
ROWS = st.tuples(
    st.integers(0, 9).map(str), FLOATS, st.sampled_from(["''", "'a'", "'Ä'", "'it''s'", "'z' || chr(0)"]), *OTHERS
)
BAG_ROWS = st.one_of(
    ROWS, st.tuples(st.sampled_from(["1", "NULL"]), st.one_of(FLOATS, st.just("NULL")), st.just("NULL"), *OTHERS)
)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    opened = connect(tmp_path_factory.mktemp("kernel"))
    yield opened
    opened.close()


numbers = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def key_of(table: TargetTable, row: Row) -> tuple[str, ...]:
    """The key as the model has it; DuckDB takes both zeros for one key."""
    names = [column.name for column in COLUMNS]
    texts = (row[names.index(column.name)] for column in table.key)
    return tuple("0.0" if text == "'-0.0'" else text for text in texts)


def typed(column: Column, text: str) -> str:
    return f"CAST({text} AS {column.type})"


def new_folder(folder: Path) -> Path:
    made = folder / str(next(numbers))
    made.mkdir()
    return made


def write(
    connection: duckdb.DuckDBPyConnection, folder: Path, images: Sequence[tuple[int, int, Row]], *, plain: bool = False
) -> Path:
    """Write images (tick, weight, row) as the farm does, or only rows as a file of a replica has them."""
    declared = ", ".join(f"c{number} {column.type}" for number, column in enumerate(COLUMNS))
    connection.execute(f"CREATE OR REPLACE TEMP TABLE images (tick BIGINT, weight TINYINT, {declared})")
    if images:
        # Cast one by one: values of one column of VALUES would be cast to each other's types first.
        values = ", ".join(f"({tick}, {weight}, {', '.join(map(typed, COLUMNS, row))})" for tick, weight, row in images)
        connection.execute(f"INSERT INTO images VALUES {values}")
    stored = ", ".join(
        f"{store_sql(column, f'c{number}')} AS {quote(file_column(column.name))}"
        for number, column in enumerate(COLUMNS)
    )
    head = "" if plain else "tick AS _tick, weight AS _weight, "
    target = new_folder(folder) / "rows.parquet"
    connection.execute(f"COPY (SELECT {head}{stored} FROM temp.images) TO {literal(str(target))} (FORMAT parquet)")
    return target


def texts(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> Counter[tuple[str, ...]]:
    """Rows of files as text, which shows the sign of zero."""
    found: Counter[tuple[str, ...]] = Counter()
    columns = ", ".join(f"CAST({quote(file_column(column.name))} AS VARCHAR)" for column in COLUMNS)
    for file in files:
        found.update(connection.execute(f"SELECT {columns} FROM read_parquet({literal(str(file))})").fetchall())
    return found


@dataclass
class Files:
    """A table as the executors keep it: pieces in order, changed by one step after another."""

    connection: duckdb.DuckDBPyConnection
    folder: Path
    table: TargetTable
    pieces: list[Piece]

    @classmethod
    def of(
        cls, connection: duckdb.DuckDBPyConnection, folder: Path, table: TargetTable, rows: list[list[Row]]
    ) -> Files:
        """Cut rows into files where the lists end; those of a keyed table have to come in key order."""
        pieces: list[Piece] = []
        for listed in rows:
            file = write(connection, folder, [(0, 1, row) for row in listed], plain=True)
            pieces += file_rewrite.split(connection, table, [file], new_folder(folder))
        return cls(connection, folder, table, pieces)

    def step(self, images: Sequence[tuple[int, int, Row]], rows_per_file: int = file_rewrite.ROWS_PER_FILE) -> None:
        work = new_folder(self.folder)
        ticks = [tick for tick, _, _ in images]
        source = RowImages((str(write(self.connection, self.folder, images)),), min(ticks), max(ticks))
        lows = [piece.low for piece in self.pieces]
        routed = file_rewrite.route(self.connection, self.table, [source], lows, work / "changes")
        changes = routed if self.table.key else self._share_out(routed.get(0, []), work)
        results: dict[int, tuple[Merged, tuple[FilePart, ...]]] = {}
        made: list[tuple[int, Merged]] = []
        for number, files in sorted(changes.items()):
            base = self.pieces[number] if number < len(self.pieces) else None
            into = work / f"part {number}"
            into.mkdir()
            made.append(
                (
                    number,
                    file_rewrite.merge(self.connection, self.table, base, files, into, rows_per_file=rows_per_file),
                )
            )
        results = {number: (merged, merged.pieces) for number, merged in made}
        self.pieces = list(assemble(self.pieces, results).parts)  # type: ignore[arg-type]
        self.check()

    def _share_out(self, changes: list[Path], work: Path) -> dict[int, list[Path]]:
        net = file_rewrite.net_of_bag(self.connection, self.table, changes, work)
        found = [work / f"found {number}.parquet" for number in range(len(self.pieces))]
        for piece, file in zip(self.pieces, found, strict=True):
            file_rewrite.find_copies(self.connection, self.table, piece.path, net.removed_file, file)
        shares = file_rewrite.share_out(self.connection, self.table, net, found, work) if found and net.removed else {}
        shared = {number: [file] for number, file in shares.items()}
        if net.removed and not found:
            raise unfit_changes.missing(self.table.name, net.removed, net.removed)
        if net.added:
            last = len(self.pieces) - 1 if self.pieces and self.pieces[-1].rows < 4 else len(self.pieces)
            shared.setdefault(last, []).append(net.added_file)
        return shared

    def check(self) -> None:
        """Files have the rows that they are said to have, in ranges of keys that do not overlap."""
        row = file_rewrite._key(self.table, "t") if self.table.key else "0"
        bounds = []
        for piece in self.pieces:
            low, high = (
                file_rewrite._key_of(self.table, key) if self.table.key else "0" for key in (piece.low, piece.high)
            )
            query = f"SELECT count(*), bool_and({row} BETWEEN {low} AND {high}) FROM read_parquet('{piece.path}') AS t"
            assert self.connection.execute(query).fetchall() == [(piece.rows, True)]
            bounds.append((low, high))
        for (_, high), (low, _) in pairwise(bounds) if self.table.key else ():
            assert self.connection.execute(f"SELECT {high} < {low}").fetchall() == [(True,)], (high, low)

    def texts(self) -> Counter[tuple[str, ...]]:
        return texts(self.connection, [piece.path for piece in self.pieces])


def in_key_order(connection: duckdb.DuckDBPyConnection, table: TargetTable, rows: list[Row]) -> list[Row]:
    key = [COLUMNS.index(column) for column in table.key]
    listed = ", ".join(
        f"({number}, {', '.join(typed(COLUMNS[i], row[i]) for i in key)})" for number, row in enumerate(rows)
    )
    declared = ", ".join(f"k{i} {COLUMNS[i].type}" for i in key)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE sorted (number INTEGER, {declared})")
    connection.execute(f"INSERT INTO sorted VALUES {listed}")
    order = ", ".join(f"k{i}" for i in key)
    return [rows[n] for (n,) in connection.execute(f"SELECT number FROM temp.sorted ORDER BY {order}").fetchall()]


@pytest.mark.slow
@settings(max_examples=10)
@given(data=st.data())
@pytest.mark.parametrize("table", TABLES, ids=["keyed", "composite", "bag"])
def test_serial_and_folded_equal_the_model(
    connection: duckdb.DuckDBPyConnection, folder: Path, table: TargetTable, data: st.DataObject
) -> None:
    """One transaction after the other, all at once, and cut anywhere: the same rows, and those of the model."""
    rows = ROWS if table.key else BAG_ROWS
    start = data.draw(st.lists(rows, max_size=8, unique_by=(lambda row: key_of(table, row)) if table.key else None))
    if table.key and start:
        start = in_key_order(connection, table, start)
    cuts = sorted(data.draw(st.sets(st.integers(1, 7), max_size=3)))
    cut = [start[a:b] for a, b in pairwise([0, *cuts, len(start)]) if start[a:b]]
    model, images = list(start), []
    for tick in range(1, data.draw(st.integers(1, 8)) + 1):
        goes = data.draw(st.sampled_from([None, *dict.fromkeys(model)]))
        comes = data.draw(st.none() | rows)
        gone = [goes] if goes is not None else []
        if comes is not None and table.key:
            gone += [row for row in model if key_of(table, row) == key_of(table, comes) and row not in gone]
        for row in gone:
            model.remove(row)
            images.append((tick, -1, row))
        if comes is not None:
            model.append(comes)
            images.append((tick, 1, comes))
    ticks = sorted({tick for tick, _, _ in images})
    places = sorted(data.draw(st.sets(st.sampled_from(ticks), max_size=3))) if ticks else []
    expected = texts(connection, [write(connection, folder, [(0, 1, row) for row in model], plain=True)])
    for ends in (ticks, ticks[-1:], [*places, *ticks[-1:]]):
        files, first = Files.of(connection, folder, table, cut), 0
        for end in ends:
            if step := [image for image in images if first < image[0] <= end]:
                files.step(step)
            first = end
        assert files.texts() == expected


# Files that split ----------------------------------------------------------------------------------------------------


NUMBERS = TargetTable(NAME, "t", Layout((Column("id", "INTEGER"), Column("v", "VARCHAR")), ("id",)))
ROWS_PER_FILE = 2048


class Numbers:
    """A table of numbers, to have many rows: changes are given as queries."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path, table: TargetTable, query: str) -> None:
        self.connection, self.folder, self.table = connection, folder, table
        connection.execute(f"CREATE OR REPLACE TABLE model AS SELECT id::INTEGER AS id, v FROM ({query})")
        file = self._copy("SELECT * FROM model")
        self.pieces = list(
            file_rewrite.split(connection, table, [file], new_folder(folder), rows_per_file=ROWS_PER_FILE)
        )

    def _copy(self, query: str) -> Path:
        file = new_folder(self.folder) / "rows.parquet"
        self.connection.execute(f"COPY ({query}) TO {literal(str(file))} (FORMAT parquet)")
        return file

    def step(self, added: str | None = None, removed: str | None = None) -> list[Merged]:
        """Remove and add the rows that queries select; returns what became of each file that was touched."""
        parts = []
        for weight, query in ((-1, removed), (1, added)):
            if query:
                parts.append(
                    f"SELECT 1::BIGINT AS _tick, {weight}::TINYINT AS _weight, id::INTEGER AS id, v FROM ({query})"
                )
        file = self._copy(" UNION ALL ".join(parts))
        if removed:
            self.connection.execute(
                f"DELETE FROM model WHERE id IN (SELECT id FROM {literal(str(file))} WHERE _weight < 0)"
            )
        if added:
            self.connection.execute(f"INSERT INTO model SELECT id, v FROM ({added})")
        source = RowImages((str(file),), 1, 1)
        work = new_folder(self.folder)
        lows = [piece.low for piece in self.pieces]
        results = {}
        for number, files in sorted(
            file_rewrite.route(self.connection, self.table, [source], lows, work / "c").items()
        ):
            (work / str(number)).mkdir()
            base = self.pieces[number] if self.pieces else None
            merged = file_rewrite.merge(
                self.connection, self.table, base, files, work / str(number), rows_per_file=ROWS_PER_FILE
            )
            results[number] = merged, merged.pieces
        self.pieces = list(assemble(self.pieces, results).parts)  # type: ignore[arg-type]
        self.check()
        return [merged for merged, _ in results.values()]

    def check(self) -> None:
        ranges = [tuple(int(key[0]) for key in (piece.low, piece.high)) for piece in self.pieces]
        for (low, high), piece in zip(ranges, self.pieces, strict=True):
            query = f"SELECT count(*), min(id) >= {low}, max(id) <= {high} FROM '{piece.path}'"
            assert self.connection.execute(query).fetchall() == [(piece.rows, True, True)]
        assert all(one[1] < other[0] for one, other in pairwise(ranges)), ranges
        files = ", ".join(literal(str(piece.path)) for piece in self.pieces)
        found = f"SELECT id, v FROM read_parquet([{files}])" if files else "SELECT id, v FROM model WHERE false"
        both = f"((FROM model) EXCEPT ALL ({found})) UNION ALL (({found}) EXCEPT ALL (FROM model))"
        assert self.connection.execute(f"SELECT count(*) FROM ({both})").fetchall() == [(0,)]


def numbers_from(first: int, end: int, step: int = 1, v: str = "a") -> str:
    return f"SELECT i AS id, '{v}' AS v FROM range({first}, {end}, {step}) AS r(i)"


def test_large_files_are_split_in_key_order(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    table = Numbers(
        connection, folder, NUMBERS, "SELECT (i * 7919) % 20011 * 10 AS id, 'a' AS v FROM range(20000) r(i)"
    )
    assert len(table.pieces) == 10
    assert all(piece.rows <= 2 * ROWS_PER_FILE for piece in table.pieces)
    # Between the keys of one file, until it is too large.
    (merged,) = table.step(numbers_from(1, 1 + 10 * 2000, 10))
    assert (merged.keeps_base, merged.added, len(merged.pieces)) == (False, 2000, 1)
    (merged,) = table.step(numbers_from(2, 2 + 10 * 2000, 10))
    assert len(merged.pieces) == 3
    assert len(table.pieces) == 12


def test_rows_behind_the_last_one_leave_the_file_alone(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    table = Numbers(connection, folder, NUMBERS, numbers_from(0, 1500))
    before = table.pieces
    (merged,) = table.step(numbers_from(1500, 1510))
    assert merged.keeps_base
    assert table.pieces[0] is before[0]
    assert [piece.rows for piece in table.pieces] == [1500, 10]
    (merged,) = table.step(numbers_from(1510, 1520))
    assert not merged.keeps_base, "the last file is small"
    assert [piece.rows for piece in table.pieces] == [1500, 20]
    (merged,) = table.step(numbers_from(3000, 13000))
    assert len(table.pieces) > 4


def test_changes_find_their_files(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    table = Numbers(connection, folder, NUMBERS, numbers_from(0, 3 * ROWS_PER_FILE * 10, 10))
    first, second, third = table.pieces
    # Below the first, above the last, between two, and the smallest key of a file.
    source = numbers_from(-5, -4) + f" UNION ALL {numbers_from(10**6, 10**6 + 1)}"
    table.step(source)
    assert table.pieces[1] is second
    assert table.pieces[0].low == ("-5",)
    assert table.pieces[-1].high == ("1000000",)
    last_of_first = int(first.high[0])
    kept = table.pieces[2:]
    table.step(
        numbers_from(last_of_first + 1, last_of_first + 2), numbers_from(int(second.low[0]), int(second.low[0]) + 1)
    )
    # The new row lies behind all of the first file, which therefore stays as it is.
    assert table.pieces[3:] == kept
    assert table.pieces[1].low == table.pieces[1].high == (str(last_of_first + 1),)
    # A file that loses all of its rows goes, and keys of its range find another one.
    gone = table.pieces[2]
    low, high = int(gone.low[0]), int(gone.high[0])
    table.step(removed=f"FROM model WHERE id BETWEEN {low} AND {high}")
    assert len(table.pieces) == 4
    assert gone not in table.pieces
    table.step(numbers_from(low, high))
    table.step(removed="FROM model")
    assert table.pieces == []
    table.step(numbers_from(7, 9))
    assert [(piece.rows, piece.low, piece.high) for piece in table.pieces] == [(2, ("7",), ("8",))]


def test_added_rows_lie_in_the_order_of_their_keys(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    table = Numbers(connection, folder, NUMBERS, numbers_from(0, 10_000, 10))
    (merged,) = table.step("SELECT (i * 7919) % 1000 * 10 + 1 AS id, 'b' AS v FROM range(900) AS r(i)")
    (piece,) = merged.pieces
    found = connection.execute(f"SELECT id FROM '{piece.path}' WHERE v = 'b'").fetchall()
    assert len(found) == 900
    assert found == sorted(found)


# What does not fit ---------------------------------------------------------------------------------------------------


def row(key: int, v: str = "0.0") -> Row:
    return (str(key), "1.5", "'a'", v, "NULL", "NULL", "1")


MISSING = [
    ([], [(1, -1, row(1))]),
    ([[row(1)]], [(1, -1, row(2))]),
    ([[row(1)], [row(3)]], [(1, -1, row(3)), (2, -1, row(2))]),
    ([[row(1)]], [(1, -1, row(1, "'-0.0'"))]),
    ([[row(1)]], [(1, -1, row(1, "1.5")), (1, 1, row(1, "2.5"))]),
    ([[row(1), row(2)]], [(1, -1, row(1, "1.5")), (1, -1, row(2))]),
]


@pytest.mark.parametrize("table", [KEYED, BAG], ids=["keyed", "bag"])
@pytest.mark.parametrize("start, images", MISSING)
def test_row_that_is_not_as_it_was_in_the_master(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    table: TargetTable,
    start: list[list[Row]],
    images: list[tuple[int, int, Row]],
) -> None:
    files = Files.of(connection, folder, table, start)
    before, rows = list(files.pieces), files.texts()
    with pytest.raises(StepError, match="rows to remove are not in the replica as they were in the master"):
        files.step(images)
    assert (files.pieces, files.texts()) == (before, rows)


def test_bag_has_too_few_copies(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    files = Files.of(connection, folder, BAG, [[row(1)] * 2, [row(2)], [row(1)]])
    with pytest.raises(StepError, match="1 of 4 rows to remove"):
        files.step([(tick, -1, row(1)) for tick in range(1, 5)])
    files.step([(tick, -1, row(1)) for tick in range(1, 4)])
    assert [piece.rows for piece in files.pieces] == [1]


@pytest.mark.parametrize("start", [[[row(1), row(2)]], [[row(0)], [row(1)], [row(2)]]])
def test_key_is_there_already(connection: duckdb.DuckDBPyConnection, folder: Path, start: list[list[Row]]) -> None:
    files = Files.of(connection, folder, KEYED, start)
    with pytest.raises((StepError, duckdb.Error), match=r"main\.t exists in the replica already: part = 1"):
        files.step([(1, 1, row(1, "2.5"))])


@pytest.mark.parametrize("start", [[], [[row(5)]], [[row(1)]]])
def test_key_added_twice(connection: duckdb.DuckDBPyConnection, folder: Path, start: list[list[Row]]) -> None:
    files = Files.of(connection, folder, KEYED, start)
    with pytest.raises(StepError, match="changes a key twice") as caught:
        files.step([(1, 1, row(1, "2.5")), (2, 1, row(1, "3.5"))])
    assert caught.value.key == "part = 1"


def test_changes_that_cancel_leave_the_file_alone(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    files = Files.of(connection, folder, KEYED, [[row(1)]])
    before = list(files.pieces)
    files.step([(1, -1, row(1)), (2, 1, row(1)), (3, 1, row(9)), (4, -1, row(9))])
    assert files.pieces == before


def test_nothing_to_route(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    source = RowImages((str(write(connection, folder, [(1, 1, row(1))])),), 5, 6)
    for table in (KEYED, BAG):
        assert file_rewrite.route(connection, table, [source], [], new_folder(folder) / "none") == {}


@pytest.mark.parametrize(
    "rows, place", [([], 0), ([file_rewrite.ROWS_PER_FILE], 1), ([9, file_rewrite.ROWS_PER_FILE // 3], 1)]
)
def test_place_of_added_rows(rows: list[int], place: int) -> None:
    from wlc.farm.model import DataFile

    parts = [FilePart(DataFile("data/main.t/000000000001-0a-0.parquet", count, 1, "0" * 64)) for count in rows]
    assert place_of_added(parts) == place


KEYS = [
    ("BLOB", ["'\\x00\\x5C\\xFF'::BLOB", "''::BLOB"]),
    (
        "TIMESTAMP WITH TIME ZONE",
        ["'infinity'", "'-infinity'", "'2026-03-29 02:30:00+02'", "'0044-03-15 (BC) 00:00:00+00'"],
    ),
    ("DATE", ["'0044-03-15 (BC)'", "'9999-12-31'"]),
    ("FLOAT", ["0.1", "16777217", "'nan'", "'-0.0'"]),
    ("VARCHAR", ["''", "'é😀'", "'a''b'", "chr(0)", "'a\nb'", "'\\'"]),
    ("UUID", ["'ffffffff-0000-0000-0000-000000000000'", "'00000000-0000-0000-0000-000000000001'"]),
    ("DECIMAL(38,10)", ["1234567890123456789012345678.0123456789", "-0.0000000001"]),
    ("TIME_NS", ["'23:59:59.999999999'", "'00:00:00'"]),
    ("INTERVAL", ["'1 month'", "'30 days 1 microsecond'"]),
    ("ENUM('b', 'a')", ["'a'", "'b'"]),
]


@pytest.mark.parametrize("type_text, values", KEYS, ids=[text for text, _ in KEYS])
def test_bounds_of_every_sort_of_key(
    connection: duckdb.DuckDBPyConnection, folder: Path, type_text: str, values: list[str]
) -> None:
    """Bounds are kept as texts, from which the keys come back exactly: one file for each key, and each finds its own."""
    column = Column("k", type_text)
    table = TargetTable(NAME, "t", Layout((column,), ("k",)))
    pieces: list[tuple[Any, ...]] = []
    for value in values:
        file = new_folder(folder) / "row.parquet"
        stored = store_sql(column, f"CAST({value} AS {type_text})")
        connection.execute(f"COPY (SELECT 1 AS _tick, 1 AS _weight, {stored} AS k) TO '{file}' (FORMAT parquet)")
        pieces += [(file, *file_rewrite.split(connection, table, [file], new_folder(folder)))]
    low = {file: piece.low for file, piece in pieces}
    order = ", ".join(literal(str(file)) for file, _ in pieces)
    ranked = connection.execute(f"SELECT filename FROM read_parquet([{order}], filename = true) ORDER BY k").fetchall()
    files = [Path(name) for (name,) in ranked]
    for number, file in enumerate(files):
        sources = [RowImages((str(file),), 1, 1)]
        routed = file_rewrite.route(connection, table, sources, [low[each] for each in files], new_folder(folder) / "c")
        assert list(routed) == [number], (low, file)


def test_work_stays_in_its_folder(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as work:
        opened = connect(Path(work), threads=1, memory="100MB")
        assert opened.execute("SELECT current_setting('threads'), current_setting('TimeZone')").fetchall() == [
            (1, "UTC")
        ]
        opened.close()
    assert list(tmp_path.iterdir()) == []

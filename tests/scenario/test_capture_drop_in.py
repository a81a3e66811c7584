"""A program that was written for DuckDB's connection takes wlc's: it sets `duckdb.connect`, and checks types."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import shutil
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

import duckdb
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import wlc
import wlr
from tests.new_master import new_master
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wlc.capture.duckdb.connection import Connection

FRAME = pd.DataFrame({"a": [7, 8]})
ARROW = pa.table({"a": [9]})
INTEGER = duckdb.sqltype("INTEGER")
_SELECT = "SELECT a FROM t ORDER BY a"


# The arguments of a call of each public method and property, and of each function with `connection`, after its query.
CALLS: dict[str, tuple[str | None, tuple[Any, ...]]] = {
    "abort": (_SELECT, ()),
    "aggregate": (None, (FRAME, "sum(a)")),
    "alias": (None, (FRAME, "x")),
    "append": (None, ("t", FRAME)),
    "appender": (None, ("t",)),
    "array_type": (None, (INTEGER, 3)),
    "arrow": (None, (ARROW,)),
    "begin": (None, ()),
    "checkpoint": (None, ()),
    "close": (None, ()),
    "commit": ("BEGIN; INSERT INTO t VALUES (10)", ()),
    "complete": (_SELECT, ()),
    "create_function": (None, ("one", lambda: 1, [], "INTEGER")),
    "cursor": (None, ()),
    "decimal_type": (None, (9, 2)),
    "description": (_SELECT, ()),
    "df": (_SELECT, ()),
    "disable_profiling": (None, ()),
    "distinct": (None, (FRAME,)),
    "dtype": (None, ("INTEGER",)),
    "duplicate": (None, ()),
    "enable_profiling": (None, ()),
    "enum_type": (None, ("mood", INTEGER, [1])),
    "execute": (None, ("INSERT INTO t VALUES (?)", [11])),
    "executemany": (None, ("INSERT INTO t VALUES (?)", [[12], [13]])),
    "extract_statements": (None, ("SELECT 1; SELECT 2",)),
    "fetch_df": (_SELECT, ()),
    "fetch_df_chunk": (_SELECT, ()),
    "fetchall": ("INSERT INTO t VALUES (14) RETURNING a", ()),
    "fetchdf": (_SELECT, ()),
    "fetchmany": (_SELECT, (2,)),
    "fetchnumpy": (_SELECT, ()),
    "fetchone": ("DELETE FROM t WHERE a = 1", ()),
    "filesystem_is_registered": (None, ("memory",)),
    "filter": (None, (FRAME, "a > 7")),
    "from_arrow": (None, (ARROW,)),
    "from_csv_auto": (None, ("t.csv",)),
    "from_df": (None, (FRAME,)),
    "from_parquet": (None, ("t.parquet",)),
    "from_query": (None, (_SELECT,)),
    "get_profiling_information": (None, ()),
    "get_table_names": (None, (_SELECT,)),
    "install_extension": (None, ("./nothing.duckdb_extension",)),
    "interrupt": (None, ()),
    "limit": (None, (FRAME, 1)),
    "list_filesystems": (None, ()),
    "list_type": (None, (INTEGER,)),
    "load_extension": (None, ("no such extension",)),
    "map_type": (None, (INTEGER, INTEGER)),
    "order": (None, (FRAME, "a DESC")),
    "project": (None, (FRAME, "a + 1 AS b")),
    "query": (None, ("INSERT INTO t VALUES (15)",)),
    "query_appender": (None, ("INSERT INTO t VALUES (21)", {"a": INTEGER})),
    "query_df": (None, (FRAME, "f", "SELECT max(a) FROM f")),
    "query_progress": (None, ()),
    "read_csv": (None, ("t.csv",)),
    "read_json": (None, ("t.json",)),
    "read_parquet": (None, ("t.parquet",)),
    "register": (None, ("more", FRAME)),
    "register_filesystem": (None, (fsspec.filesystem("memory"),)),
    "remove_function": (None, ("nothing",)),
    "rollback": ("BEGIN; INSERT INTO t VALUES (16)", ()),
    "row_type": (None, ({"a": INTEGER},)),
    "rowcount": ("UPDATE t SET a = a + 100", ()),
    "sql": (None, (_SELECT,)),
    "sqltype": (None, ("INTEGER",)),
    "string_type": (None, ()),
    "struct_type": (None, ({"a": INTEGER},)),
    "table": (None, ("t",)),
    "table_function": (None, ("range", [3])),
    "tf": (_SELECT, ()),
    "to_arrow_reader": (_SELECT, ()),
    "to_arrow_table": (_SELECT, ()),
    "torch": (_SELECT, ()),
    "type": (None, ("INTEGER",)),
    "union_type": (None, ({"a": INTEGER},)),
    "unregister": (None, ("nothing",)),
    "unregister_filesystem": (None, ("nothing",)),
    "values": (None, ([1, 2],)),
    "view": (None, ("v",)),
    "write_csv": (None, (FRAME, "out.csv")),
}
METHODS = sorted(name for name in dir(duckdb.DuckDBPyConnection) if not name.startswith("_"))


def _takes_a_connection(function: Any) -> bool:
    if hasattr(original := inspect.unwrap(function), "__nb_signature__"):
        return "connection:" in original.__nb_signature__[0][0]
    return inspect.isfunction(function) and bool(
        {"connection", "kwargs"} & inspect.signature(function).parameters.keys()
    )


FUNCTIONS = sorted(name for name in duckdb.__all__ if _takes_a_connection(getattr(duckdb, name)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database, and a master that is a copy of it."""
    folder = tmp_path_factory.mktemp("made")
    with duckdb.connect(str(folder / "plain.duckdb")) as plain:
        plain.execute("CREATE TABLE t AS SELECT range::INTEGER AS a FROM range(5); CREATE VIEW v AS FROM t")
        for kind in ("csv", "json", "parquet"):
            plain.execute(f"COPY t TO '{folder}/t.{kind}'")
    shutil.copy(folder / "plain.duckdb", folder / "master.duckdb")
    wlc.master(folder / "master.duckdb", farm="memory://drop-in", name=folder.parent.name, beat_s=3600)
    return folder


@pytest.fixture(scope="module")
def open_pair(made: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, Connection]]:
    with duckdb.connect(str(made / "plain.duckdb")) as plain, wlc.connect(made / "master.duckdb") as captured:
        yield plain, captured


@pytest.fixture
def pair(
    open_pair: tuple[duckdb.DuckDBPyConnection, Connection], made: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, ...]:
    """A cursor of plain DuckDB, and one of a master with the same rows."""
    monkeypatch.chdir(made)
    cursors = tuple(connection.cursor() for connection in open_pair)
    for cursor in cursors:
        cursor.execute("DELETE FROM t; INSERT INTO t FROM range(5)")
    return cursors


def comparable(value: Any, connection: Any) -> object:
    """What can be compared of a result."""
    if value is connection:
        return "itself"
    if isinstance(value, duckdb.DuckDBPyConnection):
        return "a connection", value.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 't'").fetchall()
    if isinstance(value, duckdb.DuckDBPyRelation):
        return value.columns, value.fetchall()
    if isinstance(value, pa.RecordBatchReader):
        return value.read_all().to_pydict()
    if isinstance(value, pd.DataFrame | pa.Table):
        return value.to_dict("list") if isinstance(value, pd.DataFrame) else value.to_pydict()
    if isinstance(value, dict):
        return {name: np.asarray(column).tolist() for name, column in value.items()}
    if isinstance(value, list):
        return [each.query if isinstance(each, duckdb.Statement) else each for each in value]
    if hasattr(value, "append_row"):
        with value:
            value.append_row(20)
        return "an appender"
    return value


def outcome(connection: Any, call: Callable[[], Any]) -> object:
    """A call's result or error, what is left to fetch, and the rows of the table."""
    try:
        result: object = comparable(call(), connection)
    except Exception as error:
        # DuckDB itself says in two ways that a connection is closed.
        result = type(error), str(error).replace("already closed!", "has already been closed")
    try:
        fetched: object = connection.fetchall()
    except duckdb.Error as error:
        return result, type(error), str(error)
    return result, fetched, connection.execute(_SELECT).fetchall()


def method_of(connection: Any, name: str) -> Callable[..., Any]:
    if isinstance(getattr(type(connection), name), property):
        return lambda: getattr(connection, name)
    return cast("Callable[..., Any]", getattr(connection, name))


def function_with(connection: Any, name: str) -> Callable[..., Any]:
    return functools.partial(getattr(duckdb, name), connection=connection)


def called(connection: Any, name: str, bound: Callable[[Any, str], Callable[..., Any]], *, closed: bool) -> object:
    query, args = CALLS[name]
    if query is not None:
        connection.execute(query)
    if closed:
        connection.close()
    return outcome(connection, lambda: bound(connection, name)(*args))


def test_every_call_is_compared() -> None:
    assert CALLS.keys() == {*METHODS, *FUNCTIONS} - {"set_default_connection"}


@pytest.mark.parametrize("closed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_duckdb(pair: tuple[Any, Any], name: str, closed: bool) -> None:
    plain, captured = (called(connection, name, method_of, closed=closed) for connection in pair)
    assert captured == plain


@pytest.mark.parametrize("closed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "set_default_connection"])
def test_functions_take_a_captured_connection(pair: tuple[Any, Any], name: str, closed: bool) -> None:
    plain, captured = (called(connection, name, function_with, closed=closed) for connection in pair)
    assert captured == plain


def test_what_functions_write_is_captured(open_pair: tuple[Any, Connection], pair: tuple[Any, Any], made: Path) -> None:
    writing = {
        "append",
        "appender",
        "commit",
        "execute",
        "executemany",
        "fetchall",
        "fetchone",
        "query",
        "query_appender",
    }
    _, captured = open_pair
    captured.execute("DELETE FROM t")
    for name in sorted(writing):
        called(captured.cursor(), name, function_with, closed=False)
    wlc.flush(made / "master.duckdb")
    rows = wlr.read(made / "master.duckdb", "t").order("a").fetchall()
    assert rows == captured.execute(_SELECT).fetchall()
    assert [a for (a,) in rows] == [7, 8, 10, 11, 12, 13, 14, 15, 20, 21]


@pytest.mark.parametrize("place", [0, 1])
def test_functions_find_the_variables_of_their_caller(pair: tuple[Any, Any], place: int) -> None:
    frame = pd.DataFrame({"a": [20]})
    assert duckdb.execute("FROM frame", connection=pair[place]).fetchall() == [(20,)]
    assert duckdb.sql("FROM frame", connection=pair[place]).fetchall() == list(frame.itertuples(index=False, name=None))


def test_the_default_connection_cannot_be_captured(pair: tuple[Any, Any], made: Path) -> None:
    default = duckdb.default_connection()
    with pytest.raises(InvalidError, match=f"captured connection to {made}/master.duckdb") as refused:
        duckdb.set_default_connection(pair[1])
    assert "connection=connection" in str(refused.value.hint)
    duckdb.set_default_connection(default)


IMPORTED_BEFORE = """
import sys
import types
from duckdb import execute as run, set_default_connection, sql
import duckdb

class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        raise SystemExit(f"a module was asked for {name}")

class Pretender:
    __slots__ = ()
    __class__ = types.ModuleType

sys.modules |= {"lazy": Lazy("lazy"), "pretender": Pretender(), "nothing": None}
kept = [run]
import wlc
with wlc.connect(sys.argv[1]) as connection:
    run("INSERT INTO t VALUES (17)", connection=connection)
    assert sql("FROM t WHERE a = 17", connection=connection).fetchall() == [(17,)]
    assert run("SELECT 1").fetchall() == duckdb.execute("SELECT 1").fetchall() == [(1,)]
    for call, error in ((lambda: kept[0]("SELECT 1", connection=connection), TypeError),
                        (lambda: set_default_connection(connection), wlc.InvalidError)):
        try:
            call()
        except error:
            continue
        raise SystemExit("no error")
"""


@pytest.mark.slow
def test_names_that_a_program_imported_before_take_a_captured_connection(tmp_path: Path) -> None:
    master = tmp_path / "s.duckdb"
    with new_master(master) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    done = subprocess.run([sys.executable, "-c", IMPORTED_BEFORE, master], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    wlc.flush(master)
    assert wlr.read(master, "t").fetchall() == [(17,)]


def test_its_class_is_that_of_duckdb(pair: tuple[Any, Any]) -> None:
    @functools.singledispatch
    def kind(value: object) -> str:
        return "another"

    kind.register(duckdb.DuckDBPyConnection, lambda value: "a connection")
    for connection in (*pair, pair[1].cursor(), pair[1].duplicate()):
        assert isinstance(connection, duckdb.DuckDBPyConnection)
        assert kind(connection) == "a connection"
        for refused in (copy.copy, copy.deepcopy, pickle.dumps, functools.partial(pickle.dumps, protocol=0)):
            with pytest.raises(TypeError, match=r"^cannot pickle 'DuckDBPyConnection' object$"):
                refused(connection)
        with pytest.raises(TypeError, match="is not iterable"):
            iter(connection)  # type: ignore[call-overload]


def test_pandas_reads_and_writes_with_both(pair: tuple[Any, Any]) -> None:
    results = []
    for connection in pair:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "pandas only supports SQLAlchemy")
            read = pd.read_sql("SELECT a FROM t WHERE a > ?", connection, params=[2])
            try:
                written: object = FRAME.to_sql("t", connection, if_exists="append", index=False)
            except Exception as error:
                written = type(error), str(error)
        results.append((read.to_dict("list"), written, connection.execute(_SELECT).fetchall()))
    assert results[0] == results[1]
    assert results[0][0] == {"a": [3, 4]}


def test_polars_reads_relations_of_both(pair: tuple[Any, Any]) -> None:
    for connection in pair:
        assert connection.sql("FROM t WHERE a > 2").pl(lazy=True).collect()["a"].to_list() == [3, 4]


def test_a_program_replaces_the_function_that_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, copy, other = (str(tmp_path / name) for name in ("s.duckdb", "copy.duckdb", "other.duckdb"))
    duckdb.connect(other).close()
    monkeypatch.setattr(duckdb, "connect", wlc.connect)
    wlc.master(master, farm=str(tmp_path / "farm"), create=True)
    with duckdb.connect(master) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b INTEGER DEFAULT 1 + 1); INSERT INTO t (a) VALUES (1), (2)")
        connection.execute("CREATE VIEW v AS SELECT a FROM t; UPDATE t SET a = 3 WHERE a = 1")
    assert wlc.tick(master) == 4
    wlr.replicate(master, into=copy)
    assert wlr.read(copy, "t").order("a").fetchall() == [(2, 2), (3, 2)]
    with pytest.raises(InvalidError, match=r"other\.duckdb is not a master"):
        duckdb.connect(other)

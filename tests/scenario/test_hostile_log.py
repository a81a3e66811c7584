"""Log files and snapshots that are well sealed and chained, and hold what nobody should run."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from tests.handmade import HandmadeFarm, Rows, rows_of, secret_folder
from tests.hostile import BEHIND_MACROS, STATEMENTS, bounded, nested
from tests.lake import lake_contents
from wlc.dialect.duckdb.permitted_ddl import FUNCTIONS, TABLE_FUNCTIONS, internal
from wlc.farm.config import decode_config, encode_config
from wlc.farm.errors import CorruptError, FarmError, FencedError, InvalidError, ReplayError
from wlc.farm.manifest import encode_manifest
from wlc.farm.model import (
    AlteredObject,
    Column,
    CreatedObject,
    DbObject,
    Ddl,
    DroppedObject,
    Layout,
    Manifest,
    Name,
    Position,
    RenamedObject,
    SnapshotTable,
    Unique,
)
from wlr.engine.calculator import Scratch, applying
from wlr.engine.duckdb.replica_file import attach
from wlr.engine.parquet.catalog import LakeCatalog
from wlr.replay.ddl import running
from wlr.replay.ddl.limits import LIMIT_VARIABLE
from wlr.replay.plan.failure import ContradictionError, StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"
T, X = Name("main", "t"), Name("main", "x")
KEYS = Layout((Column("id", "INTEGER", nullable=False), Column("v", "VARCHAR")), ("id",))
TABLE = Ddl("CREATE TABLE", T, KEYED, layout=KEYS, does=(CreatedObject(DbObject("TABLE", T)),))


@pytest.fixture(params=["duckdb", "parquet"])
def into(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / ("copy.duckdb" if request.param == "duckdb" else "lake/")


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    made = HandmadeFarm(tmp_path / "farm")
    made.publish([KEYED], [Rows("t", ("1, 'a'",))])
    return made


def place(into: Path) -> str:
    return str(into) if into.suffix else f"{into}/"


def contents(into: Path) -> dict[str, Any]:
    if not into.suffix:
        return {name: dict(rows) for name, rows in lake_contents(into).items()}
    tables = rows_of(into, "SELECT table_name FROM duckdb_tables() WHERE schema_name <> 'wlr' ORDER BY 1")
    return {
        f"main.{name}": dict(Counter(tuple(map(str, row)) for row in rows_of(into, f'FROM "{name}"')))
        for (name,) in tables
    }


def objects(into: Path) -> list[tuple[object, ...]]:
    """Everything that a replica made of statements, but for its tables."""
    if not into.suffix:
        return []
    return rows_of(
        into,
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name <> 'wlr'"
        " UNION ALL SELECT function_name FROM duckdb_functions() WHERE NOT internal UNION ALL SELECT type_name FROM duckdb_types() WHERE NOT internal"
        " UNION ALL SELECT index_name FROM duckdb_indexes() WHERE schema_name <> 'wlr'",
    )


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS[::20])
def test_nothing_of_it_is_applied(farm: HandmadeFarm, into: Path, tmp_path: Path, statement: str) -> None:
    outside = secret_folder(tmp_path)
    farm.publish(["CREATE TABLE before (a INTEGER)"])
    farm.publish([Rows("before", ("7",)), Ddl("CREATE TABLE", X, statement.replace("{folder}", str(outside)))])
    with pytest.raises(ReplayError, match=r"transaction 4, table main\.x: (?!the farm says)") as caught:
        wlr.replicate(farm.url, into=place(into), engine="local")
    assert "wlr accept" in str(caught.value.hint)
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]
    assert wlr.tick(place(into)) == 3
    assert contents(into) == {"main.t": {("1", "a"): 1}, "main.before": {}}
    assert objects(into) == []


@pytest.mark.slow
def test_none_of_them_runs(tmp_path: Path) -> None:
    """As the test above, and a hundred times as fast."""
    outside = secret_folder(tmp_path)
    connection = attach(tmp_path / "x.duckdb", "sales")
    connection.execute(f"{KEYED}; CREATE SCHEMA wlr; CREATE TABLE wlr.state (key VARCHAR)")
    Scratch(tmp_path / "work", []).confine(connection)
    catalog = LakeCatalog("sales", (), str(tmp_path))
    catalog.run(TABLE)
    for statement in STATEMENTS:
        hostile = Ddl("CREATE TABLE", X, statement.replace("{folder}", str(outside)))
        connection.execute("BEGIN")
        refused = ""
        try:
            with applying(tmp_path):
                running.check(connection, "sales", hostile)
                running.run(connection, "sales", hostile)
        except StepError as error:
            refused = error.cause
        assert refused, statement
        connection.execute("ROLLBACK; USE sales.main")
        refused = ""
        try:
            catalog.run(hostile)
        except StepError as error:
            # It must not even run.
            assert not isinstance(error, ContradictionError), statement
            refused = error.cause
        assert refused, statement
        assert list(catalog.tables()) == [Name("main", "t")], statement
        assert [path.name for path in outside.iterdir()] == ["secret.csv"], statement
        ((logging,),) = connection.execute("SELECT current_setting('enable_logging')").fetchall()
        assert not logging, statement
    connection.close()
    catalog.close()


@pytest.fixture
def checked(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Check and run a statement as a step would, and return why it was refused; "" if it ran."""
    connection = attach(tmp_path / "x.duckdb", "sales")
    connection.execute(f"{KEYED}; CREATE SEQUENCE s")
    Scratch(tmp_path / "work", []).confine(connection)

    def run(statement: str) -> str:
        ddl = Ddl("CREATE TABLE", X, statement)
        try:
            with applying(tmp_path):
                running.check(connection, "sales", ddl)
                running.run(connection, "sales", ddl)
        except StepError as error:
            return error.cause
        return ""

    yield run
    connection.close()


@pytest.mark.parametrize("statements", BEHIND_MACROS)
def test_a_macro_hides_no_function_from_a_lake(tmp_path: Path, statements: list[str]) -> None:
    catalog = LakeCatalog("sales", (), str(tmp_path))
    *before, last = (statement.replace("{folder}", str(tmp_path)) for statement in statements)
    with bounded():
        for statement in before:
            did = (CreatedObject(DbObject("SCHEMA", Name("q", "q"))),) if statement == "CREATE SCHEMA q" else ()
            catalog.run(Ddl("CREATE", X, statement, does=did))
        with pytest.raises(StepError, match="is not the farm's to call"):
            catalog.run(Ddl("CREATE", X, last))
    catalog.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("statements", BEHIND_MACROS)
def test_a_macro_hides_no_function(checked: Callable[[str], str], tmp_path: Path, statements: list[str]) -> None:
    *before, last = (statement.replace("{folder}", str(tmp_path)) for statement in statements)
    assert [checked(statement) for statement in before] == [""] * len(before)
    assert "is not the farm's to call" in checked(last)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW x AS SELECT upper(v), count(*) OVER (), v LIKE 'a%', [1, 2], {'a': 1}, date_part('year', now())"
        " FROM t, range(3), unnest([1]) WHERE id IN (SELECT max(id) FROM t)",
        "CREATE TABLE files (id INTEGER PRIMARY KEY DEFAULT nextval('s'), v DECIMAL(10, 2) CHECK (abs(v) < 10))",
        "CREATE TABLE read_log (a INTEGER REFERENCES t(id), b VARCHAR AS (concat(a, 'x')), c UUID DEFAULT uuid())",
        "CREATE INDEX x ON t (lower(v), (id + 1))",
        "ALTER TABLE t ALTER v SET DEFAULT current_date::VARCHAR",
        "CREATE MACRO x(a, b := 2) AS greatest(a, b), (a) AS (SELECT unnest(a))",
        "CREATE MACRO x(a) AS TABLE WITH y(b) AS (SELECT a) FROM y",
    ],
)
def test_what_masters_have_runs(checked: Callable[[str], str], statement: str) -> None:
    assert checked(statement) == ""


def test_a_view_may_call_a_macro_of_the_database(checked: Callable[[str], str]) -> None:
    assert checked("CREATE MACRO twice(a) AS 2 * a") == ""
    assert checked("CREATE MACRO own_rows(a) AS TABLE SELECT a") == ""
    assert checked("CREATE VIEW x AS SELECT twice(a) FROM own_rows(3) AS r(a)") == ""


@pytest.mark.slow
def test_nested_statements_are_refused(checked: Callable[[str], str]) -> None:
    for statement in [*nested(3_000), *nested(60_000)[1:2]]:
        assert checked(statement), statement[:60]


def test_long_statements_are_refused(checked: Callable[[str], str]) -> None:
    assert "characters" in checked(f"CREATE TABLE x (a VARCHAR DEFAULT '{'x' * (1 << 20)}')")


@pytest.mark.slow
def test_a_statement_is_stopped_after_its_time(checked: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "0.3")
    assert checked("CREATE VIEW v0 AS SELECT 1 AS a") == ""
    refused = [checked(f"CREATE VIEW v{n + 1} AS SELECT x.a FROM v{n} AS x, v{n} AS y") for n in range(30)]
    assert "was stopped after 0.3 seconds" in next(filter(None, refused))
    assert LIMIT_VARIABLE in next(filter(None, refused))


def test_every_function_of_the_engine_is_judged() -> None:
    """A new DuckDB's functions are refused until somebody has put them on the list."""
    assert {"parquet_metadata", "read_text", "duckdb_secrets", "query"} <= internal(in_from=True) - TABLE_FUNCTIONS
    assert {"sleep_ms", "write_log", "current_setting", "setval"} <= internal(in_from=False) - FUNCTIONS
    assert FUNCTIONS - internal(in_from=False) == {"unnest", "unlist"}


TYPES = [
    "INTEGER); COPY (SELECT 1) TO '{folder}/x.csv'; SELECT (1",
    "INTEGER DEFAULT (SELECT content FROM read_text('{folder}/secret.csv'))",
    "INTEGER /* */",
    "INTEGER[(SELECT 1)]",
    "ENUM (SELECT 'a')",
    "DECIMAL(1, (SELECT 2))",
    "STRUCT(\"a\" INTEGER, b INTEGER) FROM glob('{folder}/*') --",
    "STRUCT(a INTEGER) UNION SELECT 1",
    "VARCHAR COLLATE (SELECT 1)",
    "t",
]


@pytest.mark.slow
@pytest.mark.parametrize("type_text", TYPES)
def test_types_are_not_sql(farm: HandmadeFarm, tmp_path: Path, type_text: str) -> None:
    outside = secret_folder(tmp_path)
    farm.publish([Rows("t", ("3, 'c'",))])
    new = Layout((Column("id", type_text.replace("{folder}", str(outside))), Column("v", "VARCHAR")))
    rewrite(farm, 2, farm.layouts[Name("main", "t")], new)
    for name in ("copy.duckdb", "lake/"):
        into = f"{tmp_path}/{name}"
        with pytest.raises(FarmError, match="columns than the table|cannot be replicated exactly|is not known"):
            wlr.replicate(farm.url, into=into, engine="local")
        assert wlr.tick(into) == 2
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]


def rewrite(farm: HandmadeFarm, number: int, old: Layout, new: Layout) -> None:
    """Seal a batch again with another layout of its data files."""
    from dataclasses import replace

    from wlc.farm import paths
    from wlc.farm.log import encode_batch

    batch, _ = farm.db.read_batch(number)
    files = tuple(replace(file, layout=new) if file.layout == old else file for file in batch.files)
    path = paths.log_path("sales", number)
    farm.db.logs.delete(path)
    farm.db.logs.create(path, encode_batch(replace(batch, files=files)))


# Statements that say something else than they do; tests/unit/replay/test_claims.py walks all kinds of lies


IS_T = DbObject("TABLE", T)
LIES = (
    ("CREATE TABLE y (a INTEGER)", CreatedObject(DbObject("TABLE", X)), r"table main\.x exists.* it does not"),
    ("ALTER TABLE t ADD COLUMN w INTEGER", AlteredObject(IS_T), "has the columns id, v, .* it has id, v, w"),
    ("DROP TABLE t", RenamedObject(IS_T, X), r"table main\.x exists, .* it does not"),
    ("ALTER TABLE t RENAME TO x", DroppedObject(IS_T), r"table main\.x does not exist, .* it exists"),
    (
        "CREATE VIEW x AS SELECT 1 AS a",
        CreatedObject(DbObject("VIEW", Name("main", "y"))),
        r"view main\.x does not exist, .* it exists",
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("tables", [None, ["*"]])
def test_a_statement_that_lies_is_undone(farm: HandmadeFarm, into: Path, tables: list[str] | None) -> None:
    wlr.replicate(farm.url, into=place(into), tables=tables, engine="local")
    before = contents(into), objects(into)
    for statement, said, problem in LIES:
        farm.publish([Rows("t", ("2, 'b'",)), Ddl("ALTER TABLE", T, statement, does=(said,))])
        pattern = rf"^transaction {farm.tick}, table main\.t: the farm says of .*{problem}"
        for _ in range(2):
            with pytest.raises(ReplayError, match=pattern) as caught:
                wlr.replicate(into=place(into), engine="local")
        assert "wlr accept" in str(caught.value.hint)
        assert (contents(into), objects(into)) == before
        wlr.accept(place(into))
    farm.publish([Rows("t", ("3, 'c'",))])
    wlr.replicate(into=place(into), engine="local")
    assert contents(into) == {"main.t": {("1", "a"): 1, ("3", "c"): 1}}


def test_a_lake_knows_what_its_catalog_should_show(tmp_path: Path) -> None:
    catalog = LakeCatalog("sales", (), str(tmp_path))
    catalog.run(TABLE)
    for lie in (Ddl("CREATE TABLE", X, "CREATE TABLE x (a INTEGER)"), replace(TABLE, statement="DROP TABLE t")):
        with pytest.raises(ContradictionError, match="the farm says of CREATE TABLE"):
            catalog.run(lie)
    catalog.close()


def test_a_snapshot_that_lies_makes_no_replica(farm: HandmadeFarm, into: Path) -> None:
    snapshot(farm, replace(TABLE, does=(CreatedObject(IS_T, constraints=(Unique(("v",)),)),)))
    with pytest.raises(CorruptError, match=r"main\.t has the constraints Unique.*, .* it has none") as caught:
        wlr.replicate(farm.url, into=place(into), engine="local")
    assert "wlc snapshot" in str(caught.value.hint)
    with pytest.raises(InvalidError, match="no replica"):
        wlr.tick(place(into))


# What belongs to the replica's owner


MINE = Name("main", "mine")
# A column before a key: replicas make the table anew without it, as the record says.
DROPS_A = (AlteredObject(DbObject("TABLE", MINE), columns=(("a", None),)),)


@pytest.mark.parametrize(
    ("statement", "does"),
    [
        ("DROP TABLE mine", ()),
        ("CREATE OR REPLACE TABLE mine (a INTEGER)", ()),
        ("ALTER TABLE mine RENAME TO yours", ()),
        ("ALTER TABLE mine DROP COLUMN c", ()),
        ("ALTER TABLE mine DROP COLUMN a", DROPS_A),
        ("ALTER TABLE t ADD COLUMN w INTEGER", DROPS_A),
        ("DROP SCHEMA own CASCADE", ()),
    ],
)
def test_tables_of_the_owner_stay(
    farm: HandmadeFarm, tmp_path: Path, statement: str, does: tuple[AlteredObject, ...]
) -> None:
    into = tmp_path / "copy.duckdb"
    wlr.replicate(farm.url, into=into)
    with duckdb.connect(str(into)) as connection:
        connection.execute("CREATE TABLE mine (a INT, b INT UNIQUE, c INT); INSERT INTO mine VALUES (1, 2, 3)")
        connection.execute("CREATE SCHEMA own; CREATE TABLE own.x (a INT)")
    farm.publish([Ddl("DROP TABLE", MINE, statement, does=does)])
    with pytest.raises(ReplayError, match="belongs to the replica's owner"):
        wlr.replicate(into=into)
    assert rows_of(into, "FROM mine") == [(1, 2, 3)]
    assert rows_of(into, "SELECT count(*) FROM own.x") == [(0,)]


# Snapshots


def snapshot(farm: HandmadeFarm, *statements: Ddl) -> None:
    """Publish a snapshot at the farm's end whose schema is these statements."""
    position = Position(farm.history, farm.tick, farm.batch, farm.chain)
    batch, _ = farm.db.read_batch(farm.batch)
    table = SnapshotTable(Name("main", "t"), farm.layouts[Name("main", "t")], ())
    assert batch.clock
    farm.db.publish_snapshot(
        Manifest("sales", position, batch.clock, farm.catalog, statements, (), (table,), (), batch.vector), {}
    )


HARMFUL = [statement for statement in STATEMENTS if "VIEW" not in statement]


@pytest.mark.parametrize("statement", HARMFUL[::25])
def test_snapshots_go_the_same_way(farm: HandmadeFarm, into: Path, tmp_path: Path, statement: str) -> None:
    outside = secret_folder(tmp_path)
    hostile = Ddl("CREATE TABLE", X, statement.replace("{folder}", str(outside)))
    snapshot(farm, TABLE, hostile)
    with pytest.raises(FarmError, match="cannot be (loaded|made|run): (?!the farm says)"):
        wlr.replicate(farm.url, into=place(into), engine="local")
    assert [path.name for path in outside.iterdir()] == ["secret.csv"]
    with pytest.raises(FarmError, match="no replica"):
        wlr.tick(place(into))


@pytest.mark.parametrize("name", ["guard", "state", "tables"])
def test_snapshots_do_not_fill_what_is_not_the_farms(
    farm: HandmadeFarm, into: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    position = Position(farm.history, farm.tick, farm.batch, farm.chain)
    batch, _ = farm.db.read_batch(farm.batch)
    assert batch.clock
    table = SnapshotTable(Name("WLR", name), Layout((Column("allowed_by", "VARCHAR"),)), ())
    hostile = Manifest("sales", position, batch.clock, farm.catalog, (), (), (table,), (), batch.vector)
    with pytest.raises(InvalidError, match="cannot be part of a snapshot"):
        encode_manifest(hostile)
    with monkeypatch.context() as forging:
        forging.setattr("wlc.farm.model.Manifest.problem", None)
        farm.db.publish_snapshot(hostile, {})
    with pytest.raises(CorruptError, match=rf"table WLR\.{name} cannot be part of a snapshot"):
        wlr.replicate(farm.url, into=place(into), engine="local")


@pytest.mark.parametrize("name", ["guard", "state", "tables"])
def test_changes_do_not_touch_what_is_not_the_farms(farm: HandmadeFarm, into: Path, name: str) -> None:
    table = Name("wlr", name)
    farm.layouts[table] = Layout((Column("allowed_by", "VARCHAR"),))
    farm.publish([Rows(f"wlr.{name}", ("'owner'",))])
    with pytest.raises(ReplayError, match="the table is not in the replica"):
        wlr.replicate(farm.url, into=place(into), engine="local")
    assert wlr.tick(place(into)) == 2
    assert not wlr.status(place(into)).is_unlocked


def test_view_of_a_snapshot_that_reads_a_file_is_left_out(farm: HandmadeFarm, into: Path, tmp_path: Path) -> None:
    outside = secret_folder(tmp_path)
    view = f"CREATE VIEW x WITH (DEFER_BINDING = true) AS FROM '{outside}/secret.csv'"
    x = DbObject("VIEW", X)
    snapshot(farm, TABLE, Ddl("CREATE VIEW", X, view, does=(CreatedObject(x),)))
    # Later statements may be about it.
    renamed = (RenamedObject(x, Name("main", "y")),)
    farm.publish([Ddl("ALTER VIEW", X, "ALTER VIEW x RENAME TO y", does=renamed)])
    with pytest.warns(UserWarning, match=r"view main\.x is left out: .*secret\.csv lies outside the database"):
        wlr.replicate(farm.url, into=place(into), engine="local")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        farm.publish([Rows("t", ("5, 'b'",))])
        wlr.replicate(into=place(into), engine="local")
    assert wlr.tick(place(into)) == 4
    if into.suffix:
        with pytest.raises(duckdb.Error, match="reads outside the database"):
            rows_of(into, "FROM y")


# wlc.config


def test_masters_do_not_follow_another_log_directory(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "sales.duckdb", tmp_path / "elsewhere"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    wlc.master(source)
    config = tmp_path / "dbfarm" / "sales" / "wlc.config"
    config.write_bytes(encode_config(replace(decode_config(config.read_bytes(), ""), logs=str(elsewhere))))
    with suppress(FencedError), wlc.connect(source) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(FencedError, match="says logs=.*elsewhere, this master knows wlc_logs"):
        wlc.flush(source)
    assert not elsewhere.exists()
    config.write_bytes(encode_config(replace(decode_config(config.read_bytes(), ""), logs="wlc_logs")))
    assert wlc.flush(source).tick == 1


# What honest masters say


HONEST = [
    'CREATE VIEW x AS SELECT "t".* FROM main.t AS "t" JOIN range(3) AS r(i) ON r.i = id',
    "CREATE VIEW x AS /* of t; AS ( */ SELECT count(*) -- all of them\nFROM t",
    "CREATE OR REPLACE VIEW main.x (a, b) AS SELECT id, 'read_csv(''/etc/passwd'')' FROM sales.main.t",
    "CREATE VIEW x AS PIVOT t ON v IN ('a', 'b') USING count(*)",
    "CREATE VIEW x AS SELECT unnest([1, 2]) AS a UNION ALL SELECT id FROM t",
    "CREATE VIEW x AS VALUES (1, 'é'), (2, 'ü')",
    "CREATE VIEW temp AS SELECT 'wlr.state' AS secret",
    "CREATE RECURSIVE VIEW x (a) AS SELECT 1 UNION ALL SELECT a + 1 FROM x WHERE a < 3",
    "CREATE VIEW x AS SELECT * FROM duckdb_tables()",
    "CREATE MACRO x(a, b := 5) AS a + b",
    "CREATE MACRO x(a) AS TABLE (SELECT a, 1 FROM t), (a, b) AS TABLE (SELECT a, b FROM t)",
    "CREATE MACRO x(a) AS a, (a, b) AS a || ', ' || b",
    "CREATE MACRO x(m) AS TABLE SELECT * FROM t WHERE id < m",
    "CREATE FUNCTION x() AS (SELECT max(id) FROM t)",
    'CREATE TABLE x ("AS" INTEGER DEFAULT (1 + 2), b VARCHAR CHECK (b <> \'(\'), c INTEGER AS ("AS" * 2))',
    "CREATE TABLE x (a INTEGER, b INTEGER AS (a * 2), c AS (b + b + a), s STRUCT(a INTEGER), d AS (c + c))",
    'CREATE TABLE x ("glob" VARCHAR, read_csv INTEGER, summary STRUCT(a INTEGER))',
    "CREATE TYPE x AS ENUM ('a', 'b (', 'c')",
    "CREATE TYPE x AS ENUM('sad', 'it''s', 'ok,ay')[]",
    "CREATE TYPE x AS STRUCT(a INTEGER, b ENUM('a', 'b'))",
    "CREATE UNIQUE INDEX x ON t (v, (id + 1))",
    "CREATE SEQUENCE x START 5",
    "CREATE SCHEMA IF NOT EXISTS other",
    "COMMENT ON COLUMN t.v IS 'from read_csv(''x.csv''); or wlr.state'",
    "ALTER TABLE sales.main.t ADD COLUMN w INTEGER DEFAULT (1 + 1)",
]


@pytest.mark.parametrize("statement", HONEST)
def test_honest_statements_pass(tmp_path: Path, statement: str) -> None:
    connection = attach(tmp_path / "x.duckdb", "sales")
    connection.execute(KEYED)
    Scratch(tmp_path / "work", []).confine(connection)
    made = Ddl("CREATE", X, statement)
    running.check(connection, "sales", made)
    running.run(connection, "sales", made)
    connection.close()


def test_macro_of_the_database_may_be_called(farm: HandmadeFarm, into: Path) -> None:
    farm.publish(["CREATE MACRO upto(n) AS TABLE SELECT * FROM t WHERE id < n"], ["CREATE VIEW few AS FROM upto(5)"])
    wlr.replicate(farm.url, into=place(into), engine="local")
    assert wlr.tick(place(into)) == 4

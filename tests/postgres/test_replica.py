"""PostgreSQL databases rolled forward from farms that are written by hand."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import wlr
from tests.handmade import HandmadeFarm, Rows, time_of
from tests.oracle import published
from tests.postgres.cluster import execute
from tests.postgres.comparing import texts_of
from tests.postgres.held import held_by_postgres
from wlc.farm.errors import InvalidError, ReplayError, UnavailableError, UnsupportedError
from wlc.farm.model import Check, Clear, Column, CreatedObject, DbObject, Ddl, Layout, Name, Reference, SequencePosition
from wlc.farm.registry import replicas
from wlr.engine.postgres import write
from wlr.engine.postgres.replica_connection import identity

if TYPE_CHECKING:
    from tests.postgres.cluster import Cluster

T = Name("main", "t")
KEYED = "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR)"


@pytest.fixture
def farm(tmp_path: Path) -> HandmadeFarm:
    return HandmadeFarm(tmp_path / "farm")


def rows(*ids: int, v: str = "a") -> tuple[str, ...]:
    return tuple(f"{id_}, '{v}'" for id_ in ids)


def content(url: str) -> list[tuple[object, ...]]:
    return execute(url, "SELECT id, v FROM t ORDER BY id")


def as_published(farm: HandmadeFarm, tick: int) -> dict[str, dict[tuple[str | None, ...], int]]:
    return {table: dict(counts) for table, counts in published(farm.url, tick).items()}


def as_text(url: str) -> dict[str, dict[tuple[str | None, ...], int]]:
    """Every row as PostgreSQL's text, which for these types is DuckDB's, too."""
    return {table.replace("public.", "main.", 1): dict(counts) for table, counts in texts_of(url).items()}


# Prefixes -------------------------------------------------------------------------------------------------------------


def publish_everything(farm: HandmadeFarm) -> None:
    """Publish transactions of many kinds, in two batches."""
    farm.publish([KEYED], [Rows("t", rows(1, 2, 3))], [Rows("t", rows(2, v="b"), rows(2))], None)
    farm.publish(
        [Rows("t", removed=rows(1)), "CREATE TABLE bag (x BIGINT, s VARCHAR)", Rows("bag", ("0, 'x'",) * 3)],
        [Rows("t", rows(1, v="again"), ())],
        [Rows("t", rows(9), rows(3)), Rows("bag", ("5, NULL", "5, ''"), ("0, 'x'",) * 2)],
        [Clear(T, 3), Rows("t", rows(5))],
        [Clear(Name("main", "bag"), 3)],
        ["ALTER TABLE bag ADD COLUMN z INTEGER", Rows("bag", ("1, 'y', 7",) * 4)],
        [Rows("bag", ("2, 'y', 7",), ("1, 'y', 7",) * 3)],
    )


@pytest.mark.slow
def test_equal_at_every_tick(farm: HandmadeFarm, cluster: Cluster) -> None:
    publish_everything(farm)
    follows = cluster.create_database()
    for tick in range(farm.tick + 1):
        alone = cluster.create_database()
        wlr.replicate(farm.url, into=follows, tick=tick)
        wlr.replicate(farm.url, into=alone, tick=tick)
        # A transaction that was rolled back has a tick, too.
        assert as_text(follows) == as_text(alone) == as_published(farm, tick), f"at tick {tick}"
        assert wlr.tick(follows) == tick
    assert wlr.clock(follows) == time_of(farm.tick)
    assert wlr.replicate(into=follows).transactions == 0


def test_only_columns_that_differ_are_written(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish(["CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR, w INTEGER)"])
    farm.publish([Rows("t", ("1, 'a', 1", "2, NULL, 2", "3, 'c', 3"))])
    farm.publish([Rows("t", ("1, NULL, 1", "2, '', 2"), ("1, 'a', 1", "2, NULL, 2"))])
    wlr.replicate(farm.url, into=database_url, tick=2)
    before = execute(database_url, "SELECT ctid FROM t WHERE id = 3")
    wlr.replicate(into=database_url)
    assert execute(database_url, "SELECT * FROM t ORDER BY id") == [(1, None, 1), (2, "", 2), (3, "c", 3)]
    assert execute(database_url, "SELECT ctid FROM t WHERE id = 3") == before


@pytest.mark.slow
def test_wide_tables(farm: HandmadeFarm, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_BINARY_ROWS", 0)
    widths = (write._BINARY_COLUMNS - 1, 300, 700)
    old, new = ({width: ", ".join(["1", *[value] * width]) for width in widths} for value in ("7", "8"))
    for width in widths:
        declared = ", ".join(f"c{number} BIGINT" for number in range(width))
        farm.publish(
            [f"CREATE TABLE t{width} (id INTEGER PRIMARY KEY, {declared})"], [Rows(f"t{width}", (old[width],))]
        )
    wlr.replicate(farm.url, into=database_url)
    farm.publish([Rows(f"t{width}", (new[width],), (old[width],)) for width in widths])
    wlr.replicate(into=database_url)
    for width in widths:
        assert execute(database_url, f"SELECT id, c0, c{width - 1} FROM t{width}") == [(1, 8, 8)]


def test_parents_and_children_go_together(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish(
        ["CREATE TABLE parent (id INTEGER PRIMARY KEY, v VARCHAR)"],
        ["CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id))"],
    )
    farm.publish([Rows("parent", rows(1, 2, 3)), Rows("child", ("10, 1", "20, 2", "30, 3"))])
    farm.publish(
        [Rows("child", (), ("10, 1",))],
        [Rows("parent", (), rows(1))],
        [Rows("child", (), ("20, 2",))],
        [Rows("parent", rows(4), rows(2))],
    )
    assert wlr.replicate(farm.url, into=database_url).transactions == 7
    assert execute(database_url, "SELECT * FROM parent ORDER BY id") == [(3, "a"), (4, "a")]
    assert execute(database_url, "SELECT * FROM child") == [(30, 3)]
    wlr.unlock(database_url)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        execute(database_url, "INSERT INTO child VALUES (40, 99)")


def test_triggers_and_cascades_do_not_do_again_what_the_log_holds(farm: HandmadeFarm, database_url: str) -> None:
    """Both are the master's, which is PostgreSQL: it recorded its statements in its own words."""
    layout = Layout((Column("id", "INTEGER", False), Column("v", "VARCHAR")), ("id",))
    reference = "up integer DEFAULT 1 REFERENCES public.parent ON DELETE CASCADE"
    to_parent = Reference(("up",), Name("public", "parent"), ("id",))
    for name, text, columns, constraints in (
        ("parent", "CREATE TABLE public.parent (id integer PRIMARY KEY, v text)", ("id", "v"), ()),
        (
            "child",
            f"CREATE TABLE public.child (id integer PRIMARY KEY, v text, {reference})",
            ("id", "v", "up"),
            (to_parent,),
        ),
    ):
        made = Name("public", name)
        farm.layouts[made] = layout
        steps = tuple((None, column) for column in columns)
        did = CreatedObject(DbObject("TABLE", made), columns=steps, key=("id",), constraints=constraints)
        farm.publish([Ddl("CREATE TABLE", made, text, ("public",), "postgres", does=(did,))])
    farm.publish([Rows("public.parent", rows(1)), Rows("public.child", rows(1, 2))])
    wlr.replicate(farm.url, into=database_url)
    execute(
        database_url,
        "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'fired'; END $$",
        "CREATE TRIGGER shout BEFORE DELETE OR UPDATE OR INSERT ON child FOR EACH ROW EXECUTE FUNCTION shout()",
    )
    farm.publish([Rows("public.parent", (), rows(1)), Rows("public.child", (), rows(1, 2))])
    wlr.replicate(into=database_url)
    assert execute(database_url, "SELECT count(*) FROM child") == [(0,)]


def test_sequences_and_generated_columns(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish(
        ["CREATE SEQUENCE s START 5"],
        ["CREATE TABLE t (id INTEGER DEFAULT nextval('s'), g INTEGER GENERATED ALWAYS AS (id * 2), v VARCHAR)"],
        [Rows("t", ("1, 'sad'", "2, 'glad'")), SequencePosition(Name("main", "s"), 9)],
        [Rows("t", (), ("1, 'sad'",))],
        ["CREATE VIEW happy AS SELECT id, g FROM t WHERE v = 'glad'"],
    )
    wlr.replicate(farm.url, into=database_url)
    assert execute(database_url, "SELECT * FROM happy") == [(2, 4)]
    assert execute(database_url, "SELECT nextval('s')") == [(10,)]
    wlr.unlock(database_url)
    assert execute(database_url, "INSERT INTO t (v) VALUES ('new') RETURNING id, g") == [(11, 22)]


def test_some_tables(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish([KEYED], ["CREATE TABLE other (a INTEGER)"], ["CREATE VIEW v AS SELECT a FROM other"])
    execute(database_url, "CREATE TABLE other (mine TEXT)", "INSERT INTO other VALUES ('kept')")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wlr.replicate(farm.url, into=database_url, tables=["t"])
    farm.publish(
        [Rows("t", rows(1)), Rows("other", ("1",))], ["ALTER TABLE other ADD COLUMN b INTEGER"], ["DROP TABLE other"]
    )
    wlr.replicate(into=database_url)
    assert content(database_url) == [(1, "a")]
    assert execute(database_url, "SELECT * FROM other") == [("kept",)], "it is the owner's own"
    assert execute(database_url, "SELECT table_name FROM wlr.tables") == [("t",)]


def test_another_schema_takes_main(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish(
        [KEYED], ["CREATE SCHEMA s"], ["CREATE TABLE s.u (a INTEGER)"], [Rows("t", rows(1)), Rows("s.u", ("5",))]
    )
    wlr.replicate(farm.url, into=f"{database_url}?schema=My%20Shop")
    farm.publish([Rows("t", rows(2))])
    wlr.replicate(into=database_url)
    assert execute(database_url, 'SELECT count(*), (SELECT sum(a) FROM s.u) FROM "My Shop".t') == [(2, 5)]
    with pytest.raises(InvalidError, match="schema My Shop"):
        wlr.replicate(into=f"{database_url}?schema=other")


@pytest.mark.parametrize("schema", ["wlr", "wlc", "pg_catalog", "information_schema"])
def test_schemas_that_take_no_tables(farm: HandmadeFarm, database_url: str, schema: str) -> None:
    farm.publish([KEYED])
    with pytest.raises(InvalidError, match=f"{schema} takes no tables"):
        wlr.replicate(farm.url, into=f"{database_url}?schema={schema}")


# Failures -------------------------------------------------------------------------------------------------------------


def test_failing_ddl_undoes_its_whole_transaction(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=database_url)
    execute(database_url, "CREATE TABLE mine (a INTEGER)")
    farm.publish([Rows("t", rows(2)), "CREATE TABLE mine (b INTEGER)"])
    with pytest.raises(ReplayError, match=r"transaction 3, table main\.mine.*already exists"):
        wlr.replicate(into=database_url)
    assert content(database_url) == [(1, "a")]
    farm.publish(["CREATE TABLE own2 (b INTEGER)"])
    execute(database_url, "DROP TABLE mine")
    wlr.replicate(into=database_url)
    assert content(database_url) == [(1, "a"), (2, "a")]


def test_right_that_is_missing_is_no_failure_of_the_transaction(
    farm: HandmadeFarm, cluster: Cluster, database_url: str
) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    database = database_url.rpartition("/")[2]
    role = f"owner_{database}"
    cluster.execute(f"CREATE ROLE {role} LOGIN")
    cluster.execute(f"GRANT SET ON PARAMETER session_replication_role TO {role}")
    cluster.execute(f"GRANT CREATE ON SCHEMA public TO {role}; GRANT CREATE ON DATABASE {database} TO {role}", database)
    into = cluster.url(database, role)
    wlr.replicate(farm.url, into=into)
    execute(database_url, "ALTER TABLE t OWNER TO postgres")
    farm.publish([Rows("t", rows(2))])
    with pytest.raises(InvalidError, match="permission denied for table t"):
        wlr.replicate(into=into)
    assert wlr.status(into).failure is None
    execute(database_url, f"ALTER TABLE t OWNER TO {role}")
    assert wlr.replicate(into=into).tick == 3


def test_guard_speaks_to_roles_without_rights_on_our_schema(
    farm: HandmadeFarm, cluster: Cluster, database_url: str
) -> None:
    farm.publish([KEYED])
    wlr.replicate(farm.url, into=database_url)
    database = database_url.rpartition("/")[2]
    cluster.execute(f"CREATE ROLE writer_{database} LOGIN")
    execute(database_url, f"GRANT INSERT, SELECT ON t TO writer_{database}")
    with pytest.raises(psycopg.errors.RaiseException, match="belongs to a replica"):
        execute(cluster.url(database, f"writer_{database}"), "INSERT INTO t VALUES (1, 'a')")


def test_replica_is_removed_without_its_tables(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    wlr.replicate(farm.url, into=database_url)
    execute(database_url, "DROP SCHEMA wlr CASCADE", "INSERT INTO t VALUES (2, 'b')")
    assert content(database_url) == [(1, "a"), (2, "b")]
    with pytest.raises(InvalidError, match="there is no replica"):
        wlr.status(database_url)


# Places and rights ----------------------------------------------------------------------------------------------------


def test_what_is_in_the_way_is_named(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish([KEYED])
    execute(database_url, "CREATE SCHEMA wlr")
    with pytest.raises(InvalidError, match="schema wlr that is not a replica's"):
        wlr.replicate(farm.url, into=database_url)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda url: url.replace("/db", "/nowhere"), "does not exist"),
        (lambda url: url.replace("postgres@", "nobody_here@"), "does not exist"),
        (lambda url: url + "?schema=", "names no schema"),
        (lambda url: url + "?nonsense=1", "nonsense"),
    ],
)
def test_places_that_are_none(farm: HandmadeFarm, database_url: str, change, message: str) -> None:
    farm.publish([KEYED])
    with pytest.raises(InvalidError, match=message):
        wlr.replicate(farm.url, into=change(database_url))


def test_server_that_is_not_there_may_come_back(farm: HandmadeFarm) -> None:
    farm.publish([KEYED])
    with pytest.raises(UnavailableError, match="refused"):
        wlr.replicate(farm.url, into="postgresql://postgres@127.0.0.1:1/db")


def test_role_needs_one_right_that_the_hint_grants(farm: HandmadeFarm, cluster: Cluster, database_url: str) -> None:
    farm.publish([KEYED], [Rows("t", rows(1))])
    database = database_url.rpartition("/")[2]
    role = f"small_{database}"
    cluster.execute(f"CREATE ROLE {role} LOGIN")
    execute(database_url, f"GRANT CREATE ON DATABASE {database} TO {role}", f"GRANT CREATE ON SCHEMA public TO {role}")
    into = cluster.url(database, role)
    with pytest.raises(InvalidError, match="session_replication_role") as caught:
        wlr.replicate(farm.url, into=into)
    assert caught.value.hint is not None
    assert execute(database_url, "SELECT to_regnamespace('wlr')::text") == [(None,)]
    execute(database_url, caught.value.hint.partition(": ")[2])
    assert wlr.replicate(farm.url, into=into).tick == 2
    assert execute(into, "SELECT * FROM t") == [(1, "a")]


@pytest.mark.slow
def test_keys_side_by_side_and_far_apart(farm: HandmadeFarm, database_url: str) -> None:
    side_by_side = range(-4, 5)
    far = {
        "tinyint": (-(2**7), 2**7 - 1),
        "smallint": (-(2**15), 2**15 - 1),
        "integer": (-99, 2**31 - 1),
        "bigint": (-(2**63), 2**63 - 1),
        "hugeint": (-99, 2**31 - 1),
        "varchar": (-99, 2**31 - 1),
    }
    farm.publish([f"CREATE TABLE of_{kind} (id {kind} PRIMARY KEY, v VARCHAR)" for kind in far])
    farm.publish([Rows(f"of_{kind}", rows(*side_by_side, *ids)) for kind, ids in far.items()])
    farm.publish([Rows(f"of_{kind}", rows(*side_by_side, v="b"), rows(*side_by_side)) for kind in far])
    farm.publish(
        [Rows(f"of_{kind}", rows(*ids, 4, v="c"), (*rows(*ids), *rows(4, v="b"))) for kind, ids in far.items()]
    )
    farm.publish(
        [Rows(f"of_{kind}", removed=rows(-4, -3, -2, v="b")) for kind in far],
        [Rows(f"of_{kind}", removed=rows(*ids, v="c")) for kind, ids in far.items()],
    )
    for tick in range(2, 7):
        wlr.replicate(farm.url, into=database_url, tick=tick)
        assert as_text(database_url) == as_published(farm, tick)
    assert all(execute(database_url, f"SELECT count(*) FROM of_{kind}") == [(6,)] for kind in far)


@pytest.mark.parametrize("command", [wlr.status, wlr.accept, wlr.replicate])
def test_password_is_never_shown(farm: HandmadeFarm, cluster: Cluster, capsys, command) -> None:
    farm.publish([KEYED], [Rows("t", rows(1), rows(77))])
    url = cluster.create_database()
    secret = "S3cret%40word"
    into = url.replace("postgres@", f"postgres:{secret}@")
    told = []
    try:
        wlr.replicate(farm.url, into=into)
    except ReplayError as error:
        told += [str(error), str(error.hint), repr(error)]
    (replica,) = replicas(farm.db)
    told += [replica.target, str(execute(url, "SELECT * FROM wlr.state")), str(wlr.status(into))]
    for broken in (
        into.replace("/db", "/nowhere"),
        into + "?sslmode=nonsense",
        into.replace("127.0.0.1", "127.0.0.1x"),
    ):
        try:
            command(farm.url, into=broken) if command is wlr.replicate else command(broken)
        except (InvalidError, UnavailableError) as error:
            told += [str(error), str(error.hint), str(error.path)]
    for text in told:
        assert "S3cret" not in text
    assert len(told) >= 12


def test_dry_run_touches_nothing(farm: HandmadeFarm, database_url: str) -> None:
    publish_everything(farm)
    planned = wlr.replicate(farm.url, into=database_url, dry_run=True)
    assert planned.transactions == farm.tick - 1
    assert execute(database_url, "SELECT to_regnamespace('wlr')::text") == [(None,)]


# Killed, locked -------------------------------------------------------------------------------------------------------


def work_folder(connection: psycopg.Connection) -> Path:
    return Path(tempfile.gettempdir()) / f"wlr-{identity(connection)}"


KILLED = """
import os, signal, sys
import wlr
from wlr.engine.postgres import {module}
original, calls = {module}.{name}, [0]
def dying(*arguments, **options):
    calls[0] += 1
    if calls[0] == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **options)
{module}.{name} = dying
wlr.replicate(sys.argv[1], into=sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module, name, call",
    [
        # Before there is anything, while a transaction is applied, and while DuckDB works beside the server.
        ("wlr_schema", "write_tables", 1),
        ("write", "_drop", 1),
        ("duckdb_folding", "Workshop.bring", 2),
    ],
)
def test_killed_run_leaves_a_prefix_or_nothing(
    farm: HandmadeFarm, database_url: str, module: str, name: str, call: int
) -> None:
    farm.publish([KEYED], [Rows("t", rows(1, 2))], ["CREATE TABLE u (a INTEGER)"])
    farm.publish([Rows("t", rows(3), rows(1))], [Rows("t", rows(4)), Rows("u", ("1",))])
    script = KILLED.format(module=module, name=name, call=call)
    run = subprocess.run([sys.executable, "-c", script, farm.url, database_url], capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    with psycopg.connect(database_url) as connection:
        left = work_folder(connection)
    assert left.exists() or name == "write_tables"
    if execute(database_url, "SELECT to_regclass('wlr.state')::text") == [(None,)]:
        assert held_by_postgres(database_url) == {}
    else:
        assert as_text(database_url) == as_published(farm, wlr.tick(database_url))
    wlr.replicate(farm.url, into=database_url)
    assert content(database_url) == [(2, "a"), (3, "a"), (4, "a")]
    assert execute(database_url, "SELECT * FROM u") == [(1,)]
    assert not left.exists(), "the next run clears up"


def test_connection_that_is_cut_undoes_the_step(farm: HandmadeFarm, database_url: str) -> None:
    farm.publish([KEYED])
    wlr.replicate(farm.url, into=database_url)
    farm.publish([Rows("t", rows(1))])

    def cut(done: int, total: int, what: str) -> None:
        execute(
            database_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'wlr%'"
        )

    farm.publish(["CREATE TABLE u (a INTEGER)"])
    with pytest.raises(UnavailableError, match="terminating connection"):
        wlr.replicate(into=database_url, progress=cut)
    assert wlr.tick(database_url) == 2
    assert wlr.replicate(into=database_url).tick == 3
    with psycopg.connect(database_url) as connection:
        assert not work_folder(connection).exists()


# Texts from the farm are data -----------------------------------------------------------------------------------------


def test_functions_of_the_server_are_not_called_from_translated_text(farm: HandmadeFarm, database_url: str) -> None:
    layout = Layout((Column("a", "VARCHAR", default="pg_read_file('/etc/passwd')"),))
    check = Check(("a",), "(a != pg_read_file('/etc/passwd'))")
    made = Ddl(
        "CREATE TABLE",
        Name("main", "x"),
        "CREATE TABLE x (a VARCHAR DEFAULT (pg_read_file('/etc/passwd')), CHECK (a <> pg_read_file('/etc/passwd')))",
        layout=layout,
        does=(CreatedObject(DbObject("TABLE", Name("main", "x")), constraints=(check,)),),
    )
    farm.publish([made])
    farm.publish([Ddl("CREATE VIEW", Name("main", "v"), "CREATE VIEW v AS SELECT pg_read_file('/etc/passwd') AS x")])
    with pytest.warns(UserWarning, match="left out") as caught:
        wlr.replicate(farm.url, into=database_url)
    assert len(caught) == 3
    assert execute(database_url, "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef") == []
    assert execute(database_url, "SELECT count(*) FROM pg_constraint WHERE conrelid = 'x'::regclass") == [(0,)]


def test_a_replica_is_read_as_a_relation(farm: HandmadeFarm, database_url: str) -> None:
    many = ", ".join(("h HUGEINT", "d DECIMAL(9, 2)", "l INTEGER[]", "s STRUCT(a VARCHAR)", "z TIMESTAMPTZ", "b BLOB"))
    farm.publish(
        [KEYED, Rows("t", ("1, 'a'", "2, ''", "3, NULL"))],
        [f'CREATE TABLE "Many T" ({many})', "CREATE TABLE none (u UNION(a INTEGER))"],
        [Rows("Many T", ("1, 2.5, [1, NULL], {'a': 'x'}, '2026-01-01 00:00:00+00', '\\x00a'",))],
    )
    wlr.replicate(farm.url, into=database_url, register=False)
    assert sorted(wlr.read(database_url, "t").fetchall()) == [(1, "a"), (2, ""), (3, None)]
    found = wlr.read(database_url, "t", columns=["v"], where="id > 1 AND v IS NOT NULL", tick=3)
    assert (found.columns, found.fetchall()) == (["v"], [("",)])
    there, published_ = (wlr.read(place, '"Many T"') for place in (database_url, farm.url))
    assert there.types == published_.types
    assert there.fetchall() == published_.fetchall()
    with pytest.raises(InvalidError, match="is at tick 3, not at 2, and keeps no other ticks") as refused:
        wlr.read(database_url, "t", tick=2)
    assert refused.value.hint == f"Read the farm: wlr.read({farm.url!r}, 't', tick=2)"
    with pytest.raises(UnsupportedError, match="which PostgreSQL's text does not show"):
        wlr.read(database_url, "none")

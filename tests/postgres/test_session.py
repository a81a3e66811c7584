"""No setting of a server, a database or a role changes what is published, and what a replica holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import wlc
import wlr
from tests.postgres.cluster import Cluster, execute, new_folder, running
from tests.postgres.comparing import held_in_duckdb, texts_of
from tests.postgres.server import OTHER_MAJORS
from wlc.capture.postgres.master_connection import _SETTINGS as MASTERS
from wlc.capture.postgres.master_connection import ArrowReader, connect
from wlc.dialect.postgres.server_connection import PINNED
from wlc.farm.database import open_database
from wlc.farm.errors import InvalidError
from wlc.farm.model import Ddl
from wlr.engine.postgres import replica_connection as replicas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

# Libraries of PostgreSQL itself that have settings, and are loaded when they are needed.
LIBRARIES = ("plpgsql", "auto_explain", "pg_trgm", "postgres_fdw")
SETTINGS = "SELECT name, setting, vartype, min_val, max_val, enumvals FROM pg_settings WHERE context IN {}"
OF_USERS = "('user', 'superuser')"

# Why the others change nothing; `test_no_setting_changes_what_arrives` gives all of them other values.
OTHERS: dict[str, str] = {
    "which plan is chosen, and what it costs": r"enable_\w+|\w+_cost|geqo\w*|jit\w*|\w+_collapse_limit|\w+_parallel_\w+|\w+_work_mem"
    r"|work_mem|hash_mem_multiplier|temp_buffers|cursor_tuple_fraction|constraint_exclusion|effective_cache_size"
    r"|default_statistics_target|plan_cache_mode|recursive_worktable_factor|parallel_leader_participation|max_parallel_\w+"
    r"|synchronize_seqscans|debug_parallel_query|gin_pending_list_limit",
    "how files and the log of the server are written": r"\w+_io_concurrency|io_combine_limit|file_copy_method|wal_\w+|commit_\w+"
    r"|backend_flush_after|vacuum_\w+|debug_logical_replication_streaming",
    "what the server reports": r"log_\w+|track_\w+|trace_\w+|debug_(?:print|pretty)\w+|client_min_messages|lc_messages|application_name"
    r"|update_process_title|backtrace_functions|compute_query_id|stats_fetch_consistency|auto_explain\.\w+"
    r"|escape_string_warning|md5_password_warnings|plpgsql\.print_strict_params",
    "with a small value something fails, and says so": "max_stack_depth|temp_file_limit|deadlock_timeout",
    "it ends only connections whose other end is gone": r"tcp_\w+|client_connection_check_interval",
    "a replica keeps its position together with its rows": "synchronous_commit",
    "roles, libraries, tablespaces and extensions are not dbfarm's": "password_encryption|createrole_self_grant|scram_iterations"
    r"|\w+_preload_libraries|dynamic_library_path|extension_\w+|allow_\w+|lo_compat_privileges|icu_validation_level"
    r"|postgres_fdw\.application_name",
    "operators that compare by a threshold are in no text": r"pg_trgm\.\w+",
    "default_transaction_… decides": "transaction_(?:isolation|read_only|deferrable)",
    "in tests of PostgreSQL itself": "debug_discard_caches|event_triggers",
}
# Pinned for their own end only.
OF_ONE_END = {"search_path", *MASTERS, *replicas._SETTINGS}
# Other values, where a minimum, a maximum or another word would not do.
VALUES: dict[str, str | None] = {
    **dict.fromkeys(("lc_monetary", "lc_numeric", "lc_time"), "es_AR.UTF-8"),
    "lc_messages": "C",
    "DateStyle": "German",
    "TimeZone": "Asia/Tokyo",
    "client_encoding": "LATIN1",
    "search_path": "beside",
    "default_text_search_config": "pg_catalog.german",
    "timezone_abbreviations": "Australia",
    "default_table_access_method": "heap2",
    **dict.fromkeys(("default_tablespace", "temp_tablespaces"), "beside"),
    "restrict_nonsystem_relation_kind": "view",
    "session_preload_libraries": "auto_explain",
    "dynamic_library_path": "$libdir:/nowhere",
    "plpgsql.extra_errors": "all",
    "plpgsql.extra_warnings": "all",
    "application_name": "another",
    "postgres_fdw.application_name": "another",
    "backtrace_functions": "errdetail",
    "wal_consistency_checking": "all",
    "default_transaction_isolation": "serializable",
    "client_min_messages": "error",
    "log_statement_stats": None,
    "log_min_messages": "error",
    "synchronous_commit": "off",
    "jit_dump_bitcode": None,
    "max_stack_depth": "1024",
    "temp_file_limit": "1000000",
    "commit_delay": "1",
    "deadlock_timeout": "500",
    "extension_destdir": "/nowhere",
    **dict.fromkeys(("transaction_isolation", "transaction_read_only", "transaction_deferrable"), None),
    # Libraries are sought in a folder of their own; a server without assertions has no other value.
    "local_preload_libraries": None,
    "debug_discard_caches": None,
}
# What must be as it is for the user's own statements.
USER = "-c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed"
SCHEMA = """
    CREATE SCHEMA IF NOT EXISTS beside;
    CREATE FUNCTION public.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT n * 2';
    CREATE FUNCTION public.fits(n int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN twice(n) >= 0; END';
    CREATE TYPE public.size AS ENUM ('a', 'order');
    CREATE DOMAIN public.price AS money DEFAULT 1234.5::numeric::money CHECK (VALUE >= 0::money);
    CREATE TABLE public.t (id int PRIMARY KEY, "order" public.size, p public.price, f float8, z timestamptz,
        d date DEFAULT '2024-02-01', i interval, b bytea, a text[], x xml, s text, m money[], n numeric, r daterange, k char(3));
    CREATE TABLE public.c (n int CHECK (public.fits(n)));
    CREATE INDEX found ON public.t USING gin (to_tsvector('english', s));
    CREATE VIEW public.v AS SELECT id, p FROM public.t WHERE d > '2024-02-03'::date AND p > 1234.5::numeric::money
        AND z > '2024-02-03 10:00+00'::timestamptz AND i > '1 day 2 hours'::interval AND b <> E'\\\\x00ff'::bytea;
"""
ROW = """
    INSERT INTO public.t VALUES ({}, 'order', 19.90::numeric::money, 0.1::float8 + 0.2, '2024-02-01 10:00+00', '2024-02-01',
        '1 day 02:00:00', decode('00ff5c', 'hex'), ARRAY['a', NULL, 'NULL', chr(92)], XMLPARSE(CONTENT 'a<b/>'),
        chr(195) || chr(188) || ' is not ' || chr(252), ARRAY[1234.5::numeric::money], 1234.50, '[2024-02-01,2024-03-04)', 'k')
"""
CHANGES = (
    ROW.format(2),
    "SET search_path = public",
    "INSERT INTO public.c VALUES (1)",
    "ALTER TABLE public.t ADD w public.price DEFAULT 1234.5::numeric::money, ADD y text DEFAULT 'a' || chr(92),"
    " ADD u date DEFAULT '2024-02-01'",
    "UPDATE public.t SET p = p * 2",
    "ALTER TABLE public.t ALTER n TYPE text",
    "CREATE POLICY seen ON public.t USING (d > '2024-02-03'::date)",
    "CREATE TABLE public.q (d date, a text[]) PARTITION BY RANGE (d)",
    "CREATE TABLE public.q1 PARTITION OF public.q FOR VALUES FROM ('2024-02-01') TO ('2024-03-04')",
    "INSERT INTO public.q VALUES ('2024-02-02', ARRAY[NULL])",
    "CREATE MATERIALIZED VIEW public.w AS SELECT d, count(*) AS n FROM public.t WHERE d < '2024-02-03'::date GROUP BY 1",
    "ALTER VIEW public.v RENAME TO v2",
    'ALTER TABLE public.t RENAME "order" TO "select"',
    ROW.format(3)[:-2] + ", DEFAULT, DEFAULT, DEFAULT)",
    "DELETE FROM public.t WHERE id = 1",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """A server that has another locale than C, another tablespace and another access method."""
    folder = new_folder()
    with pytest.MonkeyPatch.context() as patch:
        places = folder.with_name(f"{folder.name}-locales")
        places.mkdir()
        made = ["localedef", "-i", "es_AR", "-f", "UTF-8", str(places / "es_AR.UTF-8")]
        subprocess.run(made, capture_output=True, check=False)
        patch.setenv("LOCPATH", str(places))
        for cluster in running(folder):
            execute(
                cluster.url(),
                "SET allow_in_place_tablespaces = on",
                "CREATE TABLESPACE beside LOCATION ''",
                "CREATE ROLE beside; CREATE ROLE acting LOGIN SUPERUSER; ALTER ROLE acting SET role = beside",
            )
            yield cluster
        shutil.rmtree(places)


def settings(url: str, contexts: str = OF_USERS) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for library in LIBRARIES:
            connection.execute(f"DO $$ BEGIN LOAD '{library}'; EXCEPTION WHEN OTHERS THEN NULL; END $$")
        return connection.execute(SETTINGS.format(contexts)).fetchall()


def another(name: str, setting: str, kind: str, least: str, most: str, words: list[str] | None) -> str | None:
    """Another value than the pinned one, or than the present one of a setting that is not pinned."""
    if name.startswith("lc_") and not any(Path(os.environ["LOCPATH"]).iterdir()):
        return "POSIX"
    if name in VALUES:
        return VALUES[name]
    if name.endswith("_timeout"):
        return "600000"
    taken = {**PINNED, **MASTERS}.get(name, setting)
    numbers = () if kind not in ("integer", "real") else (least, "1", most)
    found = next((value for value in (*(words or ()), *numbers, "off", "on") if value != taken), None)
    return None if kind == "string" else found


def disturb(url: str) -> dict[str, str]:
    """Give a database another value of every setting, and return these."""
    database = url.rpartition("/")[2]
    execute(
        url, "CREATE SCHEMA IF NOT EXISTS beside; CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler"
    )
    found: dict[str, str] = {}
    for name, *rest in settings(url):
        value = another(name, *rest)
        if value is not None:
            found[name] = value
    with psycopg.connect(url, autocommit=True) as connection:
        for library in LIBRARIES:
            connection.execute(f"LOAD '{library}'")
        for name, value in found.items():
            connection.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")
    return found


def as_user(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True, options=USER) as connection:
        for statement in statements:
            connection.execute(statement)


def check_known(names: set[str]) -> None:
    listed = re.compile("|".join(OTHERS.values()))
    unknown = {name for name in names if not listed.fullmatch(name)} - set(PINNED) - OF_ONE_END
    assert unknown == set(), (
        "pin them in wlc/dialect/postgres/server_connection.py, or say here why they change nothing"
    )


def test_all_settings_are_known(server: Cluster):
    names = {name for name, *_ in settings(server.url())}
    assert {"plpgsql.variable_conflict", "pg_trgm.similarity_threshold"} < names
    check_known(names)
    # Nothing is listed that is pinned.
    listed = re.compile("|".join(OTHERS.values()))
    assert not [name for name in PINNED if listed.fullmatch(name)]


@pytest.mark.deep
@pytest.mark.parametrize("major", OTHER_MAJORS)
def test_all_settings_of_other_majors_are_known(cluster_of: Callable[[int], Cluster], major: int):
    url = cluster_of(major).url()
    check_known({name for name, *_ in settings(url)})
    with closing(connect(url)) as connection, ArrowReader(url):
        assert connection.execute("SHOW lc_monetary").fetchone() == ("C",)


def test_every_connection_has_the_pinned_values(server: Cluster):
    url = server.create_database()
    given = disturb(url)
    url = url.replace("postgres@", "acting@")
    assert set(PINNED) - set(given) <= {"role", "transaction_timeout"}

    def check(show: Callable[[str], str], more: dict[str, str]) -> None:
        found = {name: show(name) for name in (*given, "role") if name in {**PINNED, **more}}
        assert found == {name: {**PINNED, **more}[name] for name in found}

    for replication in (False, True):
        with closing(connect(url, replication=replication)) as connection:
            check(partial(shown, connection), MASTERS)
            assert shown(connection, "role") == "none"
    with ArrowReader(url) as reader:

        def show(name: str) -> str:
            (block,) = reader.blocks(f"SELECT current_setting('{name}')")
            return str(block.column(0)[0])

        check(show, MASTERS)
    address = replicas.Address(url, url, None)
    with closing(replicas.connect(address)) as connection:
        check(partial(shown, connection), replicas._SETTINGS)


def test_what_only_a_superuser_may_change_is_named(server: Cluster):
    url = server.create_database()
    execute(url, "DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN")
    plain = url.replace("postgres@", "plain@")
    connect(plain).close()
    execute(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET zero_damaged_pages = on")
    with pytest.raises(InvalidError, match="zero_damaged_pages") as caught:
        connect(plain)
    assert f"psql {plain} -c '\\drds'" in str(caught.value.hint)
    connect(url).close()


def shown(connection: psycopg.Connection[Any], name: str) -> str:
    (value,) = connection.execute(f"SHOW {name}".encode()).fetchone() or ("",)
    # Texts of the replication protocol are not decoded.
    return value.decode() if isinstance(value, bytes) else str(value)


def scenario(url: str, farm: str, replica: str, tmp_path: Path) -> tuple[list[str], Any]:
    """Publish a schema and changes of it; return all statements in the farm and the rows of a DuckDB replica."""
    as_user(url.replace("acting@", "postgres@"), SCHEMA, ROW.format(1))
    wlc.master(url, farm=farm, name="x")
    wlr.replicate("x", farm=farm, into=replica, register=False)
    as_user(url.replace("acting@", "postgres@"), *CHANGES)
    wlc.flush(url)
    assert not wlc.status(url).bypassed
    assert all(check.outcome == "same" for check in wlc.verify_source(url))
    wlr.replicate("x", farm=farm, into=replica, register=False)
    wlr.replicate("x", farm=farm, into=tmp_path / "r.duckdb", register=False)
    database = open_database("x", farm)
    manifest = database.read_manifest(database.snapshot_ticks()[0])
    batches = (database.read_batch(number)[0] for number in database.batch_numbers())
    records = (r for batch in batches for t in batch.transactions for r in t.records)
    statements = [d for d in (*manifest.schema, *manifest.schema_after, *records) if isinstance(d, Ddl)]
    return [f"{d.statement} {d.original or ''}" for d in statements], held_in_duckdb(tmp_path / "r.duckdb")


def test_no_setting_changes_what_arrives(server: Cluster, tmp_path: Path):
    plain, copy = server.create_database(), server.create_database()
    expected = scenario(plain, str(tmp_path / "farm"), copy, tmp_path)
    url, replica = server.create_database(), server.create_database()
    disturb(url)
    disturb(replica)
    (tmp_path / "other").mkdir()
    acting = [database.replace("postgres@", "acting@") for database in (url, replica)]
    found = scenario(acting[0], str(tmp_path / "other/farm"), acting[1], tmp_path / "other")
    assert found[0] == expected[0]
    assert found[1] == expected[1]
    for database in (url, replica):
        execute(server.url(), f"ALTER DATABASE {database.rpartition('/')[2]} RESET ALL")
    assert texts_of(url) == texts_of(plain)
    assert texts_of(replica) == texts_of(plain) == texts_of(copy)

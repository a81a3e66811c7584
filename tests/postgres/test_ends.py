"""How histories of PostgreSQL masters end and cannot begin: lost slots, copies, other masters, wlc stop, refusals.

Docs: docs/postgresql.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import wlc
import wlr
from tests.fault.processes import call_command
from tests.postgres.cluster import Cluster, execute
from tests.postgres.held import held_by_duckdb, held_by_postgres
from tests.postgres.programs import program
from tests.sampling import sampled
from wlc.farm.addresses import without_password
from wlc.farm.database import open_database
from wlc.farm.errors import FarmError, FencedError, GapError, InvalidError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TABLES = """
    CREATE TABLE account (id bigserial PRIMARY KEY, amount int NOT NULL);
    CREATE TABLE entry (account bigint, amount int);
    INSERT INTO account (amount) SELECT 0 FROM generate_series(1, 20)
"""
SLOT = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
# What a master has besides `wlc.state`.
LEFT = """
    SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE database = current_database()
    UNION ALL SELECT 'publication ' || pubname FROM pg_publication
    UNION ALL SELECT 'trigger ' || evtname FROM pg_event_trigger
    UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = to_regnamespace('wlc')
    UNION ALL SELECT 'table ' || relname FROM pg_class WHERE relnamespace = to_regnamespace('wlc') AND relkind = 'r'
    UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'wlc'
"""


@pytest.fixture(autouse=True)
def slots(cluster: Cluster) -> Iterator[None]:
    """A server has a number of slots only."""
    yield
    cluster.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")


@pytest.fixture
def bank(database_url: str, farm: str) -> str:
    execute(database_url, TABLES)
    wlc.master(database_url, farm=farm, name="bank")
    return database_url


def transfer(url: str, number: int = 1) -> None:
    execute(url, f"INSERT INTO entry VALUES (1, {number})")


def slot_of(url: str) -> str:
    return str(execute(url, SLOT)[0][0])


def check_equal(url: str, farm: str, into: Path) -> None:
    wlr.replicate("bank", farm=farm, into=into, register=False)
    assert held_by_duckdb(into) == held_by_postgres(url, main="")


@contextmanager
def settings(cluster: Cluster, **values: str) -> Iterator[None]:
    """Other settings of a server, which is started again."""
    for name, value in values.items():
        cluster.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    _start_again(cluster)
    try:
        yield
    finally:
        for name in values:
            cluster.execute(f"ALTER SYSTEM RESET {name}")
        _start_again(cluster)


def _start_again(cluster: Cluster) -> None:
    cluster.stop()
    data = str(cluster.folder / "data")
    cluster._run("pg_ctl", "-D", data, "-l", str(cluster.folder / "log"), "-w", "start")


# Lost --------------------------------------------------------------------------------------------------------------


def drop(url: str) -> None:
    execute(url, f"SELECT pg_drop_replication_slot('{slot_of(url)}')")


def drop_and_make_again(url: str) -> None:
    slot = slot_of(url)
    execute(
        url,
        f"SELECT pg_drop_replication_slot('{slot}')",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )


def move(url: str) -> None:
    execute(url, f"SELECT pg_replication_slot_advance('{slot_of(url)}', pg_current_wal_flush_lsn())")


LOSSES: dict[str, tuple[Callable[[str], None], str]] = {
    "dropped": (drop, "is gone"),
    "dropped and made again": (drop_and_make_again, "was moved by another program"),
    "moved": (move, "was moved by another program"),
}


def check_lost(url: str, farm: str, tmp_path: Path, slot: str, said: str) -> None:
    """Refused by name, until the history is ended and a new one begun."""
    into = tmp_path / "replica.duckdb"
    for operation in (wlc.flush, wlc.snapshot):
        with pytest.raises(GapError, match=said) as caught:
            operation(url)
        assert slot in str(caught.value)
        assert "wlc stop" in str(caught.value.hint)
    assert call_command("wlc", "run", url).returncode == GapError.exit_code
    before = open_database("bank", farm).config()
    with pytest.warns(UserWarning, match=said):
        assert wlc.stop(url).state == "stopped"
    wlc.master(url)
    after = open_database("bank", farm).config()
    assert after.history != before.history
    assert after.tick > before.tick
    transfer(url, 5)
    wlc.flush(url)
    check_equal(url, farm, tmp_path / "new.duckdb")
    # What was lost is in the snapshot of the new history, and an older replica does not go on without it.
    try:
        check_equal(url, farm, into)
    except FarmError as error:
        assert "history" in str(error), error


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(list(LOSSES), 2))
def test_a_lost_slot_ends_the_history_and_says_so(bank: str, farm: str, tmp_path: Path, kind: str):
    lose, said = LOSSES[kind]
    transfer(bank)
    wlc.flush(bank)
    wlr.replicate("bank", farm=farm, into=tmp_path / "replica.duckdb", register=False)
    transfer(bank, 2)
    slot = slot_of(bank)
    lose(bank)
    status = call_command("wlc", "status", bank, "--json")
    assert status.returncode == 0, status.stderr
    if kind == "dropped":
        assert json.loads(status.stdout)["slot"] == "gone"
    assert slot in status.stderr
    check_lost(bank, farm, tmp_path, slot, said)


@pytest.mark.slow
def test_a_slot_that_the_server_gave_up(own_cluster: Cluster, farm: str, tmp_path: Path):
    url = own_cluster.create_database()
    execute(url, TABLES)
    wlc.master(url, farm=farm, name="bank")
    wlr.replicate("bank", farm=farm, into=tmp_path / "replica.duckdb", register=False)
    transfer(url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wlc.capture.postgres.slot._RETAINED_WARNING_BYTES", 1)
        with pytest.warns(UserWarning, match="is wlc run running"):
            status: Any = wlc.status(url)
    assert status.slot == "reserved"
    assert status.retained_bytes > 0
    own_cluster.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    own_cluster.execute("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            transfer(url)
            own_cluster.execute("SELECT pg_switch_wal()")
        own_cluster.execute("CHECKPOINT")
        with pytest.warns(UserWarning, match="was invalidated by the server"):
            status = wlc.status(url)
        assert status.slot == "lost"
        check_lost(url, farm, tmp_path, slot_of(url), "was invalidated by the server")
    finally:
        own_cluster.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        own_cluster.execute("SELECT pg_reload_conf()")
        execute(url, f"SELECT pg_drop_replication_slot(slot_name) FROM ({SLOT}) s")


def test_a_restored_copy_is_refused_and_leaves_the_original_alone(
    bank: str, farm: str, cluster: Cluster, tmp_path: Path
):
    transfer(bank)
    wlc.flush(bank)
    copy = cluster.create_database()
    dumped = subprocess.run([program("pg_dump"), bank], capture_output=True, text=True, check=True).stdout
    restored = subprocess.run([program("psql"), "-q", copy], input=dumped, capture_output=True, text=True, check=False)
    assert restored.returncode == 0, restored.stderr
    assert execute(copy, "SELECT count(*) FROM wlc.state")[0][0] > 5
    transfer(copy, 77)
    for operation in (wlc.flush, wlc.snapshot):
        with pytest.raises(FencedError, match="is a copy") as caught:
            operation(copy)
        assert f"wlc master {without_password(copy)} --name OTHER" in str(caught.value.hint)
    slot = slot_of(bank)
    with pytest.raises(InvalidError, match="belongs to another source.*is a copy"):
        wlc.master(copy, name="bank")
    # The copy becomes a master of its own elsewhere, and takes nothing away from the original.
    with pytest.warns(UserWarning, match="the farm is left as it is"):
        wlc.stop(copy)
    assert slot_of(bank) == slot
    wlc.master(copy, name="other")
    assert slot_of(bank) == slot
    transfer(copy, 78)
    assert wlc.flush(copy).transactions == 1
    # What the copy took over is where the original left it.
    transfer(bank, 2)
    assert wlc.flush(bank).transactions == 1
    check_equal(bank, farm, tmp_path / "replica.duckdb")
    # A copy that takes the original's place begins a new history there.
    heir = cluster.create_database()
    subprocess.run([program("psql"), "-q", heir], input=dumped, capture_output=True, text=True, check=True)
    history = wlc.status("bank", farm=farm).history
    assert wlc.master(heir, moved=True).history != history
    with pytest.raises(FencedError, match="history"):
        wlc.flush(bank)


def test_another_master_fences_off_the_first(bank: str, farm: str, cluster: Cluster, tmp_path: Path):
    transfer(bank)
    wlc.flush(bank)
    other = cluster.create_database()
    execute(other, TABLES)
    with pytest.raises(InvalidError, match="exists already"):
        wlc.master(other, farm=farm, name="bank")
    assert [row[0] for row in execute(other, LEFT)] == []
    # The farm is given to another database behind the first one's back.
    database = open_database("bank", farm)
    from dataclasses import replace

    database.change_config(lambda config: replace(config, history="f" * 16))
    transfer(bank, 2)
    for operation in (wlc.flush, wlc.snapshot):
        with pytest.raises(FencedError):
            operation(bank)
    with pytest.warns(UserWarning, match="the farm is left as it is"):
        wlc.stop(bank)
    assert open_database("bank", farm).config().history == "f" * 16
    assert [row[0] for row in execute(bank, LEFT)] == ["table state", "schema wlc"]


def test_stop_leaves_nothing_but_the_state(database_url: str, farm: str, tmp_path: Path):
    execute(
        database_url,
        TABLES,
        """CREATE TABLE nothing (a int); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE indexed (a int NOT NULL UNIQUE, b int NOT NULL UNIQUE);
        ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_b_key;
        CREATE TABLE gone (a int NOT NULL UNIQUE); ALTER TABLE gone REPLICA IDENTITY USING INDEX gone_a_key;
        CREATE TABLE whole (a int); ALTER TABLE whole REPLICA IDENTITY FULL""",
    )
    query = "SELECT relname, relreplident FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    before = dict(execute(database_url, query))
    wlc.master(database_url, farm=farm, name="bank")
    assert set(dict(execute(database_url, query)).values()) == {"f"}
    execute(database_url, "ALTER TABLE gone DROP CONSTRAINT gone_a_key", "CREATE TABLE later (a int PRIMARY KEY)")
    transfer(database_url)
    status = wlc.stop(database_url)
    assert (status.state, status.tick) == ("stopped", 3)
    after = dict(execute(database_url, query))
    assert after == {**before, "gone": "d", "later": "d"}
    assert execute(
        database_url,
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indisreplident AND indrelid = 'indexed'::regclass",
    ) == [("indexed_b_key",)]
    assert [row[0] for row in execute(database_url, LEFT)] == ["table state", "schema wlc"]
    execute(database_url, "ALTER TABLE entry ADD COLUMN more int", "DROP TABLE later", "CREATE TABLE t (a int)")
    transfer_refused = call_command("wlc", "flush", database_url)
    assert transfer_refused.returncode == InvalidError.exit_code
    assert "was stopped" in transfer_refused.stderr
    wlc.master(database_url)
    execute(database_url, "INSERT INTO t VALUES (1)")
    wlc.flush(database_url)
    check_equal(database_url, farm, tmp_path / "replica.duckdb")


def test_stopping_and_beginning_wait_for_no_lock_while_holding_another(bank: str, farm: str):
    wlc.stop(bank)
    # Whoever writes to the second table and then to the first must not be in anybody's way for ever.
    with psycopg.connect(bank) as writer:
        writer.execute("INSERT INTO entry VALUES (1, 1)")
        import threading

        thread = threading.Thread(target=wlc.master, args=[bank])
        thread.start()
        try:
            writer.execute("SET lock_timeout = '10s'")
            for _ in range(50):
                writer.execute("UPDATE account SET amount = amount + 1")
                thread.join(0.02)
            assert thread.is_alive()
            writer.commit()
        finally:
            thread.join(30)
    assert not thread.is_alive()
    assert wlc.status(bank).state == "active"


# Refused -----------------------------------------------------------------------------------------------------------


def test_settings_of_the_server(own_cluster: Cluster, farm: str, tmp_path: Path):
    url = own_cluster.create_database()
    execute(url, TABLES)
    with settings(own_cluster, wal_level="replica"):
        with pytest.raises(UnsupportedError, match="wal_level=replica") as caught:
            wlc.master(url, farm=farm, name="bank")
        assert "ALTER SYSTEM SET wal_level = logical" in str(caught.value.hint)
        assert execute(url, LEFT) == []
    with settings(own_cluster, max_replication_slots="1"):
        with pytest.raises(UnsupportedError, match="0 of 1 replication slots") as caught:
            wlc.master(url, farm=farm, name="bank")
        assert "max_replication_slots" in str(caught.value.hint)
        assert execute(url, LEFT) == []
    with settings(own_cluster, max_wal_senders="0"):
        with pytest.raises(UnsupportedError, match="0 of 0 senders") as caught:
            wlc.master(url, farm=farm, name="bank")
        assert "max_wal_senders" in str(caught.value.hint)
        assert execute(url, LEFT) == []
    assert not (tmp_path / "farm" / "bank" / "wlc.config").exists()
    assert wlc.master(url, farm=farm, name="bank").state == "active"
    wlc.stop(url)


@pytest.mark.slow
def test_roles_databases_and_servers(cluster: Cluster, database_url: str, farm: str, tmp_path: Path):
    name = database_url.rpartition("/")[2]
    cluster.execute("DROP ROLE IF EXISTS plain")
    cluster.execute("CREATE ROLE plain LOGIN REPLICATION")
    cluster.execute("DROP DATABASE IF EXISTS latin")
    cluster.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    cases: list[tuple[str, type[FarmError], str, str]] = [
        (cluster.url(name, user="plain"), UnsupportedError, "role plain may not", "--print-sql"),
        (cluster.url("latin"), UnsupportedError, "encoding LATIN1", ""),
        (cluster.url("nowhere"), InvalidError, 'database "nowhere" does not exist', "psql"),
        (cluster.url(name, user="nobody_here"), InvalidError, 'role "nobody_here" does not exist', "psql"),
        (
            "postgresql://me@127.0.0.1:1/x",
            UnavailableError,
            "127.0.0.1",
            "pg_isready -d postgresql://me@127.0.0.1:1/x ",
        ),
        (
            "postgresql://postgres@127.0.0.1:port/x",
            InvalidError,
            "is no URL of a database",
            "postgresql://user@host/db",
        ),
    ]
    for url, kind, message, hint in cases:
        with pytest.raises(kind) as caught:
            wlc.master(url, farm=farm, name="bank")
        assert message in str(caught.value)
        assert hint in str(caught.value.hint or "")
        done = call_command("wlc", "master", url, "--farm", farm, "--yes")
        assert done.returncode == kind.exit_code
        assert done.stderr.count("error:") == 1
        assert "Traceback" not in done.stderr
    assert execute(database_url, LEFT) == []
    assert not (tmp_path / "farm" / "bank" / "wlc.config").exists()
    cluster.execute("DROP DATABASE latin")
    cluster.execute("DROP ROLE plain")


def test_a_master_is_not_made_one_twice_and_others_are_none(bank: str, farm: str, cluster: Cluster):
    state = sorted(execute(bank, "SELECT * FROM wlc.state"))
    with pytest.raises(InvalidError, match="is a master already, as bank") as caught:
        wlc.master(bank, farm=farm)
    assert "wlc status" in str(caught.value.hint)
    assert sorted(execute(bank, "SELECT * FROM wlc.state")) == state
    none = cluster.create_database()
    for operation in (wlc.flush, wlc.snapshot, wlc.stop, wlc.status):
        with pytest.raises(InvalidError, match="is not a master") as caught:
            operation(none)
        assert "wlc master" in str(caught.value.hint)


@pytest.mark.slow
def test_tables_are_named_before_they_are_changed(database_url: str, farm: str):
    execute(database_url, TABLES)
    refused = call_command("wlc", "master", database_url, "--farm", farm)
    assert refused.returncode == InvalidError.exit_code
    assert "public.account, public.entry" in refused.stderr
    assert "--yes" in refused.stderr
    assert execute(database_url, LEFT) == []
    done = call_command("wlc", "master", database_url, "--farm", farm, "--yes")
    assert done.returncode == 0, done.stderr


def test_passwords_are_never_shown(cluster: Cluster, database_url: str, farm: str, tmp_path: Path):
    secret = "Sw0rdfish"
    execute(database_url, TABLES)
    name = database_url.rpartition("/")[2]
    url = cluster.url(name, password=secret)
    as_parameter = f"{cluster.url(name)}?password={secret}"
    said = ""
    commands = (
        ("tick", url),
        ("master", url, "--farm", farm),
        ("master", url, "--farm", farm, "--name", "bank", "--yes"),
        ("master", as_parameter, "--yes"),
        ("status", url),
        ("status", as_parameter, "--json"),
        ("flush", url),
        ("snapshot", url),
        ("sql", url, "SELECT 1"),
        ("farm", "repair", url),
        ("flush", cluster.url("nowhere", password=secret)),
        ("flush", cluster.url(name, user="nobody_here", password=secret)),
        ("flush", f"postgresql://postgres:{secret}@127.0.0.1:1/x"),
        ("flush", f"postgresql://postgres:{secret}@{secret}@127.0.0.1:{cluster.port}/{name}"),
        ("log", url),
        ("tick", url),
        ("beat", url, "5"),
        ("prune", url, "--dry-run"),
    )
    for command in commands:
        done = call_command("wlc", *command)
        said += f"\n$ {command[0]}: {done.stdout}{done.stderr}"
    execute(database_url, f"SELECT pg_drop_replication_slot('{slot_of(database_url)}')")
    for command in (("flush", url), ("run", url), ("status", url), ("stop", url), ("flush", url)):
        done = call_command("wlc", *command)
        said += f"\n$ {command[0]}: {done.stdout}{done.stderr}"
    assert secret not in said
    assert "bank" in said
    assert secret not in str(execute(database_url, "SELECT * FROM wlc.state"))
    files = [path for path in (tmp_path / "farm").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]


WITHOUT_DRIVERS = """
import json, sys
sys.modules.update(dict.fromkeys(["psycopg", "adbc_driver_postgresql", "numpy"]))
import cli.wlc, cli.wlr
from cli.command import run_app
apps = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}
for program, *arguments in json.loads(sys.argv[1]):
    print(run_app(apps[program], program, arguments), flush=True)
"""


@pytest.mark.slow
def test_the_extra_is_named_where_the_drivers_are_not_installed() -> None:
    url = "postgresql://nobody@localhost/nothing"
    commands = (
        ("wlc", "master", url),
        ("wlc", "run", url),
        ("wlc", "status", url),
        ("wlr", "replicate", "sales", "--farm", "farm", "--into", url),
        ("wlr", "status", url),
    )
    command = [sys.executable, "-c", WITHOUT_DRIVERS, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2"] * len(commands)
    # A command that goes on writes its errors as lines of a log.
    said = re.findall("error:? PostgreSQL needs packages that are not installed", done.stderr)
    assert len(said) == done.stderr.count("hint: pip install 'dbfarm[postgres]'") == len(commands)
    assert "Traceback" not in done.stderr

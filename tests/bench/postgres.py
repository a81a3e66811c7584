"""How fast PostgreSQL follows PostgreSQL through a farm, beside PostgreSQL's own logical replication.

One server, three databases: the master, a subscriber of its publication, and a replica from the farm. Both sides get the
same transactions, one side after the other.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import psycopg

import wlc
import wlr
from tests.bench.measure import Line, Setting, duration, timed
from tests.postgres.cluster import Cluster, execute, new_folder, running
from tests.postgres.programs import program
from wlc.farm import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLE = """CREATE TABLE t (id bigint PRIMARY KEY, customer int, amount numeric(12,2), at timestamptz, note text)"""
BESIDE = "PostgreSQL alone"
PATIENCE_S = 200
PUBLISH_GOAL_S = 0.1
# Transactions of one row each: (of 5) 3 inserts, an update, a delete.
SMALL = """
DO $$ BEGIN FOR i IN {first}..{last} LOOP
    IF i % 5 < 3 THEN INSERT INTO t VALUES (10000000 + i, i % 1000, i, now(), 'small ' || i);
    ELSIF i % 5 = 3 THEN UPDATE t SET amount = amount + 1, note = 'again' WHERE id = 10000000 + i - 1;
    ELSE DELETE FROM t WHERE id = 10000000 + i - 3; END IF;
    COMMIT;
END LOOP; END $$
"""


def run(setting: Setting) -> Iterator[Line]:
    """Yield catching up with four kinds of work, the time from commit to visible, and what the master pays.

    Figures of catching up say how many times faster we are than PostgreSQL's apply worker.
    """
    for cluster in running(new_folder()):
        cluster.execute("ALTER SYSTEM SET fsync = on")
        cluster.execute("ALTER SYSTEM SET autovacuum = on")
        cluster.execute("ALTER SYSTEM SET max_wal_size = '8GB'")
        # A subscriber that was disabled would wait for five seconds before it goes on.
        cluster.execute("ALTER SYSTEM SET wal_retrieve_retry_interval = '20ms'")
        cluster.execute("SELECT pg_reload_conf()")
        for lines, measure in _MEASURED.items():
            if setting.wants(lines):
                yield from measure(setting, cluster)


class Pair:
    """A master, its subscriber and its replica."""

    def __init__(self, setting: Setting, cluster: Cluster, beat_s: float) -> None:
        self.cluster = cluster
        self.master, self.subscriber, self.replica = (cluster.create_database() for _ in range(3))
        self.farm = setting.folder / f"farm{time.monotonic_ns()}"
        rows = setting.rows(1_000_000)
        execute(self.master, TABLE, f"INSERT INTO t {_rows(0, rows)}")
        wlc.master(self.master, farm=str(self.farm), name="bench", beat_s=beat_s)
        wlr.replicate("bench", farm=str(self.farm), into=self.replica)
        # Within one server the slot has to be there before the subscription is.
        self.slot = f"native{time.monotonic_ns()}"
        execute(self.master, "CREATE PUBLICATION native FOR TABLE t")
        execute(self.master, f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput')")
        execute(self.subscriber, TABLE)
        with (
            psycopg.connect(self.master) as source,
            psycopg.connect(self.subscriber) as target,
            source.cursor().copy("COPY t TO STDOUT (FORMAT binary)") as read,
            target.cursor().copy("COPY t FROM STDIN (FORMAT binary)") as write,
        ):
            for block in read:
                write.write(block)
        execute(
            self.subscriber,
            f"CREATE SUBSCRIPTION s CONNECTION '{self.master}' PUBLICATION native WITH (create_slot = false,"
            f" slot_name = '{self.slot}', copy_data = false, enabled = false)",
        )

    def catch_up_natively(self) -> None:
        """Let the subscriber apply what waits."""
        ((end,),) = execute(self.master, "SELECT pg_current_wal_lsn()::text")
        execute(self.subscriber, "ALTER SUBSCRIPTION s ENABLE")
        query = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        until = time.monotonic() + PATIENCE_S
        while execute(self.master, query) != [(True,)]:
            assert time.monotonic() < until, "the subscriber does not catch up"
            time.sleep(0.02)

    def rest_natively(self) -> None:
        """Keep the subscriber from applying."""
        execute(self.subscriber, "ALTER SUBSCRIPTION s DISABLE")

    def catch_up(self) -> tuple[float, float]:
        """Publish and apply what waits; seconds of both."""
        published = timed(lambda: wlc.flush(self.master))
        return published, timed(lambda: wlr.replicate("bench", farm=str(self.farm), into=self.replica))

    def is_equal(self) -> bool:
        """Whether all three hold the same."""
        query = "SELECT count(*), sum(hashtext(t::text)::bigint) FROM t"
        return execute(self.master, query) == execute(self.subscriber, query) == execute(self.replica, query)

    def close(self) -> None:
        """Give up both slots."""
        execute(self.subscriber, "ALTER SUBSCRIPTION s DISABLE", "ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        execute(self.subscriber, "DROP SUBSCRIPTION s")
        until = time.monotonic() + PATIENCE_S
        while execute(self.master, f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self.slot}'")[0][0]:
            assert time.monotonic() < until, "the subscriber does not let go"
            time.sleep(0.1)
        execute(self.master, f"SELECT pg_drop_replication_slot('{self.slot}')")
        wlc.stop(self.master)


def _rows(first: int, end: int) -> str:
    return f"SELECT i, i % 1000, i / 7.0, now(), 'note ' || i FROM generate_series({first}, {end - 1}) i"


def _catching_up(setting: Setting, cluster: Cluster) -> Iterator[Line]:
    rows = setting.rows(1_000_000)
    small = setting.rows(100_000)
    works = {
        f"insert {rows:,} rows": (f"INSERT INTO t {_rows(rows, 2 * rows)}", 1.0),
        f"update {rows // 2:,} rows": (f"UPDATE t SET amount = amount + 1 WHERE id < {rows // 2}", 3.0),
        f"delete {rows // 5:,} rows": (f"DELETE FROM t WHERE id >= {2 * rows - rows // 5}", None),
        f"{small:,} small transactions": (SMALL.format(first=0, last=small - 1), 3.0),
    }
    pair = Pair(setting, cluster, beat_s=300)
    try:
        for name, (work, goal) in works.items():
            execute(pair.master, work)
            native = timed(pair.catch_up_natively)
            pair.rest_natively()
            published, replayed = pair.catch_up()
            assert pair.is_equal()
            faster = native / replayed
            yield Line(f"replay {name}", duration(native), duration(replayed), faster, goal=goal, is_most=False)
            both = published + replayed
            yield Line("… and publish them first", duration(native), duration(both), native / both)
    finally:
        pair.close()


# One row at a time ---------------------------------------------------------------------------------------------------


def _commit_to_visible(setting: Setting, cluster: Cluster) -> Iterator[Line]:
    for beat_s in (0, 5) if setting.scale == 1 else (0,):
        pair = Pair(setting, cluster, beat_s)
        try:
            execute(pair.subscriber, "ALTER SUBSCRIPTION s ENABLE")
            follow = ("replicate", "bench", "--farm", str(pair.farm), "--into", pair.replica, "--follow")
            wlr.beat(pair.replica, max(beat_s, 0.2))
            with _process("wlc", "run", pair.master), _process("wlr", *follow):
                time.sleep(2 * beat_s + 4)
                native, published, ours = _delays(pair, tries=max(2, setting.rows(20)) if beat_s == 0 else 4)
            if beat_s == 0:
                yield Line("commit to published, beat 0", "", duration(published), published, "s", PUBLISH_GOAL_S)
            yield Line(f"commit to visible, beat {beat_s}", duration(native), duration(ours), ours, "s")
        finally:
            pair.close()


def _delays(pair: Pair, tries: int) -> tuple[float, float, float]:
    """Median seconds until a committed row shows at the subscriber, in the farm and at the replica."""
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    with (
        psycopg.connect(pair.master, autocommit=True) as master,
        psycopg.connect(pair.subscriber, autocommit=True) as subscriber,
        psycopg.connect(pair.replica, autocommit=True) as replica,
    ):
        for number in range(tries):
            key = -1 - number
            before = _log_files(pair)
            master.execute("INSERT INTO t (id) VALUES (%s)", [key])
            started = time.monotonic()

            def shows(connection: psycopg.Connection, key: int = key) -> bool:
                return connection.execute("SELECT count(*) FROM t WHERE id = %s", [key]).fetchone() == (1,)

            def is_published(before: int = before) -> bool:
                return _log_files(pair) > before

            waiting: dict[int, Callable[[], bool]]
            waiting = {0: partial(shows, subscriber), 1: is_published, 2: partial(shows, replica)}
            while waiting:
                assert time.monotonic() < started + PATIENCE_S, "the row does not arrive"
                for side, has_arrived in list(waiting.items()):
                    if has_arrived():
                        found[side].append(time.monotonic() - started)
                        del waiting[side]
                time.sleep(0.002)
    subscribed, published, replicated = map(median, found)
    return subscribed, published, replicated


def _log_files(pair: Pair) -> int:
    names = (path.name for path in (pair.farm / "bench" / paths.LOGS).iterdir())
    return sum(paths.parse_log_path("bench", name) is not None for name in names)


# What the master pays ------------------------------------------------------------------------------------------------


def _overhead(setting: Setting, cluster: Cluster) -> Iterator[Line]:
    seconds = max(2, int(20 * setting.scale))
    url = cluster.create_database()
    _pgbench(url, "-i", "-s", "10", "-q")
    alone = _transactions_per_s(url, seconds)
    wlc.master(url, farm=str(setting.folder / "pgbench"), name="pgbench", beat_s=5)
    captured = _transactions_per_s(url, seconds)
    with _process("wlc", "run", url):
        published = _transactions_per_s(url, seconds)
    wlc.stop(url)
    again = _transactions_per_s(url, seconds)
    plain = (alone + again) / 2
    yield Line("pgbench, 4 clients: captured", f"{plain:,.0f} tps", f"{captured:,.0f} tps", plain / captured)
    yield Line("… and published every 5 s", f"{plain:,.0f} tps", f"{published:,.0f} tps", plain / published)


def _transactions_per_s(url: str, seconds: int) -> float:
    said = _pgbench(url, "-c", "4", "-j", "1", "-n", "-T", str(seconds))
    found = re.search(r"tps = ([\d.]+)", said)
    assert found, said
    return float(found.group(1))


def _pgbench(url: str, *arguments: str) -> str:
    done = subprocess.run([program("pgbench"), *arguments, url], capture_output=True, text=True, check=True)
    return done.stdout


@contextmanager
def _process(command: str, *arguments: str) -> Iterator[None]:
    """Run one of our commands beside us."""
    code = f"from cli.{command} import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running_process:
        try:
            yield
            assert running_process.poll() is None, running_process.stderr and running_process.stderr.read()
        finally:
            running_process.terminate()
            running_process.wait(60)


# What a part's lines are called, and the part.
_MEASURED: dict[str, Callable[[Setting, Cluster], Iterator[Line]]] = {
    "replay … and publish them first": _catching_up,
    "commit to published, commit to visible": _commit_to_visible,
    "pgbench": _overhead,
}

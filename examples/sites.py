"""Three sites of one database that write at the same time, also while the line between them is down.

Oslo founds the database, Rome and Paris join. Each writes its own rows; two of them change the same row, and the
table's rule decides. It ends with who has what, and exits with 1 unless all three hold the same rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

import wlc
import wlr

SITES = ("oslo", "rome", "paris")
COMMANDS = Path(sys.executable).absolute().parent


def main() -> int:
    """Run the story and return 1 if the sites differ in the end."""
    work = Path(tempfile.mkdtemp(prefix="dbfarm-sites-"))
    os.chdir(work)

    say(f"1. Oslo has a database, here in {work}, and makes it the first site")
    with duckdb.connect("oslo.duckdb") as connection:
        connection.execute("""
            CREATE TABLE orders (site VARCHAR, number INTEGER, item VARCHAR, PRIMARY KEY (site, number));
            CREATE TABLE prices (item VARCHAR PRIMARY KEY, price INTEGER);
            CREATE TABLE customers (id INTEGER PRIMARY KEY, phone VARCHAR, city VARCHAR);
            INSERT INTO prices VALUES ('pen', 2), ('book', 12);
            INSERT INTO customers VALUES (1, '111', 'Bergen'), (2, '222', 'Milan');
        """)
    wlc.master("oslo.duckdb", farm="farm", name="shop", site="oslo")
    for site in SITES[1:]:
        join(site)

    say("2. Conflicts are avoided: the key of an order names its site, and only Oslo may write prices")
    wlc.set_rule("shop", "prices", "owner", site="oslo", farm="farm")
    wlc.set_rule("shop", "customers", "epoch", farm="farm")
    for site in SITES:
        wlc.take(f"{site}.duckdb")
        write(site, f"INSERT INTO orders VALUES ('{site}', 1, 'pen')")
    try:
        write("rome", "UPDATE prices SET price = 3")
    except wlc.InvalidError as error:
        print(f"   rome: {error}")

    say("3. The line is down: Oslo and Rome change the same customer, and neither has seen the other's change")
    write("oslo", "UPDATE customers SET phone = '999' WHERE id = 1")
    write("rome", "UPDATE customers SET city = 'Rome' WHERE id = 1")
    write("rome", "UPDATE customers SET city = 'Turin' WHERE id = 2")
    show("customers", *SITES)

    say("4. The line is back. Oslo, the primary, takes what the others wrote, and rejects what is in conflict")
    wlc.take("oslo.duckdb")
    run("wlc site exceptions oslo.duckdb")
    show("customers", "oslo", "rome")

    say("5. Rome and Paris take; the order of each site arrives at the others through Oslo")
    for site in (*SITES[1:], "oslo"):
        wlc.take(f"{site}.duckdb")

    say("6. Who has what")
    run("wlc site list shop --farm farm")
    is_equal = not [table for table in ("orders", "prices", "customers") if not show(table, *SITES)]
    say(f"{'All sites are equal' if is_equal else 'The sites DIFFER'}. The files are in {work}")
    return 0 if is_equal else 1


def join(site: str) -> None:
    """Make a file with everything that Oslo has published, and make it a site, as `wlc site join` does."""
    file = f"{site}.duckdb"
    begin = wlc.joined_from(file, name="shop", site=site, farm="farm")
    if begin is not None:
        wlr.replicate(begin.url, into=file, register=False)
    wlc.join(file, name="shop", site=site, farm="farm")


def write(site: str, statement: str) -> None:
    """Run a statement at a site, as its program would."""
    print(f"   {site}> {statement}")
    with wlc.connect(f"{site}.duckdb") as connection:
        connection.execute(statement)


def show(table: str, *sites: str) -> bool:
    """Print the rows of a table at some sites, and say whether they are the same."""
    held = {}
    for site in sites:
        with duckdb.connect(f"{site}.duckdb", read_only=True) as connection:
            held[site] = connection.execute(f"FROM {table} ORDER BY ALL").fetchall()
    is_equal = len({repr(rows) for rows in held.values()}) == 1
    for site, rows in {"all": held[sites[0]]}.items() if is_equal else held.items():
        print(f"   {table:<10}{site:<6}" + ", ".join(str(row) for row in rows))
    return is_equal


def run(command: str) -> None:
    """Run a command as a person would type it, and show it with its output."""
    program, *words = command.split()
    print(f"\n$ {command}", flush=True)
    subprocess.run([COMMANDS / program, *words], check=True)


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

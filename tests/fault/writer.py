"""A master's program, to be killed: two connections commit at once, and each says what it has committed.

    python -m tests.fault.writer SOURCE SEED [TRANSACTIONS]

Every transaction inserts its number into a ledger and does something else, too, so that the ledger tells which ones the
database has. Amounts are only moved between accounts: their sum is 0 after every transaction.
"""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import duckdb

import wlc
from wlc.capture.duckdb import packed

TABLES = """
    CREATE TABLE ledger (client INTEGER, number INTEGER);
    CREATE TABLE account (id INTEGER PRIMARY KEY, amount BIGINT);
    INSERT INTO account SELECT i, 0 FROM range(20) r(i);
    CREATE TABLE note (text VARCHAR);
"""
CLIENTS = 2
DDL_EVERY = 12
# Half of the notes are journalled as a data file.
PACKED_ROWS = 25


def main(source: str, seed: int, transactions: int = sys.maxsize) -> None:
    packed.ROWS = PACKED_ROWS
    with wlc.connect(source) as connection:
        clients = [
            threading.Thread(
                target=work, args=(connection.cursor(), client, random.Random(seed + client), transactions)
            )
            for client in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()


def work(connection: Any, client: int, rng: random.Random, transactions: int) -> None:
    found = connection.execute("SELECT coalesce(max(number), 0) FROM ledger WHERE client = ?", [client]).fetchall()
    number = found[0][0]
    last = number + transactions
    while number < last:
        try:
            commit(connection, client, number + 1, rng)
        except duckdb.TransactionException:
            # The other client changed the same row, or the schema: try again.
            connection.rollback()
            continue
        number += 1
        sys.stdout.write(f"{client} {number}\n")
        sys.stdout.flush()
    connection.close()


def commit(connection: Any, client: int, number: int, rng: random.Random) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO ledger VALUES (?, ?)", [client, number])
    rng.choice((move, write, forget))(connection, rng)
    if number % DDL_EVERY == 0:
        connection.execute(f"CREATE OR REPLACE TABLE made_by_{client} AS SELECT {number} AS number, * FROM account")
    connection.execute("COMMIT")


def move(connection: Any, rng: random.Random) -> None:
    amount = rng.randrange(100)
    for sign, account in zip((1, -1), rng.sample(range(20), 2), strict=True):
        connection.execute("UPDATE account SET amount = amount + ? WHERE id = ?", [sign * amount, account])


def write(connection: Any, rng: random.Random) -> None:
    connection.execute("INSERT INTO note SELECT 'note' FROM range(?)", [rng.randrange(1, 50)])


def forget(connection: Any, rng: random.Random) -> None:
    connection.execute("DELETE FROM note WHERE rowid % 7 = ?", [rng.randrange(7)])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""A master's program for the long run: several connections commit a mixture of everything, until done or killed.

    python -m tests.fault.workload SOURCE SEED TRANSACTIONS CLOCK_SHIFT_S

What each connection does follows from the seed alone; how their transactions fall in with one another does not. Each
says `client number` once a transaction is committed, and the ledger holds that number in the same transaction.
"""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import duckdb

import wlc
from wlc.capture.duckdb import packed
from wlc.farm.clock import utc_now
from wlc.farm.errors import FarmError, UnsupportedError

ACCOUNTS, AMOUNT = 50, 1000
CLIENTS = 3
TABLES = f"""
    CREATE TABLE ledger (client INTEGER, number INTEGER);
    CREATE TABLE account (id INTEGER PRIMARY KEY, amount BIGINT);
    INSERT INTO account SELECT i, {AMOUNT} FROM range({ACCOUNTS}) r(i);
    CREATE TABLE item (id INTEGER PRIMARY KEY, name VARCHAR, price DECIMAL(12, 2), day DATE, is_open BOOLEAN);
    CREATE TABLE note (text VARCHAR, n INTEGER);
    CREATE TABLE sale_of_day (client INTEGER, id BIGINT, price DECIMAL(12, 2), PRIMARY KEY (client, id));
    CREATE SEQUENCE numbers;
    CREATE TABLE numbered (id BIGINT PRIMARY KEY DEFAULT nextval('numbers'), text VARCHAR);
"""
ITEMS = 3000
PACKED_ROWS = 100
# What each client does in one transaction; {c} is the client, {n} and {m} are numbers, {k} many rows.
CHANGES = [
    "INSERT INTO item SELECT {c} + 10 * i, 'new', i / 4, DATE '2026-01-01' + i::INTEGER, i % 2 = 0"
    " FROM range({n}, {n} + {m}) r(i) ON CONFLICT DO NOTHING",
    "INSERT INTO item VALUES ({c} + 10 * {n}, 'up', {m}, NULL, true)"
    " ON CONFLICT (id) DO UPDATE SET name = item.name || '!', price = excluded.price",
    "UPDATE item SET price = price + {m}, is_open = NOT is_open WHERE id % 10 = {c} AND id < 10 * {n}",
    "UPDATE item SET day = day + 1 WHERE id = {c} + 10 * {n}",
    "DELETE FROM item WHERE id % 10 = {c} AND id // 10 % {m} = 0",
    "MERGE INTO item USING (SELECT {c} + 10 * i AS id FROM range({n}, {n} + {m}) r(i)) s ON item.id = s.id"
    " WHEN MATCHED AND s.id % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'merged'"
    " WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'merged', 1, NULL, NULL)",
    "INSERT INTO note SELECT 'text ' || i % 7, {c} FROM range({k}) r(i)",
    "UPDATE note SET text = text || '.' WHERE n = {c} AND text LIKE 'text {m}%' AND length(text) < 12",
    "DELETE FROM note WHERE n = {c} AND rowid % {m} = 0",
    "DELETE FROM note WHERE n = {c}",
    "INSERT INTO sale_of_day SELECT {c}, i, i * 0.01 FROM range({n}, {n} + {k}) r(i) ON CONFLICT DO NOTHING",
    "INSERT OR REPLACE INTO sale_of_day SELECT {c}, i, {m} FROM range({n}, {n} + {m}) r(i)",
    "DELETE FROM sale_of_day WHERE client = {c} AND id % {m} <> 1",
    "INSERT INTO numbered (text) SELECT 'x' FROM range({m})",
    "UPDATE numbered SET text = 'y' || {n} WHERE id % 5 = {c}",
    "DELETE FROM numbered WHERE id % 7 = {m} % 7",
    "INSERT INTO made_{c} (a) SELECT i FROM range({m}) r(i)",
    "UPDATE made_{c} SET a = a + {n}",
    "DELETE FROM made_{c} WHERE a % 3 = {m} % 3",
]
RARE = [
    "TRUNCATE note",
    "CREATE OR REPLACE TABLE made_{c} (a BIGINT, b VARCHAR DEFAULT 'b{m}')",
    "CREATE OR REPLACE TABLE made_{c} AS SELECT id AS a, name AS b FROM item WHERE id % 10 = {c}",
    "ALTER TABLE made_{c} ADD COLUMN c{m} INTEGER DEFAULT {n}",
    "ALTER TABLE made_{c} DROP COLUMN c{m}",
    "ALTER TABLE made_{c} RENAME COLUMN b TO renamed",
    "ALTER TABLE made_{c} RENAME TO kept_{c}",
    "DROP TABLE IF EXISTS kept_{c}",
    "CREATE INDEX by_a_{c} ON made_{c} (a)",
    "DROP INDEX IF EXISTS by_a_{c}",
    "CREATE OR REPLACE VIEW seen_{c} AS SELECT count(*) AS n FROM item",
]


def main(source: str, seed: int, transactions: int, shift_s: int = 0) -> None:
    shift_clock(shift_s)
    packed.ROWS = PACKED_ROWS
    connection = wlc.connect(source)
    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [
            pool.submit(work, connection.cursor(), client, random.Random(f"{seed}/{client}"), transactions)
            for client in range(CLIENTS)
        ]
    for client in clients:
        client.result()
    try:
        connection.close()
    except FarmError:
        # The farm is away; what was committed is in the journal.
        say("unpublished")


def shift_clock(shift_s: int) -> None:
    """Let this program's clock differ from the machine's."""
    sound, shift = utc_now, timedelta(seconds=shift_s)
    for module in list(sys.modules.values()):
        if shift_s and getattr(module, "utc_now", None) is sound:
            module.utc_now = lambda: sound() + shift  # type: ignore[attr-defined]


def work(connection: Any, client: int, rng: random.Random, transactions: int) -> None:
    found = connection.execute("SELECT coalesce(max(number), 0) FROM ledger WHERE client = ?", [client]).fetchall()
    number = found[0][0]
    for _ in range(transactions):
        try:
            commit(connection, client, number + 1, rng)
        except UnsupportedError as error:
            # Not captured exactly: rolled back, and told.
            say(f"refused {error}")
            continue
        except duckdb.Error:
            # Another client changed the same rows or the schema, or the statement does not fit: nothing happened.
            with suppress(duckdb.Error):
                connection.rollback()
            continue
        number += 1
        say(f"{client} {number}")
    connection.close()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def commit(connection: Any, client: int, number: int, rng: random.Random) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO ledger VALUES (?, ?)", [client, number])
    for _ in range(rng.choice((1, 1, 2, 5))):
        if rng.random() < 0.3:
            move(connection, rng)
        else:
            texts = RARE if rng.random() < 0.12 else CHANGES
            numbers = {"n": rng.randrange(ITEMS // 10), "m": rng.randrange(2, 9), "k": rng.choice((1, 9, 40, 1500))}
            connection.execute(rng.choice(texts).format(c=client, **numbers))
    if rng.random() < 0.05:
        raise duckdb.TransactionException("the user thinks better of it")
    connection.execute("COMMIT")


def move(connection: Any, rng: random.Random) -> None:
    """Money goes from one account to another; none appears or disappears."""
    amount = rng.randrange(100)
    for sign, account in zip((1, -1), rng.sample(range(ACCOUNTS), 2), strict=True):
        connection.execute("UPDATE account SET amount = amount + ? WHERE id = ?", [sign * amount, account])


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""The catalog is read once per step or per replica, not once per table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from wlc.dialect.duckdb import catalog

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

# What reads the whole catalog of a database.
READERS = ("rows", "tables", "references", "unique_keys", "sequences")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    made: Counter[str] = Counter()
    for name in READERS:
        read = getattr(catalog, name)

        def count(*arguments: object, read=read, name=name, **options: object) -> object:
            made[name] += 1
            return read(*arguments, **options)

        monkeypatch.setattr(catalog, name, count)
    return made


def test_reads_of_the_catalog_do_not_grow_with_the_tables(tmp_path: Path, reads: Counter[str]) -> None:
    counts = []
    # A few tables are asked for their columns one by one.
    for number in (7, 12):
        source, found = tmp_path / f"m{number}.duckdb", {}
        with duckdb.connect(str(source)) as connection:
            for n in range(number):
                connection.execute(f"CREATE TABLE t{n} (i INTEGER PRIMARY KEY); INSERT INTO t{n} VALUES (1)")
        wlc.master(source, farm=str(tmp_path / "farm"))
        replicas = (tmp_path / f"copy{number}.duckdb", tmp_path / f"lake{number}")
        for into in replicas:
            reads.clear()
            wlr.replicate(source, into=into)
            found[f"new {into.suffix}"] = dict(reads)
        with wlc.connect(source) as connection:
            inserts = "; ".join(f"INSERT INTO t{n} VALUES (2)" for n in range(number))
            reads.clear()
            connection.execute(f"BEGIN; {inserts}; COMMIT")
            found["captured"] = dict(reads)
            reads.clear()
            wlc.flush(source)
            found["published"] = dict(reads)
        for into in replicas:
            reads.clear()
            wlr.replicate(into=into)
            found[f"rolled {into.suffix}"] = dict(reads)
        counts.append(found)
    assert counts[0] == counts[1]
    assert counts[0]["new .duckdb"]

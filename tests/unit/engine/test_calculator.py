"""A full disk is reported as one, whatever class of error DuckDB chooses for it."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from wlc.farm.errors import UnavailableError
from wlr.engine.calculator import applying, using

if TYPE_CHECKING:
    from pathlib import Path

SAID = 'Could not write file "/data/.copy.duckdb.building": No space left on device'
CLASSES = (
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.OutOfMemoryException,
    duckdb.InvalidInputException,
    duckdb.Error,
)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("translate", [applying, using])
def test_every_class_of_error(kind: type[duckdb.Error], translate, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="No space left on device") as caught, translate(tmp_path):
        raise kind(f"TransactionContext Error: Failed to commit: {SAID}")
    assert "free disk space" in str(caught.value.hint)


@pytest.mark.parametrize("copy", ["copy.duckdb", "lake"])
def test_a_new_replica_says_how_much_space_it_needs(copy: str, tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "sales.duckdb"
    with duckdb.connect(str(source)) as connection:
        connection.execute("CREATE TABLE t AS SELECT i FROM range(1000) r(i)")
    wlc.master(source)

    def fail(*_: object) -> None:
        with applying(tmp_path):
            raise duckdb.TransactionException(SAID)

    monkeypatch.setattr("wlr.engine.contract.NewReplica.load", fail)
    with pytest.raises(UnavailableError) as caught:
        wlr.replicate(source, into=tmp_path / copy, register=False)
    found = re.search(rf"files have (\d+) bytes, and {tmp_path} has (\d+) bytes free", str(caught.value))
    assert found
    assert int(found[1]) == sum(file.stat().st_size for file in tmp_path.glob("dbfarm/sales/snapshots/*/*.parquet"))
    assert 0 <= int(found[2]) <= shutil.disk_usage(tmp_path).total

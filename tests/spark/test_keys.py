"""Spark reads encrypted farms with keys from its options or from a replay's, and shows them nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from tests.lake import lake_contents
from tests.oracle import file_contents
from tests.spark.reading import read
from wlc.farm.seal.keys import add_key, read_key_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sales.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t SELECT i, 'a' FROM range(9) r(i)"
        )
    for kind in ("encryption", "signing"):
        add_key(tmp_path / kind, kind)
    options = {f"{kind}_key_file": str(tmp_path / kind) for kind in ("encryption", "signing")}
    wlc.master(path, storage_options=options)
    with wlc.connect(path) as connection:
        connection.execute("UPDATE t SET v = 'b' WHERE id < 4; DELETE FROM t WHERE id = 0")
    wlc.flush(path)
    return path


def test_tables_and_changes_are_read(
    spark: SparkSession, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "dbfarm" / "sales")
    (key,) = read_key_file(tmp_path / "encryption", "encryption")
    secret = key.word.split(":")[2]
    for options in (
        {"storage.encryption_key": key.word},
        {
            "storage.encryption_key_file": str(tmp_path / "encryption"),
            "storage.verify_key_file": f"{tmp_path}/signing.pub",
        },
    ):
        frame = read(spark, url, "t", **options)
        assert {(row.id, row.v) for row in frame.collect()} == {(i, "b" if i < 4 else "a") for i in range(1, 9)}
        feed = read(spark, url, "t", changes=True, from_tick=1, **options)
        assert feed.filter("_weight = -1").count() == 5
        frame.explain("extended")
        assert secret not in str(frame._jdf.queryExecution().toString())
    with pytest.raises(Exception, match="no encryption key is given") as caught:
        read(spark, url, "t").collect()
    assert "hint" not in str(caught.value) or secret not in str(caught.value)
    with pytest.raises(Exception, match="is not a key") as caught:
        read(spark, url, "t", **{"storage.encryption_key": f"x{key.word}"}).collect()
    assert secret not in str(caught.value)
    assert secret not in "".join(capfd.readouterr())


def test_replay_on_spark(spark: SparkSession, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lake, copy = f"{tmp_path}/lake/", tmp_path / "copy.duckdb"
    options = {"encryption_key_file": str(tmp_path / "encryption"), "verify_key_file": f"{tmp_path}/signing.pub"}
    url = str(tmp_path / "dbfarm" / "sales")
    for into in (lake, copy):
        wlr.replicate(url, into=into, tick=0, engine="local", storage_options=options)
        assert wlr.replicate(into=into, engine="spark", storage_options=options).tick == 2
    assert lake_contents(tmp_path / "lake") == file_contents(copy) == file_contents(source)
    (key,) = read_key_file(tmp_path / "encryption", "encryption")
    assert key.word.split(":")[2] not in "".join(capfd.readouterr())

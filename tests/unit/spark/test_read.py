"""Spark's data source, without Spark: what it reads from the farm, and the options that Spark passes twice."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.handmade import HandmadeFarm, Rows
from wlc.farm.errors import InvalidError
from wlc.farm.store.local import LocalStore
from wlr.spark import FarmDataSource
from wlr.spark.read.options import read_options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("options", [{"storage.a": "1", "storage.a.b": "2"}, {"storage.a.b": "2", "storage.a": "1"}])
def test_a_storage_option_has_a_value_or_options_inside(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match="storage option 'a' has a value and options inside it"):
        read_options({"database": "sales", "farm": "/farm", "table": "t", **options})


@pytest.mark.slow
def test_the_log_is_read_once_for_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    farm = HandmadeFarm(tmp_path)
    farm.publish(["CREATE TABLE t (i INTEGER)"])
    for number in range(3):
        farm.publish([Rows("t", added=(str(number),))])
    reads: Counter[str] = Counter()
    read = LocalStore.read

    def count(store: LocalStore, path: str) -> bytes:
        reads[path] += 1
        return read(store, path)

    monkeypatch.setattr(LocalStore, "read", count)
    source = FarmDataSource({"database": farm.url, "table": "t"})
    schema = source.schema()
    # Spark carries the source to another process between the two.
    reader = pickle.loads(pickle.dumps(source)).reader(schema)
    before = reads.copy()
    assert reader.partitions()
    assert reads == before
    # Number 5, which is not there, is the end.
    assert {path: n for path, n in reads.items() if path.startswith("sales_")} == {
        f"sales_00000000000{number}": 1 for number in range(1, 6)
    }

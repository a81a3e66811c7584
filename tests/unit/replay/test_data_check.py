"""The check of data files, on files that differ from what the log says in one thing each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.data_files import OTHER_IMAGES, write_parquet
from tests.scratch import scratch
from wlc.farm.errors import CorruptError
from wlc.farm.model import Column, DataFile, Layout, Name, TableFile
from wlr.replay.fold.data_check import refuse_other_images
from wlr.replay.fold.net_changes import sources
from wlr.replay.plan.step import Read, TableChange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LAYOUT = Layout((Column("id", "INTEGER", nullable=False), Column("v", "VARCHAR")), ("id",))
GOOD = "SELECT 2::BIGINT _tick, 1::TINYINT _weight, 2 id, 'b' v"


def check(files: list[Path], added: int) -> None:
    names = [f"sales_{number:012d}.d/0.parquet" for number in range(1, len(files) + 1)]
    reads = [Read(TableFile(DataFile(name, 1, 1, "0"), Name("main", "t"), LAYOUT), 2, 2) for name in names]
    change = TableChange(Name("main", "t"), tuple(reads), added, 0)
    local = dict(zip(names, map(str, files), strict=True))
    with scratch() as connection:
        refuse_other_images(connection, change, sources(change, lambda read: local[read.file.file.path]))


def test_files_as_the_log_says_pass(tmp_path: Path) -> None:
    for number in range(3):
        write_parquet(GOOD, tmp_path / f"{number}.parquet")
    check([tmp_path / f"{number}.parquet" for number in range(3)], 3)


@pytest.mark.parametrize("query, problem", OTHER_IMAGES.values(), ids=OTHER_IMAGES)
def test_other_files_are_refused(tmp_path: Path, query: str, problem: str) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    write_parquet(GOOD, good)
    write_parquet(query, bad)
    with pytest.raises(CorruptError, match=problem):
        check([bad], 1)
    with pytest.raises(CorruptError) as caught:
        check([good, bad], 2)
    assert "sales_000000000002.d/0.parquet" in caught.value.message


@pytest.mark.parametrize(
    "damaged",
    [
        lambda good: b"PAR1" + bytes(100) + b"PAR1",
        lambda good: b"",
        lambda good: b"PAR1",
        lambda good: b"x" * 200,
        lambda good: good[:-10],
        lambda good: good[: len(good) // 2],
        lambda good: good[:-4] + b"XXXX",
        lambda good: good[:-8] + b"\xff\xff\xff\x7f" + good[-4:],
        lambda good: good[:-8] + bytes(4) + good[-4:],
        lambda good: good[:4] + bytes(len(good) - 12) + good[-8:],
    ],
)
def test_what_is_no_parquet_file_is_named(tmp_path: Path, damaged: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "x.parquet"
    write_parquet(GOOD, file)
    file.write_bytes(damaged(file.read_bytes()))
    with pytest.raises(CorruptError, match=r"sales_000000000001\.d/0\.parquet"):
        check([file], 1)

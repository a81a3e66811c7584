"""How Spark's work is cut into tasks."""

from __future__ import annotations

import pytest

from wlc.farm.model import Column, DataFile, Layout, Name, TableFile
from wlr.replay.plan.step import Read
from wlr.spark.replay.jobs import numbered, route_tasks

LAYOUT = Layout((Column("id", "BIGINT"),))


def reads(*rows: int) -> list[Read]:
    """Files of so many rows each, in order."""
    files = [DataFile(f"{number}.parquet", count, 1, "") for number, count in enumerate(rows)]
    return [Read(TableFile(file, Name("main", "t"), LAYOUT), 1, 9) for file in files]


@pytest.mark.parametrize(
    "rows, tasks",
    [
        ([], []),
        ([7], [1]),
        ([10] * 30, [30]),
        # Four tasks are needed; three full ones and what is left would leave cores idle.
        ([180_000] * 20, [5, 5, 5, 5]),
        ([999_999, 1, 1], [1, 2]),
        ([3_000_000, 5], [1, 1]),
    ],
)
def test_tasks_route_about_as_many_images_each(rows: list[int], tasks: list[int]) -> None:
    made = reads(*rows)
    found = route_tasks([made])
    assert [sum(len(share.reads) for share in task) for task in found] == tasks
    assert [read for task in found for share in task for read in share.reads] == made


@pytest.mark.parametrize(
    "at_once, tasks",
    [
        # One core: one task reads all tables. Four cores: none waits for the others, and there are three tables only.
        (1, [[(0, 2), (1, 1), (2, 2)]]),
        (2, [[(0, 2)], [(1, 1), (2, 2)]]),
        (4, [[(0, 2)], [(1, 1), (2, 1)], [(2, 1)]]),
    ],
)
def test_small_tables_are_shared_out(at_once: int, tasks: list[list[tuple[int, int]]]) -> None:
    tables = [reads(10, 10), reads(5), reads(10, 1)]
    found = route_tasks(tables, at_once)
    assert [[(share.table, len(share.reads)) for share in task] for task in found] == tasks
    together = [(share.table, read) for task in found for share in task for read in share.reads]
    assert together == [(number, read) for number, table in enumerate(tables) for read in table]


def test_parts_of_all_tables_are_numbered() -> None:
    assert numbered([2, 0, 3]) == [range(2), range(2, 2), range(2, 5)]

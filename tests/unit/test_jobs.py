"""How Spark's work is cut into tasks."""

from __future__ import annotations

import pytest

from wlc.farm.model import Column, DataFile, Layout, Name, TableFile
from wlr.plan.step import Read
from wlr.spark.replay.jobs import route_tasks

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
    found = route_tasks(made)
    assert [len(task) for task in found] == tasks
    assert [read for task in found for read in task] == made

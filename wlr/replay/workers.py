"""Chooses the engine for large work: this process, or Spark, which is imported when there is work for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlr.replay.fold.files import Executor
    from wlr.replay.fold.net_changes import FoldsElsewhere


_ENGINES = ("auto", "local", "spark")
# One process with two cores rewrites this many rows in about half a minute; a Spark session takes ten seconds to start.
_SPARK_ROWS = 100_000_000
_SPARK_VARIABLE = "WLR_SPARK_ROWS"


@dataclass(frozen=True, slots=True)
class Workers:
    """Gives large work to Spark, by the user's choice.

    Attributes:
        engine: "local", "spark", or "auto", which takes Spark from `spark_rows` on.
        database: The farm's database; tasks of Spark read its files themselves.
        spark_master: Spark master to start a session at; that of the environment if omitted.
        spark_rows: Least number of row images in a step, and of rows in the files they touch, for which "auto" takes
            Spark.
    """

    engine: str
    database: FarmDatabase
    spark_master: str | None
    spark_rows: int

    def folding(self, work: Path) -> FoldsElsewhere | None:
        # A database's steps are small enough for this process, unless the user asks for Spark.
        if self.engine != "spark":
            return None
        from wlr.spark.replay.folding import SparkFold
        from wlr.spark.replay.jobs import Jobs

        return SparkFold(Jobs(self.database, self.spark_master), work)

    def executor(self, local: Executor, url: str, storage_options: Mapping[str, Any]) -> Executor:
        if self.engine == "local":
            return local
        from wlr.spark.replay.executor import SparkExecutor
        from wlr.spark.replay.jobs import Jobs

        from_rows = 0 if self.engine == "spark" else self.spark_rows
        return SparkExecutor(local, url, storage_options, Jobs(self.database, self.spark_master), from_rows)


def check_engine(engine: str) -> None:
    """Refuse an unknown engine.

    Raises:
        InvalidError: There is no such engine.
    """
    if engine not in _ENGINES:
        raise InvalidError(f"there is no engine {engine!r}", hint=f"Give one of {', '.join(_ENGINES)}.")


def workers(engine: str, database: FarmDatabase, spark_master: str | None = None) -> Workers:
    """Choose the engine for large work.

    Args:
        engine: "auto", "local" or "spark".
        database: The farm's database.
        spark_master: Spark master to start a session at.

    Raises:
        InvalidError: There is no such engine, or the environment variable does not hold a number.
    """
    check_engine(engine)
    text = os.environ.get(_SPARK_VARIABLE, str(_SPARK_ROWS))
    if not text.isdecimal():
        message = f"{_SPARK_VARIABLE}={text} is not a number of rows"
        raise InvalidError(message, hint=f"export {_SPARK_VARIABLE}={_SPARK_ROWS}")
    return Workers(engine, database, spark_master, int(text))

"""Errors that travel from Spark's tasks to the driver arrive as what they were."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pytest

import wlc
import wlr
from wlc.farm.errors import CorruptError, FarmError, UnavailableError
from wlc.farm.model import Position
from wlr.replay.plan.failure import StepError
from wlr.spark.replay.rows import ROWS, SparkTask, dump_error, load_error, payloads

if TYPE_CHECKING:
    from collections.abc import Iterator


_Error = TypeVar("_Error", bound=Exception)


def every_class(of: type[_Error]) -> list[type[_Error]]:
    """The class and all below it, wherever the product defines them."""
    for package in (wlc, wlr):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found = {of}
    while more := {below for known in found for below in known.__subclasses__()} - found:
        found |= more
    return sorted((one for one in found if one.__module__.startswith(("wlc", "wlr"))), key=lambda one: one.__name__)


def test_errors_of_the_farm_arrive_as_they_were() -> None:
    position = Position("a" * 16, 7)
    for kind in every_class(FarmError):
        arrived = load_error(dump_error(kind("broken", hint="mend it", path="s3://farm/x", position=position)))
        assert type(arrived) is kind
        assert (arrived.message, arrived.hint, arrived.path, arrived.position) == (
            "broken",
            "mend it",
            "s3://farm/x",
            position,
        )
        assert (str(arrived), arrived.exit_code) == ("broken", kind.exit_code)


def test_classes_outside_of_the_tree_of_errors_are_among_them() -> None:
    names = {kind.__name__ for kind in every_class(FarmError)}
    assert names >= {"MissingError", "ConflictError", "AlreadyExistsError", "GapError", "TakenOverError"}


def test_errors_of_a_step_arrive_as_they_were() -> None:
    for kind in every_class(StepError):
        arrived = load_error(dump_error(kind("does not fit", table="main.t", key="id = 1", is_reference=True)))
        assert type(arrived) is kind
        assert isinstance(arrived, StepError)
        assert (arrived.cause, arrived.table, arrived.key, arrived.is_shortage, arrived.is_reference) == (
            "does not fit",
            "main.t",
            "id = 1",
            False,
            True,
        )


def test_cause_with_a_secret_stays_behind() -> None:
    try:
        raise CorruptError("broken") from ValueError("password=hunter2")
    except CorruptError as error:
        assert b"hunter2" not in dump_error(error)


class Failing(SparkTask):
    """A task that gives one payload and then fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def work(self, batches: object) -> Iterator[tuple[int, bytes]]:
        yield 3, b"first"
        raise self.error


def test_error_of_a_task_is_raised_by_who_reads_its_rows() -> None:
    rows = list(Failing(CorruptError("broken", path="x"))([]))
    read = payloads(rows)
    number, payload = next(read)
    assert (number, payload.to_pybytes()) == (3, b"first")
    with pytest.raises(CorruptError, match="broken"):
        next(read)


def test_what_another_attempt_may_mend_is_raised_in_the_task() -> None:
    with pytest.raises(UnavailableError):
        list(Failing(UnavailableError("later"))([]))


def test_rows_are_what_spark_is_told() -> None:
    kinds = {pa.int32(): "INT", pa.binary(): "BINARY"}
    schema = next(Failing(CorruptError("broken"))([])).schema
    assert ", ".join(f"{field.name} {kinds[field.type]}" for field in schema) == ROWS

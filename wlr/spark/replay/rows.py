"""The rows that Spark transports between tasks and the driver: a payload for a numbered part, or an error.

If a task raised an error, Spark would retry the task and report its own failure. So an error that a retry cannot fix
becomes a row, and the reader of the row raises it: the next task, or finally the driver.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from wlc.farm.errors import FarmError, UnavailableError
from wlr.engine.calculator import applying
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The same schema in Spark's SQL and in Arrow.
ROWS = "part INT, payload BINARY, error BINARY"
_SCHEMA = pa.schema([("part", pa.int32()), ("payload", pa.binary()), ("error", pa.binary())])


class SparkTask(ABC):
    """The work of one task: Arrow rows in, rows of `ROWS` out."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work, and turn an error of the step or the farm into a row."""
        try:
            with applying(Path("the replica")):
                for part, payload in self.work(batches):
                    yield _row(part, payload, None)
        except UnavailableError:
            # Spark retries the task.
            raise
        except (StepError, FarmError) as error:
            yield _row(0, None, dump_error(error))

    @abstractmethod
    def work(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        """Yield payloads, each with the number of its part."""


def numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Read the numbers of the first tasks of a job."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Buffer]]:
    """Read the rows of other tasks.

    Raises:
        StepError, FarmError: The error of another task.
    """
    for batch in batches:
        for part, payload, error in zip(batch.column(0).to_pylist(), batch.column(1), batch.column(2), strict=True):
            if error.is_valid:
                raise load_error(error.as_py())
            yield part, payload.as_buffer()


def dump_error(error: StepError | FarmError) -> bytes:
    """Encode an error of any class without its cause: the texts of drivers can hold credentials."""
    return pickle.dumps(error)


def load_error(data: bytes) -> StepError | FarmError:
    """Decode the output of `dump_error`."""
    # Only our own tasks write it, and Spark's tasks run the driver's code anyway.
    error: StepError | FarmError = pickle.loads(data)  # noqa: S301
    return error


def _row(part: int, payload: bytes | None, error: bytes | None) -> pa.RecordBatch:
    columns = [pa.array([part], pa.int32()), pa.array([payload], pa.binary()), pa.array([error], pa.binary())]
    return pa.record_batch(columns, schema=_SCHEMA)

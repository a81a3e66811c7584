"""The work on the files of one table, and the contract of its executors: this process, or tasks of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from wlc.farm.json_fields import Inline
from wlc.farm.model import DataFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.model import Ddl, Layout, Name, TableFile
    from wlr.replay.fold.file_rewrite import Merged
    from wlr.replay.plan.step import TableChange


@dataclass(frozen=True, slots=True)
class FilePart:
    """One data file of a table; `low` and `high` enclose its keys as texts, both empty for a table without a key."""

    file: Inline[DataFile]
    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeJob:
    """One table's part of a step: its files, and its changes.

    Attributes:
        tick: Tick of the step, for the names of new files.
    """

    table: TargetTable
    change: TableChange
    parts: tuple[FilePart, ...]
    tick: int


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """A table's files after a job.

    Attributes:
        removed: Rows that the job removed; `added`: rows that it added.
        total: Sum of the hashes of its images times their weights, modulo 2^64; see `wlc.farm.digest`.
    """

    parts: tuple[FilePart, ...]
    removed: int
    added: int
    total: int


@dataclass(frozen=True, slots=True)
class Alteration:
    """An ALTER TABLE that changes the content of a table's files.

    Attributes:
        table: The table's name before the statement, `before` its layout then.
        name: Its name afterwards, `after` its layout then.
        schema: Statements that build the statement's schema; only types and the like are used.
        catalog: Name that the statement gives the database.
    """

    statement: Ddl
    table: Name
    before: Layout
    name: Name
    after: Layout
    schema: tuple[Ddl, ...]
    catalog: str


class Executor(Protocol):
    """Executes the work of steps on files."""

    def merge(self, jobs: Sequence[MergeJob], fetch: Callable[[TableFile], Path]) -> list[MergedFiles]:
        """Apply the net changes of several tables; return the results in the order of `jobs`.

        Raises:
            StepError: A change does not fit the rows in the files; the error names the table.
        """

    def split(self, table: TargetTable, files: Sequence[Path], tick: int) -> tuple[FilePart, ...]:
        """Cut all rows of a table into new files."""

    def sort(self, table: TargetTable, parts: Sequence[FilePart], tick: int) -> tuple[FilePart, ...]:
        """Cut all rows of a table into new files by its new key."""

    def alter(self, alteration: Alteration, parts: Sequence[FilePart], tick: int) -> tuple[FilePart, ...]:
        """Rewrite all files of a table after its columns changed."""

    def close(self) -> None:
        """Release the executor's resources."""


def assemble(parts: Sequence[FilePart], results: dict[int, tuple[Merged, tuple[FilePart, ...]]]) -> MergedFiles:
    """Combine the files of a table that stay with the new ones."""
    together: list[FilePart] = []
    for number in range(max([len(parts), *(number + 1 for number in results)])):
        merged, new = results.get(number, (None, ()))
        if number < len(parts) and (merged is None or merged.keeps_base):
            together.append(parts[number])
        together += new
    removed, added, total = (
        sum(getattr(merged, what) for merged, _ in results.values()) for what in ("removed", "added", "total")
    )
    return MergedFiles(tuple(together), removed, added, total)

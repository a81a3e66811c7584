"""How much the steps of a replication hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wlr.plan.step import Step


@dataclass(slots=True)
class StepTotals:
    """Transactions, row images, bytes of data files, and numbers of batches, of all steps so far."""

    transactions: int = 0
    rows: int = 0
    bytes: int = 0
    batches: set[int] = field(default_factory=set)
    _counted: frozenset[str] = frozenset()

    def add(self, step: Step) -> None:
        """Count a step."""
        self.transactions += len(step.applied)
        self.rows += step.rows
        # A batch that is cut into steps leaves its files to the next one.
        self.bytes += sum(file.file.bytes for path, file in step.files.items() if path not in self._counted)
        self._counted = frozenset(step.files)
        self.batches |= {mark.batch for mark in step.marks}

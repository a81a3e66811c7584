"""Digests of a replica's tables, kept while steps are applied and compared with those in the master's batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

from wlc.farm.digest import EMPTY, plus
from wlc.farm.errors import CorruptError
from wlc.farm.json_fields import FieldError, Hex64, JsonForm, Omitted
from wlc.farm.json_records import form_of, record_of
from wlc.farm.model import AlteredObject, CreatedObject, Digest, DroppedObject, Name, RenamedObject
from wlc.farm.names import TableName
from wlc.farm.schema_fold import table_effects
from wlr.replay.fold.unfit_changes import absent
from wlr.replay.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container

    from wlc.farm.model import Ddl
    from wlr.replay.plan.step import Step, TableChange


class Uncompared(Enum):
    """Why a table of a replica cannot be compared with a digest of the master.

    ACCEPTED: it differs, because a transaction was accepted. LOST: the log named digests before, but not after a change
    of the table.
    """

    ACCEPTED = "accepted"
    LOST = "unverifiable"


Held = Digest | Uncompared


class Tally:
    """The digests of a replica's tables while a step is applied.

    The digest of a missing table is unknown.

    Args:
        known: The digests before it.
        names_digests: The log, or the snapshot, has named digests before.
    """

    def __init__(self, known: Mapping[Name, Held], *, names_digests: bool) -> None:
        self._found = dict(known)
        self._names_digests = names_digests

    def fold(self, change: TableChange, total: Callable[[], int]) -> None:
        """Add a net change; `total` adds up the hashes of its images, and is called only if needed."""
        if (known := self._before(change)) is not None:
            self._found[change.table] = plus(known, change.added - change.removed, total())

    def asks(self, change: TableChange) -> bool:
        """Return whether the total of a net change is needed."""
        return self._before(change) is not None

    def _before(self, change: TableChange) -> Digest | None:
        found = self._found.get(change.table) if change.cleared is None else EMPTY
        return found if isinstance(found, Digest) else None

    def alter(self, ddl: Ddl) -> None:
        """Add a schema change."""
        for effect in table_effects(ddl):
            name = effect.object.name
            match effect:
                case CreatedObject() if ddl.layout is not None:
                    self._found[name] = EMPTY
                case DroppedObject():
                    self._found.pop(name, None)
                case RenamedObject(_, to) if name in self._found:
                    self._found[to] = self._found.pop(name)
                case AlteredObject(columns=steps) if steps and not self._is_accepted(name):
                    self._found.pop(name, None)
        if ddl.digest is not None and not self._is_accepted(ddl.object):
            self._found[ddl.object] = ddl.digest

    def settle(self, step: Step, present: Container[Name], patterns: Collection[str] = ()) -> dict[Name, Held]:
        """Return the digests of the replicated tables after a step.

        Args:
            step: The step, which was added in full.
            present: The tables of the replica afterwards.
            patterns: Patterns of the tables that it should have; empty for all.

        Raises:
            CorruptError: The digest of a table differs from the master's. The step must not be committed.
            StepError: The replica lacks a table that it should have.
        """
        self._found |= {n: Uncompared.ACCEPTED for n, exists in step.left_out.items() if exists or n in present}
        for name in step.repaired:
            self._found.pop(name, None)
        for name, of_master in step.digests.items():
            if self._is_accepted(name):
                continue
            if name not in present:
                if of_master is not None and matches(name, patterns):
                    raise absent(name)
                continue
            own = self._found.pop(name, None)
            if of_master is not None:
                if isinstance(own, Digest) and own != of_master:
                    raise _differs(name, own, of_master, step)
                self._found[name] = of_master
            elif own is not None and self._names_digests and name not in step.undigested:
                self._found[name] = Uncompared.LOST
        # A table that an accepted transaction should have created stays marked, too.
        return {name: held for name, held in self._found.items() if name in present or self._is_accepted(name)}

    def _is_accepted(self, name: Name) -> bool:
        return self._found.get(name) is Uncompared.ACCEPTED


def _differs(name: Name, own: Digest, of_master: Digest, step: Step) -> CorruptError:
    return CorruptError(
        f"table {name} would differ from the master after transaction {step.last}: {own.rows} rows with sum"
        f" {own.sum:016x} instead of {of_master.rows} with {of_master.sum:016x}",
        hint="wlr verify TARGET shows whether the replica was changed, wlc farm verify DB whether the farm was.",
        position=step.position,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """The digest of one table, or why there is none."""

    table: TableName
    rows: Omitted[int | None] = None
    sum: Omitted[Hex64 | None] = None
    uncompared: Omitted[Annotated[Uncompared, JsonForm(Uncompared, attrgetter("value"))] | None] = None


def _line(name: Name, held: Held) -> _Line:
    return _Line(name, held.rows, held.sum) if isinstance(held, Digest) else _Line(name, uncompared=held)


def _as_tally(value: object) -> dict[Name, Held]:
    lines: tuple[_Line, ...] = form_of(tuple[_Line, ...]).read(value)
    found = {line.table: line.uncompared or _digest(line) for line in lines}
    if len(found) < len(lines):
        raise FieldError("a table is listed twice")
    return found


def _digest(line: _Line) -> Digest:
    if line.rows is None or line.sum is None:
        raise FieldError(f"table {line.table} has neither 'rows' and 'sum' nor 'uncompared'")
    return Digest(line.rows, line.sum)


def _tally_json(digests: Mapping[Name, Held]) -> list[dict[str, Any]]:
    return [record_of(_Line).write(_line(name, digests[name])) for name in sorted(digests)]


# Sorted by name.
Tallies = Annotated[Mapping[Name, Held], JsonForm(_as_tally, _tally_json)]

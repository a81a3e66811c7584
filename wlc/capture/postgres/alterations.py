"""What a transaction did to tables of a PostgreSQL master, as statements in an order that works in a replica.

Most alterations are a matter of one table. Two are not: a foreign key is made anew with the type of a column that it
refers to, and children lose a column with their parent. The event triggers tell of each table after it was altered, one
after the other, so what concerns the others first is put before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.capture.postgres import ddl
from wlc.capture.postgres.table_steps import gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wlc.capture.postgres.described import DescribedColumn, DescribedTable
    from wlc.capture.postgres.effects import Carried
    from wlc.farm.model import Ddl


@dataclass(slots=True)
class Altered:
    """A transaction altered a table, created it (there is no old description) or dropped it (there is no new one).

    Attributes:
        oid: Of the table.
        old: The table before.
        new: The table after.
        is_resent: All its rows follow.
        is_settled: They have followed.
    """

    oid: int
    old: DescribedTable | None
    new: DescribedTable | None
    is_resent: bool = False
    is_settled: bool = False

    @property
    def is_named(self) -> bool:
        """Whether it gives a table a name that it had not before."""
        return self.new is not None and (self.old is None or self.old.qualified != self.new.qualified)

    def roots(self) -> set[int]:
        """Return the partitioned tables that it concerns: the table itself, and those it is or was part of."""
        described = (table for table in (self.old, self.new) if table is not None)
        return {self.oid, *(parent.oid for table in described for parent in table.parents)}


def statements(entry: Altered, later: Sequence[object]) -> Iterator[Ddl | Carried]:
    """Return the statements for an alteration.

    Args:
        entry: The alteration.
        later: What the transaction did afterwards; alterations among it are of this class.
    """
    if entry.old is None and entry.new is not None:
        yield from ddl.create(entry.new)
    elif entry.old is not None and entry.new is None:
        yield from ddl.drop(entry.old)
    elif entry.old is not None and entry.new is not None:
        if entry.new.has_retyped(entry.old):
            for old, new in _first_alterations(entry, later):
                yield from ddl.drop_remade_keys(old, new)
        added = gone(entry.new, entry.old)
        below = tuple(_children(entry, later)) if added else ()
        new = _with_values(entry.new, added, below) if entry.new.is_root else entry.new
        yield from ddl.alter(entry.old, new, is_resent=entry.is_resent, below=below)


def _with_values(
    root: DescribedTable, added: list[DescribedColumn], below: Sequence[tuple[DescribedTable, DescribedTable]]
) -> DescribedTable:
    """Return a partitioned table with the values that rows of its partitions have in columns that were added."""
    for column in added:
        same = (c for old, new in below for c in gone(new, old) if c.name == column.name and c.missing is not None)
        if found := next(same, None):
            root = root.with_column(replace(column, missing=found.missing))
    return root


def _first_alterations(entry: Altered, later: Sequence[object]) -> Iterator[tuple[DescribedTable, DescribedTable]]:
    """Yield what the tables were, and became, that were altered after another one: each is still what it was."""
    seen = {entry.oid}
    for other in later:
        if isinstance(other, Altered) and other.oid not in seen:
            seen.add(other.oid)
            if other.old is not None and other.new is not None:
                yield other.old, other.new


def _children(entry: Altered, later: Sequence[object]) -> Iterator[tuple[DescribedTable, DescribedTable]]:
    """Yield likewise the children of a table, and theirs."""
    family = {entry.oid}
    for old, new in _first_alterations(entry, later):
        if family & {parent.oid for parent in old.parents}:
            family.add(old.oid)
            yield old, new

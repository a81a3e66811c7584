"""The content of a PostgreSQL master's slot, gathered and written to data files with ticks.

Rows of one layout of one captured table are a segment, and become a data file.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import duckdb
import numpy as np

from wlc.capture.postgres import access, alterations, objects
from wlc.capture.postgres.access import (
    AccessChanged,
    ObjectChanged,
    ResendBegun,
    ResendEnded,
    TableChanged,
    read_message,
    shown,
)
from wlc.capture.postgres.alterations import Altered, statements
from wlc.capture.postgres.effects import Carried, carried_back
from wlc.capture.postgres.pgoutput import Begun, Decoder, Message, Rows, Truncate, counted
from wlc.capture.postgres.row_store import (
    MEMORY_VARIABLE,
    Changed,
    Cleared,
    MisfitError,
    PlainChanges,
    RowDatabase,
    RowStore,
    Segment,
)
from wlc.farm import paths
from wlc.farm.database import describe_file
from wlc.farm.errors import UnavailableError, UnsupportedError
from wlc.farm.log_columns import EPOCH, Transactions
from wlc.farm.model import Change, Clear, Ddl, Name, Record, TableFile, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from wlc.capture.postgres.access import TriggerMessage
    from wlc.capture.postgres.described import DescribedTable
    from wlc.capture.postgres.pgoutput import Positions


@dataclass(slots=True)
class PublishedTable:
    """A captured table as the log describes it so far.

    Attributes:
        description: From the event triggers.
        rows: Number of rows.
    """

    description: DescribedTable
    rows: int = 0


_Entry = Changed | Altered | Cleared | Ddl | Carried


@dataclass(slots=True)
class Round:
    """The result of one read of the slot.

    Attributes:
        tables: Every captured table after it, by oid.
        touched: Tables whose description or number of rows changed.
        sequences: Names of created or altered sequences, by oid; None for dropped ones.
        misfits: Paths of the data files that hold a column as text that has another type in the table.
    """

    tables: dict[int, PublishedTable]
    touched: set[int] = field(default_factory=set)
    begun: Begun = field(default_factory=Begun)
    lsn: int = 0
    users: dict[int, str] = field(default_factory=dict)
    sequences: dict[int, Name | None] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    misfits: set[str] = field(default_factory=set)
    plain: PlainChanges = field(default_factory=PlainChanges)
    _numbers: Positions | None = None
    # Entries of transactions that do more than change rows, or did so when they were accessed.
    _entries: dict[int, list[_Entry]] = field(default_factory=dict)
    _segments: list[Segment] = field(default_factory=list)
    _views: dict[int, dict[int, tuple[int, Ddl]]] = field(default_factory=lambda: defaultdict(dict))

    def entries(self, number: int) -> list[_Entry]:
        """Return the mutable entries of the transaction that was read last; later changes are appended."""
        if number not in self._entries:
            self._entries[number] = [*self.plain.take_out(number)]
        return self._entries[number]

    def listed(self) -> list[int]:
        """Return the transactions among those with entries that changed something, in commit order."""
        return sorted(n for n, entries in self._entries.items() if n >= 0 and any(map(_counts, entries)))

    def numbers(self) -> Positions:
        """Return the transactions that changed something, in commit order, once everything is read."""
        if self._numbers is None:
            listed = np.array(self.listed(), np.int64)
            self._numbers = np.unique(np.concatenate([self.plain.numbers(), listed]))
        return self._numbers


class Gathering:
    """Gathers the content of a slot until it can be written as a batch.

    Args:
        folder: For data that exceeds the memory limit, and for data files.
        tables: Every captured table as the last batch left it, by oid; they are changed.
        prefix: Of the messages of the event triggers.
        database: For the rows.

    Attributes:
        layouts: Of the tables as the last batch left them.
        messages: How many were read.
        read_to: The place in the server's log before which everything was read, 0 if there were no messages.
        rows: Of the segments.
    """

    def __init__(self, folder: Path, tables: dict[int, PublishedTable], prefix: str, database: RowDatabase) -> None:
        self.round = Round(tables)
        self.layouts = {t.description.qualified: t.description.layout for t in tables.values()}
        self._folder = folder
        self._decoder = Decoder(prefix)
        self._current: dict[int, Segment] = {}
        self._resending: set[int] = set()
        self._alterations: list[Altered] = []
        self.messages = 0
        self.read_to = 0
        self.rows = RowStore(folder, database)

    def close(self) -> None:
        """Discard the gathered changes."""
        self.rows.close()

    def read(self, blocks: Iterable[pa.RecordBatch]) -> None:
        """Read messages of the slot.

        Raises:
            UnsupportedError: Rows do not match the description of their table from the event triggers, or the
                description is malformed.
        """
        for block in blocks:
            self.messages += block.num_rows
            for item in self._decoder.read(block.column(0)):
                match item:
                    case Rows():
                        self._take_rows(item)
                    case Truncate():
                        for oid in item.oids:
                            self._clear(self._number, oid)
                    case Message():
                        self._understand(item.content)
        self.round.begun, self.round.lsn = self._decoder.begun, self._decoder.lsn
        self.read_to = self._decoder.read_to

    def rewrites(self) -> bool:
        """Say whether rows read otherwise after a schema change that did not send them again."""
        altered = (entry for entry in self._alterations if not entry.is_resent)
        return any(e.old is not None and e.new is not None and e.new.has_other_rows(e.old) for e in altered)

    def first_end(self) -> int:
        """Return a place in the server's log before which only one transaction that changed something ends."""
        return int(self.round.begun.lsns[self.round.numbers()[0]]) + 1

    @property
    def _number(self) -> int:
        """Number of the transaction that was read last."""
        return self._decoder.current

    # Rows ------------------------------------------------------------------------------------------------------------

    def _take_rows(self, rows: Rows) -> None:
        oid = rows.relation.oid
        table = self.round.tables.get(oid)
        if table is None:
            raise UnsupportedError(
                f"table {rows.relation.schema}.{rows.relation.name} is published and was not announced"
            )
        rows = rows.without({column.name for column in table.description.columns if column.generated is not None})
        segment = self._segment(oid, table)
        expected = tuple(column.name for column in segment.layout.stored)
        if rows.relation.columns != expected:
            found = ", ".join(rows.relation.columns)
            raise UnsupportedError(f"table {segment.name} has columns {found} that were not announced")
        # Replicas have these rows in the old form already: only the new form counts.
        smallest = 1 if oid in self._resending else -1
        self.rows.add(segment, rows, smallest)
        kept = rows.weights >= smallest
        numbers, added, removed = counted(rows.transactions[kept], rows.weights[kept])
        table.rows += int(added.sum() - removed.sum())
        segment.rows += int(added.sum() + removed.sum())
        # Only the first transaction can have been read in part by the previous call.
        is_listed = len(numbers) > 0 and int(numbers[0]) in self.round._entries
        listed = len(numbers) if oid in self._resending else int(is_listed)
        for at in range(listed):
            change = self._change(int(numbers[at]), segment)
            change.added += int(added[at])
            change.removed += int(removed[at])
            change.is_resend = oid in self._resending
        self.round.plain.add(segment, numbers[listed:], added[listed:], removed[listed:])
        self.round.touched.add(oid)

    def _segment(self, oid: int, table: PublishedTable) -> Segment:
        if oid not in self._current:
            number = len(self.round._segments)
            segment = Segment(number, oid, table.description.qualified, table.description.layout)
            self.round._segments.append(segment)
            self._current[oid] = segment
        return self._current[oid]

    def _change(self, number: int, segment: Segment) -> Changed:
        entries = self.round.entries(number)
        for entry in reversed(entries):
            if isinstance(entry, Changed) and entry.segment is segment:
                return entry
        entries.append(Changed(segment))
        return entries[-1]  # type: ignore[return-value]

    def _clear(self, number: int, oid: int) -> None:
        """Record that a table was cleared, and discard the transaction's earlier changes of its rows."""
        table = self.round.tables.get(oid)
        if table is None or table.description.is_root:
            return
        entries, segment = self.round.entries(number), self._current.get(oid)
        before = table.rows
        for entry in [e for e in entries if isinstance(e, Changed) and e.segment is segment]:
            before -= entry.added - entry.removed
            self.rows.remove(entry.segment, number)
            entry.segment.rows -= entry.added + entry.removed
            entries.remove(entry)
        if before:
            entries.append(Cleared(oid, Clear(table.description.qualified, before), is_resend=False))
        table.rows = 0
        self.round.touched.add(oid)

    def _understand(self, content: str | bytes) -> None:
        try:
            self._take_message(read_message(content))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnsupportedError(f"a schema change was not understood: {shown(content)}") from error

    # Schema changes --------------------------------------------------------------------------------------------------

    def _take_message(self, message: TriggerMessage) -> None:
        number = self._number
        match message:
            case ResendBegun(oid):
                self._resend(number, oid)
            case ResendEnded(oid):
                self._resending.remove(oid)
                # Later rows of the transaction are another change.
                for entry in self.round.entries(number):
                    if isinstance(entry, Altered) and entry.oid == oid:
                        entry.is_settled = True
            case TableChanged(oid, old, new):
                self._alter(number, oid, old, new)
            case ObjectChanged() | AccessChanged():
                self._take_object(number, message)

    def _take_object(self, number: int, message: ObjectChanged | AccessChanged) -> None:
        if isinstance(message, AccessChanged):
            made: list[Ddl | Carried] = list(access.changed(message.old, message.new))
            if message.new.is_hidden and message.new.grants:
                self.round.left_out.append(f"privileges on view {message.new.identity}, which reads tables of others")
        else:
            old, new = message.old, message.new
            made = list(objects.changed(old, new))
            if "sequence" in (found.kind for found in (old, new) if found is not None):
                self.round.sequences[message.object] = objects.qualified(new) if new is not None else None
            if old is None and new is not None and objects.is_left_out(new):
                self.round.left_out.append(f"{message.tag} {new.identity}")
        self.round.users[number] = message.user
        self.round.entries(number).extend(made)

    def _alter(self, number: int, oid: int, old: DescribedTable | None, new: DescribedTable | None) -> None:
        if new is None:
            self.round.tables.pop(oid, None)
        elif old is None:
            self.round.tables[oid] = PublishedTable(new)
        else:
            self.round.tables[oid].description = new
        self._current.pop(oid, None)
        self.round.touched.add(oid)
        altered = Altered(oid, old, new)
        self.round.entries(number).append(altered)
        self._alterations.append(altered)
        # The view shows the tables after this message; a later message of the transaction replaces it.
        tables = {other: table.description for other, table in self.round.tables.items()}
        for root in altered.roots():
            views = self.round._views[number]
            views.pop(root, None)
            if root in tables and tables[root].is_root:
                own = (e for e in self.round.entries(number) if isinstance(e, Altered) and e.oid == root)
                is_there = not any(entry.is_named for entry in own)
                view = alterations.partition_view(tables[root], tables.values(), replaces=is_there)
                views[root] = (alterations.depth(tables[root], tables), view)

    def _resend(self, number: int, oid: int) -> None:
        """Record that all rows of a table follow again: replicas clear it first."""
        table, entries = self.round.tables[oid], self.round.entries(number)
        altered = [e for e in entries if isinstance(e, Altered) and e.oid == oid]
        old = altered[-1].old if altered and altered[-1].old else table.description
        concerned = self._concerned(oid, entries)
        for entry in concerned:
            entry.is_resent = True
        if table.rows:
            place = min((entries.index(entry) for entry in concerned), default=len(entries))
            entries.insert(place, Cleared(oid, Clear(old.qualified, table.rows), is_resend=True))
        table.rows = 0
        self._current.pop(oid, None)
        self._resending.add(oid)

    def _concerned(self, oid: int, entries: list[_Entry]) -> list[Altered]:
        """Return the alterations of a table that become one with sending its rows again.

        Those of the tables that it is a part of alter it, too. What was altered before rows were changed is done with.
        """
        family = {oid, *self._ancestors(self.round.tables[oid].description)}
        clan = family
        if len(family) > 1:
            clan = {o for o, t in self.round.tables.items() if o in family or family & self._ancestors(t.description)}
        changed = [
            at
            for at, entry in enumerate(entries)
            if isinstance(entry, Changed | Cleared) and entry.oid in clan and not entry.is_resend
        ]
        open_entries = entries[changed[-1] + 1 if changed else 0 :]
        return [e for e in open_entries if isinstance(e, Altered) and e.oid in family and not e.is_settled]

    def _ancestors(self, table: DescribedTable) -> set[int]:
        """Return the tables that a table is a part or a child of."""
        found: set[int] = set()
        waiting = [table]
        while waiting:
            for parent in waiting.pop().parents:
                if parent.oid not in found and parent.oid in self.round.tables:
                    found.add(parent.oid)
                    waiting.append(self.round.tables[parent.oid].description)
        return found

    # Writing ---------------------------------------------------------------------------------------------------------

    def write(
        self, database: str, number: int, last_tick: int, sequences: Iterable[Record]
    ) -> tuple[Transactions, tuple[TableFile, ...], dict[str, Path]]:
        """Write the gathered changes as the content of a batch.

        Args:
            database: Name of the database in the farm.
            number: Of the batch.
            last_tick: Tick before the first transaction.
            sequences: Records about sequences; they join the last transaction.

        Returns:
            The transactions, their data files, and for the path of each the local file.
        """
        files: list[TableFile] = []
        local: dict[str, Path] = {}
        where: dict[int, str] = {}
        for segment in self.round._segments:
            if not segment.rows:
                continue
            path = paths.data_path(database, number, len(files))
            target = self._folder / f"{segment.number}.parquet"
            try:
                layout = self.rows.write(segment, last_tick + 1, target)
            except MisfitError:
                # They come at the end of the segments.
                self._set_apart(segment)
                if not segment.rows:
                    continue
                layout = self.rows.write(segment, last_tick + 1, target)
            files.append(TableFile(describe_file(target, path, segment.rows), segment.name, layout))
            local[path], where[segment.number] = target, path
            if segment.has_misfits:
                self.round.misfits.add(path)
        run = self.round.plain.run(self.round.begun, last_tick, self.round._segments, where)
        others = [self._transaction(index, last_tick, where) for index in self.round.listed()]
        transactions = run.woven(others)
        if transactions and (moved := tuple(sequences)):
            last = transactions[-1]
            last = replace(last, records=(*last.records, *moved))
            transactions = Transactions(transactions[:-1], (last,))
        return transactions, tuple(files), local

    def _set_apart(self, segment: Segment) -> None:
        """Move transactions with misfitting values to a separate file."""
        other = Segment(len(self.round._segments), segment.oid, segment.name, segment.layout, has_misfits=True)
        numbers = self.rows.set_apart(segment, other)
        other.rows = self.round.plain.move(np.array(numbers, np.int64), segment, other)
        for entry in (entry for number in numbers for entry in self.round._entries.get(number, ())):
            if isinstance(entry, Changed) and entry.segment is segment:
                entry.segment = other
                other.rows += entry.added + entry.removed
        segment.rows -= other.rows
        self.round._segments.append(other)

    def _transaction(self, index: int, last_tick: int, where: Mapping[int, str]) -> Transaction:
        begun = self.round.begun
        committed = EPOCH + timedelta(microseconds=int(begun.committed[index]))
        # Views come last, after the tables that they show; those of the lowest partitions come first.
        views = (view for _, view in sorted(self.round._views[index].values(), key=lambda pair: -pair[0]))
        records = (*carried_back(self._records(self.round._entries[index], where)), *views)
        user = self.round.users.get(index, "")
        return Transaction(last_tick + 1 + index, user, committed, committed, records, xid=int(begun.xids[index]))

    def _records(self, entries: list[_Entry], where: Mapping[int, str]) -> Iterator[Record | Carried]:
        for at, entry in enumerate(entries):
            match entry:
                case Changed(segment, added, removed):
                    if added or removed:
                        yield Change(segment.name, where[segment.number], added, removed)
                case Altered():
                    yield from statements(entry, entries[at + 1 :])
                case Cleared(clear=clear):
                    yield clear
                case Ddl() | Carried():
                    yield entry


@contextmanager
def gathered(
    folder: Path, tables: dict[int, PublishedTable], prefix: str, database: RowDatabase
) -> Iterator[Gathering]:
    """Gather, and discard the gathered changes at the end; arguments as for `Gathering`.

    Raises:
        UnavailableError: There is not enough memory or disk space.
    """
    gathering = Gathering(folder, tables, prefix, database)
    try:
        yield gathering
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        hint = f"free disk space, or give more memory: {MEMORY_VARIABLE}"
        raise UnavailableError(
            f"changes could not be gathered: {str(error).partition(chr(10))[0]}", hint=hint
        ) from error
    finally:
        gathering.close()


def _counts(entry: _Entry) -> bool:
    return not isinstance(entry, Changed) or bool(entry.added or entry.removed)

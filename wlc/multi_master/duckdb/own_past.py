"""A restored site takes its own past back: the transactions that its log holds and its file lacks.

This database published the log before it was restored from a backup. Journalled transactions that equal published ones
are dropped; the rest of the log is applied without journalling.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import digests, journal, taken_tables, unpublished
from wlc.capture.duckdb.journal import JournalledImages
from wlc.capture.duckdb.open_transaction import TakenEntry
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.sql import literal, quote
from wlc.farm import digest
from wlc.farm.model import Change, Clear, Ddl, Origin, SequencePosition
from wlc.farm.vectors import raised
from wlc.masters.contract import DivergedError
from wlc.masters.master_state import changes
from wlc.multi_master.circle_place import newest_proofs
from wlc.multi_master.duckdb import lines, parking, take_step
from wlc.multi_master.site_step import SiteStep, SiteTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wlc.capture.duckdb.journal import JournalEntry
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Batch, Name, TableFile, Transaction
    from wlc.masters.master_state import MasterState


def take_back(shared: Shared, batch: Batch, chain: str, fetch: Callable[[TableFile], Path]) -> int:
    """Take the next batch of the own log back; see `wlc.masters.contract.SiteSource.take_back`."""
    with shared.publish_lock, shared.commit_lock:
        journalled, missing, diverged = _compared(shared, batch)
        runs = _runs([each for each in missing if each.committed is not None])
        is_end = not runs and diverged is None
        if journalled or is_end:
            with shared.root.cursor() as connection, transaction(connection, shared):
                counts = unpublished.count_rows(digests.rows_of(digests.read(connection, shared.catalog)), journalled)
                known = [each for each in batch.transactions if each.tick in {entry.tick for entry in journalled}]
                _note(connection, shared, _Part(batch, known, chain if is_end else ""), counts)
        if diverged is not None:
            raise diverged
        for place, run in enumerate(runs):
            _take_run(shared, _Part(batch, run, chain if place == len(runs) - 1 else ""), fetch)
        return sum(map(len, runs))


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a batch; `chain` is empty unless the batch ends with it."""

    batch: Batch
    transactions: Sequence[Transaction]
    chain: str

    def halves(self) -> tuple[_Part, _Part]:
        middle = len(self.transactions) // 2
        first, second = self.transactions[:middle], self.transactions[middle:]
        return replace(self, transactions=first, chain=""), replace(self, transactions=second)

    def step(self) -> SiteStep:
        """Return it as if it were taken from another site."""
        batch = self.batch
        numbered = tuple(
            SiteTransaction(line, each.origin or Origin(batch.history, each.tick, each.committed), {}, each)
            for line, each in enumerate(self.transactions, start=1)
        )
        return SiteStep("", numbered, {file.file.path: file for file in batch.files}, {}, None, is_primary=True)

    def reached(self, state: MasterState) -> MasterState:
        """Return what the master remembers after it."""
        origins = [each.origin for each in self.transactions if each.origin]
        contained = raised(state.member.contained, origins)
        if not self.chain:
            tick, vector = self.transactions[-1].tick, raised(state.vector, origins)
            return replace(state, tick=tick, vector=vector, site=replace(state.member, contained=contained))
        after = state.after(self.batch, self.chain)
        proofs = newest_proofs(after.member.proofs, self.batch.taken)
        return replace(after, site=replace(after.member, contained=contained, proofs=proofs))


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection, shared: Shared) -> Iterator[None]:
    """Run a transaction of the database, and reread the state of the journal after it."""
    connection.execute("BEGIN")
    shared.take_snapshot(connection)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    shared.load()


def _compared(
    shared: Shared, batch: Batch
) -> tuple[Sequence[JournalEntry], Sequence[Transaction], DivergedError | None]:
    """Return the journalled part of a batch, the part that the database lacks, and whether its commits differ.

    Commits from before the copy was made are part of both, published or not.
    """
    with shared.reading() as connection:
        ours = unpublished.pending(connection, shared.catalog, len(batch.transactions)).transactions
    theirs = [each for each in batch.transactions if each.tick > shared.require_state().tick]
    for place, (entry, published) in enumerate(zip(ours, theirs, strict=False)):
        if entry.tick != published.tick or not unpublished.is_same(entry, published):
            error = DivergedError(
                f"{shared.path} was restored from a backup, and has committed tick {entry.tick} since, while its log"
                f" has another tick {published.tick}",
                path=shared.path,
            )
            return ours[:place], (), error
    return ours[: len(theirs)], theirs[len(ours) :], None


def _runs(transactions: Sequence[Transaction]) -> list[list[Transaction]]:
    """Split transactions into runs that only change rows, and single ones that change the schema or clear a table."""
    runs: list[list[Transaction]] = []
    is_open = False
    for each in transactions:
        is_alone = any(isinstance(record, Ddl | Clear) for record in each.records)
        if is_open and not is_alone:
            runs[-1].append(each)
        else:
            runs.append([each])
        is_open = not is_alone
    return runs


def _take_run(shared: Shared, part: _Part, fetch: Callable[[TableFile], Path]) -> None:
    """Take a run; if it violates a constraint as a whole, take it in halves, as steps of other sites are."""
    if any(isinstance(record, Ddl | Clear) for record in part.transactions[0].records):
        _take_alone(shared, part, fetch)
        return
    if len(part.transactions) == 1:
        parking.with_parked(shared, lambda: _take_rows(shared, part, fetch))
        return
    try:
        _take_rows(shared, part, fetch)
    except duckdb.ConstraintException:
        for half in part.halves():
            _take_run(shared, half, fetch)


def _take_rows(shared: Shared, part: _Part, fetch: Callable[[TableFile], Path]) -> None:
    with shared.root.cursor() as connection, transaction(connection, shared):
        present, order = parking.present(connection, shared)
        found = lines.load(connection, part.step(), present, fetch, may_cancel=True)
        taken_tables.refuse_triggers(connection, shared.catalog, (table.table.name for table in found))
        parking.write(connection, shared, found, order)
        lines.drop(connection, found)
        counts = digests.rows_of(digests.read(connection, shared.catalog))
        for record in (record for each in part.transactions for record in each.records):
            if isinstance(record, Change):
                counts[record.table] = counts.get(record.table, 0) + record.added - record.removed
        _set_sequences(connection, shared, part)
        _note(connection, shared, part, counts)
    touched = [table.table.name for table in found]
    shared.committed(shared.last_tick, shared.commit_time(), touched, touched)


def _take_alone(shared: Shared, part: _Part, fetch: Callable[[TableFile], Path]) -> None:
    """Take a schema change through the ordinary capture, and delete its journal entries at once."""
    with shared.root.cursor() as connection:

        def note(entry: JournalEntry) -> None:
            for record in entry.records:
                if isinstance(record, JournalledImages):
                    images = journal.images_sql(shared.catalog, record.layout)
                    connection.execute(f"DELETE FROM {images} WHERE _tick = {entry.tick}")
            _set_sequences(connection, shared, part)
            _note(
                connection,
                shared,
                part,
                unpublished.count_rows(digests.rows_of(digests.read(connection, shared.catalog)), [entry]),
            )

        (each,) = part.step().transactions
        take_step.run_alone(
            connection, shared, replace(part.step(), is_alone=True), fetch, TakenEntry(each.origin, note)
        )
    shared.load()


def _set_sequences(connection: duckdb.DuckDBPyConnection, shared: Shared, part: _Part) -> None:
    """Advance sequences past the values of transactions taken back; they are already past those of local commits."""
    known = duckdb_catalog.sequences(connection, shared.catalog)
    for record in (record for each in part.transactions for record in each.records):
        if isinstance(record, SequencePosition) and known.get(record.sequence) != record.value:
            _set_sequence(connection, shared, record.sequence, record.value)


def pass_sequences(shared: Shared, given: Mapping[Name, int]) -> None:
    """Advance sequences past their former values; see `wlc.masters.contract.SiteSource.pass_sequences`."""
    with shared.publish_lock, shared.commit_lock, shared.root.cursor() as connection, transaction(connection, shared):
        known = duckdb_catalog.sequences(connection, shared.catalog)
        for sequence, step in duckdb_catalog.sequence_steps(connection, shared.catalog).items():
            value = given.get(sequence)
            if value is not None and (sequence not in known or (value - known[sequence]) * step > 0):
                _set_sequence(connection, shared, sequence, value)


def _set_sequence(connection: duckdb.DuckDBPyConnection, shared: Shared, sequence: Name, value: int) -> None:
    name = f"{quote(shared.catalog)}.{sequence.sql}"
    connection.execute(f"SELECT setval({literal(name)}, {value})")


def _note(connection: duckdb.DuckDBPyConnection, shared: Shared, part: _Part, counts: dict[Name, int]) -> None:
    """Store the tables' digests and the position in the log, and delete the journalled part of it."""
    state, touched = part.reached(shared.require_state()), digest.touched(part.transactions)
    for number in journal.read_layouts(connection, shared.catalog):
        connection.execute(f"DELETE FROM {journal.images_sql(shared.catalog, number)} WHERE _tick <= {state.tick}")
    connection.execute(f"DELETE FROM {quote(shared.catalog)}.wlc.entries WHERE tick <= {state.tick}")
    before = digests.read(connection, shared.catalog)
    untouched = {name: sums for name, sums in before.items() if name not in touched}
    held = digests.known(untouched)
    if part.chain:
        held = digest.after(held, part.batch)
    digests.write(connection, shared.catalog, before, counts, held, digests.known_quick(untouched))
    journal.write_state(connection, shared.catalog, changes(shared.state, state))


def renew(shared: Shared, state: MasterState) -> None:
    """Begin a new history with the journalled transactions; see `wlc.masters.contract.SiteSource.renew`."""
    with shared.publish_lock, shared.commit_lock, shared.root.cursor() as connection:
        before = shared.require_state().tick
        rise = state.tick - before
        with transaction(connection, shared):
            layouts = journal.read_layouts(connection, shared.catalog)
            images = ((journal.images_sql(shared.catalog, number), "_tick", "_meta") for number in layouts)
            for table, tick, text in ((f"{quote(shared.catalog)}.wlc.entries", "tick", "entry"), *images):
                connection.execute(f"UPDATE {table} SET {tick} = {tick} + {rise}")
                journal.raise_after(connection, table, text, before, rise)
            journal.write_state(connection, shared.catalog, changes(shared.state, state))

"""Missing steps: the part of another site's log that a site lacks, as steps to take.

Checks of a mesh on another site's log, which holds transactions of all sites.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, FencedError, UnavailableError
from wlc.farm.model import Change, Clear, Ddl, Origin, RowsRead, RowsRefreshed, Taken
from wlc.farm.store import MissingError
from wlc.farm.vectors import contains, expanded, merged, raised
from wlc.multi_master.anchors import anchor, before
from wlc.multi_master.circle_place import site_database, without_site_that_lies
from wlc.multi_master.membership import AHEAD, author_of, may_write
from wlc.multi_master.site_step import SiteStep, SiteTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Name, TableFile, Transaction
    from wlc.farm.vectors import Lineage
    from wlc.multi_master.circle import Circle, CircleSite


@dataclass(frozen=True, slots=True)
class MeshLog:
    """The checks of one round on another site's log.

    Attributes:
        circle: The circle with the tables' writers.
        site: The site of the log.
        now: The present time.
        published: Returns the last tick of a history in its site's folder at present, None if no site of the circle has
            or had that history.
    """

    circle: Circle
    site: str
    now: datetime
    published: Callable[[str, int], int | None]

    def may_change_schema(self, origin: Origin) -> bool:
        """Say whether a transaction's author may change the schema."""
        return author_of(self.circle, origin.history) == self.circle.ddl

    def refuse_unseen(
        self, log: FarmDatabase, batch: Batch, past: Mapping[str, int], mine: Mapping[str, int], lineage: Lineage
    ) -> None:
        """Refuse a batch whose past the reader does not contain, or whose vector is too large.

        Args:
            log: The other site's folder.
            batch: The batch.
            past: That site's vector before it.
            mine: The reader's vector.
            lineage: Restores histories that vectors leave out.

        Raises:
            ExpiredError: The log lacks the past; another site's may have it.
            CorruptError: The batch claims to contain more than it and those before it hold.
        """
        # A history begins with its first batch, at any tick.
        begins = batch.number == 1 or batch.parent is not None
        needed = {history: tick for history, tick in past.items() if not (begins and history == batch.history)}
        if not contains(mine, needed, lineage):
            raise ExpiredError(
                f"the past of batch {batch.number} of site {self.site} is neither in its log nor here",
                hint="run wlc site take again once the others have published; if that does not help, this site must"
                f" begin anew: wlc site join FILE --name {shlex.quote(log.url)} --site NAME --again",
                path=log.url,
            )
        origins = [each.origin for each in batch.transactions if each.origin is not None]
        held = raised(past, (*origins, Origin(batch.history, batch.last)))
        if not contains(held, batch.vector, lineage):
            raise CorruptError(
                f"{log.url}: batch {batch.number} of site {self.site} claims to contain ticks that its log does not "
                "hold",
                hint=without_site_that_lies(log.url, self.site),
                path=log.url,
            )

    def too_new(self, log: FarmDatabase, origin: Origin) -> UnavailableError | None:
        """Return the error for a transaction too far ahead of the reader's clock, None for any other."""
        if origin.committed is None or origin.committed <= self.now + AHEAD:
            return None
        author = author_of(self.circle, origin.history)
        name = f"site {author}" if author else "a site that has left"
        return UnavailableError(
            f"{name} committed tick {origin.tick} at {format_time(origin.committed)}, and it is {format_time(self.now)}"
            f" here: the rest of the log of site {self.site} waits until that is less than 5 minutes ahead",
            hint="set the clock that is wrong. If it was that of the other site and the wait is too long, let that site"
            f" begin anew: wlc site join FILE --name {shlex.quote(log.url)} --site {author or 'NAME'} --again",
            path=log.url,
        )

    def refuse_forbidden(self, log: FarmDatabase, origin: Origin, transaction: Transaction) -> None:
        """Refuse a transaction that its stated author cannot have written.

        Raises:
            CorruptError: It has rows of a table that the author may not write, or the author has not published it.
        """
        author = author_of(self.circle, origin.history)
        last = origin.tick if author == self.site else self.published(origin.history, origin.tick)
        if last is None or origin.tick > last:
            # The author's folder may have been lost or rolled back without its knowledge.
            restored = f"at site {author}: wlc flush FILE; if its folder has lost nothing, " if author else ""
            raise CorruptError(
                f"{log.url}: tick {transaction.tick} of site {self.site} holds tick {origin.tick} of history"
                f" {origin.history}, which {f'site {author} has not' if author else 'no site has'} published",
                hint=f"{restored}{without_site_that_lies(log.url, self.site)}",
                path=log.url,
            )
        for table in sorted(_written(transaction)):
            if not may_write(self.circle, author, table):
                raise CorruptError(
                    f"{log.url}: tick {transaction.tick} of site {self.site} holds rows of {table} that site"
                    f" {author or 'unknown'} wrote without permission",
                    hint="if the rule of the table has just changed, run wlc site take again, or give the table the"
                    f" former rule until all sites have taken: wlc site rule {shlex.quote(log.url)} {table} newest",
                    path=log.url,
                )


def _written(transaction: Transaction) -> set[Name]:
    return {record.table for record in transaction.records if isinstance(record, Change | Clear | RowsRefreshed)}


@dataclass(slots=True)
class Published:
    """The last published ticks of a circle's sites, read on demand and shared by a round.

    Attributes:
        founder: The founder's folder.
        circle: The circle at the start of the round.
    """

    founder: FarmDatabase
    circle: Circle
    _last: dict[str, int] = field(default_factory=dict)

    def last(self, history: str, wanted: int) -> int | None:
        """Return the last published tick of a history, or a cached one that reaches `wanted`.

        Sites that left have no folder to check: any stated tick is accepted.
        """
        author = author_of(self.circle, history)
        if author is None:
            return wanted if history in [past.history for past in self.circle.past] else None
        if self._last.get(history, 0) < wanted:
            log = site_database(self.founder, self.circle.site(author).folder)
            self._last[history] = _last_published(log, self.circle, author, history, wanted)
        return self._last.get(history, 0)


def _last_published(log: FarmDatabase, circle: Circle, author: str, history: str, wanted: int) -> int:
    numbers = log.batch_numbers()
    newest = log.read_batch(numbers[-1])[0] if numbers else None
    vector = {**newest.vector, newest.history: newest.last} if newest else {}
    found = expanded(vector, circle.lineage()).get(history, 0)
    former = [each.history for each in circle.site(author).histories[:-1]]
    return _last_of_former(log, numbers, history) if found < wanted and history in former else found


def _last_of_former(log: FarmDatabase, numbers: Sequence[int], history: str) -> int:
    """Return the last possible tick of a former history.

    The next history of the site begins after all ticks that any site had seen, including ticks that a folder has lost
    since.
    """
    # Position of the present history if it has no batch yet.
    last = log.config().tick
    for number in reversed(numbers):
        batch = log.read_batch(number)[0]
        if batch.history == history:
            break
        last = batch.first - 1
    return last


# Maximum size of a step, so that a round of any length needs bounded memory.
STEP_TRANSACTIONS = 20_000
STEP_ROWS = 2_000_000
# Maximum size of a step joined from several batches. Each step costs at least a tenth of a second; a large one
# conflicts with more of the users' concurrent changes.
JOINED_TRANSACTIONS = 1_000
JOINED_ROWS = 20_000


@dataclass(slots=True)
class SiteLog:
    """The log of another site in one round; the newest batch at its start is the last one that is read.

    Attributes:
        history: The reader's own history, whose ticks it contains all.
        contained: The reader's vector of other histories; it grows as steps are taken.
        proof: The newest position that the reader has read, None before the first.
        is_primary: It is the log of the primary.
        may_change_schema: The site may publish schema changes.
        anew: The command that rebuilds the one of the two sites that is not the primary.
        reread: Returns the present lineage: a batch may be newer than `lineage`.
        term: The required term of the primary's log: before it, the site has not taken over. None for any.
        stop: The last batch to read, if a handover ended the log as that of a primary; None for all.
        ended: The batch that ends the log as that of a primary, if it was read.
        mesh: The checks of a mesh; None in a star.
    """

    database: FarmDatabase
    site: CircleSite
    history: str
    own_last: int
    contained: Mapping[str, int]
    proof: Taken | None
    lineage: Lineage
    is_primary: bool
    may_change_schema: bool
    anew: str = ""
    reread: Callable[[], Lineage] | None = None
    term: int | None = None
    stop: int | None = None
    ended: Batch | None = None
    mesh: MeshLog | None = None
    _read: dict[int, tuple[Batch, str]] = field(default_factory=dict)
    _vectors: dict[int, tuple[list[int], list[dict[str, int]]]] = field(default_factory=dict)

    @property
    def mine(self) -> dict[str, int]:
        """The reader's vector."""
        return {**self.contained, self.history: self.own_last}

    @property
    def _without(self) -> str | None:
        """The hint for continuing without the site; sites cannot continue without the primary."""
        if self.is_primary:
            return None
        return without_site_that_lies(self.database.url, self.site.name)

    def steps(self) -> Iterator[SiteStep]:
        """Yield the missing steps, in the order of the log; the caller takes each step before it requests the next.

        Small steps of consecutive batches are joined.

        Raises:
            FencedError: The log has another past than the one that was read before.
            ExpiredError: The missing part was pruned.
            CorruptError: A log file is damaged or contradicts the one before it.
            UnavailableError: The primary's site has not taken over yet, or is no longer the primary.
        """
        held = _Held()
        try:
            for step in self._steps():
                if not held.add(step):
                    yield held.release()
                    held.add(step)
        except FarmError:
            # The valid steps before the error can be taken.
            if held.parts:
                yield held.release()
            raise
        if held.parts:
            yield held.release()

    def _steps(self) -> Iterator[SiteStep]:
        floor = self.proof.batch if self.proof else 0
        numbers = self._numbers(after=max(floor - 1, 0))
        self._prove_past(numbers)
        if self.proof is None and floor:
            floor, numbers = 0, self._numbers()
        if not self._has_led(numbers[-1] if numbers else 0) or not numbers or numbers[-1] <= floor:
            return
        start = self._anchor(numbers[0], numbers[-1], floor)
        if start is None:
            # Only echoes: nothing is journalled, and only the position moves.
            step = SiteStep(self.site.name, (), {}, {}, None, self.is_primary)
            yield self._closed(step, numbers[-1])
            return
        for number in range(start, numbers[-1] + 1):
            yield from self._steps_of(number)

    def _numbers(self, after: int = 0) -> list[int]:
        found = self.database.batch_numbers(after=after)
        return found if self.stop is None else [number for number in found if number <= self.stop]

    def _has_led(self, newest: int) -> bool:
        """Record whether a handover ends a primary's log, and say whether the log is a primary's.

        The site of a primary's log has judged itself.

        Earlier transactions are no verdicts, and other sites would take them for verdicts.
        """
        if self.term is None:
            return True
        batch = self._batch(newest)[0] if newest else None
        handover = batch.handover if batch else None
        if handover is not None and handover.term > self.term:
            self.ended = batch
            return self.term == 1 or (newest > 1 and (self._batch(newest - 1)[0].term or 0) >= self.term)
        if batch is not None and (batch.term or 0) > self.term:
            raise UnavailableError(
                f"site {self.site.name} was the primary in term {self.term}, and its log is in term {batch.term}",
                hint="the primary has changed meanwhile: run wlc site take again",
                path=self.database.url,
            )
        if self.term > 1 and (batch is None or handover is not None or (batch.term or 0) < self.term):
            raise UnavailableError(
                f"site {self.site.name} is the primary since term {self.term}, and has not taken over yet",
                hint=f"run wlc site take at site {self.site.name}",
                path=self.database.url,
            )
        return True

    def own_contained(self) -> int:
        """Return the last tick of the reader's own history in the part of the log that was read."""
        known = self._footer(self.proof.batch) if self.proof is not None and self._has(self.proof.batch) else {}
        return expanded(known, self.lineage).get(self.history, 0)

    def pruned(self) -> dict[str, int]:
        """Return the vector before the oldest kept batch."""
        return self._vector_before(self._numbers()[0])

    def readable(self) -> Mapping[str, int]:
        """Return the vector of the newest batch, if the reader can read up to it.

        Raises:
            FencedError: As `steps`.
            ExpiredError: As `steps`.
        """
        numbers = self._numbers()
        self._prove_past(numbers)
        self._anchor(numbers[0], numbers[-1], self.proof.batch if self.proof else 0)
        return self._footer(numbers[-1])

    def _prove_past(self, numbers: list[int]) -> None:
        """Check that the log continues from the position that was read last."""
        proof = self.proof
        if proof is not None and proof.history not in [each.history for each in self.site.histories]:
            # Another site had this name.
            proof = self.proof = None
        if proof is None:
            return
        if not numbers:
            # The newest batch is never pruned, and this one is as new.
            found = ""
        elif numbers[0] <= proof.batch:
            found = self._batch(proof.batch)[1]
        elif numbers[0] == proof.batch + 1:
            found = self._batch(numbers[0])[0].previous
        elif self.mesh is not None and contains(self.mine, self.pruned(), self.lineage):
            # The pruned part came through other sites: read the log as if for the first time.
            self.proof = None
            return
        else:
            raise self._expired(numbers[0])
        if found != proof.chain:
            if self._has_begun_anew(proof):
                self.proof = None
                return
            raise FencedError(
                f"the log of site {self.site.name} belongs to another past: batch {proof.batch} is not the one that was"
                " taken",
                hint=f"one of the two was restored from a backup; at site {self.site.name}: wlc flush FILE; if that"
                f" changes nothing: {self.anew}",
                path=self.database.url,
            )

    def _has_begun_anew(self, proof: Taken) -> bool:
        """Say whether the site has a later history than the one that was read: its log was lost, or rolled back."""
        return proof.history in [each.history for each in self.site.histories[:-1]]

    def _anchor(self, first: int, stop: int, floor: int) -> int | None:
        find = partial(anchor, first, stop, self._footer, self.mine, floor=floor, lineage=self.lineage)
        if self.mesh is None:
            with suppress(ExpiredError):
                return find(before={} if first == 1 else None)
        try:
            # The pruned part can have come through another site.
            return find(before=self._vector_before(first))
        except ExpiredError as error:
            raise self._expired(first) from error

    def _vector_before(self, number: int) -> dict[str, int]:
        """Return the vector just before a batch, without insignificant own ticks."""
        batch, past = self._batch(number)[0], self._past_of(number)
        if batch.own is not None and batch.own < batch.first:
            past[batch.history] = min(batch.own, past.get(batch.history, 0))
        return past

    def _expired(self, first: int) -> ExpiredError:
        return ExpiredError(
            f"the missing part of site {self.site.name} was pruned: its log begins with batch {first}",
            hint=self.anew or None,
            path=self.database.url,
        )

    def _steps_of(self, number: int) -> Iterator[SiteStep]:
        batch, chain = self._batch(number)
        past = self._past_of(number)
        if self.reread is not None and not contains(batch.vector, past, self.lineage):
            self.lineage = self.reread()
            past = self._past_of(number)
        self._refuse_own_beyond(batch)
        self._refuse_false(batch, past)
        if self.mesh is not None:
            self.mesh.refuse_unseen(self.database, batch, past, self.mine, self.lineage)
        run: list[SiteTransaction] = []
        rows, is_run_alone = 0, False
        seen = expanded(self.mine, self.lineage)
        for transaction in batch.transactions:
            origin = transaction.origin or Origin(batch.history, transaction.tick, transaction.committed)
            is_new = origin.tick > seen.get(origin.history, 0)
            seen[origin.history] = max(seen.get(origin.history, 0), origin.tick)
            if transaction.committed is not None and is_new:
                named = _named(origin, transaction)
                is_alone = any(isinstance(record, Ddl | Clear) for record in transaction.records)
                if self.mesh is not None and (wait := self.mesh.too_new(self.database, named)) is not None:
                    if run:
                        yield self._step(batch, chain, run, is_alone=is_run_alone)
                    raise wait
                if is_alone and not self._may_change_schema(origin):
                    raise self._lie(
                        f"{self.database.url}: site {self.site.name} changes the schema or empties a table in tick"
                        f" {transaction.tick}, which it may not"
                    )
                if self.mesh is not None:
                    self.mesh.refuse_forbidden(self.database, named, transaction)
                # The last step waits for the end of the batch: its transactions are published with the batch's proof.
                if run and (is_run_alone or is_alone or len(run) >= STEP_TRANSACTIONS or rows >= STEP_ROWS):
                    yield self._step(batch, chain, run, is_alone=is_run_alone)
                    run, rows = [], 0
                reads_past = self._past_of_reads(number, transaction)
                run.append(SiteTransaction(len(run) + 1, named, dict(past), transaction, reads_past))
                rows += sum(getattr(record, "rows", 0) for record in transaction.records)
                is_run_alone = is_alone
            past[origin.history] = max(past.get(origin.history, 0), origin.tick)
            past[batch.history] = transaction.tick
        step = self._step(batch, chain, run, is_alone=is_run_alone, is_whole=True)
        yield self._closed(step, number)

    def _may_change_schema(self, origin: Origin) -> bool:
        return self.may_change_schema if self.mesh is None else self.mesh.may_change_schema(origin)

    def _past_of(self, number: int) -> dict[str, int]:
        """Return the vector just before a batch."""
        batch = self._batch(number)[0]
        if number == 1 and self.mesh is not None and (joined := self._joined_with()) is not None:
            return expanded(joined, self.lineage)
        if not self._has(number - 1):
            return expanded(before(batch, self.lineage), self.lineage)
        last = self._batch(number - 1)[0]
        # A history that grew from another one has seen it only up to its parent tick.
        if batch.parent is not None and (batch.parent.history, batch.parent.tick) != (last.history, last.last):
            return expanded(before(batch, self.lineage), self.lineage)
        return expanded(last.vector, self.lineage)

    def _joined_with(self) -> Mapping[str, int] | None:
        """Return the site's vector before its first batch, None if its first snapshot is pruned."""
        ticks = self.database.snapshot_ticks()
        if not ticks:
            return {}
        manifest = self.database.read_manifest(ticks[0])
        return manifest.vector if manifest.position.batch == 0 else None

    def _past_of_reads(self, number: int, transaction: Transaction) -> Mapping[str, int] | None:
        """Return the log's vector when a transaction of a batch began, None if it has no tracked reads."""
        if not any(isinstance(record, RowsRead) for record in transaction.records):
            return None
        began = transaction.after or 0
        while self._batch(number)[0].first > began and self._has(number - 1):
            number -= 1
        if number not in self._vectors:
            self._vectors = {number: _vectors_in(self._batch(number)[0], self._past_of(number))}
        ticks, vectors = self._vectors[number]
        return vectors[bisect_right(ticks, began)]

    def _step(
        self,
        batch: Batch,
        chain: str,
        run: list[SiteTransaction],
        *,
        is_alone: bool = False,
        is_whole: bool = False,
    ) -> SiteStep:
        """Build a step, and add it to the vector: the caller takes it before it continues."""
        contained = self.contained = raised(self.contained, (each.origin for each in run))
        # An interrupted round begins with the same batch again, and skips transactions by the vector.
        proof = Taken(self.site.name, batch.history, batch.last, batch.number, chain) if is_whole else self.proof
        files: Mapping[str, TableFile] = {file.file.path: file for file in batch.files}
        return SiteStep(self.site.name, tuple(run), files, contained, proof, self.is_primary, is_alone)

    def _closed(self, step: SiteStep, number: int) -> SiteStep:
        """Return the last step of a batch: after it, the batch's whole vector is contained."""
        footer = self._footer(number)
        if self.mesh is not None:
            # The reader contains only what it took, regardless of the other site's claims.
            history = self._batch(number)[0].history
            footer = {history: footer[history]}
        contained = merged(self.contained, footer, self.lineage)
        contained.pop(self.history, None)
        self.contained, self.proof = contained, self._proof(number)
        return replace(step, contained=contained, proof=self.proof)

    def _refuse_false(self, batch: Batch, past: Mapping[str, int]) -> None:
        """Refuse a batch with impossible claims.

        Raises:
            CorruptError: It contradicts the batch before it, itself, or the transactions that only the reader can have
                given it.
            FencedError: The site has not announced this history.
        """
        where = f"{self.database.url}: batch {batch.number} of site {self.site.name}"
        if batch.history not in [each.history for each in self.site.histories]:
            raise FencedError(
                f"{where} is of history {batch.history}, which belongs to another past of the site",
                hint=f"end the program that writes it; wlc site list {shlex.quote(self.database.url)}",
                path=self.database.url,
            )
        if not contains(batch.vector, past, self.lineage):
            raise self._lie(f"{where} contains less than the one before it")
        last = self._batch(batch.number - 1)[0] if self._has(batch.number - 1) else None
        # A site that was alone temporarily has begun a history without terms.
        if last is not None and last.history == batch.history and (batch.term or 0) < (last.term or 0):
            raise self._lie(f"{where} is in term {batch.term or 0}, and the one before it in term {last.term}")
        vector, seen = expanded(batch.vector, self.lineage), dict(past)
        if batch.first <= seen.get(batch.history, 0):
            raise self._lie(f"{where} begins with a tick that was published before")
        for origin in (t.origin for t in batch.transactions if t.origin is not None):
            which = f"tick {origin.tick} of history {origin.history}"
            if origin.tick > vector.get(origin.history, 0):
                raise self._lie(f"{where} holds {which}, which its vector does not contain")
            if origin.tick <= seen.get(origin.history, 0):
                raise self._lie(f"{where} holds {which}, which came before or out of order")
            seen[origin.history] = origin.tick
        if self.mesh is not None:
            return
        own = {each.history for each in self.site.histories}
        # A reader that lost its own past gets it back from here.
        own |= {history for history, _ in self.lineage.ancestors(self.history)}
        others = {history: tick for history, tick in batch.vector.items() if history not in own}
        if not self.is_primary and not contains(self.mine, others, self.lineage):
            raise self._lie(f"{where} contains ticks that only the primary could have given it, but has not")

    def _lie(self, message: str) -> CorruptError:
        return CorruptError(message, hint=self._without, path=self.database.url)

    def _refuse_own_beyond(self, batch: Batch) -> None:
        known = batch.vector.get(self.history, 0)
        if known > self.own_last:
            raise FencedError(
                f"site {self.site.name} has taken tick {known} of this site's history, which ends at {self.own_last}"
                " here: the database was restored from a backup",
                hint=self.anew or None,
                path=self.database.url,
            )

    def _proof(self, number: int) -> Taken:
        batch, chain = self._batch(number)
        return Taken(self.site.name, batch.history, batch.last, number, chain)

    def _footer(self, number: int) -> Mapping[str, int]:
        return self._batch(number)[0].vector

    def _has(self, number: int) -> bool:
        if number < 1:
            return False
        try:
            self._batch(number)
        except (MissingError, CorruptError):
            return False
        return True

    def _batch(self, number: int) -> tuple[Batch, str]:
        if number not in self._read:
            previous = self._read.get(number - 1)
            found = self.database.read_batch(number, previous[1] if previous else None)
            # The last vectors are needed again; a round may be long.
            self._read = {**dict(list(self._read.items())[-3:]), number: found}
        return self._read[number]


@dataclass(slots=True)
class _Held:
    """Steps that wait to be joined with those of the next batches."""

    parts: list[SiteStep] = field(default_factory=list)
    transactions: int = 0
    rows: int = 0

    def add(self, step: SiteStep) -> bool:
        """Hold a step, too, and return whether it was joined; otherwise the held steps must be yielded first."""
        transactions, rows = self.transactions + len(step.transactions), self.rows + step.rows
        if not self.transactions:
            # A step that only moves the position is superseded by the next step.
            self.parts = [step]
        elif not step.transactions:
            self.parts[-1] = replace(self.parts[-1], contained=step.contained, proof=step.proof)
        elif self.parts[-1].can_join(step) and transactions <= JOINED_TRANSACTIONS and rows <= JOINED_ROWS:
            self.parts.append(step)
        else:
            return False
        self.transactions, self.rows = transactions, rows
        return True

    def release(self) -> SiteStep:
        """Return what is held as one step."""
        step = SiteStep.joined(self.parts)
        self.parts, self.transactions, self.rows = [], 0, 0
        return step


def _named(origin: Origin, transaction: Transaction) -> Origin:
    """Return the origin with the time of the first commit."""
    return origin if origin.committed else replace(origin, committed=transaction.committed)


def _vectors_in(batch: Batch, past: Mapping[str, int]) -> tuple[list[int], list[dict[str, int]]]:
    """Return the ticks at which a batch takes other sites' transactions, and the vectors around them."""
    ticks, vectors = [], [dict(past)]
    for each in batch.transactions:
        if each.origin is not None:
            ticks.append(each.tick)
            vectors.append(raised(vectors[-1], (each.origin,)))
    return ticks, vectors

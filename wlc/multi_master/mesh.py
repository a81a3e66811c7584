"""What a site of a mesh believes of another one's log, which holds transactions of all sites."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wlc.farm.clock import format_time
from wlc.farm.errors import CorruptError, ExpiredError, UnavailableError
from wlc.farm.mesh import AHEAD, author_of, may_write
from wlc.farm.model import Change, Clear, Origin, RowsRefreshed
from wlc.farm.vectors import contains, expanded, raised
from wlc.masters.circle_place import site_database, without_site_that_lies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from wlc.farm.circle import Circle
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Name, Transaction
    from wlc.farm.vectors import Lineage


@dataclass(frozen=True, slots=True)
class MeshLog:
    """How one round reads the log of another site.

    Attributes:
        circle: Says which site may write what.
        site: Whose log it is.
        now: The present time.
        published: Returns the last tick of a history that the folder of its site holds by now, None if no site of the
            circle has or had that history.
    """

    circle: Circle
    site: str
    now: datetime
    published: Callable[[str, int], int | None]

    def may_change_schema(self, origin: Origin) -> bool:
        """Say whether a transaction may change the schema, whoever passed it on."""
        return author_of(self.circle, origin.history) == self.circle.ddl

    def refuse_unseen(
        self, log: FarmDatabase, batch: Batch, past: Mapping[str, int], mine: Mapping[str, int], lineage: Lineage
    ) -> None:
        """Refuse a batch that was written after something that the reader does not contain, or that claims too much.

        Args:
            log: The other site's folder.
            batch: The batch.
            past: What that site contained before it.
            mine: What the reader contains.
            lineage: What vectors leave out.

        Raises:
            ExpiredError: The log does not say what came before; another site's may.
            CorruptError: The batch claims to contain more than it and those before it hold.
        """
        # A history begins with its first batch, whatever the tick.
        begins = batch.number == 1 or batch.parent is not None
        needed = {history: tick for history, tick in past.items() if not (begins and history == batch.history)}
        if not contains(mine, needed, lineage):
            raise ExpiredError(
                f"what site {self.site} contained before batch {batch.number} is neither in its log nor here",
                hint="run wlc take again once the others have published; if that does not help, this site must begin"
                f" anew: wlc join FILE --name {shlex.quote(log.url)} --site NAME --again",
                path=log.url,
            )
        origins = [each.origin for each in batch.transactions if each.origin is not None]
        held = raised(past, (*origins, Origin(batch.history, batch.last)))
        if not contains(held, batch.vector, lineage):
            raise CorruptError(
                f"{log.url}: batch {batch.number} of site {self.site} claims to contain what its log does not hold",
                hint=without_site_that_lies(log.url, self.site),
                path=log.url,
            )

    def too_new(self, log: FarmDatabase, origin: Origin) -> UnavailableError | None:
        """Return the error for a transaction that must wait until the reader's clock comes near its own, else None."""
        if origin.committed is None or origin.committed <= self.now + AHEAD:
            return None
        author = author_of(self.circle, origin.history)
        name = f"site {author}" if author else "a site that has left"
        return UnavailableError(
            f"{name} committed tick {origin.tick} at {format_time(origin.committed)}, and it is {format_time(self.now)}"
            f" here: the rest of the log of site {self.site} waits until that is less than 5 minutes ahead",
            hint="set the clock that is wrong. If it was that of the other site and the wait is too long, let that site"
            f" begin anew: wlc join FILE --name {shlex.quote(log.url)} --site {author or 'NAME'} --again",
            path=log.url,
        )

    def refuse_forbidden(self, log: FarmDatabase, origin: Origin, transaction: Transaction) -> None:
        """Refuse what the author of a transaction cannot have written, whoever passed it on.

        Raises:
            CorruptError: It has rows of a table that the author may not write, or the author has not published it.
        """
        author = author_of(self.circle, origin.history)
        last = origin.tick if author == self.site else self.published(origin.history, origin.tick)
        if last is None or origin.tick > last:
            # Its folder may have been lost or rolled back, and it may not know yet.
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
                    f" {author or 'unknown'} wrote, which it may not",
                    hint="if the rule of the table has just changed, run wlc take again, or give the table the former"
                    f" rule until all sites have taken: wlc rule {shlex.quote(log.url)} {table} newest",
                    path=log.url,
                )


def _written(transaction: Transaction) -> set[Name]:
    return {record.table for record in transaction.records if isinstance(record, Change | Clear | RowsRefreshed)}


@dataclass(slots=True)
class Published:
    """What each site of a circle has published, read when it is asked for; one round shares it.

    Attributes:
        founder: The founder's folder.
        circle: The circle at the start of the round.
    """

    founder: FarmDatabase
    circle: Circle
    _last: dict[str, int] = field(default_factory=dict)

    def last(self, history: str, wanted: int) -> int | None:
        """Return the last published tick of a history, at least as of when it first reached `wanted`.

        Nothing is known of sites that left: what they published is then as much as anybody says.
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
    """Return the last tick that a former history can have had.

    The next history of the site begins behind all ticks that anybody had seen, also those that a folder has lost since.
    """
    # That is where the present history stands if it has no batch yet.
    last = log.config().tick
    for number in reversed(numbers):
        batch = log.read_batch(number)[0]
        if batch.history == history:
            break
        last = batch.first - 1
    return last

"""Several sites in plain Python: what each has, what each contains, and what the primary rejects by brute force.

A site's log is a list of entries, each under the name of its first commit. What a site contains is a set of such names,
not a vector. Every site but the first reads only the first, the primary, whose log is read in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PRIMARY = 0
# More than there are sites.
AUTHORS = 100
# The site and the number of a transaction where it was first committed.
TransactionName = tuple[int, int]
# A table and a key.
Key = tuple[str, int]


@dataclass(frozen=True)
class LoggedEntry:
    """A transaction in a log: what it made of rows, None where it removed one, and what the log contained before.

    A refresh is an entry like any other: it says what rows are.

    Attributes:
        reads: Rows whose reading counts, and whether it does as much as a change.
        seen: What the log contained when the transaction began.
    """

    name: TransactionName
    after: dict[Key, str | None]
    before: dict[Key, str | None]
    past: frozenset[TransactionName]
    is_refresh: bool = False
    reads: dict[Key, bool] = field(default_factory=dict)
    seen: frozenset[TransactionName] = frozenset()

    @property
    def lines(self) -> set[Key]:
        """The rows that are in conflict with whatever else touches them."""
        return {*self.after, *(key for key, is_exclusive in self.reads.items() if is_exclusive)}


@dataclass
class ModelSite:
    """One site: its rows, its log, the names that it contains, and how much of each other log it has read.

    Attributes:
        published: How much of its log others can read; all of it if None.
        lives: How often it has begun a new history.
        former: What others can read of the histories before, from which its log has gone another way.
        since: Where that is in its log.
        unseen: What others can read of its log, if it was restored and has not looked since.
    """

    number: int
    rows: dict[Key, str] = field(default_factory=dict)
    log: list[LoggedEntry] = field(default_factory=list)
    contained: set[TransactionName] = field(default_factory=set)
    ticks: int = 0
    read: dict[int, int] = field(default_factory=dict)
    published: int | None = None
    lives: int = 0
    former: list[LoggedEntry] = field(default_factory=list)
    since: int = 0
    unseen: list[LoggedEntry] = field(default_factory=list)

    @property
    def author(self) -> int:
        """Of its transactions; another one for each history."""
        return self.number + self.lives * AUTHORS

    @property
    def visible(self) -> list[LoggedEntry]:
        """What others can read of its log."""
        return self.unseen or self.former + self.log[self.since : self.published]

    def publish(self) -> None:
        """Let others read all of its log."""
        self.published = len(self.log)

    def write(
        self,
        after: dict[Key, str | None],
        name: TransactionName | None = None,
        *,
        is_refresh: bool = False,
        reads: dict[Key, bool] | None = None,
        began: frozenset[TransactionName] | None = None,
    ) -> None:
        """Commit a transaction, of its own unless it has a name; `began` is what was contained when it began."""
        if name is None:
            if self.unseen:
                self.former, self.since, self.unseen = self.unseen, len(self.log), []
                self.published, self.lives, self.ticks = len(self.log), self.lives + 1, 0
            self.ticks += 1
            name = (self.author, self.ticks)
        before = {key: self.rows.get(key) for key in after}
        past = frozenset(self.contained)
        # Of its own transactions a site knows the order.
        seen = past if began is None else began | {each for each in past if each[0] == name[0]}
        self.log.append(LoggedEntry(name, after, before, past, is_refresh, reads or {}, seen))
        self.contained.add(name)
        for key, value in after.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def look(self) -> None:
        """Take back what it had published, unless it has committed something else since it was restored."""
        lost, self.unseen = self.unseen[len(self.former) + len(self.log) - self.since :], []
        for entry in lost:
            self.write(entry.after, entry.name, is_refresh=entry.is_refresh, reads=entry.reads, began=entry.seen)
        self.publish()

    def vector(self, names: frozenset[TransactionName]) -> dict[int, int]:
        """The same as a vector: names of a site are contained in order, without gaps."""
        last: dict[int, int] = {}
        for site, tick in names:
            last[site] = max(last.get(site, 0), tick)
        assert len(names) == sum(last.values())
        return last


@dataclass
class SitesModel:
    """A primary and its secondaries; `rules` are of tables.

    Attributes:
        rejected: Which rows of which transactions were rejected.
    """

    sites: list[ModelSite]
    rules: dict[str, str]
    rejected: list[tuple[TransactionName, Key]] = field(default_factory=list)

    def missing(self, site: int) -> list[LoggedEntry]:
        """What the primary has not read of a site's log, echoes left out."""
        primary, other = self.sites[PRIMARY], self.sites[site]
        return [entry for entry in other.visible[primary.read.get(site, 0) :] if entry.name not in primary.contained]

    def take_at_primary(self, site: int, most: int | None = None) -> list[set[Key]]:
        """Let the primary judge and take a site's log; returns of each missing transaction the keys rejected.

        With `most`, only so many of those that are missing.
        """
        primary, found = self.sites[PRIMARY], []
        for entry in self.missing(site)[:most]:
            rejected, reads, is_whole = self.verdict(entry)
            kept = {key: value for key, value in entry.after.items() if key not in rejected}
            told = {key for key in rejected if entry.after[key] is not None or key in primary.rows}
            told |= {key for key in self.missed(entry) if key in kept}
            primary.write(kept, entry.name, reads={} if is_whole else entry.reads)
            if told:
                primary.write({key: primary.rows.get(key) for key in told}, is_refresh=True)
            found.append(rejected | reads)
            self.rejected += [(entry.name, key) for key in (*rejected, *reads)]
        if most is None:
            primary.read[site] = len(self.sites[site].visible)
        return found

    def verdict(self, entry: LoggedEntry) -> tuple[set[Key], set[Key], bool]:
        """Which changes and reads are rejected, and whether the transaction is: a line in the log was not seen by it.

        So are changes of rows that are there for the one and not for the other, which a line that was seen cannot be
        the cause of.
        """
        primary = self.sites[PRIMARY]
        unseen = {key for line in primary.log if line.name not in entry.past for key in line.lines}
        in_conflict = {
            key
            for key, before in entry.before.items()
            if self.rules.get(key[0]) and (key in unseen or (before is None) != (key not in primary.rows))
        }
        unread = {key for line in primary.log if line.name not in entry.seen for key in line.lines}
        in_conflict |= {key for key in entry.reads if self.rules.get(key[0]) == "epoch_trans" and key in unread}
        # Nothing is in conflict with what was known.
        assert not in_conflict or any(line.name not in entry.seen for line in primary.log)
        if any(self.rules.get(table) == "epoch_trans" for table, _ in in_conflict):
            # Of tables with another rule, reads do not count.
            return set(entry.after), {key for key in entry.reads if self.rules.get(key[0]) == "epoch_trans"}, True
        return {key for key in in_conflict if self.rules.get(key[0]) == "epoch"}, set(), False

    def missed(self, entry: LoggedEntry) -> set[Key]:
        """Which rows of tables that nobody judges the primary had refreshed, unseen by the transaction's author.

        Or which had been changed by what that had committed before it was restored, in another history.
        """
        told = {
            key
            for line in self.sites[PRIMARY].log
            if line.name not in entry.past
            and (line.is_refresh or line.name[0] in range(entry.name[0] % AUTHORS, entry.name[0], AUTHORS))
            for key in line.after
        }
        return {key for key in entry.after if key in told and self.rules.get(key[0]) not in ("epoch", "epoch_trans")}

    def take_at(self, site: int, most: int) -> None:
        """Let a secondary take the next entries of the primary's log."""
        primary, taker = self.sites[PRIMARY], self.sites[site]
        first = taker.read.get(PRIMARY, 0)
        entries = primary.visible[first : first + most]
        for entry in entries:
            if entry.name not in taker.contained:
                taker.write({key: v for key, v in entry.after.items() if not self.keeps(taker, entry, key)}, entry.name)
        taker.read[PRIMARY] = first + len(entries)

    def keeps(self, taker: ModelSite, entry: LoggedEntry, key: Key) -> bool:
        """Whether a secondary keeps a row of a table that nobody judges: its own is newer than what it is told.

        That is a refresh, or what it had committed itself before it was restored.
        """
        is_older = entry.is_refresh or entry.name[0] % AUTHORS == taker.number
        if not is_older or self.rules.get(key[0]) in ("epoch", "epoch_trans"):
            return False
        last = next((line for line in reversed(taker.log) if key in line.after), None)
        return last is not None and last.name[0] % AUTHORS == taker.number and last.name not in entry.past

    def restore(self, site: int, kept: int) -> None:
        """Let a site go back to so many entries of its log."""
        taker = self.sites[site]
        visible = taker.visible
        if len(visible) > len(taker.former) + kept - taker.since:
            taker.unseen = visible
        for entry in reversed(taker.log[kept:]):
            taker.contained.discard(entry.name)
            for key, value in entry.before.items():
                taker.rows.pop(key, None)
                if value is not None:
                    taker.rows[key] = value
        del taker.log[kept:]
        taker.published = min(len(taker.log) if taker.published is None else taker.published, kept)

    def look(self, site: int) -> None:
        """Let a site that was restored look at its own log, and then read on behind what came back."""
        taker = self.sites[site]
        taker.look()
        for other in self.sites[1:] if site == PRIMARY else self.sites[:1]:
            contained = (entry.name in taker.contained for entry in other.visible)
            taker.read[other.number] = next(
                (number for number, is_there in enumerate(contained) if not is_there), len(other.visible)
            )

    def settle(self) -> None:
        """Let everybody take everything."""
        for _ in range(2):
            for site in range(1, len(self.sites)):
                self.take_at_primary(site)
            for site in range(1, len(self.sites)):
                self.take_at(site, len(self.sites[PRIMARY].log))

"""One round of a feed: write everything from its position to the end of the log to its output."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.errors import FencedError
from wlc.farm.human_form import Doing, Progress
from wlc.farm.store import ConflictError
from wlr.reading.feeds.formats import Gap
from wlr.reading.feeds.log_source import FeedReached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.farm.versioned import VersionedObject
    from wlr.reading.feeds.contract import OpenOutput
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.reading.feeds.log_source import FeedReader, Found
    from wlr.reading.feeds.rendering import FeedPiece

# Records become durable at least so often, whatever memory they may take.
_FLUSH_BYTES = 64 << 20


@dataclass(slots=True)
class Kept:
    """The state of a feed, and the version of its object."""

    memory: VersionedObject[FeedState]
    state: FeedState
    version: str | None

    def keep(self, state: FeedState) -> None:
        """Store a state; keep the owner's pause, even if it was set during the run.

        Raises:
            FencedError: Another run has taken over.
        """
        if state == self.state and self.version is not None:
            return
        try:
            self.version = self.memory.replace(state, self.version)
        except ConflictError as error:
            there, version = self.memory.load() or (None, None)
            if there is None or there.run != self.state.run or not there.run:
                message = f"another run has taken over feed {state.name}"
                raise FencedError(message, hint="Leave one of them running.") from error
            state = replace(state, is_paused=there.is_paused)
            self.version = self.memory.replace(state, version)
        self.state = state


@dataclass(slots=True)
class FeedRun:
    """A round.

    Attributes:
        bytes_max: Bytes after which records are made durable; with `drops`, the most that is kept.
        drops: Write only the newest records, as many as `bytes_max` allows.
        progress: Called with ticks done, ticks in all up to `end`, and what is being done.
        records: Written records; `bytes`: their bytes; `dropped`: dropped records.
    """

    kept: Kept
    reader: FeedReader
    output: OpenOutput
    bytes_max: int
    drops: bool = False
    progress: Progress | None = None
    end: int = 0
    records: int = 0
    bytes: int = 0
    dropped: int = 0

    def go(self, state: FeedState) -> None:
        """Write everything from a state on, and store the position after every durable part."""
        pending = 0
        found = self.reader.found(state)
        for one in self._newest(found) if self.drops else found:
            if isinstance(one, FeedReached):
                state = replace(
                    state,
                    position=one.position,
                    history=one.position.history,
                    batch_last=one.batch_last,
                    clock=one.clock or state.clock,
                    snapshot=None,
                    written=None,
                )
                continue
            self.output.write(one)
            state = replace(state, written=one.last, dropped=state.dropped + one.dropped)
            self._count(one)
            pending += one.bytes
            if pending >= (self.bytes_max or _FLUSH_BYTES):
                state, pending = self._flush(state), 0
        self._flush(state)

    def _flush(self, state: FeedState) -> FeedState:
        state = self.output.flush(state)
        self.kept.keep(state)
        return state

    def _count(self, piece: FeedPiece) -> None:
        if piece.dropped:
            self.dropped += piece.dropped
        else:
            self.records += len(piece.records)
        self.bytes += piece.bytes
        if self.progress:
            start = self.kept.state.position.tick if self.kept.state.position else 0
            total = max(self.end - start, 1)
            now = Doing(f"at tick {piece.last[0]}", self.records, self.bytes)
            self.progress(min(max(piece.last[0] - start, 0), total), total, now)

    def _newest(self, found: Iterator[Found]) -> Iterator[Found]:
        """Yield the newest records whose text fits, after a line with the number of dropped ones."""
        kept: deque[FeedPiece] = deque()
        reached: FeedReached | None = None
        gap: Gap | None = None
        size = 0
        for one in found:
            if isinstance(one, FeedReached):
                reached = one
                continue
            kept.append(one)
            size += one.bytes
            while size > self.bytes_max and kept:
                gone, left = _halved(kept.popleft(), size - self.bytes_max)
                size -= gone.bytes
                gap = _widened(gap, gone)
                if left is not None:
                    kept.appendleft(left)
        if gap is not None:
            yield self.reader.renderer.gap(gap, next((piece.layout for piece in kept if piece.layout), None))
        yield from kept
        if reached is not None:
            yield reached


def _halved(piece: FeedPiece, surplus: int) -> tuple[FeedPiece, FeedPiece | None]:
    """Cut the oldest records with at least `surplus` bytes off a piece; None if nothing is left."""
    ends = piece.ends
    count = int(ends.searchsorted(surplus)) + 1
    if count >= len(ends):
        return piece, None
    return piece.part(0, count), piece.part(count)


def _widened(gap: Gap | None, gone: FeedPiece) -> Gap:
    count = len(gone.records)
    if gap is None:
        return Gap(count, gone.history, gone.first, gone.last)
    return replace(gap, dropped=gap.dropped + count, history=gone.history, last=gone.last)

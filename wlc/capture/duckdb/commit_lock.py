"""The commit lock: one transaction commits alone, or several short inserts commit concurrently.

The last commit that changed each table, for conflicts that DuckDB does not detect.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.farm.model import Name


class CommitLock:
    """A lock that one thread holds exclusively, or that several threads share.

    `with lock:` waits until no other thread holds it. `with lock.shared:` shares it, unless a thread waits for
    exclusive use: then it is held exclusively, too, so that no thread waits longer than the statements that already
    run.

    Attributes:
        turn: An exclusive holder keeps it all the time. Other threads hold it only briefly, without calling DuckDB.
        shared: The lock in shared mode.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.shared = _SharedCommitLock(self)
        self._has_left = threading.Condition(self.turn)
        self._sharing: set[int] = set()
        self._waiting = 0

    def __enter__(self) -> Self:
        self.turn.acquire()
        if self._sharing:
            self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.turn.release()

    def _wait(self) -> None:
        self._waiting += 1
        try:
            # A signal's handler would wait for the statement that it interrupted.
            assert threading.get_ident() not in self._sharing, "a committing thread tries to commit another transaction"
            while self._sharing:
                self._has_left.wait()
        except BaseException:
            self._waiting -= 1
            self.turn.release()
            raise
        self._waiting -= 1

    def share(self) -> None:
        """Share the lock, or wait for exclusive use."""
        thread = threading.get_ident()
        self.turn.acquire()
        if self._waiting or thread in self._sharing:
            self._wait()
        else:
            self._sharing.add(thread)
            self.turn.release()

    def leave(self) -> None:
        """Release the result of `share`."""
        thread = threading.get_ident()
        if thread in self._sharing:
            self.turn.acquire()
            self._sharing.discard(thread)
            if self._waiting and not self._sharing:
                self._has_left.notify_all()
        self.turn.release()


class _SharedCommitLock:
    def __init__(self, lock: CommitLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.share()

    def __exit__(self, *_: object) -> None:
        self._lock.leave()


@dataclass
class LastChanges:
    """The number of the last commit that changed a table, counted while the database is open."""

    removals: dict[Name, int] = field(default_factory=dict)
    additions: dict[Name, int] = field(default_factory=dict)
    alterations: dict[Name, int] = field(default_factory=dict)

    def note(
        self, commit: int, removed_from: Iterable[Name], added_to: Iterable[Name], altered: Iterable[Name]
    ) -> None:
        """Record the effects of a commit on tables; updated rows count as removed and added."""
        self.removals.update(dict.fromkeys(removed_from, commit))
        self.additions.update(dict.fromkeys(added_to, commit))
        self.alterations.update(dict.fromkeys(altered, commit))

    def has_removed_since(self, table: Name, commits: int) -> bool:
        """Say whether rows of a table were removed or changed after a given number of commits."""
        return self.removals.get(table, 0) > commits

    def has_changed_since(self, table: Name, commits: int) -> bool:
        """Say whether rows of a table were removed, changed or added after a given number of commits."""
        return self.has_removed_since(table, commits) or self.additions.get(table, 0) > commits

    def has_altered_since(self, table: Name, commits: int) -> bool:
        """Say whether a table was altered or dropped after a given number of commits."""
        return self.alterations.get(table, 0) > commits

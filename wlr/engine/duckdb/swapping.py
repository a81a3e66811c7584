"""A replica whose readers are never blocked: rounds write a second file, which then replaces the first one.

Readers open `copy.duckdb`. `.copy.duckdb.spare` is the file from before the last swap: one or more rounds behind, it is
rolled forward from the same log, checkpointed, closed, and renamed over `copy.duckdb`. Readers keep the file that they
have opened; new readers get the new file. A spare that a reader still has open, or that the log cannot roll forward, is
discarded and copied again.

The order of renames keeps a whole file under `copy.duckdb` at every moment, and shows the next run where a killed run
stopped: link `copy.duckdb` to `.copy.duckdb.old`, rename the spare to `copy.duckdb`, rename `.old` to the spare.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.opening import alone, wal_of
from wlc.farm.errors import CorruptError, InvalidError, UnavailableError
from wlc.farm.store.local import synchronize
from wlr.engine.calculator import using
from wlr.engine.duckdb import objects
from wlr.engine.duckdb import wlr_schema as states
from wlr.engine.duckdb.build import build
from wlr.engine.duckdb.objects import read_tables
from wlr.engine.duckdb.replica import OpenDuckDB, open_as
from wlr.engine.duckdb.replica_file import attach, is_open_elsewhere, present_before, watched_opens, work_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import duckdb

    from wlc.farm.model import TableFile
    from wlr.engine.contract import Bulk, NewReplica
    from wlr.engine.quarantine_tables import Quarantined
    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.plan.step import Step


def spare_of(into: Path) -> Path:
    """Return the path of the second file."""
    return into.with_name(f".{into.name}.spare")


def _half_copy_of(into: Path) -> Path:
    return into.with_name(f".{into.name}.copying")


def lock_of(into: Path) -> Path:
    """Return the file that a run locks while it uses the other files."""
    return into.with_name(f".{into.name}.lock")


class Lock:
    """A lock that excludes other runs from a replica that swaps; the kernel releases it when the process dies."""

    def __init__(self, into: Path) -> None:
        path = lock_of(into)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 20).decode(errors="replace").strip()
            os.close(self._descriptor)
            message = f"{into} is in use by process {holder}: try again when it is done"
            raise UnavailableError(message, path=str(into)) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def open_swapping(into: Path, folders: Sequence[Path], bulk: Bulk | None, *, rolls: bool) -> SwappingDuckDB:
    """Open the spare of a replica for writing; closing it swaps the files if the spare differs.

    Args:
        into: The replica.
        folders: Folders that data files will be read from.
        bulk: Executes large work.
        rolls: The caller continues from the spare's own position; otherwise, the spare is at the replica's position.

    Raises:
        UnavailableError: It is in use, or the disk has no room for a second file.
        InvalidError: It has tables of its owner.
    """
    lock = Lock(into)
    try:
        _recover(into)
        current = states.find_state(into)
        if current is None:
            raise UnavailableError(f"{into} is gone", hint="Run it again.", path=str(into))
        found = _open_spare(into, current, folders, bulk) if rolls else None
        if found is None:
            _copy(into, current)
            found = open_as(SwappingDuckDB, spare_of(into), current.catalog, folders, bulk)
        return found.is_for(_Swap(into, current, lock, rolls))
    except BaseException:
        lock.close()
        raise


def rebuild(into: Path, new: NewReplica) -> None:
    """Rebuild a replica that swaps; its readers keep the file that they have opened."""
    lock = Lock(into)
    try:
        _recover(into)
        discard(into)
        build(into, new, replaces=True, is_read=True)
    finally:
        lock.close()


def _recover(into: Path) -> None:
    """Finish or revert the swap of a killed run."""
    old, spare = present_before(into), spare_of(into)
    _half_copy_of(into).unlink(missing_ok=True)
    if old.exists():
        if old.samefile(into) or spare.exists():
            # The spare was not renamed: the old file is still the current one.
            old.unlink()
        else:
            rename(old, spare)


def _open_spare(into: Path, current: ReplicaState, folders: Sequence[Path], bulk: Bulk | None) -> SwappingDuckDB | None:
    """Open the spare at its own position, with the replica's current state; None if it is unusable."""
    spare = spare_of(into)
    # The owner may write to unlocked tables: only the file itself has their rows.
    if current.is_unlocked or not spare.exists() or is_open_elsewhere(spare):
        return None
    try:
        replica = open_as(SwappingDuckDB, spare, current.catalog, folders, bulk)
    except (UnavailableError, CorruptError, InvalidError):
        return None
    state = replica.state
    same = (state.id, state.tables, state.accepted, state.position.history, state.is_unlocked)
    if (
        same != (current.id, current.tables, current.accepted, current.position.history, False)
        or state.position.tick > current.position.tick
    ):
        replica.close()
        return None
    known = replace(
        current,
        position=state.position,
        batch_last=state.batch_last,
        clock=state.clock,
        digests=state.digests,
        names_digests=state.names_digests,
        contained=state.contained,
        left_out=state.left_out,
    )
    if known != state:
        replica.remember(known)
    return replica


def _copy(into: Path, current: ReplicaState) -> None:
    """Copy the current file to the spare, all or nothing."""
    spare, half = spare_of(into), _half_copy_of(into)
    if wal_of(into).exists():
        # Another process wrote to it and left a write-ahead log. Opening and closing it for writing checkpoints it.
        attach(into, current.catalog).close()
    connection = attach(into, current.catalog, read_only=True)
    try:
        _refuse_own_tables(into, connection, current.catalog)
    finally:
        connection.close()
    discard(into)
    needed, free = into.stat().st_size, shutil.disk_usage(into.parent).free
    if needed > free:
        raise UnavailableError(
            f"{into} has {needed} bytes, and {into.parent} has {free} bytes free: no room for a second file",
            hint=f"free disk space, or write to the only file: wlr replicate --into {shlex.quote(str(into))} --no-swap",
            path=str(into),
        )
    before = _identity(into)
    try:
        shutil.copyfile(into, half)
        shutil.copymode(into, half)
    except OSError as error:
        half.unlink(missing_ok=True)
        message = f"{into} cannot be copied: {error.strerror}"
        raise UnavailableError(message, hint="Nothing was lost: run it again.", path=str(into)) from error
    if _identity(into) != before or wal_of(into).exists():
        half.unlink()
        raise UnavailableError(f"another process wrote to {into}", hint="Run it again.", path=str(into))
    half.replace(spare)


def _identity(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _refuse_own_tables(into: Path, connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Refuse a file with tables of its owner: the next swap would lose their rows."""
    with using(into):
        replicated = states.read_tables(connection, catalog)
        own = [name for name in read_tables(connection, catalog).order if name not in replicated]
        is_shared = objects.noted(connection, catalog) is not None
    if own or is_shared:
        named = f"tables of its owner: {', '.join(map(str, own[:5]))}" if own else "things of its owner (--adopt)"
        raise InvalidError(
            f"{into} has {named}, which would be lost when the file is swapped",
            hint=f"move them to another file, or: wlr replicate --into {shlex.quote(str(into))} --no-swap",
            path=str(into),
        )


def discard(into: Path) -> None:
    """Remove the spare; the caller holds the lock."""
    spare = spare_of(into)
    spare.unlink(missing_ok=True)
    wal_of(spare).unlink(missing_ok=True)
    shutil.rmtree(work_folder(spare), ignore_errors=True)


def end(into: Path) -> None:
    """Remove the extra files of a replica that swaps."""
    give_up(into)
    lock_of(into).unlink(missing_ok=True)


def give_up(into: Path) -> None:
    """Remove the spare, so that it is copied again."""
    lock = Lock(into)
    try:
        _recover(into)
        discard(into)
    finally:
        lock.close()


@dataclass(frozen=True, slots=True)
class _Swap:
    """The use of a spare.

    Attributes:
        into: The replica.
        current: Its state.
        lock: Released at the end.
        rolls: The spare may be behind the replica, and the log rolls it forward.
    """

    into: Path
    current: ReplicaState
    lock: Lock
    rolls: bool


class SwappingDuckDB(OpenDuckDB):
    """A replica's second file, open for writing; closing it replaces the first one."""

    _swap: _Swap | None = None
    _is_written = False

    def is_for(self, swap: _Swap) -> SwappingDuckDB:
        """Set its use; until then, it is an ordinary file."""
        self._swap, self._is_written = swap, False
        return self

    def apply(self, step: Step, fetch: Callable[[TableFile], Path]) -> None:
        super().apply(step, fetch)
        self._is_written = True

    def remember(self, state: ReplicaState) -> None:
        super().remember(state)
        self._is_written = True

    def quarantine(self, state: ReplicaState, kept: Sequence[Quarantined]) -> None:
        super().quarantine(state, kept)
        self._is_written = True

    @property
    def is_behind(self) -> bool:
        """Whether it is behind the replica."""
        return self._swap is not None and self.state.position != self._swap.current.position

    def close(self) -> None:
        """Close the spare, and swap the files if the spare differs for readers."""
        swap = self._swap
        try:
            super().close()
            if swap is not None:
                self._settle(swap)
        finally:
            if swap is not None:
                swap.lock.close()

    def _settle(self, swap: _Swap) -> None:
        if wal_of(self._path).exists():
            message = f"{swap.into} is unchanged: the new rows cannot be moved into its second file"
            raise UnavailableError(message, hint="Free disk space, then run it again.", path=str(swap.into))
        if swap.rolls and self.state.position.tick < swap.current.position.tick:
            # The roll failed before the replica's position. The steps succeeded in the replica, so the spare differs.
            if self.state.failure is not None:
                discard(swap.into)
            return
        if self._is_written if not swap.rolls else self.state != swap.current:
            # Changes that are not in the log are in the new file only: the log cannot roll the old one forward.
            exchange(swap.into, swap.current, keeps=swap.rolls)
            with suppress(OSError):
                states.note_closed(swap.into, self.state, self.contents)


def exchange(into: Path, current: ReplicaState, *, keeps: bool) -> None:
    """Swap the files; the caller holds the lock, and the spare is closed.

    Args:
        into: The replica.
        current: Its state.
        keeps: The current file becomes the spare.

    Raises:
        UnavailableError: Another process has the replica open for writing.
        InvalidError: It has tables of its owner.
    """
    spare, old = spare_of(into), present_before(into)
    synchronize(spare)
    # The open connection excludes writers: no write-ahead log is left beside the new file.
    with watched_opens(into) as await_quiet, alone(into):
        held = attach(into, current.catalog, read_only=True)
        try:
            _refuse_own_tables(into, held, current.catalog)
            if wal_of(into).exists():
                raise UnavailableError(f"another process wrote to {into}", hint="Run it again.", path=str(into))
            if keeps:
                # Without hard links, there is no spare after the swap, and the next run copies it.
                with suppress(OSError):
                    link(into, old)
            await_quiet()
            rename(spare, into)
            if old.exists():
                # Otherwise, the next run renames it.
                with suppress(OSError):
                    rename(old, spare)
            synchronize(into.parent)
        except OSError as error:
            message = f"{into} is unchanged: its second file cannot replace it: {error.strerror}"
            raise UnavailableError(message, hint="Nothing was lost: run it again.", path=str(into)) from error
        finally:
            held.close()


def link(present: Path, name: Path) -> None:
    """Give a file a second name."""
    name.hardlink_to(present)


def rename(present: Path, name: Path) -> None:
    """Rename a file over another one."""
    present.replace(name)

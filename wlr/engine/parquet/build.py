"""A new Parquet replica: the snapshot's rows cut into files, then the first manifest and the pointer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.clock import utc_now
from wlc.errors import CorruptError, FarmError, UnavailableError, UnsupportedError
from wlr.engine import MEMORY_VARIABLE, StepError
from wlr.engine.parquet.catalog import Catalog
from wlr.engine.parquet.executor import LocalExecutor
from wlr.engine.parquet.folder import Pointer, TakenOverError
from wlr.engine.parquet.lease import Lease
from wlr.engine.parquet.target import work_folder
from wlr.engine.parquet.version import LakeTable, Version
from wlr.fold import TargetTable
from wlr.plan import matches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wlc.model import DataFile, Manifest, SnapshotTable
    from wlr.engine import State
    from wlr.engine.parquet.executor import Executor
    from wlr.engine.parquet.folder import Folder


@dataclass(frozen=True, slots=True)
class Source:
    """How to get at a snapshot's files: `fetch` one, `release` it afterwards."""

    fetch: Callable[[DataFile], Path]
    release: Callable[[Path], None]


def build(
    folder: Folder,
    state: State,
    manifest: Manifest | None,
    source: Source,
    progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Make a new replica; see `wlr.engine.build`."""
    _refuse_made(folder)
    lease = Lease(folder.store)
    try:
        _refuse_made(folder)
        executor = LocalExecutor(folder.store, work_folder(folder))
        try:
            version = _load(folder, state, manifest, source, executor, progress)
        except BaseException:
            _remove(folder, executor.published)
            raise
        finally:
            executor.close()
        path, sha256 = folder.write_version(version, lease.run)
        made = [path, *executor.published]
        try:
            pointed = folder.replace_pointer(Pointer(path, sha256, lease.run, state), None)
        except TakenOverError:
            _remove(folder, made)
            raise
        # Not before now: a run that had only been slow might have pointed to what would be missing then.
        with suppress(FarmError):
            folder.sweep(-1, pointed, made)
    finally:
        lease.release()


def _refuse_made(folder: Folder) -> None:
    if folder.find() is not None:
        raise UnavailableError(f"another process made {folder.url} meanwhile", path=folder.url)


def _remove(folder: Folder, paths: list[str]) -> None:
    """Remove what this run has written in vain, as far as that can be done now."""
    with suppress(FarmError):
        for path in paths:
            folder.store.delete(path)


def _load(
    folder: Folder,
    state: State,
    manifest: Manifest | None,
    source: Source,
    executor: Executor,
    progress: Callable[[int, int, str], None] | None,
) -> Version:
    catalog = Catalog(state.catalog, state.tables, folder.url)
    try:
        if manifest is not None:
            catalog.load((*manifest.schema, *manifest.schema_after), manifest.sequences)
        wanted = [table for table in manifest.tables if matches(table.table, state.tables)] if manifest else []
        total, done = sum(file.rows for table in wanted for file in table.files), 0
        loaded = []
        for table in wanted:
            if progress:
                progress(done, total, f"loading {table.table}")
            loaded.append(_load_table(table, state, source, executor))
            done += loaded[-1].rows
        schema, schema_after = catalog.statements()
        return Version(
            position=state.position,
            batch_last=state.batch_last,
            clock=state.clock,
            made=utc_now(),
            catalog=state.catalog,
            schema=schema,
            schema_after=schema_after,
            sequences=catalog.sequences(),
            tables=tuple(loaded),
            digests=state.digests,
        )
    finally:
        catalog.close()


def _load_table(table: SnapshotTable, state: State, source: Source, executor: Executor) -> LakeTable:
    fetched = [source.fetch(file) for file in table.files]
    try:
        described = TargetTable(table.table, table.table.sql, table.layout)
        parts = executor.split(described, fetched, state.position.tick)
    except StepError as error:
        hint = f"Give it more memory: {MEMORY_VARIABLE}." if error.is_shortage else None
        kind = UnavailableError if error.is_shortage else UnsupportedError
        message = f"table {table.table} of the snapshot cannot be loaded: {error.cause}"
        raise kind(message, hint=hint) from error
    finally:
        for file in fetched:
            source.release(file)
    loaded, told = LakeTable(table.table, table.layout, parts), sum(file.rows for file in table.files)
    if loaded.rows != told:
        raise CorruptError(f"the snapshot's table {table.table} has {loaded.rows} rows, the manifest says {told}")
    return loaded

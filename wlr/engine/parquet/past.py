"""The old ticks of a Parquet replica: which files hold a table as of one of them, and how they are pruned."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from wlc.farm import table_names
from wlc.farm.clock import utc_now
from wlc.farm.did_you_mean import tables_meant
from wlc.farm.errors import ExpiredError, InvalidError
from wlr.engine.scan import StoredTables
from wlr.engine.table_files import fetched
from wlr.plan.retention import PrunedTicks, keep_ticks, parse_keep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wlc.farm.model import Name
    from wlr.engine.parquet.folder import LakeFolder
    from wlr.engine.parquet.version import Version


def files_of(folder: LakeFolder, table: str, tick: int | None) -> list[str]:
    """Return paths or URLs of the files that hold a table; see `wlr.files`."""
    version = _version(folder, tick)
    tables = {found.table: found for found in version.tables}
    if (name := table_names.find(table, tables)) is not None:
        return [f"{folder.url}/{part.file.path}" for part in tables[name].parts]
    raise InvalidError(f"{folder.url} has no table {table}", hint=tables_meant(table, tables), path=folder.url)


def stored_tables(folder: LakeFolder, tick: int | None) -> StoredTables:
    """Return the tables as of a tick; see `wlr.engine.contract.Target.stored_tables`."""
    version = _version(folder, tick)
    tables = {table.table: table for table in version.tables}

    @contextmanager
    def files(name: Name, is_checked: bool) -> Iterator[list[Path]]:
        with ExitStack() as stack:
            parts = tables[name].parts
            yield [stack.enter_context(fetched(folder.store, part, is_checked=is_checked)).path for part in parts]

    return StoredTables(version.position.tick, {name: table.layout for name, table in tables.items()}, files)


def surplus(folder: LakeFolder, current: int, keep: str) -> tuple[PrunedTicks, list[str]]:
    """Find files that need not stay readable.

    Args:
        folder: The replica.
        current: Its current tick.
        keep: How much of the past stays, see `parse_keep`.

    Returns:
        What they are, and their paths in the order in which to remove them.
    """
    wanted, listed = parse_keep(keep), folder.manifests(current)
    versions = [(tick, path, folder.read_version(path)) for tick, path in listed]
    kept = keep_ticks([(tick, version.made) for tick, _, version in versions], wanted, utc_now())
    gone = [(tick, path) for tick, path, _ in versions if tick not in kept]
    named = {
        part.file.path
        for tick, _, version in versions
        if tick in kept
        for table in version.tables
        for part in table.parts
    }
    # Files of a later tick belong to a run that is under way.
    unnamed = [(path, size) for tick, path, size in folder.data_files() if tick <= current and path not in named]
    pruned = PrunedTicks(tuple(tick for tick, _ in gone), len(unnamed), sum(size for _, size in unnamed), min(kept))
    # Manifests first: a tick without a manifest does not exist, so its files can go at any time.
    return pruned, [*(path for _, path in gone), *(path for path, _ in unnamed)]


def _version(folder: LakeFolder, tick: int | None) -> Version:
    current = folder.read_current(folder.require()[0])
    if tick is None or tick == current.position.tick:
        return current
    if tick > current.position.tick:
        message = f"{folder.url} is at tick {current.position.tick}, not yet at {tick}"
        raise InvalidError(message, hint=f"wlr replicate --into {folder.url} --tick {tick}", path=folder.url)
    listed = folder.manifests(tick)
    # Between two manifests there is no state of the replica to read.
    if not listed or listed[-1][0] != tick:
        ticks = ", ".join(str(known) for known, _ in folder.manifests(current.position.tick)[-10:])
        message = f"{folder.url} cannot be read at tick {tick}"
        raise ExpiredError(message, hint=f"It can at {ticks}; others were pruned or passed over.", path=folder.url)
    return folder.read_version(listed[-1][1])

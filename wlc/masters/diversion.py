"""A master that was fenced off publishes its pending transactions into a farm of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.database import FarmDatabase, create_all, open_database
from wlc.farm.errors import FencedError, InvalidError
from wlc.farm.paths import LOGS, log_path
from wlc.farm.store import AlreadyExistsError, MissingError
from wlc.masters.fence import outdated, repair_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.masters.contract import Source


def divert(
    source: Source,
    database: FarmDatabase,
    farm: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Let a master that was fenced off publish into another farm; doing it twice changes nothing.

    Args:
        source: The master.
        database: Its place in the farm, which is only read.
        farm: URL of the other farm, which has no database of that name.
        storage_options: Of the file systems of both.

    Raises:
        InvalidError: The master is not fenced off, it is a site, or the other farm has a database of its name.
    """
    state, given = source.require_state(), os.fspath(farm)
    url = given if "://" in given else str(Path(given).absolute())
    if state.farm == url:
        return
    _refuse_unfenced(source, database)
    rest = open_database(state.name, url, storage_options)
    rest.store.probe()
    try:
        rest.create_config(replace(state.config(), logs=LOGS))
    except AlreadyExistsError as error:
        if rest.config().history != state.history:
            message = f"{rest.url} is a database already"
            raise InvalidError(message, hint="choose another folder: --rest-to FOLDER", path=rest.url) from error
    _copy_batch(database, rest, state.batch)
    source.adopt_place()
    source.remember(replace(state, farm=url, logs=LOGS, fence=None, options=storage_options or {}))


def _refuse_unfenced(source: Source, database: FarmDatabase) -> None:
    state, shown = source.require_state(), shlex.quote(str(source))
    if state.site is not None:
        message = f"{source} is site {state.site.name}, whose pending transactions the other sites take"
        raise InvalidError(message, hint=f"wlc site take {shown}", path=str(source))
    try:
        repair_config(database, state)
        is_taken = database.logs.exists(log_path(database.name, state.batch + 1))
    except (FencedError, MissingError):
        return
    if is_taken:
        raise outdated(database, state, state.batch + 1)
    message = f"{source} is the master of {database.url}, where its pending transactions are published"
    raise InvalidError(message, hint=f"wlc stop {shown}", path=str(source))


def _copy_batch(database: FarmDatabase, rest: FarmDatabase, number: int) -> None:
    """Copy a batch, behind which the other farm's log goes on."""
    path = log_path(database.name, number)
    if not number or rest.logs.exists(path):
        return
    batch, _ = database.read_batch(number, is_own=True)
    with tempfile.TemporaryDirectory(prefix="wlc-rest-") as folder:
        files: dict[str, Path] = {}
        for number, file in enumerate(batch.files):
            local = database.fetch(file)
            # A store may take the file itself, which can be the farm's own.
            files[file.file.path] = Path(shutil.copyfile(local, f"{folder}/{number}.parquet"))
            database.release(local)
        create_all(rest.logs, [file.file for file in batch.files], files)
    with suppress(AlreadyExistsError):
        rest.logs.create(path, database.logs.read(path))

"""A copy takes the place of a master: the next batch of the log, created exclusively, fences the former one off.

That batch begins a new history, and says that the history continues the former one where the copy stands. Readers that
stand there go on with it.

A master that was fenced off publishes its pending transactions into a farm of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.addresses import absolute
from wlc.farm.clock import utc_now
from wlc.farm.config import STARTED
from wlc.farm.database import create_all, open_database
from wlc.farm.errors import FarmError, FencedError, InvalidError, UnavailableError
from wlc.farm.health import change_health, read_health, sign_of
from wlc.farm.model import Batch, Transaction
from wlc.farm.paths import LOGS, log_path
from wlc.farm.registry import this_user
from wlc.farm.seal.keys import options_to_remember
from wlc.farm.store import AlreadyExistsError, MissingError
from wlc.masters import adapters
from wlc.masters.contract import database_of
from wlc.masters.fence import outdated, repair_config
from wlc.masters.master_state import MasterState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.farm.human_form import Progress
    from wlc.farm.model import Config, Origin
    from wlc.masters.contract import Source


def check_copy(copy: Path) -> None:
    """Refuse a copy whose changes could not be captured; nothing is changed.

    Raises:
        UnsupportedError: It has a column or an object that cannot be replicated exactly.
        UnavailableError: Another process has it open.
    """
    with adapters.opened(copy) as source:
        source.check(is_replica=True)


@dataclass(frozen=True, slots=True)
class Junction:
    """Where the history of a promoted copy begins.

    Attributes:
        history: Its id.
        parent: Where the copy stands.
        vector: What it contains there.
        newest: The last batch of the log and its chain hash, None without one.
        config: What `wlc.config` says.
    """

    history: str
    parent: Origin
    vector: Mapping[str, int]
    newest: tuple[Batch, str] | None
    config: Config

    def first_batch(self) -> Batch:
        """Return the batch that begins the history, with one transaction without records."""
        batch, chain = self.newest or (None, "")
        tick = 1 + max(self.config.tick, self.parent.tick, batch.last if batch else 0)
        now = max(filter(None, (utc_now(), self.config.write, batch.clock if batch else None)))
        return Batch(
            database=self.config.name,
            number=batch.number + 1 if batch else 1,
            history=self.history,
            first=tick,
            last=tick,
            previous=chain,
            catalog=batch.catalog if batch else self.config.name,
            transactions=(Transaction(tick, this_user(), now, now),),
            vector={**self.vector, self.history: tick},
            parent=self.parent,
            continues=True,
        )


def take_place(database: FarmDatabase, batch: Batch, again: str) -> None:
    """Create the first batch of a promoted copy, and let `wlc.config` follow; doing it twice changes nothing.

    Args:
        database: The farm database.
        batch: What `Junction.first_batch` gave.
        again: The command that begins again.

    Raises:
        UnavailableError: The former master published meanwhile, or another copy was promoted. Nothing was changed.
    """
    try:
        database.publish(batch, {})
    except FencedError as error:
        message = f"batch {batch.number} of {database.url} was published meanwhile"
        raise UnavailableError(message, hint=f"run it again: {again}", path=database.url) from error
    follow(database, batch)


def follow(database: FarmDatabase, batch: Batch) -> None:
    """Let `wlc.config` follow the first batch of a promoted copy."""

    def followed(config: Config) -> Config:
        if batch.parent is None or config.history != batch.parent.history:
            return config
        begun = replace(config, history=batch.history, parent=batch.parent, tick=batch.last, state=STARTED)
        return replace(begun, batches=batch.number + 1, write=batch.clock or config.write)

    database.change_config(followed)


def begin(copy: Path, database: FarmDatabase, batch: Batch, chain: str) -> None:
    """Make a copy that holds the first batch of its history a master, in one transaction of its own."""
    farm, _, name = database.url.rpartition("/")
    config = database.config()
    state = MasterState(
        farm=farm,
        name=name,
        history=batch.history,
        batch=batch.number,
        tick=batch.last,
        chain=chain,
        clock=batch.clock,
        vector=dict(batch.vector),
        parent=None,
        beat_s=config.beat_s,
        logs=config.logs,
        options=options_to_remember(database.storage_options),
        state=STARTED,
    )
    with adapters.opened(copy) as source, source.working():
        source.install(state)


def complete(copy: Path, database: FarmDatabase, progress: Progress | None = None) -> int | None:
    """Take the first snapshot of a promoted copy, and say in the farm where its master is.

    Returns:
        The tick of the snapshot; None if there was one already.
    """
    with adapters.opened(copy) as source, source.working():
        state = source.require_state()
        with suppress(FarmError):
            if read_health(database).publisher is not None:
                sign = sign_of(state.history, str(copy.absolute()), is_closed=True)
                change_health(database, lambda health: replace(health, publisher=sign))
        ticks = database.snapshot_ticks()
        if ticks and database.read_manifest(ticks[-1]).position.history == state.history:
            return None
        return source.take_snapshot(database, is_first=False, progress=progress).position.tick


def present_master(path: Path, storage_options: Mapping[str, Any] | None) -> FarmDatabase | None:
    """Return the database of a file that is its master; None for a file that never was a master, and for no file.

    Raises:
        InvalidError: The file was its master, and is not any more.
        FencedError: It is a copy of the master.
    """
    if not path.is_file():
        return None
    try:
        found = adapters.module_of(path).look(str(path))
    except InvalidError:
        return None
    if found.away is not None:
        raise found.away
    database = database_of(found.state, storage_options)
    if found.state.is_master and database.config().history == found.state.history:
        return database
    raise InvalidError(
        f"{path} was the master of {found.state.name}, and is no replica",
        hint=f"wlr replicate {shlex.quote(database.url)} --into NEW.duckdb makes one",
        path=str(path),
    )


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
    state, url = source.require_state(), absolute(os.fspath(farm))
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
    source.remember(replace(state, farm=url, logs=LOGS, fence=None, options=options_to_remember(storage_options)))


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
        for place, file in enumerate(batch.files):
            local = database.fetch(file)
            # A store may take the file itself, which can be the farm's own.
            files[file.file.path] = Path(shutil.copyfile(local, f"{folder}/{place}.parquet"))
            database.release(local)
        create_all(rest.logs, [file.file for file in batch.files], files)
    with suppress(AlreadyExistsError):
        rest.logs.create(path, database.logs.read(path))

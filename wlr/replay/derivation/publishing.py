"""The folder of a derived database: its position, the start of its history, and the publication of its batches.

All state is in this folder and the source's. The newest batch holds the position in the source's log, so
that rows and position are published in one object.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wlc.farm.config import STARTED, STOPPED
from wlc.farm.errors import FencedError, InvalidError
from wlc.farm.log_end import chain_after, end_log
from wlc.farm.model import Batch, Config, Manifest, Position, Taken, Transaction
from wlc.farm.newest_batches import read_newest
from wlc.farm.paths import LOGS, snapshot_data_path, snapshot_folder
from wlc.farm.store import AlreadyExistsError, MissingError
from wlr.replay.derivation.contents import DerivedPart, origin_of, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import DataFile, Digest, Name
    from wlr.replay.derivation.settings import Derivation
    from wlr.replay.plan.step import Step


# Stands for the source in batches, whose readers need not know its name.
SOURCE = "source"


@dataclass(frozen=True, slots=True)
class DerivedStanding:
    """The position of a derived database.

    Attributes:
        position: Position in the source's log.
        batch: Number of its own last batch, 0 before the first; `chain`: its hash.
        tick: Its last tick; `clock`: commit time of that transaction, None before the first.
        digests: Digests of all its tables.
        vector: Per history the last tick contained.
    """

    position: Position
    batch: int
    chain: str
    tick: int
    clock: datetime | None
    digests: Mapping[Name, Digest]
    vector: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DerivedDatabase:
    """A derived database in its folder, with the source's record of it."""

    place: FarmDatabase
    said: Derivation

    def standing(self) -> DerivedStanding:
        """Return its position, read from its newest batch.

        Raises:
            FencedError: Another process publishes there, or has changed the filters.
        """
        said, newest = self.said, read_newest(self.place)
        if self.place.config().history != said.history:
            raise self._fenced()
        if newest is None:
            return self._beginning()
        batch, chain = newest
        if batch.history != said.history or len(batch.taken) != 1 or batch.taken[0].filters != said.mark:
            raise self._fenced()
        (proof,) = batch.taken
        position = Position(proof.history, proof.tick, proof.batch, proof.chain)
        return DerivedStanding(position, batch.number, chain, batch.last, batch.clock, batch.digests, batch.vector)

    def _beginning(self) -> DerivedStanding:
        start = self.said.start
        if not start.history:
            return DerivedStanding(start, 0, "", 0, None, {}, {})
        manifest = self.place.read_manifest(start.tick)
        clock = manifest.clock if start.tick else None
        return DerivedStanding(start, 0, "", start.tick, clock, manifest.digests, manifest.vector)

    def _fenced(self) -> FencedError:
        return FencedError(
            f"another process wrote to {self.place.url}",
            hint="Run only one wlc farm derive for it, always with the same choice of rows."
            f" To begin a new history: wlc farm derive DB --as {shlex.quote(self.place.url)} --anew",
            path=self.place.url,
        )

    # A history begins

    def begin(self, beat_s: float, snapshot: Manifest | None, files: Mapping[str, Path]) -> None:
        """Claim the folder, publish the snapshot, then let the history start; can be repeated.

        Args:
            beat_s: Beat of the source, seconds.
            snapshot: The snapshot that begins the history; None to begin with nothing.
            files: The local file of each path in it.

        Raises:
            InvalidError: The folder belongs to another database.
        """
        said, tick = self.said, self.said.start.tick
        write = snapshot.clock if snapshot and tick else None
        number = said.behind[0] + 1
        ours = Config("", LOGS, STOPPED, number, beat_s, write, self.place.name, said.history, tick, said.parent)
        try:
            self.place.create_config(ours)
        except AlreadyExistsError:
            self.place.change_config(lambda config: self._taken_over(config, ours))
        opening = opening_batch(self.place, said, snapshot)
        if opening is not None:
            end_log(self.place, opening, f"wlc farm derive DB --as {shlex.quote(self.place.url)} --anew")
            number += 1
        if snapshot is not None:
            self.place.publish_snapshot(snapshot, files)
        folder = snapshot_folder(tick) if snapshot is not None else ""

        def started(config: Config) -> Config:
            own = self._own(config)
            now = replace(own, state=STARTED, snapshot=folder, batches=number, tick=tick, write=write)
            return own if own.state == STARTED else now

        self.place.change_config(started)

    def is_begun(self) -> bool:
        """Return whether the current history has started."""
        try:
            config = self.place.config()
        except MissingError:
            return False
        return config.history == self.said.history and config.state == STARTED

    def _taken_over(self, config: Config, ours: Config) -> Config:
        parent = self.said.parent
        if config.history == ours.history:
            return config
        # An interrupted start from the same parent has published nothing.
        known = {config.history} | ({config.parent.history} if config.parent and config.state == STOPPED else set())
        if parent is None or parent.history not in known:
            raise taken(self.place)
        # The configuration must not name this history before the log continues in it.
        return replace(ours, **{key: getattr(config, key) for key in ("logs", "snapshot", "batches", "tick", "write")})

    def _own(self, config: Config) -> Config:
        if config.history != self.said.history:
            raise self._fenced()
        return config

    # Batches

    def publish(self, before: DerivedStanding, step: Step, part: DerivedPart, *, is_last: bool) -> DerivedStanding:
        """Publish the part of a step that passes the filters, with the new position in the source's log, unless empty.

        Args:
            before: Position of the database.
            step: Step of the source's log.
            part: The part that passes.
            is_last: It is the last step: publish its tick even if nothing passes.

        Raises:
            FencedError: Another process published this batch, or has taken the database over.
        """
        made = part.transactions
        if is_last and (not made or made[-1].tick < step.last):
            last = step.transactions[-1]
            origin = origin_of(step, last) if last.committed else None
            made = (*made, Transaction(last.tick, self.place.name, last.started, last.committed, (), origin))
        if not made:
            return before
        mark, said = step.mark, self.said
        footer = dict(step.footer.vector) if step.footer else {}
        vector = {**before.vector, **footer, mark.history: step.last, said.history: made[-1].tick}
        batch = Batch(
            database=self.place.name,
            number=before.batch + 1,
            history=said.history,
            first=made[0].tick,
            last=made[-1].tick,
            previous=before.chain,
            catalog=self.place.name,
            transactions=made,
            files=part.files,
            vector=vector,
            digests=part.digests,
            taken=(Taken(SOURCE, mark.history, step.last, mark.batch, mark.chain, said.mark),),
        )
        self._own(self.place.config())
        chain = self.place.publish(batch, part.local)
        self.place.change_config(lambda config: _following(self._own(config), batch))
        clock = batch.clock or before.clock
        return DerivedStanding(step.position, batch.number, chain, batch.last, clock, part.digests, vector)


def _following(config: Config, batch: Batch) -> Config:
    if config.batches > batch.number:
        return config
    return replace(config, batches=batch.number + 1, tick=batch.last, write=batch.clock or config.write)


def opening_batch(place: FarmDatabase, said: Derivation, snapshot: Manifest | None) -> Batch | None:
    """Return the batch that begins a history after another one, always the same; None for the first history.

    It fences a process that still publishes under the former history. Its one transaction, without records, is at the
    tick of the snapshot.

    Args:
        place: The derived database.
        said: The source's record of it.
        snapshot: The snapshot that begins the history.
    """
    if said.parent is None or snapshot is None:
        return None
    start, (number, chain) = said.start, said.behind
    return Batch(
        database=place.name,
        number=number + 1,
        history=said.history,
        first=start.tick,
        last=start.tick,
        previous=chain,
        catalog=place.name,
        transactions=(Transaction(start.tick, place.name, snapshot.clock, snapshot.clock),),
        vector={**snapshot.vector, said.history: start.tick},
        parent=said.parent,
        digests=snapshot.digests,
        taken=(Taken(SOURCE, start.history, start.tick, start.batch, start.chain, said.mark),),
    )


def taken(place: FarmDatabase) -> InvalidError:
    """Build the error for a folder that belongs to another database."""
    return InvalidError(
        f"{place.url} is a database that is not derived from this one",
        hint="Give another name with --as.",
        path=place.url,
    )


def as_own_snapshot(
    place: FarmDatabase, said: Derivation, manifest: Manifest, local: Mapping[str, Path]
) -> tuple[Manifest, dict[str, Path]]:
    """Return a filtered snapshot as a snapshot of the derived database: its manifest, and local files by their paths.

    Args:
        place: The derived database.
        said: The source's record of it.
        manifest: With chosen tables only.
        local: The local file of each path in it.
    """
    files: dict[str, Path] = {}

    def renamed(file: DataFile) -> DataFile:
        path = snapshot_data_path(len(files))
        files[path] = local[file.path]
        return replace(file, path=path)

    tables = tuple(replace(table, files=tuple(renamed(file) for file in table.files)) for table in manifest.tables)
    statements = tuple({ddl.statement: ddl for table in tables for ddl in schema_of(table.table)}.values())
    opening = opening_batch(place, said, manifest)
    number, chain = (opening.number, chain_after(place, opening)) if opening else said.behind
    own = replace(
        manifest,
        database=place.name,
        position=Position(said.history, said.start.tick, number, chain),
        catalog=place.name,
        schema=(*statements, *manifest.schema),
        schema_after=(),
        tables=tables,
        sequences=(),
    )
    return own, files

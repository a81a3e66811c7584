"""One transaction of one connection: changes of captured tables by its statements, journalled before its commit."""

from __future__ import annotations

import getpass
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import duckdb

from wlc.capture.duckdb import (
    acceptance,
    conflicts,
    digests,
    journal,
    known_objects,
    schema_change,
    superset,
    uncaptured,
)
from wlc.capture.duckdb.analysis import (
    AppendEffect,
    Effect,
    MergeEffect,
    SchemaEffect,
    TouchEffect,
    UnknownEffect,
    UpsertEffect,
    clears,
    target_of,
)
from wlc.capture.duckdb.images import Images
from wlc.capture.duckdb.journal import JournalEntry, JournalledImages
from wlc.capture.duckdb.schema_change import difference, statements
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb.settings import row_settings_changed
from wlc.dialect.sql import quote
from wlc.dialect.types import parse
from wlc.farm.model import Clear, Name, SequencePosition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from wlc.capture.duckdb.captured_tables import CapturedTables
    from wlc.capture.duckdb.journal import CapturedTable, JournalRecord
    from wlc.capture.duckdb.packed import Packing
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Layout, Origin, Settings
    from wlc.multi_master.duckdb.commits import TrackedReads


@dataclass(frozen=True, slots=True)
class TakenEntry:
    """One transaction taken from another site through the ordinary capture.

    Attributes:
        origin: Where it was first committed.
        journal: Journals its entry with the master's new state.
    """

    origin: Origin
    journal: Callable[[JournalEntry], None]


@dataclass
class OpenTransaction:
    """Change sets of one open transaction.

    Attributes:
        tick: Provisional until the commit: if another connection commits first, this tick is too small.
        images: Saved images of each captured table, by its name.
        records: Records whose place among the schema changes is final.
        sealed: Tables that a later schema change altered, and whether their image table holds rows from before it.
        generation: The catalog's generation just before the transaction began.
        began_after: Number of commits that the transaction sees.
        moves_sequences: A statement named a function that moves sequences.
        row_settings: Settings that accept rows which DuckDB's defaults may refuse.
        last_seen: Last tick that was committed when it began; None for a single master.
        taking: The transaction that it takes from another site; None for a user's transaction.
        reads: The rows that it has read, if reads count in conflicts; None for a single master.
        objects: The objects of the database without macros, after its last schema change; None before one.
    """

    connection: duckdb.DuckDBPyConnection
    shared: Shared
    tables: CapturedTables
    user: str
    started: datetime
    generation: int
    began_after: int
    tick: int = 0
    images: dict[Name, Images] = field(default_factory=dict)
    records: list[JournalRecord] = field(default_factory=list)
    sealed: dict[Name, bool] = field(default_factory=dict)
    changes_schema: bool = False
    moves_sequences: bool = False
    row_settings: Settings = ()
    last_seen: int | None = None
    taking: TakenEntry | None = None
    sequences: dict[Name, int] = field(default_factory=dict)
    reads: TrackedReads | None = None
    objects: schema_change.Objects | None = None
    _settled: list[Images] = field(default_factory=list)
    _rewritten: set[Name] = field(default_factory=set)
    _dropped: set[Name] = field(default_factory=set)
    _altered: set[Name] = field(default_factory=set)
    # The committed name of a table that the transaction has altered; None for a table that it has created.
    _known_as: dict[Name, Name | None] = field(default_factory=dict)
    _may_change_macros: bool = False
    _before_schema: schema_change.Objects | None = None
    _has_looked: bool = False

    # Around a statement ---------------------------------------------------------------------------------------------

    def before(self, effect: Effect, parameters: Any, *, is_counted: bool = True) -> list[Images]:
        """Save the rows that the statement may remove or alter; return the tables it may write to.

        Args:
            effect: The possible effect of the statement.
            parameters: Its parameters.
            is_counted: False if it returns rows instead of their number; DuckDB's threads may lose returned rows.
        """
        self.look()
        if self.reads is not None and self.shared.site is not None:
            self.reads.before(effect, parameters)
        touched = self._before(effect, parameters)
        for images in touched if not is_counted else ():
            images.count_before()
        names = (
            effect.names
            if isinstance(effect, (UnknownEffect, SchemaEffect))
            else frozenset(map(str.lower, target_of(effect)))
        )
        fired = self.tables.named(self.tables.triggered(names))
        # A statement reports only its own changes, not those of triggers, in its own or another table.
        known = {images.table.name for images in touched}
        fired_on = [self._whole(table) for table in fired]
        return touched + [images for images in fired_on if images.table.name not in known]

    def _before(self, effect: Effect, parameters: Any) -> list[Images]:
        match effect:
            case AppendEffect():
                return self._append(effect)
            case TouchEffect():
                return self._touch(effect, parameters)
            case UpsertEffect() | MergeEffect():
                return self._upsert_or_merge(effect, parameters)
            case UnknownEffect():
                return [self._whole(table) for table in self.tables.named(effect.names)]
            case SchemaEffect():
                self._seal(effect.names)
                self._before_schema = self._objects_before(effect)
                if effect.loads:
                    named = self.tables.named(effect.names) if effect.names else list(self.tables.by_name.values())
                    return [self._whole(table) for table in named]
        return []

    def failed(self) -> None:
        """Finish the saved images for a statement that failed, in case the transaction continues."""
        with suppress(duckdb.Error):
            for name, images in list(self.images.items()):
                if images.is_pending:
                    images.failed()
                else:
                    self.images.pop(name).discard()

    def after(self, effect: Effect, text: str, touched: list[Images], count: int | None) -> None:
        """Account for the statement's report."""
        if isinstance(effect, SchemaEffect):
            self._after_schema(effect, effect.inner or text)
            return
        for images in touched:
            images.account(effect, count)
        if isinstance(effect, TouchEffect) and touched and count is not None and self._clears(effect, touched[0].table):
            touched[0].clear()

    # The end of the transaction -------------------------------------------------------------------------------------

    def complete(self, committed: datetime) -> bool:
        """Journal the transaction; the caller holds the commit lock and commits next.

        Returns:
            False if nothing changed, so that there is nothing to publish.

        Raises:
            duckdb.TransactionException: Another transaction changed the same rows meanwhile.
        """
        pending = [images for images in self.images.values() if images.is_pending]
        sequences = self._sequences() if pending or self.records or self.moves_sequences else []
        has_more = bool(
            self.records or sequences or self.taking or self._rewritten or (self.reads and self.reads.tables)
        )
        if not pending and not has_more:
            return False
        if self._altered:
            macros = self._macro_definitions()
            acceptance.refuse_broken_macros(self.connection, self.tables.catalog, frozenset(self._altered), macros)
        self._settle_tick()
        entry = JournalEntry(self.tick, self.user, self.started, committed, after=self.last_seen)
        alone = len(pending) == 1 and not has_more and pending[0].cleared is None
        self._refuse_unlike(pending)
        packing = self.shared.packing if self.taking is None else None
        for images in pending:
            self._complete_images(images, entry.header if alone else None, packing)
        conflicts.refuse(self.shared, self._settled, self._known_as, self._rewritten, self.began_after)
        if self.taking is not None:
            self.taking.journal(replace(entry, records=tuple(self.records)))
            return True
        if (site := self.shared.site) is not None:
            site.refuse_commit(self.tables, self.records, self._settled, self.tick, self.changes_schema)
        if self.reads is not None:
            self.records += self.reads.complete(self.tick)
        if not self.records and not self.moves_sequences:
            # It may have written to another database, and DuckDB allows only one. A later transaction journals the
            # sequences.
            return False
        self.records += sequences
        if not self.records:
            return False
        if not alone or not pending[0].carries_meta:
            journal.add_entry(self.connection, self.tables.catalog, replace(entry, records=tuple(self.records)))
        return True

    def _macro_definitions(self) -> tuple[str, ...]:
        known = self.shared.macro_definitions
        if self._may_change_macros or known is None:
            known = acceptance.macro_definitions(self.connection, self.tables.catalog)
            if self.generation == self.shared.generation and not self._may_change_macros:
                self.shared.macro_definitions = known
        return known

    def _refuse_unlike(self, pending: Sequence[Images]) -> None:
        """Refuse rows that were accepted only because of the session's settings."""
        ruled = {rule.table for rule in self.tables.rules}
        written: dict[Name, tuple[str, ...]] = dict.fromkeys(self._rewritten & ruled, ("true",))
        written |= {image.table.name: image.written() for image in pending if image.table.name in ruled}
        rules = {rule for rule in self.tables.rules if rule.table in written}
        if rules:
            self.note_row_settings()
            acceptance.refuse_unlike(self.connection, self.tables.catalog, rules, written, self.row_settings)

    def note_row_settings(self) -> None:
        """Record the settings that have affected so far which rows were accepted."""
        if self.tables.row_settings is None or self.shared.row_settings_vary:
            self.tables.row_settings = row_settings_changed(self.connection)
        self.row_settings = tuple({**dict(self.row_settings), **dict(self.tables.row_settings)}.items())

    def _settle_tick(self) -> None:
        """Take a tick after every committed one; move rows that were saved under a smaller tick to it."""
        if self.tick > self.shared.last_tick:
            return
        old, self.tick = self.tick, self.shared.new_tick()
        for layout in {record.layout for record in self.records if isinstance(record, JournalledImages)}:
            table_images = journal.images_sql(self.tables.catalog, layout)
            self.connection.execute(f"UPDATE {table_images} SET _tick = {self.tick} WHERE _tick = {old}")
        for images in self.images.values():
            images.renumber(self.tick)

    def _complete_images(self, images: Images, meta: str | None, packing: Packing | None = None) -> None:
        if images.cleared:
            conflicts.refuse_altered(self.shared, images.table.name, self.began_after)
        images.complete(meta, packing)
        self._settled.append(images)
        table = images.table
        if images.cleared:
            self.records.append(Clear(table.name, images.cleared))
        if images.added or images.removed:
            self.records.append(JournalledImages(table.name, table.id, images.added, images.removed, images.packed))

    def _sequences(self) -> list[SequencePosition]:
        if not self.tables.has_sequences:
            return []
        found = duckdb_catalog.sequences(self.connection, self.tables.catalog)
        if self.shared.doubt.is_open:
            # Replicas do not have sequences that were created without capture.
            captured = known_objects.sequences(self.connection, self.tables.catalog)
            found = {name: value for name, value in found.items() if name in captured}
        # A recreated sequence has another position on a replica, even if it has the same value here.
        known = {} if self.changes_schema else self.shared.sequences
        changed = {name: value for name, value in found.items() if known.get(name) != value}
        self.sequences = found
        return [SequencePosition(name, value) for name, value in changed.items()]

    def committed(self, time: datetime) -> None:
        """Inform the other connections; the commit lock is still held."""
        if self._may_change_macros:
            self.shared.macro_definitions = None
        if self.sequences or self.changes_schema:
            self.shared.sequences = dict(self.sequences)
        removed_from = {images.table.name for images in self._settled if images.cleared or images.removed}
        added_to = {images.table.name for images in self._settled if images.added}
        self.shared.committed(self.tick, time, removed_from | self._rewritten | self._dropped, added_to, self._altered)

    # Statements -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read the tables as this transaction sees them, before its first statement."""
        if self._has_looked:
            return
        self._has_looked = True
        # DuckDB takes a transaction's snapshot at its first lookup: now.
        with (shared := self.shared).commit_lock:
            shared.take_snapshot(self.connection)
            self.began_after = shared.commits
            if (site := shared.site) is not None:
                self.last_seen = shared.last_tick or None
                self.reads = site.reads_of(self.connection, self.tables)
        if shared.generation != self.generation or self.generation % 2:
            self.tables.refresh(-1)
        elif self.tables.generation != self.generation:
            shared.seen = self.tables.see(self.generation, shared.seen)

    def of(self, table: CapturedTable) -> Images:
        """The images of a table, started when the transaction first touches it."""
        found = self.images.get(table.name)
        if found is None:
            if not self.tick:
                self.tick = self.shared.new_tick()
            if self.sealed.get(table.name):
                table = self.tables.fork(table, self.shared.new_layout())
            found = self.images[table.name] = Images(self.tables, table, self.tick)
            if table.name in self.sealed:
                found.save_local()
        return found

    def _append(self, effect: AppendEffect) -> list[Images]:
        table = self.tables.resolve(effect.target)
        if table is None:
            return []
        if not table.has_rowid:
            return [self._whole(table)]
        images = self.of(table)
        if not effect.reports:
            images.count_before()
        return [images]

    def _touch(self, effect: TouchEffect, parameters: Any) -> list[Images]:
        table = self.tables.resolve(effect.target)
        if table is None:
            return []
        images = self.of(table)
        if self._clears(effect, table):
            images.remember_last()
            return [images]
        if clears(effect, table):
            return [self._whole(table)]
        if not table.has_rowid or not superset.is_stable(self.tables, effect):
            return [self._whole(table)]
        where = superset.touched_rows(effect, table)
        if (effect.source is not None or effect.with_clause) and not superset.binds(self.connection, where):
            return [self._whole(table)]
        if effect.source is not None:
            images.count_before()
        images.save(where, superset.subset(parameters, effect.parameters), is_few=superset.pins_key(effect, table))
        return [images]

    def _clears(self, effect: TouchEffect, table: CapturedTable) -> bool:
        """Say whether one clear record may replace all images; other sites must know the removed rows.

        If the transaction has altered the table, or sealed images of it, it cannot distinguish rows that others have
        added.
        """
        # A site learns of other sites only when it reads the circle.
        has_one_layout = table.name not in self.sealed
        return has_one_layout and self.shared.require_state().site is None and clears(effect, table)

    def _upsert_or_merge(self, effect: UpsertEffect | MergeEffect, parameters: Any) -> list[Images]:
        table = self.tables.resolve(effect.target)
        if table is None:
            return []
        images = self.of(table)
        images.count_before()
        is_known = table.has_rowid and superset.is_stable(self.tables, effect)
        where = superset.matched_rows(self.connection, effect, table, parameters) if is_known else None
        if where is None:
            return [self._whole(table)]
        if where:
            condition, uses = where
            images.save(condition, superset.subset(parameters, uses), is_few=False)
        return [images]

    def _whole(self, table: CapturedTable) -> Images:
        images = self.of(table)
        images.save_whole()
        return images

    # Schema changes -------------------------------------------------------------------------------------------------

    def _seal(self, names: frozenset[str]) -> None:
        """Complete the images of tables that a schema change may alter, in their present layout."""
        for name in [table.name for table in self.tables.named(names) if table.name in self.images]:
            self._complete_images(self.images.pop(name), None)
            self.sealed[name] = True

    def _objects_before(self, effect: SchemaEffect) -> schema_change.Objects:
        if effect.may_change_macros:
            return self._objects(effect)
        if self.objects is None and not self.changes_schema and (seen := self.shared.seen) is not None:
            self.objects = seen.objects if seen.generation == self.tables.generation else None
        return self._objects(effect) if self.objects is None else self.objects

    def _objects(self, effect: SchemaEffect) -> schema_change.Objects:
        return schema_change.objects(self.connection, self.tables.catalog, macros=effect.may_change_macros)

    def _after_schema(self, effect: SchemaEffect, text: str) -> None:
        before = self._before_schema
        after = self._objects(effect)
        self._may_change_macros |= effect.may_change_macros
        self.objects = {key: entry for key, entry in after.items() if key[0] != "MACRO"}
        self.tables.forget_names()
        self.tables.forget_macros()
        if before is None or before == after:
            if effect.rewrites:
                self._rewrite_alike(effect.target)
            return
        self.changes_schema = True
        uncaptured.refuse_schema_change(self.shared)
        changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        known_objects.note(self.connection, self.tables.catalog, changed, after)
        if not self.tick:
            self.tick = self.shared.new_tick()
        known = {name: table.layout for name, table in self.tables.by_name.items()}
        layouts = self._layouts(known, changed, after)
        change = difference(schema_change.effects(before, after, known, layouts))
        self._forget(change.dropped_tables)
        self._known_as |= {name: self._known_as.get(old, old) for name, old in change.altered_tables.items()}
        self._known_as |= dict.fromkeys(change.created_tables)
        old_layouts = {name: known[old] for name, old in change.altered_tables.items()}
        if effect.casts and any(_casts_unlike(old, layouts[name]) for name, old in old_layouts.items()):
            effect = replace(effect, rewrites=True)
        for name in (*change.created_tables, *change.altered_tables):
            self.tables.add(self.shared.new_layout(), name, layouts[name])
        known_rules = self.tables.rules
        self.tables.refresh(self.generation, layouts)
        new_rules = self.tables.rules - known_rules
        repeated = "" if effect.loads and not effect.names else text
        self._altered |= {Name(*key[1:]) for key in changed & before.keys()}
        for ddl in statements(self.connection, self.tables.catalog, repeated, change, layouts):
            acceptance.refuse_untaken(self.connection, self.tables.catalog, ddl)
            old = None if effect.rewrites else old_layouts.get(ddl.object)
            recorded = digests.after_altering(self.connection, ddl, old, self.tables.by_name.get(ddl.object))
            self.records.append(recorded)
        acceptance.refuse_unstable(self.connection, self.tables.catalog, new_rules)
        for name in change.created_tables:
            self._whole_content(self.tables.by_name[name])
        for name in change.altered_tables:
            if effect.rewrites:
                self._rewrite(self.tables.by_name[name])
            self.sealed[name] = effect.rewrites

    def _layouts(
        self, known: dict[Name, Layout], changed: set[schema_change.ObjectKey], after: schema_change.Objects
    ) -> dict[Name, Layout]:
        """Return the layouts of all tables, ordered by name; reads those of tables that a statement has changed."""
        present = {Name(*key[1:]): entry for key, entry in after.items() if key[0] == "TABLE"}
        # Columns have types, and tables have schemas.
        is_any = any(kind in ("SCHEMA", "TYPE") for kind, *_ in changed)
        changed_tables = {
            name: entry.oid
            for name, entry in sorted(present.items())
            if entry.oid is not None and (is_any or ("TABLE", name.schema, name.name) in changed or name not in known)
        }
        if is_any:
            duckdb_catalog.refuse_nested_schemas(self.connection, self.tables.catalog)
        read = duckdb_catalog.layouts_of(self.connection, self.tables.catalog, changed_tables)
        return dict(sorted({name: read.get(name) or known[name] for name in present}.items()))

    def _forget(self, dropped: tuple[Name, ...]) -> None:
        self._dropped.update(dropped)
        for name in dropped:
            if name in self.images:
                self.images.pop(name).discard()
            self.sealed.pop(name, None)

    def _whole_content(self, table: CapturedTable) -> None:
        """Count all rows of a table that the statement created as added."""
        self.of(table).count_before(0)

    def _rewrite_alike(self, target: tuple[str, ...]) -> None:
        """Publish a table again if a column was altered to its own type: its values may have changed."""
        if not superset.binds(self.connection, ".".join(map(quote, target))):
            # The table does not exist, and the statement has IF EXISTS.
            return
        table = self.tables.resolve(target)
        if table is not None:
            self.changes_schema = True
            if not self.tick:
                self.tick = self.shared.new_tick()
            self._rewrite(self.tables.fork(table, self.shared.new_layout()))
            self.sealed[table.name] = True

    def _rewrite(self, table: CapturedTable) -> None:
        """Publish all rows, because a replica may compute other values for them than the statement did."""
        rows = self.connection.execute(
            f"INSERT INTO {table.images} SELECT {self.tick}, 1, rowid, NULL, {', '.join(table.values)} FROM {table.sql}"
        ).fetchall()[0][0]
        self._rewritten.add(table.name)
        if rows:
            self.records += [Clear(table.name, rows), JournalledImages(table.name, table.id, rows, 0)]


def _casts_unlike(before: Layout, after: Layout) -> bool:
    """Whether another session may cast the constant to another value of the new column's type."""
    return any(not parse(column.type).row.casts_alike for column in {*after.stored}.difference(before.stored))


@cache
def user() -> str:
    """Return the user who runs this process, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())

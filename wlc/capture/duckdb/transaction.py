"""One transaction of one connection: what its statements did to captured tables, journalled before its commit."""

from __future__ import annotations

import getpass
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import duckdb

from wlc import catalog as duckdb_catalog
from wlc.capture.duckdb import digests, journal, schema
from wlc.capture.duckdb.images import FEW, Images, conflict, unspoil
from wlc.capture.duckdb.statement import (
    Append,
    Effect,
    Merge,
    Schema,
    Touch,
    Unknown,
    Upsert,
    aggregates_in_order_free,
)
from wlc.capture.duckdb.target import aliased, clears, pins_key, subset, target_of
from wlc.capture.duckdb.values import typed
from wlc.clock import format_time
from wlc.fields import ddl_json, name_json
from wlc.model import Name, literal, quote

if TYPE_CHECKING:
    from datetime import datetime

    from wlc.capture.duckdb.journal import Table
    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.tables import Tables


# FROM and WHERE text with the names of the parameters in it, or nothing.
_Rows = tuple[str, frozenset[str]] | tuple[()]


@dataclass
class Transaction:
    """Change sets of one open transaction.

    Attributes:
        tick: Provisional until the commit: another connection may commit first and make it too small.
        images: Per captured table what was saved of it, by the table's name.
        records: JSON of records whose place among the schema changes is settled.
        sealed: Tables that a schema change came after, and whether their image table holds rows from before it.
        generation: Of the database's catalog just before the transaction began.
        began_after: Number of commits there had been just before.
        moves_sequences: A statement named a function that moves sequences.
    """

    connection: duckdb.DuckDBPyConnection
    shared: Shared
    tables: Tables
    user: str
    started: datetime
    generation: int
    began_after: int
    tick: int = 0
    images: dict[Name, Images] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    sealed: dict[Name, bool] = field(default_factory=dict)
    changes_schema: bool = False
    moves_sequences: bool = False
    sequences: dict[Name, int] = field(default_factory=dict)
    _settled: list[Images] = field(default_factory=list)
    _rewritten: set[Name] = field(default_factory=set)
    _dropped: set[Name] = field(default_factory=set)
    _before_schema: schema.Objects | None = None
    _has_looked: bool = False

    # Around a statement ---------------------------------------------------------------------------------------------

    def before(self, effect: Effect, parameters: Any, *, is_counted: bool = True) -> list[Images]:
        """Save what the statement may remove or alter; returns the tables it may write to.

        Args:
            effect: What the statement may do.
            parameters: Its parameters.
            is_counted: False where it will return rows and not their number; of rows, DuckDB's threads may lose some.
        """
        self.look()
        touched = self._before(effect, parameters)
        for images in touched if not is_counted else ():
            images.remember_count()
            images.is_reported, images.has_local = False, True
        names = effect.names if isinstance(effect, (Unknown, Schema)) else frozenset(map(str.lower, target_of(effect)))
        fired = self.tables.named(self.tables.triggered(names))
        known = {images.table.name for images in touched}
        return touched + [self._whole(table) for table in fired if table.name not in known]

    def _before(self, effect: Effect, parameters: Any) -> list[Images]:
        match effect:
            case Append():
                return self._append(effect)
            case Touch():
                return self._touch(effect, parameters)
            case Upsert() | Merge():
                return self._upsert_or_merge(effect, parameters)
            case Unknown():
                return [self._whole(table) for table in self.tables.named(effect.names)]
            case Schema():
                self._seal(effect.names)
                self._before_schema = schema.objects(self.connection, self.tables.catalog)
                if effect.loads:
                    named = self.tables.named(effect.names) if effect.names else list(self.tables.by_name.values())
                    return [self._whole(table) for table in named]
        return []

    def failed(self) -> None:
        """A statement failed: settle what was saved for it, in case the transaction goes on."""
        with suppress(duckdb.Error):
            for name, images in list(self.images.items()):
                if images.statements or images.has_local:
                    images.failed()
                else:
                    self.images.pop(name).discard()

    def after(self, effect: Effect, text: str, touched: list[Images], count: int | None) -> None:
        """Account for what the statement says it did."""
        if isinstance(effect, Schema):
            self._after_schema(effect, effect.inner or text)
            return
        for images in touched:
            images.statements += 1
            if count is None:
                assert not images.is_reported, "a statement without a count was taken for one that reports it"
            elif isinstance(effect, Append):
                images.net += count
            elif isinstance(effect, Touch) and effect.deletes:
                images.net -= count
                images.deleted += count
                if clears(effect, images.table) and images is touched[0]:
                    images.clear()
            elif isinstance(effect, Touch):
                images.updated += count

    # The end of the transaction -------------------------------------------------------------------------------------

    def complete(self, committed: datetime) -> bool:
        """Journal the transaction; the caller holds the commit lock and commits next.

        Returns:
            False where nothing changed, so that there is nothing to publish.

        Raises:
            duckdb.TransactionException: Another transaction changed the same rows meanwhile.
        """
        pending = [images for images in self.images.values() if images.statements or images.has_local]
        sequences = self._sequences() if pending or self.records or self.moves_sequences else []
        if not pending and not self.records and not sequences:
            return False
        self._settle_tick()
        entry = {"user": self.user, "started": format_time(self.started), "committed": format_time(committed)}
        alone = len(pending) == 1 and not self.records and not sequences and pending[0].cleared is None
        meta = json.dumps(entry, ensure_ascii=False) if alone else None
        for images in pending:
            self._complete_images(images, meta)
        self._refuse_conflicts()
        if not self.records and not self.moves_sequences:
            # It may have written to another database, and then to no second one: a later transaction tells.
            return False
        self.records += sequences
        if not self.records:
            return False
        if not alone or not pending[0].carries_meta:
            journal.add_entry(self.connection, self.tables.catalog, self.tick, {**entry, "records": self.records})
        return True

    def _refuse_conflicts(self) -> None:
        """Refuse what others have changed in between where DuckDB would let it pass; see `Images.refuse_conflict`."""
        for images in self._settled:
            if images.removed and self.shared.has_removed_since(images.table.name, self.began_after):
                images.refuse_conflict()
        for name in self._rewritten:
            # All rows were published as this transaction saw them.
            if self.shared.has_changed_since(name, self.began_after):
                raise conflict(name)

    def _settle_tick(self) -> None:
        """Take a tick after every committed one; rows saved under a smaller one are given the new one."""
        if self.tick > self.shared.last_tick:
            return
        old, self.tick = self.tick, self.shared.new_tick()
        for table_images in {record["change"]["images"] for record in self.records if "change" in record}:
            self.connection.execute(f"UPDATE {table_images} SET _tick = {self.tick} WHERE _tick = {old}")
        for images in self.images.values():
            if images.saved:
                self.connection.execute(f"UPDATE {images.table.images} SET _tick = {self.tick} WHERE _tick = {old}")
            images.tick = self.tick

    def _complete_images(self, images: Images, meta: str | None) -> None:
        images.complete(meta)
        self._settled.append(images)
        table = name_json(images.table.name)
        if images.cleared:
            self.records.append({"clear": {"table": table, "removed": images.cleared}})
        if images.added or images.removed:
            change = {"id": images.table.id, "images": images.table.images, "table": table}
            self.records.append({"change": {**change, "added": images.added, "removed": images.removed}})

    def _sequences(self) -> list[dict[str, Any]]:
        if not self.tables.has_sequences:
            return []
        found = duckdb_catalog.sequences(self.connection, self.tables.catalog)
        # A sequence that was made anew stands elsewhere on a replica, even if it has come to the same value here.
        known = {} if self.changes_schema else self.shared.sequences
        changed = {name: value for name, value in found.items() if known.get(name) != value}
        self.sequences = found
        return [{"sequence": {"name": name_json(name), "value": value}} for name, value in changed.items()]

    def committed(self, time: datetime) -> None:
        """Tell the other connections; the commit lock is still held."""
        if self.sequences or self.changes_schema:
            self.shared.sequences = dict(self.sequences)
        removed_from = {images.table.name for images in self._settled if images.cleared or images.removed}
        added_to = {images.table.name for images in self._settled if images.added}
        self.shared.committed(self.tick, time, removed_from | self._rewritten | self._dropped, added_to)

    # Statements -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Know the tables as this transaction sees them, before its first statement."""
        if self._has_looked:
            return
        self._has_looked = True
        # DuckDB takes a transaction's snapshot when it first looks something up. By the next line that has happened.
        self.shared.take_snapshot(self.connection)
        is_certain = self.shared.generation == self.generation and self.generation % 2 == 0
        if not is_certain or self.tables.generation != self.generation:
            self.tables.refresh(self.generation if is_certain else -1)

    def of(self, table: Table) -> Images:
        """The images of a table, started when the transaction first touches it."""
        found = self.images.get(table.name)
        if found is None:
            if not self.tick:
                self.tick = self.shared.new_tick()
            if self.sealed.get(table.name):
                table = self.tables.fork(table, self.shared.new_layout())
            found = self.images[table.name] = Images(self.connection, table, self.tick)
            if table.name in self.sealed:
                found.remember_count()
                found.save_local()
        return found

    def _append(self, effect: Append) -> list[Images]:
        table = self.tables.resolve(effect.target)
        if table is None:
            return []
        if not table.has_rowid:
            return [self._whole(table)]
        images = self.of(table)
        if not effect.reports:
            images.remember_count()
            images.is_reported = False
        images.has_local = True
        return [images]

    def _touch(self, effect: Touch, parameters: Any) -> list[Images]:
        table = self.tables.resolve(effect.target)
        if table is None:
            return []
        images = self.of(table)
        if clears(effect, table):
            images.remember_last()
            return [images]
        if not table.has_rowid or not self._is_stable(effect):
            return [self._whole(table)]
        where = self._touched_rows(effect, table)
        if (effect.source is not None or effect.with_clause) and not self._binds(where):
            return [self._whole(table)]
        if images.copy is None and images.cleared is None:
            if effect.source is not None:
                images.remember_count()
                images.is_reported = False
            values = subset(parameters, effect.parameters)
            images.save(where, values, is_few=pins_key(effect, table))
        return [images]

    def _touched_rows(self, effect: Touch, table: Table) -> str:
        condition = f"({effect.condition}\n)" if effect.condition is not None else "true"
        if effect.source is None and not effect.with_clause:
            return f"{aliased(effect, table)} WHERE {condition}"
        source = f", {effect.source}" if effect.source is not None else ""
        return (
            f"{table.sql} WHERE rowid IN ({effect.with_clause} SELECT {effect.alias or table.sql}.rowid"
            f" FROM {aliased(effect, table)}{source} WHERE {condition})"
        )

    def _binds(self, where: str) -> bool:
        """Whether a part of a statement can stand by itself; asked first, because a failure aborts the transaction."""
        try:
            self.connection._bind(f"SELECT 1 FROM {where}")
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
            return False
        return True

    def _upsert_or_merge(self, effect: Upsert | Merge, parameters: Any) -> list[Images]:
        table = self.tables.resolve(effect.target)
        if table is None:
            return []
        images = self.of(table)
        images.remember_count()
        is_known = table.has_rowid and self._is_stable(effect)
        where = self._matched_rows(effect, table, parameters) if is_known else None
        if where is None:
            return [self._whole(table)]
        images.has_local, images.is_reported = True, False
        if where and images.copy is None and images.cleared is None:
            condition, uses = where
            images.save(condition, subset(parameters, uses), is_few=False)
        return [images]

    def _matched_rows(self, effect: Upsert | Merge, table: Table, parameters: Any) -> _Rows | None:
        """FROM and WHERE of the rows that the statement may replace; empty for none, None where that is not known."""
        if isinstance(effect, Merge):
            where = (
                f"{table.sql} WHERE rowid IN ({effect.with_clause} SELECT {effect.alias or table.sql}.rowid"
                f" FROM {aliased(effect, table)}, {effect.source} WHERE ({effect.condition}\n))"
            )
            return (where, effect.parameters) if self._binds(where) else None
        return self._conflicting_rows(effect, table, parameters)

    def _conflicting_rows(self, effect: Upsert, table: Table, parameters: Any) -> _Rows | None:
        names = list(effect.columns) or [column.name for column in table.layout.stored]
        given = {name.lower(): number for number, name in enumerate(names)}
        if table.keys is None or effect.by_name:
            return None
        types = {column.name.lower(): column.type for column in table.layout.columns}
        if any(column.lower() not in given for key in table.keys for column in key) or not given.keys() <= types.keys():
            return None
        if not table.keys:
            return ()
        added = [
            [(quote(c), f"CAST(n.v{given[c.lower()]} AS {types[c.lower()]})", types[c.lower()]) for c in key]
            for key in table.keys
        ]
        listed = ", ".join(f"v{number}" for number in range(len(names)))
        source = f"({typed(effect.query, [types[name.lower()] for name in names])}\n) AS n({listed})"
        few = self._few_keys(effect, added, source, parameters)
        if few is not None:
            return f"{table.sql} WHERE ({few})", frozenset()
        tests = (" AND ".join(f"t.{column} = {value}" for column, value, _ in key) for key in added)
        where = (
            f"{table.sql} WHERE rowid IN ({effect.with_clause} SELECT t.rowid FROM {table.sql} AS t, {source}"
            f" WHERE ({') OR ('.join(tests)}))"
        )
        return where, effect.parameters

    def _few_keys(
        self, effect: Upsert, added: list[list[tuple[str, str, str]]], source: str, parameters: Any
    ) -> str | None:
        """A condition on literal keys, which needs no scan, where the statement adds few rows; else None."""
        values = ", ".join(f"CAST({value} AS VARCHAR)" for key in added for _, value, _ in key)
        rows = self.connection.execute(
            f"{effect.with_clause} SELECT {values} FROM {source} LIMIT {FEW + 1}",
            subset(parameters, effect.parameters),
        ).fetchall()
        if len(rows) > FEW:
            return None
        tests = []
        for row in rows:
            texts = iter(row)
            for key in added:
                parts = [(column, next(texts), kind) for column, _, kind in key]
                if all(text is not None for _, text, _ in parts):
                    tests.append(" AND ".join(f"{c} = CAST({literal(text)} AS {kind})" for c, text, kind in parts))
        return " OR ".join(f"({test})" for test in tests) or "false"

    def _whole(self, table: Table) -> Images:
        images = self.of(table)
        images.remember_count()
        images.save_whole()
        return images

    def _is_stable(self, effect: Touch | Upsert | Merge) -> bool:
        """Whether a part of the statement run by itself must find the same rows as the statement."""
        if not effect.is_stable or not effect.relations <= self.tables.real_relations():
            return False
        kinds = self.tables.functions
        if any(kinds.get(name, "VOLATILE") == "VOLATILE" for name in effect.functions):
            return False
        return aggregates_in_order_free(effect.functions, self.tables.aggregates)

    # Schema changes -------------------------------------------------------------------------------------------------

    def _seal(self, names: frozenset[str]) -> None:
        """Settle the images of tables that a schema change may alter, in the layout they still have."""
        for name in [name for name in self.images if name.name.lower() in names]:
            self._complete_images(self.images.pop(name), None)
            self.sealed[name] = True

    def _after_schema(self, effect: Schema, text: str) -> None:
        before = self._before_schema
        after = schema.objects(self.connection, self.tables.catalog)
        self.tables.forget_names()
        if before is None or before == after:
            if effect.rewrites:
                self._rewrite_alike(effect.target)
            return
        self.changes_schema = True
        if not self.tick:
            self.tick = self.shared.new_tick()
        change = schema.compare(before, after)
        self._forget(change.dropped_tables)
        old_names = {new: old for old, new in change.renamed_tables}
        old_layouts = {name: self.tables.by_name[old_names.get(name, name)].layout for name in change.altered_tables}
        layouts = duckdb_catalog.tables(self.connection, self.tables.catalog)
        for name in change.new_tables:
            self.tables.add(self.shared.new_layout(), name, layouts[name])
        self.tables.refresh(self.generation)
        effects = change.json()
        repeated = "" if effect.loads and not effect.names else text
        for ddl in schema.statements(self.connection, self.tables.catalog, repeated, change, layouts):
            old = None if effect.rewrites else old_layouts.get(ddl.object)
            told = digests.after_altering(self.connection, ddl, old, self.tables.by_name.get(ddl.object))
            self.records.append({"ddl": ddl_json(told), **effects})
            effects = {}
        for name in change.created_tables:
            self._whole_content(self.tables.by_name[name])
        for name in change.altered_tables:
            if effect.rewrites:
                self._rewrite(self.tables.by_name[name])
            self.sealed[name] = effect.rewrites

    def _forget(self, dropped: tuple[Name, ...]) -> None:
        self._dropped.update(dropped)
        for name in dropped:
            if name in self.images:
                self.images.pop(name).discard()
            self.sealed.pop(name, None)

    def _whole_content(self, table: Table) -> None:
        """A table that the statement created may have rows already: all of them are added ones."""
        images = self.of(table)
        images.has_local, images.rows_before, images.is_reported = True, 0, False

    def _rewrite_alike(self, target: tuple[str, ...]) -> None:
        """A column was given the type it had: the definition of the table stays the same, its values may not."""
        if not self._binds(".".join(map(quote, target))):
            # There is no such table, and the statement said IF EXISTS.
            return
        table = self.tables.resolve(target)
        if table is not None:
            self.changes_schema = True
            if not self.tick:
                self.tick = self.shared.new_tick()
            self._rewrite(self.tables.fork(table, self.shared.new_layout()))
            self.sealed[table.name] = True

    def _rewrite(self, table: Table) -> None:
        """The statement computed values for existing rows: publish all rows, so that no replica has to compute."""
        rows = self.connection.execute(
            f"INSERT INTO {table.images} SELECT {self.tick}, 1, rowid, NULL, {', '.join(table.values)} FROM {table.sql}"
        ).fetchall()[0][0]
        name = name_json(table.name)
        self._rewritten.add(table.name)
        if rows:
            change = {"id": table.id, "images": table.images, "table": name, "added": rows, "removed": 0}
            self.records += [{"clear": {"table": name, "removed": rows}}, {"change": change}]
        else:
            unspoil(self.connection, table)


@cache
def user() -> str:
    """Who runs this process, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())

"""The captured tables as one connection sees them. Names are resolved as in DuckDB, and cached."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.capture.duckdb import acceptance, journal
from wlc.capture.duckdb.journal import CapturedTable
from wlc.capture.duckdb.prepared import PreparedStatements
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import engine
from wlc.dialect.duckdb.lexer import words
from wlc.dialect.sql import quote
from wlc.farm import typed_names
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import Layout, Name

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

    from wlc.capture.duckdb.schema_change import Objects
    from wlc.farm.model import Settings


# A parsed statement takes thirty times the memory of its text.
_MOST_PARSED, _LONGEST_PARSED = 1000, 2000


@dataclass(frozen=True, slots=True)
class SeenCatalog:
    """The committed catalog as read by a connection, for other connections that see the same one.

    Attributes:
        objects: All objects without macros; None if they were not read.
    """

    generation: int
    by_name: dict[Name, CapturedTable]
    has_sequences: bool
    rules: frozenset[acceptance.RowRule]
    refers: dict[int, bool]
    objects: Objects | None = None


@dataclass
class MacroChanges:
    """Number of statements, of any connection, that may have changed the macros of any database."""

    count: int = 0


@dataclass
class CapturedTables:
    """Captured tables as the connection's current transaction sees them.

    Attributes:
        macro_changes: Of all connections to the database.
        generation: The catalog's generation when it was read; -1 if uncertain.
        triggers: Table and lower-case words of the body, by trigger.
        prepared: The connection's prepared statements.
        moving: Tables whose last updated rows DuckDB has moved, by their ids.
        row_settings: Settings of the session that affect which rows are accepted; None until they are read.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: str
    macro_changes: MacroChanges = field(default_factory=MacroChanges)
    generation: int = -1
    by_name: dict[Name, CapturedTable] = field(default_factory=dict)
    relations: frozenset[str] = frozenset()
    has_sequences: bool = False
    triggers: tuple[tuple[str, frozenset[str]], ...] = ()
    rules: frozenset[acceptance.RowRule] = frozenset()
    row_settings: Settings | None = None
    prepared: PreparedStatements = field(init=False)
    moving: set[int] = field(default_factory=set)
    _refers: dict[int, bool] = field(default_factory=dict)
    _macros: tuple[int, frozenset[str]] | None = None
    _resolved: dict[tuple[str, ...], CapturedTable | None] = field(default_factory=dict)
    _parsed: dict[str, duckdb.Statement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prepared = PreparedStatements(self.connection)

    def refresh(self, generation: int, present: dict[Name, Layout] | None = None) -> None:
        """Reread the catalog, inside the connection's transaction; `present` are the tables, if known."""
        self.generation = generation
        known = {name: (id_, layout) for id_, (name, layout) in self._layouts().items()}
        if present is None:
            present = duckdb_catalog.tables(self.connection, self.catalog)
        keys = self._unique_keys(present)
        self.by_name = {
            name: CapturedTable(
                known[name][0],
                self.catalog,
                name,
                layout,
                keys.get(name, ()),
                all(column.name.lower() != "rowid" for column in layout.columns),
                known[name][1] != layout,
            )
            for name, layout in present.items()
            if name in known
        }
        self.has_sequences = bool(
            self.connection.execute(
                "SELECT count(*) FROM duckdb_sequences() WHERE database_name = ? AND NOT temporary", [self.catalog]
            ).fetchall()[0][0]
        )
        self._read_triggers()
        self.rules = acceptance.read_rules(self.connection, self.catalog)
        self.forget_names()
        self._macros = None

    def see(self, generation: int, seen: SeenCatalog | None) -> SeenCatalog:
        """Load the committed catalog of a generation, from another connection if that has read it; return it."""
        if seen is None or seen.generation != generation:
            self.refresh(generation)
            return self.seen(None)
        self.generation, self.by_name, self._refers = generation, dict(seen.by_name), seen.refers
        self.has_sequences, self.rules = seen.has_sequences, seen.rules
        # Temporary tables of the connection may have triggers, too.
        self._read_triggers()
        self.forget_names()
        self._macros = None
        return seen

    def seen(self, objects: Objects | None) -> SeenCatalog:
        """Return the catalog for other connections; the objects are those without macros, if they are known."""
        return SeenCatalog(self.generation, dict(self.by_name), self.has_sequences, self.rules, self._refers, objects)

    def forget_names(self) -> None:
        """Drop the cache of names: the search path or a temporary table has changed."""
        self._resolved.clear()
        self.relations = frozenset()

    def forget_macros(self) -> None:
        """Invalidate the macros of all connections: a schema or the attached databases have changed."""
        self.macro_changes.count += 1

    def is_volatile(self, name: str) -> bool:
        """Say whether a call of a lower-case name may give another result when repeated in the transaction."""
        if engine.is_volatile(name):
            return True
        changes = self.macro_changes.count
        if self._macros is None or self._macros[0] != changes:
            # A macro hides DuckDB's own function. The query also lists DuckDB's own functions, which takes long.
            query = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE NOT internal"
            self._macros = changes, frozenset(row[0] for row in self.connection.execute(query).fetchall())
        return name in self._macros[1]

    def resolve(self, parts: tuple[str, ...]) -> CapturedTable | None:
        """Return the captured table that a name denotes now; None for temporary tables and other databases.

        Raises:
            UnsupportedError: Another program altered the table.
        """
        if parts not in self._resolved:
            found = self._ask(parts)
            self._refuse_altered([found] if found else [])
            self._resolved[parts] = found
        return self._resolved[parts]

    def known(self, parts: tuple[str, ...]) -> CapturedTable | None:
        """Return the cached result of `resolve` for a name, None for a name that it has not resolved."""
        return self._resolved.get(parts)

    def has_foreign_keys(self, table: CapturedTable) -> bool:
        """Say whether rows of a table refer to other rows."""
        if table.id not in self._refers:
            self._refers[table.id] = table.name in duckdb_catalog.foreign_keys(self.connection, self.catalog)
        return self._refers[table.id]

    def parsed(self, text: str) -> duckdb.Statement:
        """Return a statement, parsed once if it is not long."""
        found = self._parsed.get(text)
        if found is None:
            (found,) = self.connection.extract_statements(text)
            if len(self._parsed) >= _MOST_PARSED:
                self._parsed.clear()
            if len(text) <= _LONGEST_PARSED:
                self._parsed[text] = found
        return found

    def named(self, words: Iterable[str]) -> list[CapturedTable]:
        """Return captured tables whose name is among lower-case words; raises as `resolve` does."""
        wanted = set(words)
        found = [table for name, table in self.by_name.items() if name.name.lower() in wanted]
        self._refuse_altered(found)
        return found

    def _refuse_altered(self, tables: Iterable[CapturedTable]) -> None:
        if altered := next((table for table in tables if table.is_altered), None):
            query = "SELECT path FROM duckdb_databases() WHERE database_name = ?"
            ((path,),) = self.connection.execute(query, [self.catalog]).fetchall()
            raise UnsupportedError(
                f"table {altered.name} was altered without wlc.connect()",
                hint=f"wlc farm repair {shlex.quote(path)}",
                path=path,
            )

    def triggered(self, names: frozenset[str]) -> frozenset[str]:
        """Words that contain the names of all tables to which triggers write if tables called `names` are written."""
        reached, found = names, frozenset[str]()
        while self.triggers:
            more = frozenset[str]().union(*(does for table, does in self.triggers if table in reached))
            if more <= found:
                break
            found |= more
            reached |= more
        return found

    def real_relations(self) -> frozenset[str]:
        """Lower-case names of all tables of DuckDB itself: reading them twice returns the same rows."""
        if not self.relations:
            rows = self.connection.execute("SELECT DISTINCT lower(table_name) FROM duckdb_tables()").fetchall()
            self.relations = frozenset(row[0] for row in rows)
        return self.relations

    def add(self, id_: int, name: Name, layout: Layout) -> CapturedTable:
        """Start to journal a table, or a table's new layout, in the current transaction."""
        table = CapturedTable(id_, self.catalog, name, layout)
        journal.add_layout(self.connection, table)
        return table

    def fork(self, table: CapturedTable, id_: int) -> CapturedTable:
        """Give a table a second image table, for rows after a schema change in the same transaction."""
        forked = replace(table, id=id_)
        journal.add_layout(self.connection, forked)
        self.by_name[table.name] = forked
        self._resolved.clear()
        return forked

    def _layouts(self) -> dict[int, tuple[Name, Layout]]:
        return journal.read_layouts(self.connection, self.catalog)

    def _ask(self, parts: tuple[str, ...]) -> CapturedTable | None:
        matching = [table for name, table in self.by_name.items() if name.name.lower() == parts[-1].lower()]
        if not matching:
            return None
        text = ".".join(quote(part) for part in parts)
        plan = self.connection.execute(f"EXPLAIN (FORMAT json) SELECT 1 FROM {text}").fetchall()[0][1]
        found = json.loads(plan)
        while found[0]["children"]:
            found = found[0]["children"]
        meant = typed_names.parts(found[0]["extra_info"].get("Table", ""))
        return next((t for t in matching if (self.catalog, t.name.schema, t.name.name) == meant), None)

    def _unique_keys(self, present: dict[Name, Layout]) -> dict[Name, tuple[tuple[str, ...], ...] | None]:
        found: dict[Name, tuple[tuple[str, ...], ...] | None] = {}
        for name, layout in present.items():
            if layout.primary_key:
                found[name] = (layout.primary_key,)
        for name, keys in duckdb_catalog.unique_keys(self.connection, self.catalog).items():
            found[name] = (*(found.get(name) or ()), *keys)
        rows = self.connection.execute(
            "SELECT schema_name, table_name, CAST(expressions AS VARCHAR[]) FROM duckdb_indexes()"
            " WHERE database_name = ? AND is_unique",
            [self.catalog],
        ).fetchall()
        for schema, table, expressions in rows:
            name, before = Name(schema, table), found.get(Name(schema, table), ())
            columns = duckdb_catalog.index_columns(expressions)
            if columns is not None and name in present:
                # An index keeps the names as they were typed.
                spelled = {column.name.lower(): column.name for column in present[name].columns}
                columns = tuple(spelled.get(column.lower(), column) for column in columns)
            found[name] = None if columns is None or before is None else (*before, columns)
        return found

    def _read_triggers(self) -> None:
        rows = self.connection.execute("SELECT lower(table_name), sql FROM duckdb_triggers()").fetchall()
        self.triggers = tuple((table, words(re.split(r"\bSTATEMENT\b", sql, maxsplit=1)[-1])) for table, sql in rows)

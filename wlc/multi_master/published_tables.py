"""The tables that a database's published schema statements leave, and which constraints these have."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import path_at, tokens
from wlc.dialect.duckdb.table_statement import about_table, referred
from wlc.farm.model import Ddl, Name

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Layout

_Folded = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as the statements leave it.

    Attributes:
        words: Keywords of the statements that made the table or added to it, in upper case.
        parents: Tables to which its foreign keys refer.
    """

    name: Name
    layout: Layout
    words: frozenset[str] = frozenset()
    parents: frozenset[_Folded] = frozenset()

    @property
    def has_check(self) -> bool:
        """Whether it has a CHECK constraint, or had one in a column that was dropped since the last snapshot."""
        return "CHECK" in self.words


@dataclass(slots=True)
class PublishedTables:
    """The tables after some statements.

    Attributes:
        tables: By their names as DuckDB compares them, in the order of their last statements.
        indexes: Unique indexes, and the tables that they belong to.
    """

    tables: dict[_Folded, PublishedTable] = field(default_factory=dict)
    indexes: dict[_Folded, _Folded] = field(default_factory=dict)

    def constraint_beside_key(self, table: PublishedTable) -> str | None:
        """Return a constraint that could not be kept if each row were decided by itself, None without one."""
        name = table.name.folded
        if "UNIQUE" in table.words:
            return "a UNIQUE constraint"
        if table.parents or any(name in other.parents for other in self.tables.values()):
            return "a FOREIGN KEY"
        return "a UNIQUE index" if name in self.indexes.values() else None

    def apply(self, ddl: Ddl) -> None:
        """Follow a statement."""
        about = about_table(ddl)
        if about is not None and not about.is_drop:
            self._alter(ddl, about.table.folded)
        elif about is not None:
            self._drop(lambda table: table == ddl.object.folded)
        elif ddl.kind == "DROP SCHEMA":
            # The statement does not name the tables that it drops.
            self._drop(lambda table: table[0] == ddl.object.folded[1])
        elif ddl.kind == "CREATE TABLE" and ddl.layout is not None:
            self._drop(lambda table: table == ddl.object.folded)
            self._put(PublishedTable(ddl.object, ddl.layout), ddl)
        elif ddl.kind == "CREATE INDEX":
            self._index(ddl)
        elif ddl.kind == "DROP INDEX":
            self.indexes.pop(ddl.object.folded, None)

    def _alter(self, ddl: Ddl, before: _Folded) -> None:
        table = self.tables.pop(before, None)
        if table is not None and ddl.layout is not None:
            self._put(replace(table, name=ddl.object, layout=ddl.layout), ddl)

    def _put(self, table: PublishedTable, ddl: Ddl) -> None:
        words = table.words | {token.word for token in tokens(ddl.statement)}
        parents = table.parents | {parent.folded for parent in referred(ddl, table.name.schema)}
        self.tables[table.name.folded] = replace(table, words=words, parents=parents)

    def _drop(self, is_gone: Callable[[_Folded], bool]) -> None:
        self.tables = {name: table for name, table in self.tables.items() if not is_gone(name)}
        self.indexes = {index: table for index, table in self.indexes.items() if not is_gone(table)}

    def _index(self, ddl: Ddl) -> None:
        listed = tokens(ddl.statement)
        words = [token.word for token in listed]
        if "UNIQUE" in words[:2]:
            path, _ = path_at(listed, words.index("ON") + 1)
            # An index lies in the schema of its table.
            self.indexes[ddl.object.folded] = Name(ddl.object.schema, path[-1]).folded


def published_tables(database: FarmDatabase) -> PublishedTables:
    """Return the tables of a database, as far as they are published."""
    found = PublishedTables()
    ticks = database.snapshot_ticks()
    manifest = database.read_manifest(ticks[-1]) if ticks else None
    layouts = {table.table: table.layout for table in manifest.tables} if manifest else {}
    for ddl in (*manifest.schema, *manifest.schema_after) if manifest else ():
        found.apply(replace(ddl, layout=ddl.layout or layouts.get(ddl.object)))
    for number in database.batch_numbers(after=manifest.position.batch if manifest else 0):
        for each in database.read_batch(number)[0].transactions:
            for record in each.records:
                if isinstance(record, Ddl):
                    found.apply(record)
    return found

"""The objects of a database at one tick of its log, followed through the effects of each schema statement.

A fold begins with an empty database or with the statements of a snapshot. A rename also renames the parts of a table,
in foreign keys that refer to it, and in whole schemas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.farm.errors import CorruptError
from wlc.farm.model import (
    AlteredObject,
    Check,
    CreatedObject,
    Ddl,
    DroppedObject,
    Layout,
    Name,
    Reference,
    RenamedObject,
    Unique,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wlc.farm.model import ColumnStep, DbObject, DdlEffect, TableConstraint

# Kinds of objects other than tables that are types, or whose rows have a type.
_TYPES = frozenset({"TYPE", "DOMAIN", "VIEW", "MATERIALIZED VIEW"})
_TYPE = re.compile(r'("(?:[^"]|"")+"|[^".\[]+)\.("(?:[^"]|"")+"|[^".\[]+)((?:\[\])*)')


@dataclass(frozen=True, slots=True)
class FoldedTable:
    """A table after some statements.

    Attributes:
        columns: Names of its columns, in their order.
        key: Columns of the primary key; empty without one.
        constraints: All others but NOT NULL, see `ordered`.
        parents: Tables that it inherits from or is a partition of.
        layout: The layout in the last statement about it, None without one; columns may have been renamed since.
    """

    name: Name
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    constraints: tuple[TableConstraint, ...] = ()
    parents: tuple[Name, ...] = ()
    layout: Layout | None = None


@dataclass(frozen=True, slots=True)
class FoldedIndex:
    """An index of a table; `unique` holds the columns of a unique one, None for an expression, and is else empty."""

    of: Name
    unique: tuple[str | None, ...] = ()


@dataclass(slots=True)
class SchemaFold:
    """The objects of a database after some statements.

    Attributes:
        tables: By name, in the order of their last changes.
        indexes: By name.
        others: All other objects, each with the table that it belongs to, if any.
    """

    tables: dict[Name, FoldedTable] = field(default_factory=dict)
    indexes: dict[Name, FoldedIndex] = field(default_factory=dict)
    others: set[tuple[DbObject, Name | None]] = field(default_factory=set)

    def apply(self, ddl: Ddl) -> None:
        """Follow a statement.

        Raises:
            CorruptError: The stated effects are impossible: the table does not exist, or has other columns.
        """
        for effect in ddl.does:
            self._follow(effect, ddl)
        table = self.tables.get(ddl.object)
        if ddl.layout is not None and table is not None and about_tables(ddl):
            # A formerly generated column of PostgreSQL has its place in the layout.
            columns = column_names(ddl.layout)
            if (sorted(table.columns), table.key) != (sorted(columns), ddl.layout.primary_key):
                raise _contradiction(ddl, _described(table))
            self.tables[ddl.object] = replace(table, columns=columns, layout=ddl.layout)

    def references_to(self, table: Name) -> Iterator[Name]:
        """Yield the tables with a foreign key to a table; it may be among them."""
        for other in self.tables.values():
            if any(isinstance(found, Reference) and found.to == table for found in other.constraints):
                yield other.name

    def _follow(self, effect: DdlEffect, ddl: Ddl) -> None:
        match effect:
            case CreatedObject():
                self._create(effect, ddl)
            case DroppedObject(found, of):
                self._drop(found, of)
            case RenamedObject(found, to) if found.kind == "SCHEMA":
                self._rename(found, to, None)
                self._rename_schema(found.name.name, to.name)
            case RenamedObject(found, to) if found.kind == "TABLE":
                self._find(found.name, ddl)
                self._rename_table(found.name, to)
            case RenamedObject(found, to, of):
                self._rename(found, to, of)
            case AlteredObject(found) if found.kind == "TABLE":
                self._alter(effect, ddl)

    def _find(self, name: Name, ddl: Ddl) -> FoldedTable:
        if name not in self.tables:
            raise _contradiction(ddl, f"there is no table {name}")
        return self.tables[name]

    def _create(self, effect: CreatedObject, ddl: Ddl) -> None:
        name = effect.object.name
        if effect.object.kind == "TABLE":
            self._drop_table(name)
            self.tables[name] = _created(effect, ddl)
        elif effect.object.kind == "INDEX" and effect.of is not None:
            self.indexes[name] = FoldedIndex(effect.of, effect.unique)
        else:
            self.others.add((effect.object, effect.of))

    def _drop(self, found: DbObject, of: Name | None) -> None:
        if found.kind == "TABLE":
            self._drop_table(found.name)
        elif found.kind == "INDEX":
            self.indexes.pop(found.name, None)
        else:
            self.others.discard((found, of))
            if found.kind == "DOMAIN":
                self.others = {(part, of) for part, of in self.others if of != found.name}

    def _drop_table(self, name: Name) -> None:
        if self.tables.pop(name, None) is not None:
            self.indexes = {index: found for index, found in self.indexes.items() if found.of != name}
            self.others = {(found, of) for found, of in self.others if of != name}

    def _rename_table(self, old: Name, new: Name) -> None:
        self._carry(old, new)
        self.tables[new] = self.tables.pop(new)

    def _carry(self, old: Name, new: Name) -> None:
        """Rename a table or type, with the parts that belong to it in its schema."""

        def owner(name: Name) -> Name:
            return new if name == old else name

        self._move(owner, lambda name, of: Name(new.schema, name.name) if of == old else name)

    def _rename_schema(self, old: str, new: str) -> None:
        def moved(name: Name) -> Name:
            return Name(new, name.name) if name.schema == old else name

        self._move(moved, lambda name, _: moved(name))

    def _move(self, table: Callable[[Name], Name], other: Callable[[Name, Name | None], Name]) -> None:
        """Give tables other names, and other objects, given their names and those of the tables they belong to."""
        tables = (_moved(found, table) for found in self.tables.values())
        self.tables = {found.name: found for found in tables}
        self.indexes = {
            other(name, found.of): replace(found, of=table(found.of)) for name, found in self.indexes.items()
        }
        self.others = {
            (found if found.kind == "SCHEMA" else _named(found, other(found.name, of), table), of and table(of))
            for found, of in self.others
        }

    def _rename(self, found: DbObject, to: Name, of: Name | None) -> None:
        if found.kind == "INDEX":
            if found.name in self.indexes:
                self.indexes[to] = self.indexes.pop(found.name)
        elif (found, of) in self.others:
            self.others.remove((found, of))
            self.others.add((replace(found, name=to), of))
            if found.kind in _TYPES:
                self._carry(found.name, to)

    def _alter(self, effect: AlteredObject, ddl: Ddl) -> None:
        name = effect.object.name
        table = altered(self._find(name, ddl), effect.columns)
        if table is None:
            raise _contradiction(ddl, _described(self.tables[name]))
        del self.tables[name]
        self.tables[name] = replace(
            table,
            key=table.key if effect.key is None else effect.key,
            constraints=table.constraints if effect.constraints is None else ordered(effect.constraints),
            parents=table.parents if effect.parents is None else effect.parents,
        )
        new_names = {old: new for old, new in effect.columns if old and new and old != new}
        if new_names:
            self.tables = {found: _keys_renamed(each, name, new_names) for found, each in self.tables.items()}
            self.indexes = {
                index: replace(found, unique=tuple(new_names.get(c, c) if c else c for c in found.unique))
                if found.of == name
                else found
                for index, found in self.indexes.items()
            }


def folded(statements: Iterable[Ddl]) -> SchemaFold:
    """Return the objects after running statements on an empty database, such as those of a snapshot.

    Raises:
        CorruptError: They contradict each other.
    """
    fold = SchemaFold()
    for ddl in statements:
        fold.apply(ddl)
    return fold


def about_tables(ddl: Ddl) -> bool:
    """Say whether a statement creates, renames or alters a table, which then has the name of the statement's object."""
    names = (effect.to if isinstance(effect, RenamedObject) else effect.object.name for effect in table_effects(ddl))
    return ddl.object in names


def table_effects(ddl: Ddl) -> Iterator[DdlEffect]:
    """Yield a statement's effects on tables, in order."""
    return (effect for effect in ddl.does if effect.object.kind == "TABLE")


@dataclass(frozen=True, slots=True)
class TableNames:
    """Names of a table before and after a statement, None if it does not exist then.

    A created table may replace one of the same name.
    """

    before: Name | None
    after: Name | None
    is_created: bool = False

    @property
    def is_renamed(self) -> bool:
        """Whether the table is there before and after, under different names."""
        return None not in (self.before, self.after) and self.before != self.after

    @property
    def both(self) -> tuple[Name, ...]:
        """Both names without None and repetition."""
        return tuple(dict.fromkeys(name for name in (self.before, self.after) if name is not None))


def table_names(ddl: Ddl) -> list[TableNames]:
    """Return the tables that a statement creates, drops, renames or alters, its own object first."""
    found: list[TableNames] = []
    for effect in table_effects(ddl):
        name = effect.object.name
        known = next((names for names in found if names.after == name), TableNames(name, name))
        match effect:
            case CreatedObject(replaces=replaces):
                now = TableNames(name if replaces else None, name, is_created=True)
            case DroppedObject():
                now = replace(known, after=None)
            case RenamedObject(_, to):
                now = replace(known, after=to)
            case _:
                now = known
        if known in found:
            found[found.index(known)] = now
        else:
            found.append(now)
    return found


def touched_tables(ddl: Ddl) -> set[Name]:
    """Return all names, before and after a statement, of the tables that it creates, drops, renames or alters."""
    return {name for table in table_names(ddl) for name in table.both}


def is_aside(effect: DdlEffect) -> bool:
    """Say whether a statement changes only properties that affect no rows, such as a comment."""
    return effect == AlteredObject(effect.object, effect.of)


def created_table(ddl: Ddl) -> Name | None:
    """Return the table that a statement creates, None if it creates none."""
    made = (effect.object.name for effect in table_effects(ddl) if isinstance(effect, CreatedObject))
    return next(made, None)


def column_names(layout: Layout) -> tuple[str, ...]:
    """Return the names of a table's columns, in their order."""
    return tuple(column.name for column in layout.columns)


def ordered(constraints: Iterable[TableConstraint]) -> tuple[TableConstraint, ...]:
    """Return constraints in a canonical order: catalogs list them in varying orders."""
    return tuple(sorted(constraints, key=repr))


def altered(table: FoldedTable, steps: Iterable[ColumnStep]) -> FoldedTable | None:
    """Return a table after its columns were altered, None if it has no such columns.

    A primary key keeps its columns under their new names, and so do constraints.
    """
    for old, new in steps:
        columns = list(table.columns)
        if old is not None and old not in columns:
            return None
        if old is None and new is not None:
            columns.append(new)
        elif old is not None and new is None:
            columns.remove(old)
        elif old is not None and new is not None:
            columns[columns.index(old)] = new
            table = _column_renamed(table, {old: new})
        if len(set(columns)) < len(columns):
            return None
        table = replace(table, columns=tuple(columns))
    return table


def _created(effect: CreatedObject, ddl: Ddl) -> FoldedTable:
    name = effect.object.name
    said = name == ddl.object and ddl.layout is not None
    columns = column_names(ddl.layout) if said and ddl.layout else tuple(new for _, new in effect.columns if new)
    key = ddl.layout.primary_key if said and ddl.layout else effect.key or ()
    return FoldedTable(name, columns, key, ordered(effect.constraints), effect.parents)


def _moved(table: FoldedTable, moved: Callable[[Name], Name]) -> FoldedTable:
    constraints = (
        replace(found, to=moved(found.to)) if isinstance(found, Reference) else found for found in table.constraints
    )
    return replace(
        table, name=moved(table.name), constraints=ordered(constraints), parents=tuple(map(moved, table.parents))
    )


def _named(found: DbObject, name: Name, moved: Callable[[Name], Name]) -> DbObject:
    """Rename an object, and the tables and types among a routine's argument types."""
    arguments = found.arguments and tuple(_argument(text, moved) for text in found.arguments)
    return replace(found, name=name, arguments=arguments)


def _argument(text: str, moved: Callable[[Name], Name]) -> str:
    parts = _TYPE.fullmatch(text)
    if not parts:
        return text
    name = Name(*(part.strip('"').replace('""', '"') for part in parts.groups()[:2]))
    new = moved(name)
    return text if new == name else f"{_identifier(new.schema)}.{_identifier(new.name)}{parts[3]}"


def _identifier(name: str) -> str:
    """Write a name as PostgreSQL does; key words aside, which are seldom names of types."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"{}"'.format(name.replace('"', '""'))


def _column_renamed(table: FoldedTable, names: dict[str, str]) -> FoldedTable:
    def renamed(columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(column, column) for column in columns)

    def constraint(found: TableConstraint) -> TableConstraint:
        match found:
            case Unique(columns):
                return Unique(renamed(columns))
            case Check(columns):
                return replace(found, columns=renamed(columns))
            case Reference(columns):
                return replace(found, columns=renamed(columns))

    return replace(table, key=renamed(table.key), constraints=ordered(map(constraint, table.constraints)))


def _keys_renamed(table: FoldedTable, parent: Name, names: dict[str, str]) -> FoldedTable:
    """Rename a table's columns in foreign keys that refer to them."""
    constraints = (
        replace(found, keys=tuple(names.get(column, column) for column in found.keys))
        if isinstance(found, Reference) and found.to == parent
        else found
        for found in table.constraints
    )
    return replace(table, constraints=ordered(constraints))


def _described(table: FoldedTable) -> str:
    return f"table {table.name} has the columns {', '.join(table.columns)} and the key {', '.join(table.key) or 'none'}"


def _contradiction(ddl: Ddl, problem: str) -> CorruptError:
    return CorruptError(f"{ddl.kind} {ddl.object} cannot have done what it says: {problem}")

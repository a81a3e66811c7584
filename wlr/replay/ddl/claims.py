"""What schema statements say that they did, compared with the catalog of the replica that ran them.

Guards, filters and routing act on what the log says. A log file can be well sealed and say something else than its
statements do: such a step fails, and nothing of it stays.

What a DuckDB catalog shows, to compare it with what statements say that they did.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import catalog as catalogs
from wlc.dialect.duckdb.catalog import OWNED, USER
from wlc.dialect.duckdb.constraints import (
    UNIQUE_EXPRESSIONS,
    as_constraints,
    layout_of,
    listed_constraints,
    unique_columns,
)
from wlc.farm.errors import CorruptError
from wlc.farm.model import AlteredObject, Check, CreatedObject, DbObject, DroppedObject, Name, Reference, RenamedObject
from wlc.farm.schema_fold import FoldedIndex, FoldedTable, SchemaFold, column_names
from wlr.replay.ddl.running import short
from wlr.replay.plan.failure import ContradictionError
from wlr.replay.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import duckdb

    from wlc.farm.model import Ddl, DdlEffect, Layout, TableConstraint


_LISTS = ("key", "constraints", "parents")
# An object, what is said of it, and what is shown instead.
_Difference = tuple[Name, str, str]


@dataclass(frozen=True, slots=True)
class ShownCatalog:
    """What a catalog shows at one moment.

    Attributes:
        schema: All tables and indexes, and the objects of `kinds`.
        ids: Of each table what stays when it is altered or renamed.
        definitions: Of each table a text that is another one if the table was changed; may be empty.
        kinds: Kinds of other objects.
        values: Those of each enum.
        may_lack: The engine leaves out keys, constraints, indexes and parents that have no counterpart there.
    """

    schema: SchemaFold
    ids: Mapping[Name, int]
    definitions: Mapping[Name, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    values: Mapping[Name, frozenset[str]] = field(default_factory=dict)
    may_lack: bool = False

    def distinguishing(self, tables: Collection[Name]) -> dict[Name, tuple[object, ...]]:
        """Return what tells each of some tables from a changed one."""
        return {name: (self.ids[name], self.definitions.get(name)) for name in tables}


def _same(name: Name) -> Name:
    return name


# An empty database.
NOTHING = ShownCatalog(SchemaFold(), {})


@dataclass(frozen=True, slots=True)
class Claims:
    """Compares a catalog with what statements say that they did.

    Attributes:
        before: The catalog before them.
        patterns: Of the tables that are replicated; empty for all.
        is_whole: No transaction was skipped.
        place: Returns the replica's name for an object of the master.
    """

    before: ShownCatalog
    patterns: Collection[str] = ()
    is_whole: bool = True
    place: Callable[[Name], Name] = _same

    def refuse_contradiction(
        self, statements: Sequence[Ddl], after: ShownCatalog, made_anew: Collection[Name] = ()
    ) -> None:
        """Refuse statements that did something else than they say.

        Args:
            statements: In their order; without any, nothing is compared.
            after: The catalog after them.
            made_anew: Tables that were created again, and are the same ones to the master.

        Raises:
            ContradictionError: They did.
        """
        for name, said, shown in self._differences(statements, after, made_anew) if statements else ():
            about = [
                ddl for ddl in statements if any(name in map(self.place, _named(effect)) for effect in ddl.does)
            ] or statements
            which, text = f"{about[-1].kind} {about[-1].object}", short(about[-1].original or about[-1].statement)
            cause = f"the farm says of {which} that {said}, and the catalog says that {shown}: {text}"
            raise ContradictionError(cause, table=str(name))

    def _differences(
        self, statements: Sequence[Ddl], after: ShownCatalog, made_anew: Collection[Name]
    ) -> Iterator[_Difference]:
        told = _Told.of(self.before)
        for ddl in statements:
            placed: list[DdlEffect] = []
            for effect in ddl.does:
                if self._is_judged(effect, told.ids, after):
                    placed.append(_placed(effect, self.place))
                    yield from self._replacement(placed[-1], told.ids)
                    told.follow(placed[-1])
            try:
                told.schema.apply(replace(ddl, object=self.place(ddl.object), does=tuple(placed)))
            except CorruptError as error:
                yield ddl.object, "it changed something else", error.message
                return
        for table in made_anew:
            if told.ids.get(table) is not None:
                told.ids[table], told.lists[table] = after.ids.get(table), {*_LISTS}
        yield from _tables(self.before, told, after)
        yield from _indexes(self.before.schema, told.schema, after)
        yield from _others(self.before, told.schema, after)
        yield from _enums(told, after)

    def _is_judged(self, effect: DdlEffect, present: Collection[Name], after: ShownCatalog) -> bool:
        """Say whether an effect is about what the replica has: the log tells about all tables."""
        is_table = effect.object.kind == "TABLE"
        table = effect.object.name if is_table else effect.of
        if table is None or not self.patterns or self.place(table) in present:
            return True
        is_made = is_table and isinstance(effect, CreatedObject)
        return is_made and (matches(table, self.patterns) or self.place(table) in after.ids)

    def _replacement(self, effect: DdlEffect, present: Collection[Name]) -> Iterator[_Difference]:
        """Yield a table that was created in the place of another one, or of none, and is not said to be."""
        if not isinstance(effect, CreatedObject) or effect.object.kind != "TABLE":
            return
        name = effect.object.name
        if name in present and not effect.replaces:
            yield name, f"it created table {name}", "it replaced it"
        if effect.replaces and name not in present and self.is_whole and not self.patterns:
            yield name, f"it replaced table {name}", "there was none"


@dataclass(slots=True)
class _Told:
    """What there should be after statements.

    Attributes:
        schema: All objects.
        ids: Of each table its id; None if it is a new one.
        values: Of each enum that was there before its values.
        steps: Of each altered table the columns that are said to be dropped, renamed or redefined, by former names.
        lists: Of each table what statements list anew: "key", "constraints", "parents".
    """

    schema: SchemaFold
    ids: dict[Name, int | None]
    values: dict[Name, frozenset[str]]
    steps: dict[Name, set[str | None]] = field(default_factory=dict)
    lists: dict[Name, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, before: ShownCatalog) -> _Told:
        schema = before.schema
        copied = SchemaFold(dict(schema.tables), dict(schema.indexes), set(schema.others))
        return cls(copied, {**before.ids}, {**before.values})

    def follow(self, effect: DdlEffect) -> None:
        """Follow what happens to tables, whatever their columns are."""
        name = effect.object.name
        match effect:
            case RenamedObject(found, to) if found.kind == "SCHEMA":
                self._move(lambda old: replace(old, schema=to.name) if old.schema == name.name else old)
            case RenamedObject(found, to) if found.kind in ("TABLE", "TYPE"):
                self._move(lambda old: to if old == name else old)
            case CreatedObject(found) if found.kind == "TABLE":
                self.ids[name], self.lists[name] = None, {*_LISTS}
            case DroppedObject(found) if found.kind == "TABLE":
                self.ids.pop(name, None)
            case AlteredObject(found, columns=columns) if found.kind == "TABLE":
                self.steps.setdefault(name, set()).update(old for old, _ in columns)
                listed = {what for what in _LISTS if getattr(effect, what) is not None}
                self.lists.setdefault(name, set()).update(listed)
            case AlteredObject(values=values) if name in self.values:
                gone, new = {old for old, _ in values if old}, {new for _, new in values if new}
                self.values[name] = (self.values[name] - gone) | new
            case CreatedObject(found) | DroppedObject(found) if found.kind == "TYPE":
                self.values.pop(name, None)

    def _move(self, moved: Callable[[Name], Name]) -> None:
        """Give tables and enums other names; they have different ones."""
        self.ids = {moved(name): number for name, number in self.ids.items()}
        self.values = {moved(name): values for name, values in self.values.items()}
        self.steps = {moved(name): steps for name, steps in self.steps.items()}
        self.lists = {moved(name): lists for name, lists in self.lists.items()}


def _named(effect: DdlEffect) -> tuple[Name, ...]:
    return (effect.object.name, *((effect.to,) if isinstance(effect, RenamedObject) else ()))


def _placed(effect: DdlEffect, place: Callable[[Name], Name]) -> DdlEffect:
    """Return an effect with the replica's names."""
    found, of = replace(effect.object, name=place(effect.object.name)), effect.of and place(effect.of)
    match effect:
        case DroppedObject():
            return DroppedObject(found, of)
        case RenamedObject(_, to):
            return RenamedObject(found, place(to), of)
        case CreatedObject(constraints=constraints, parents=parents):
            listed = _placed_constraints(constraints, place)
            return replace(effect, object=found, of=of, constraints=listed, parents=tuple(map(place, parents)))
        case AlteredObject(constraints=constraints, parents=parents):
            changed = None if constraints is None else _placed_constraints(constraints, place)
            above = None if parents is None else tuple(map(place, parents))
            return replace(effect, object=found, of=of, constraints=changed, parents=above)


def _placed_constraints(
    constraints: Iterable[TableConstraint], place: Callable[[Name], Name]
) -> tuple[TableConstraint, ...]:
    return tuple(replace(each, to=place(each.to)) if isinstance(each, Reference) else each for each in constraints)


# What differs --------------------------------------------------------------------------------------------------------


def _tables(before: ShownCatalog, told: _Told, after: ShownCatalog) -> Iterator[_Difference]:
    names = {number: name for name, number in before.ids.items()}
    for name in sorted(told.ids.keys() | after.ids.keys()):
        number, found = told.ids.get(name), after.ids.get(name)
        if name not in told.ids:
            yield name, f"there is no table {name}", "it is there"
        elif found is None:
            yield name, f"table {name} is there", "it is not"
        elif number is None:
            if found in names:
                yield name, f"table {name} is new", f"it is table {names[found]} that was there before"
            yield from _different(told, name, after)
        elif number != found:
            yield name, f"table {name} is the one that was there", "it is another one"
        else:
            was = names.get(number, name)
            is_changed = name != was or name in told.steps or told.schema.tables[name] != before.schema.tables[was]
            is_same = before.definitions.get(was) == after.definitions.get(name)
            if not is_changed and is_same and before.schema.tables[was] == after.schema.tables[name]:
                continue
            yield from _different(told, name, after)
            if not is_changed and not is_same:
                yield name, f"table {name} is as it was", "it was altered"
            yield from _redefined(before.schema.tables[was].layout, told, after.schema.tables[name])


def _different(told: _Told, name: Name, after: ShownCatalog) -> Iterator[_Difference]:
    """Yield how a table differs."""
    said, found = told.schema.tables[name], after.schema.tables[name]
    compared: list[tuple[str, Sequence[object], Sequence[object]]] = [
        ("columns", sorted(said.columns), sorted(found.columns)),
        ("key", said.key, found.key),
        ("constraints", _forms(said.constraints), _forms(found.constraints)),
        ("parents", [parent for parent in said.parents if parent in after.ids], found.parents),
    ]
    if said.layout is not None and found.layout is not None:
        compared.append(("columns", _shape(said.layout), _shape(found.layout)))
    for what, wanted, shown in compared:
        may_lack = after.may_lack and what in told.lists.get(name, ())
        if [*wanted] != [*shown] and not (may_lack and {*shown} <= {*wanted}):
            yield name, f"table {name} has the {what} {_listed(wanted)}", f"it has {_listed(shown)}"


def _redefined(old: Layout | None, told: _Told, found: FoldedTable) -> Iterator[_Difference]:
    """Yield a column that has another type, although it is not said to be redefined."""
    steps = told.steps.get(found.name, ())
    types = {column.name: column.type for column in found.layout.columns} if found.layout else {}
    for column in old.columns if old else ():
        if column.name not in steps and types.get(column.name, column.type) != column.type:
            is_now = f"its type is {types[column.name]}"
            yield found.name, f"column {column.name} of table {found.name} has the type {column.type}", is_now


def _indexes(before: SchemaFold, told: SchemaFold, after: ShownCatalog) -> Iterator[_Difference]:
    found = after.schema.indexes
    for name in sorted(told.indexes.keys() | found.keys()):
        said, shown = told.indexes.get(name), found.get(name)
        if said is None:
            # PostgreSQL keeps one that its master has attached to an index of a partitioned table.
            if not (after.may_lack and name in before.indexes):
                yield name, f"there is no index {name}", "it is there"
        elif shown is None and not after.may_lack:
            yield name, f"index {name} is there", "it is not"
        elif shown is not None and said != shown:
            yield name, f"index {name} is {_index(said)}", f"it is {_index(shown)}"


def _others(before: ShownCatalog, told: SchemaFold, after: ShownCatalog) -> Iterator[_Difference]:
    """Yield other objects that should or should not be there; one may go with another one that is dropped."""
    said, found, was = (
        {o for o, _ in each.others if o.kind in after.kinds} for each in (told, after.schema, before.schema)
    )
    for each in sorted(found - said):
        yield each.name, f"there is no {each.kind.lower()} {each.name}", "it is there"
    for each in sorted(said - found - was):
        yield each.name, f"{each.kind.lower()} {each.name} is there", "it is not"


def _enums(told: _Told, after: ShownCatalog) -> Iterator[_Difference]:
    for name, values in told.values.items():
        found = after.values.get(name, values)
        if found != values:
            yield name, f"type {name} has the values {_listed(sorted(values))}", f"it has {_listed(sorted(found))}"


def _forms(constraints: Sequence[TableConstraint]) -> list[str]:
    """Return constraints in the same form for all versions of engines, which write expressions differently."""
    return sorted(
        str(replace(each, sql="", columns=tuple(sorted(each.columns))) if isinstance(each, Check) else each)
        for each in constraints
    )


def _shape(layout: Layout) -> list[str]:
    return [f"{name} {kind}" for name, kind in layout.shape]


def _index(index: FoldedIndex) -> str:
    columns = _listed([column or "(expression)" for column in index.unique])
    return f"one of table {index.of}{f', unique in {columns}' if index.unique else ''}"


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"


# Macros are missing: DuckDB lists its own functions with them, which takes longer than all the rest.
_KINDS = frozenset({"SCHEMA", "VIEW", "SEQUENCE", "TYPE"})
_SHOWN = f"""
    SELECT 'TABLE', schema_name, table_name, table_oid, sql, NULL AS above, NULL AS parts
        FROM duckdb_tables() WHERE {USER} AND NOT temporary
    UNION ALL SELECT 'INDEX', schema_name, index_name, NULL, NULL, table_name, {UNIQUE_EXPRESSIONS}
        FROM duckdb_indexes() WHERE {OWNED}
    UNION ALL SELECT 'SCHEMA', schema_name, schema_name, NULL, NULL, parent_schema, NULL FROM duckdb_schemas()
        WHERE {USER} AND (schema_name <> 'main' OR parent_schema IS NOT NULL)
    UNION ALL SELECT 'VIEW', schema_name, view_name, NULL, NULL, NULL, NULL FROM duckdb_views()
        WHERE {USER} AND NOT temporary
    UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name, NULL, NULL, NULL, NULL FROM duckdb_sequences()
        WHERE {OWNED} AND NOT temporary
    UNION ALL SELECT 'TYPE', schema_name, type_name, NULL, NULL, NULL, labels FROM duckdb_types() WHERE {USER}
"""


def shown(connection: duckdb.DuckDBPyConnection, catalog: str) -> ShownCatalog:
    """Return what a database contains, but for macros and triggers; tables are ordered by name.

    Raises:
        UnsupportedError: A schema lies inside another one.
    """
    found = catalogs.rows(connection, catalog, _SHOWN)
    if any(kind == "SCHEMA" and parent is not None for kind, _, _, _, _, parent, _ in found):
        catalogs.refuse_nested_schemas(connection, catalog)
    ids = {Name(schema, own): oid for kind, schema, own, oid, *_ in found if kind == "TABLE"}
    ids = {name: ids[name] for name in sorted(ids)}
    columns = catalogs.by_table(catalogs.columns_of(connection, catalog, ids))
    listed = listed_constraints(connection, catalog)
    layouts = {name: layout_of(columns[name], listed.get(name, ())) for name in ids}
    fold, values = SchemaFold(), {}
    for name, layout in layouts.items():
        constraints = as_constraints(listed.get(name), name, layouts)
        fold.tables[name] = FoldedTable(name, column_names(layout), layout.primary_key, constraints, layout=layout)
    for kind, schema, own, _, _, table, parts in found:
        name = Name(schema, own)
        if kind == "INDEX":
            of = Name(schema, table)
            fold.indexes[name] = FoldedIndex(of, unique_columns(parts, layouts.get(of)))
        elif kind != "TABLE":
            fold.others.add((DbObject(kind, name), None))
            if parts is not None:
                values[name] = frozenset(parts)
    definitions = {Name(schema, own): sql for kind, schema, own, _, sql, _, _ in found if kind == "TABLE"}
    return ShownCatalog(fold, ids, definitions, _KINDS, values)

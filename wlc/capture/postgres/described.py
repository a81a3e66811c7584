"""Tables of a PostgreSQL master as its event triggers describe them, see `wlc.describe` in functions.sql."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wlc.capture.postgres.types import duckdb_type
from wlc.farm.model import Column, Layout, Name

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTITIONED = "p"


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    """A column, with the server's texts.

    Attributes:
        number: `attnum`, which stays when the column is renamed.
        type: As the server writes it.
        declared: Number of the type and its modifier, which stay when the type is renamed.
        base: The same with domains resolved.
        shape: Further dependencies of a value's text: labels of enums, attributes of composite types. Only
            functions.sql reads it.
        generated: Expression of a generated column.
        expression: The same in a form that is independent of columns' names.
        is_inherited: A parent has it, too.
        identity: "a" (ALWAYS) or "d" (BY DEFAULT).
        identity_options: Options of the identity's sequence.
        collation: Where it is not that of the type.
        missing: Value in rows that are older than the column.
    """

    number: int
    name: str
    type: str
    declared: tuple[int, int]
    base: str
    shape: object
    nullable: bool
    default: str | None
    generated: str | None
    expression: str | None
    is_inherited: bool
    identity: str | None
    identity_options: str | None
    collation: str | None
    missing: str | None


class Parent(NamedTuple):
    """The table that a table inherits from, or the partitioned table that it is a part of."""

    oid: int
    schema: str
    name: str

    @property
    def qualified(self) -> Name:
        """Its qualified name."""
        return Name(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class DescribedConstraint:
    """A constraint.

    Attributes:
        oid: Stays when the constraint is renamed, validated, or written otherwise because of other names.
        type: Letter of `pg_constraint.contype`.
        is_inherited: A parent has it, too: it cannot be dropped here.
        is_local: The table has it by itself.
        columns: Numbers of the columns that it is about.
        to: The table to which a foreign key refers.
        keys: Numbers of the columns of that table to which it refers.
        key_names: Their names, by number.
    """

    oid: int
    type: str
    definition: str
    is_inherited: bool
    is_local: bool
    columns: tuple[int, ...] = ()
    to: Parent | None = None
    keys: tuple[int, ...] = ()
    key_names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> DescribedConstraint:
        """Read what an event trigger wrote, or `DescribedTable.json`."""
        to = None if content["to"] is None else Parent(*content["to"])
        numbers = {name: tuple(content[name]) for name in ("columns", "keys")}
        return cls(**{**content, **numbers, "to": to})

    @property
    def is_checked(self) -> bool:
        """Whether all rows satisfy it. Other rows could not be written to a replica with the constraint."""
        return self.is_foreign_key or not self.definition.endswith(" NOT VALID")

    def is_same(self, other: DescribedConstraint) -> bool:
        """Say whether it equals an earlier description. A constraint whose enforcement changed is rebuilt."""
        return self.oid == other.oid and self._is_enforced == other._is_enforced

    @property
    def _is_enforced(self) -> bool:
        return not self.definition.endswith(" NOT ENFORCED")

    @property
    def is_foreign_key(self) -> bool:
        """Whether it refers to another table."""
        return self.type == "f"

    @property
    def is_primary_key(self) -> bool:
        """Whether it is the table's primary key."""
        return self.type == "p"

    @property
    def check(self) -> str:
        """Expression of a CHECK constraint."""
        return self.definition[len("CHECK (") : self.definition.rindex(")")]


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """Everything about a table that a replica needs.

    Attributes:
        kind: `pg_class.relkind`.
        key: Columns of the primary key, in its order.
        partition_key: Of a partitioned table.
        bound: Rows of a partition.
    """

    oid: int
    schema: str
    name: str
    kind: str
    columns: tuple[DescribedColumn, ...]
    key: tuple[str, ...]
    constraints: Mapping[str, DescribedConstraint]
    partition_key: str | None
    bound: str | None
    parents: tuple[Parent, ...]

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> DescribedTable:
        """Read what an event trigger wrote, or `json`."""
        constraints = {name: DescribedConstraint.read(found) for name, found in content["constraints"].items()}
        parts = {
            "columns": tuple(
                DescribedColumn(**{**column, "declared": tuple(column["declared"])}) for column in content["columns"]
            ),
            "key": tuple(content["key"]),
            "constraints": constraints,
            "parents": tuple(Parent(*parent) for parent in content["parents"]),
        }
        return cls(**{**content, **parts})

    def json(self) -> str:
        """Return the description as an event trigger writes it."""
        return json.dumps(asdict(self))

    @property
    def qualified(self) -> Name:
        """Its qualified name."""
        return Name(self.schema, self.name)

    @property
    def held(self) -> dict[str, DescribedConstraint]:
        """The constraints that a replica has."""
        return {name: constraint for name, constraint in self.constraints.items() if constraint.is_checked}

    @property
    def stored(self) -> dict[int, DescribedColumn]:
        """The columns that are not generated, by number."""
        return {column.number: column for column in self.columns if column.generated is None}

    @property
    def is_root(self) -> bool:
        """Whether it is partitioned: it has no rows of its own."""
        return self.kind == _PARTITIONED

    @property
    def layout(self) -> Layout:
        """Its layout in the farm, which has no generated columns."""
        stored = list(self.stored.values())
        # The farm identifies rows by stored columns, so a key with a generated column is unsuitable.
        key = self.key if set(self.key) <= {column.name for column in stored} else ()
        columns = (Column(c.name, duckdb_type(c.base), nullable=c.name not in key) for c in stored)
        return Layout(tuple(columns), key)

    def has_other_rows(self, old: DescribedTable) -> bool:
        """Say whether, since an older description, it lost a column or got one with a value in all its rows."""
        before, after = old.stored.keys(), self.stored.keys()
        has_more = any(column.number not in before and column.missing is not None for column in self.columns)
        return not self.is_root and (has_more or bool(before - after))

    def has_retyped(self, old: DescribedTable) -> bool:
        """Say whether a column has another type than in an older description."""
        before = {column.number: column.declared for column in old.columns}
        return any(before.get(column.number, column.declared) != column.declared for column in self.columns)

    def with_names_of(self, other: DescribedTable) -> DescribedTable:
        """Return the table with the names that other tables have in another description."""
        named = {found.oid: found for found in other.constraints.values()}
        parents = {parent.oid: parent for parent in other.parents}

        def constraint(found: DescribedConstraint) -> DescribedConstraint:
            same = named.get(found.oid, found)
            return replace(found, to=same.to, key_names=same.key_names)

        return replace(
            self,
            constraints={name: constraint(found) for name, found in self.constraints.items()},
            parents=tuple(parents.get(parent.oid, parent) for parent in self.parents),
        )

    def worded_as(self, other: DescribedTable, number: int) -> dict[str, DescribedConstraint]:
        """Return the constraints, those about a column with the text that they have in another description."""
        texts = {found.oid: found.definition for found in other.constraints.values() if number in found.columns}
        return {
            name: replace(found, definition=texts.get(found.oid, found.definition))
            for name, found in self.constraints.items()
        }

    def with_column(self, changed: DescribedColumn) -> DescribedTable:
        """Return the table with another description of the column that has this number."""
        columns = (changed if column.number == changed.number else column for column in self.columns)
        return replace(self, columns=tuple(columns))

    def without_column(self, dropped: DescribedColumn) -> DescribedTable:
        """Return the table without a column."""
        return replace(self, columns=tuple(column for column in self.columns if column.number != dropped.number))


@dataclass(frozen=True, slots=True)
class DescribedObject:
    """An object that is no table.

    Attributes:
        kind: Such as "view".
        schema: Where it lies; its own name if it is a schema.
        name: Without the schema, and without the arguments of a function.
        identity: Qualified name as the server writes it, with the arguments of a function.
        definition: Statement that creates it; None if replicas cannot have it.
        parts: Its changeable parts, see `wlc.describe_object` in functions.sql.
    """

    kind: str
    schema: str
    name: str
    identity: str
    definition: str | None
    parts: Any

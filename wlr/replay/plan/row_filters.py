"""The row filters of a replica: rows, columns and values, from options or from the replica's state."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from wlc.farm import typed_names
from wlc.farm.errors import InvalidError
from wlc.farm.json_fields import Absent, JsonForm
from wlc.farm.json_records import form_of, null_for
from wlc.farm.model import Column, Layout, Name
from wlc.farm.names import TableName
from wlc.farm.typed_names import alike, tables_meant

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


HASH, NULL, CONSTANT, TRUNCATE = "hash", "null", "constant", "truncate"
_KINDS = "hash, null, constant:VALUE or truncate:N"
# Masks of text columns; the others fit any type.
_OF_TEXT = (HASH, TRUNCATE)
_TEXT = "VARCHAR"


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of a column, which replaces the master's values.

    Attributes:
        kind: "hash", "null", "constant" or "truncate".
        value: The constant, or the number of letters to keep; "" for the other kinds.
    """

    column: str
    kind: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.column} = {self.kind}{':' if self.kind in (CONSTANT, TRUNCATE) else ''}{self.value}"


def _as_mask(value: object) -> Mask:
    return Mask(*form_of(tuple[str, str, str]).read(value))


ListedMask = Annotated[Mask, JsonForm(_as_mask, lambda mask: [mask.column, mask.kind, mask.value])]


@dataclass(frozen=True, slots=True)
class TableFilter:
    """The filter of one table.

    Attributes:
        where: Condition of the rows; empty for all rows.
        columns: Columns; empty for all.
        masks: Masks of some columns.
    """

    table: TableName
    where: str = ""
    columns: tuple[str, ...] = ()
    masks: tuple[ListedMask, ...] = ()

    def __str__(self) -> str:
        parts = [f"where {self.where}"] if self.where else []
        parts += [f"columns {', '.join(self.columns)}"] if self.columns else []
        parts += [f"mask {mask}" for mask in self.masks]
        return f"{self.table}: {'; '.join(parts)}"

    def mask_of(self, column: str) -> Mask | None:
        """Return the mask of a column, None without one."""
        return next((mask for mask in self.masks if mask.column.lower() == column.lower()), None)

    def projected(self, layout: Layout) -> Layout:
        """Return the columns and key of the replica's table, given those of the master's.

        Only NOT NULL and the primary key stay: no defaults, no generated columns, no other constraints. A key stays if
        all of its columns are replicated, unmasked or hashed.

        Raises:
            InvalidError: The filter names a missing column, or a mask that does not fit its column.
        """
        self._refuse_absent(layout)
        kept = tuple(map(self._projected, self.kept(layout)))
        names = {column.name for column in kept}
        masks = {name: self.mask_of(name) for name in layout.primary_key}
        is_distinct = all(name in names and (mask is None or mask.kind == HASH) for name, mask in masks.items())
        return Layout(kept, layout.primary_key if is_distinct else ())

    def kept(self, layout: Layout) -> list[Column]:
        """Return the columns that the replica has, in the order of the master's table."""
        wanted = {name.lower() for name in self.columns}
        return [column for column in layout.stored if not wanted or column.name.lower() in wanted]

    def _projected(self, column: Column) -> Column:
        mask = self.mask_of(column.name)
        if mask is not None and mask.kind in _OF_TEXT and column.type != _TEXT:
            raise InvalidError(
                f"column {column.name} of {self.table} is of type {column.type}: {mask.kind} is for {_TEXT}",
                hint=f"--mask '{self.table}: {column.name} = null'",
            )
        is_null = mask is not None and mask.kind == NULL
        return Column(column.name, column.type, nullable=column.nullable or is_null)

    def _refuse_absent(self, layout: Layout) -> None:
        known = {column.name.lower() for column in layout.stored}
        for name in (*self.columns, *(mask.column for mask in self.masks)):
            if name.lower() not in known:
                near = alike(name.lower(), known)
                meant = f"did you mean {near[0]}? " if near else ""
                listed = ", ".join(f"{column.name} {column.type}" for column in layout.stored)
                raise InvalidError(f"table {self.table} has no column {name}", hint=f"{meant}Columns are: {listed}.")
        kept = {column.name.lower() for column in self.kept(layout)}
        if outside := next((mask.column for mask in self.masks if mask.column.lower() not in kept), None):
            message = f"column {outside} of {self.table} is masked, and not among the columns that are replicated"
            raise InvalidError(message, hint="Leave out its --mask, or name it in --columns.")


@dataclass(frozen=True, slots=True)
class RowFilters:
    """The filters of a replica's partly replicated tables.

    Attributes:
        tables: A filter for each of these tables.
        key_file: Path of the file with the key of hashes; "" without hashes.
        key_mark: Fingerprint of the key.
        changes: They replace the replica's filters of the tables that they name.
    """

    tables: tuple[TableFilter, ...] = ()
    key_file: str = ""
    key_mark: str = ""
    changes: Absent[bool] = False
    _by_name: dict[tuple[bytes, bytes], TableFilter] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {each.table.folded: each for each in self.tables})

    def __bool__(self) -> bool:
        return bool(self.tables)

    def of(self, table: Name) -> TableFilter | None:
        """Return the filter of a table, None if the replica has it whole."""
        return self._by_name.get(table.folded)

    def only(self, tables: Iterable[Name]) -> RowFilters:
        """Return the filters of some tables."""
        return replace(self, tables=tuple(found for name in tables if (found := self.of(name))))

    @property
    def hashes(self) -> bool:
        """Whether a column is hashed."""
        return any(mask.kind == HASH for each in self.tables for mask in each.masks)

    def projected(self, layouts: Mapping[Name, Layout]) -> dict[Name, Layout]:
        """Return the layouts of the replica's tables, given those of the master's."""
        found = {name: (self.of(name), layout) for name, layout in layouts.items()}
        return {name: chosen.projected(layout) if chosen else layout for name, (chosen, layout) in found.items()}

    def is_same(self, other: RowFilters) -> bool:
        """Return whether other filters are the same, comparing names case-insensitively."""
        return self.key_mark == other.key_mark and self._folded() == other._folded()

    def _folded(self) -> set[tuple[object, ...]]:
        return {
            (
                each.table.folded,
                each.where,
                frozenset(name.lower() for name in each.columns),
                frozenset((mask.column.lower(), mask.kind, mask.value) for mask in each.masks),
            )
            for each in self.tables
        }

    def named_as(self, tables: Iterable[Name]) -> RowFilters:
        """Return the filters with full names of tables.

        Raises:
            InvalidError: There is no such table.
        """
        known = {name.folded: name for name in tables}
        for each in self.tables:
            if each.table.folded not in known:
                message = f"there is no table {each.table} to choose rows or columns of"
                raise InvalidError(message, hint=tables_meant(str(each.table), known.values()))
        return replace(self, tables=tuple(replace(each, table=known[each.table.folded]) for each in self.tables))


EVERYTHING = RowFilters()
WrittenFilters = Annotated[RowFilters, null_for(EVERYTHING, lambda filters: not filters)]


# As options ----------------------------------------------------------------------------------------------------------


def row_filters(
    where: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    masks: Sequence[str] | None = None,
    mask_key: str | os.PathLike[str] | None = None,
    *,
    changes: bool = False,
) -> RowFilters | None:
    """Parse the options of filters; None without any. A key alone is a new path of the same key.

    Args:
        where: Conditions, as "orders: region = 'EU'".
        columns: Columns, as "users: id, name".
        masks: Masks, as "users: email = hash".
        mask_key: File with the key of hashes. It is not copied; its path is remembered.
        changes: Replace the replica's filters of the named tables, and rebuild only these tables.

    Raises:
        InvalidError: A text has another form, or names something twice.

    Examples:
        >>> filters = wlr.row_filters(where=["orders: id > 1"], masks=["orders: item = null"])
        >>> done = wlr.replicate("sales", into="masked.duckdb", filters=filters)
        >>> wlr.read("masked.duckdb", "orders").fetchall()
        [(2, None)]
    """
    if not where and not columns and not masks and mask_key is None:
        return None
    found: dict[tuple[bytes, bytes], TableFilter] = {}

    def known(table: Name) -> TableFilter:
        return found.get(table.folded, TableFilter(table))

    for text in where or ():
        table, condition = _parted(text, "--where", "orders: region = 'EU'")
        if known(table).where:
            raise InvalidError(f"--where names table {table} twice", hint="Join the conditions with AND.")
        found[table.folded] = replace(known(table), where=condition)
    for text in columns or ():
        table, listed = _parted(text, "--columns", "users: id, name")
        names = tuple(dict.fromkeys(_plain(name) for name in listed.split(",")))
        if known(table).columns or not all(names):
            hint = "Name each table once: --columns 'users: id, name'"
            raise InvalidError(f"--columns {text!r} is invalid", hint=hint)
        found[table.folded] = replace(known(table), columns=names)
    for text in masks or ():
        table, said = _parted(text, "--mask", "users: email = hash")
        mask = _mask(said, text)
        if known(table).mask_of(mask.column):
            message = f"--mask names column {mask.column} of {table} twice"
            raise InvalidError(message, hint="Give each column one mask.")
        found[table.folded] = replace(known(table), masks=(*known(table).masks, mask))
    return RowFilters(tuple(found.values()), os.fspath(mask_key) if mask_key is not None else "", changes=changes)


def _parted(text: str, option: str, example: str) -> tuple[Name, str]:
    table, colon, rest = text.partition(":")
    said = typed_names.parts(table.strip())
    if not colon or not rest.strip() or not 1 <= len(said) <= len(("schema", "table")):
        raise InvalidError(f"{option} {text!r} names no table", hint=f'{option} "{example}"')
    return Name(*said) if len(said) > 1 else Name(typed_names.MAIN, *said), rest.strip()


def _plain(name: str) -> str:
    said = typed_names.parts(name.strip())
    return said[0] if len(said) == 1 else name.strip()


def _mask(said: str, text: str) -> Mask:
    column, equals, rest = said.partition("=")
    kind, colon, value = rest.strip().partition(":")
    has_value = kind in (CONSTANT, TRUNCATE)
    is_number = value.isascii() and value.isdigit()
    if (
        not equals
        or not column.strip()
        or kind not in (HASH, NULL, CONSTANT, TRUNCATE)
        or has_value != bool(colon)
        or (kind == TRUNCATE and not is_number)
    ):
        raise InvalidError(f"--mask {text!r} is invalid", hint=f"A mask is {_KINDS}: --mask 'users: email = null'")
    return Mask(_plain(column), kind, value)

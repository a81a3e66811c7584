"""Tables and domains of a PostgreSQL master, without parts that the replica's server cannot create.

A default, a constraint, a collation or the key of a partitioned table may name an operator class, an operator, a
function or a collation that only the replica's owner can create. The table's rows need none of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from wlc.dialect.sql import quote
from wlc.farm.model import Name
from wlr.engine.postgres.permitted_ddl import depths, pieces, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_COLUMN_PARTS = ("COLLATE", "GENERATED", "DEFAULT", "NOT")
# Masters quote names.
_NAME = r'"(?:[^"]|"")+"'
_TABLE = rf"{_NAME}\.{_NAME}"
_CREATED = re.compile(rf"CREATE TABLE ({_TABLE}) \(.+", re.DOTALL)
# Names of types are in the server's spelling.
_TYPE = r"""((?:"(?:[^"]|"")+"|[\w$]+)\.(?:"(?:[^"]|"")+"|[\w$]+))"""
_DOMAIN = re.compile(rf"CREATE DOMAIN {_TYPE} AS .+", re.DOTALL)
_REDEFINED = re.compile(
    rf"ALTER (?:TABLE(?: ONLY)? ({_TABLE}) ALTER COLUMN ({_NAME})|DOMAIN {_TYPE}) (TYPE|(?:SET|DROP) DEFAULT)(?: .*)?",
    re.DOTALL,
)
_ADDED = re.compile(rf"ALTER (?:TABLE ({_TABLE})|DOMAIN {_TYPE}) ADD CONSTRAINT ({_NAME}) .*", re.DOTALL)
_COLLATED = re.compile(
    rf"(ALTER TABLE ({_TABLE}) (?:ALTER|ADD) COLUMN (?:IF NOT EXISTS )?({_NAME}) .*?)"
    rf" COLLATE (?:{_NAME}|\w+)\.(?:{_NAME}|\w+)(.*)",
    re.DOTALL,
)
_COMES_FROM_ABOVE = re.compile(rf"ALTER TABLE ({_TABLE}) ADD COLUMN IF NOT EXISTS ({_NAME}) .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a table, which the replica may lack.

    Attributes:
        what: Its name in the list of left-out parts.
        sql: The statement that adds it; "" if only CREATE TABLE can.
    """

    what: str
    sql: str


@dataclass(frozen=True, slots=True)
class Lesser:
    """A way to make a change without some parts.

    Attributes:
        sql: The statement; "" if nothing is left.
        parts: The missing parts, in the order in which they can be added.
    """

    sql: str
    parts: tuple[Part, ...]


def lesser(statement: str) -> Iterator[Lesser]:
    """Yield ways to run a statement about a table or a domain; the first lacks the fewest parts.

    Args:
        statement: The statement that a PostgreSQL master recorded.
    """
    if found := _CREATED.fullmatch(statement):
        yield from _created(statement, found[1])
    elif found := _ADDED.fullmatch(statement):
        table, domain, name = found.groups()
        yield Lesser("", (Part(f"constraint {_plain(name)} of {_whole(table, domain)}", statement),))
    elif found := _DOMAIN.fullmatch(statement):
        yield _domain(statement, found[1])
    elif found := _COLLATED.fullmatch(statement):
        before, table, column, after = found.groups()
        yield Lesser(f"{before}{after}", (Part(f"collation of column {_plain(column)} of table {_name(table)}", ""),))
    elif (what := redefined(statement)).startswith("default"):
        yield Lesser("", (Part(what, statement),))


def redefined(statement: str) -> str:
    """Return the entry of the default or collation that a statement sets or drops; "" if it does neither.

    The recorded effects show only that the column or domain differs.
    """
    if not (found := _REDEFINED.fullmatch(statement)):
        return ""
    table, column, domain, verb = found.groups()
    of = f"column {_plain(column)} of " if column else ""
    return f"{'collation' if verb == 'TYPE' else 'default'} of {of}{_whole(table, domain)}"


def inherited(statement: str) -> tuple[Name, str] | None:
    """Return the table to which a statement adds an inherited column, and the column.

    The recorded effects do not show this, and have no generated columns.
    """
    found = _COMES_FROM_ABOVE.fullmatch(statement)
    return (_name(found[1]), _plain(found[2])) if found else None


def flattened(table: Name, partitions: Iterable[Name]) -> Iterator[str]:
    """Yield ways to make an ordinary table of a partitioned one; its partitions are separate afterwards."""
    for partition in partitions:
        yield f"ALTER TABLE {table.sql} DETACH PARTITION {partition.sql}"
    before = Name(table.schema, "dbfarm_partitioned")
    yield f"ALTER TABLE {table.sql} RENAME TO {quote(before.name)}"
    yield f"CREATE TABLE {table.sql} (LIKE {before.sql} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)"
    yield f"DROP TABLE {before.sql}"


def _created(statement: str, table: str) -> Iterator[Lesser]:
    items, behind = _items(statement)
    if any(len(item) < 2 or (item[0].lastgroup != "name" and item[0].group(0) != "CONSTRAINT") for item in items):
        # No master writes this form.
        return
    shown = _name(table)
    columns = [_column(statement, table, item) for item in items if item[0].lastgroup == "name"]
    last = tuple(part for column in columns for part in column.default) + tuple(
        Part(
            f"constraint {plain(item[1])} of table {shown}",
            f"ALTER TABLE {table} ADD {statement[item[0].start() : item[-1].end()]}",
        )
        for item in items
        if item[0].lastgroup == "word"
    )
    listed = ", ".join(f"{column.typed}{column.collation}{column.rest}" for column in columns)
    yield Lesser(f"CREATE TABLE {table} ({listed}){behind}", last)
    whole = (Part(f"partitioning of table {shown}", ""),) if behind else ()
    collations = tuple(
        Part(
            f"collation of column {column.name} of table {shown}",
            f"ALTER TABLE {table} ALTER COLUMN {quote(column.name)} TYPE {column.type}{column.collation}",
        )
        for column in columns
        if column.collation
    )
    listed = ", ".join(f"{column.typed}{column.rest}" for column in columns)
    yield Lesser(f"CREATE TABLE {table} ({listed})", (*whole, *collations, *last))


def _domain(statement: str, domain: str) -> Lesser:
    """Return a domain with only its type and NOT NULL; default and checks are parts."""
    listed = pieces(statement)
    outside = [(piece, piece.group(0)) for piece, level in zip(listed, depths(listed), strict=True) if not level]
    checks = [piece.start() for piece, word in outside if word == "CONSTRAINT"]
    bounds = [*checks, len(statement)]
    head = statement[: bounds[0]].rstrip()
    required = " NOT NULL" if head.endswith(" NOT NULL") else ""
    default = next((piece.start() for piece, word in outside if word == "DEFAULT" and piece.start() < bounds[0]), None)
    name, altered = _name(domain), f"ALTER DOMAIN {_name(domain).sql}"
    parts = []
    if default is not None:
        set_to = head[default : len(head) - len(required)]
        parts.append(Part(f"default of domain {name}", f"{altered} SET {set_to}"))
        head = f"{head[:default].rstrip()}{required}"
    for start, end in pairwise(bounds):
        check = plain(listed[next(at for at, piece in enumerate(listed) if piece.start() == start) + 1])
        parts.append(Part(f"constraint {check} of domain {name}", f"{altered} ADD {statement[start:end].rstrip()}"))
    return Lesser(head, tuple(parts))


def _items(statement: str) -> tuple[list[list[re.Match[str]]], str]:
    """Return the items of a CREATE TABLE statement, and the text after the brackets."""
    listed = pieces(statement)
    levels = depths(listed)
    start = next(at for at, piece in enumerate(listed) if piece.group(0) == "(")
    end = next((at for at in range(start + 1, len(listed)) if levels[at] == 0), start)
    bounds = [start, *(at for at in range(start, end) if levels[at] == 1 and listed[at].group(0) == ","), end]
    return [listed[one + 1 : two] for one, two in pairwise(bounds)], statement[listed[end].end() :]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a CREATE TABLE statement: its collation, what else it must have, and its default as a part."""

    name: str
    type: str
    collation: str
    rest: str
    default: tuple[Part, ...]

    @property
    def typed(self) -> str:
        return f"{quote(self.name)} {self.type}"


def _column(statement: str, table: str, item: list[re.Match[str]]) -> _Column:
    levels, end = depths(item), item[-1].end()
    at = {
        piece.group(0): piece.start()
        for piece, level in reversed(list(zip(item, levels, strict=True)))
        if piece.lastgroup == "word" and level == 0 and piece.group(0) in _COLUMN_PARTS
    }
    name = plain(item[0])
    required = " NOT NULL" if statement[:end].endswith(" NOT NULL") else ""
    behind = end - len(required)
    type_ends = min((*at.values(), end))
    collation_ends = min((at[word] for word in _COLUMN_PARTS[1:] if word in at), default=end)
    generated = f" {statement[at['GENERATED'] : behind]}" if "GENERATED" in at else ""
    default: tuple[Part, ...] = ()
    if "DEFAULT" in at and not generated:
        changed = f"ALTER TABLE ONLY {table} ALTER COLUMN {quote(name)} SET {statement[at['DEFAULT'] : behind]}"
        default = (Part(f"default of column {name} of table {_name(table)}", changed),)
    return _Column(
        name,
        statement[item[0].end() : type_ends].strip(),
        f" {statement[at['COLLATE'] : collation_ends].strip()}" if "COLLATE" in at else "",
        f"{generated}{required}",
        default,
    )


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _name(table: str) -> Name:
    schema, name = re.findall(rf"{_NAME}|[\w$]+", table)
    return Name(_plain(schema), _plain(name))


def _whole(table: str | None, domain: str) -> str:
    return f"table {_name(table)}" if table else f"domain {_name(domain)}"

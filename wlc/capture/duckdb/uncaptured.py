"""Changes that were written to a master without capture: they are found, named once, and no commit builds on them.

DuckDB's lock keeps other processes out while this one has the file open. Their changes are found when the file is
opened, by the tables in doubt (`wlc.capture.duckdb.home`). Afterwards, only connections of this process that share
DuckDB's instance can write without capture. Numbers of rows and definitions of tables show most of their changes.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import digests, journal, known_objects, unpublished
from wlc.capture.duckdb.home import Doubt
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import snapshot
from wlc.dialect.duckdb.digest_sql import sum_quickly
from wlc.dialect.sql import quote
from wlc.dialect.types import store_sql
from wlc.farm.digest import differing, touched
from wlc.farm.errors import FarmError, UnsupportedError
from wlc.farm.model import Name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from wlc.capture.duckdb.known_objects import ChangedObject
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Layout


_OF_SCHEMA = ("was created", "was dropped", "was altered")


@dataclass(frozen=True, slots=True)
class Bypassed:
    """Tables that were changed without capture, with the evidence, and other objects."""

    tables: Mapping[Name, str] = field(default_factory=dict)
    objects: tuple[ChangedObject, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tables or self.objects)

    @property
    def problems(self) -> dict[str, str]:
        """The evidence for each table or object by its name; the kind precedes the names of objects."""
        of_objects = {f"{each.object.kind.lower()} {each.object.name}": each.problem for each in self.objects}
        return {str(name): problem for name, problem in self.tables.items()} | of_objects


def begin(shared: Shared) -> None:
    """Remember the definitions of the tables of a file that no other program has written."""
    if shared.is_master and not shared.doubt.is_open and shared.defined is None:
        with shared.reading() as connection:
            shared.defined = _definitions(connection, shared.catalog)


def end(shared: Shared) -> None:
    """Before the last user closes the file, find what this process has written to it without capture."""
    if shared.users == 1 and shared.is_master and shared.defined is not None and not shared.doubt.is_open:
        try:
            if shared.doubt_to_note() and not _agrees(shared):
                found(shared)
        except (duckdb.Error, FarmError, OSError):
            shared.doubt = Doubt(is_open=True)


def may_exist(shared: Shared) -> bool:
    """Say whether some table may have been changed without capture, without much reading."""
    # The only user has just opened the file.
    return shared.doubt.is_open or (shared.users > 1 and not _agrees(shared))


def _agrees(shared: Shared) -> bool:
    """Whether all tables have the published numbers of rows, and the definitions of the last comparison."""
    with shared.reading() as connection:
        defined = _definitions(connection, shared.catalog)
        published = digests.rows_of(digests.read(connection, shared.catalog))
        if defined != shared.defined or {Name(*names) for *names, _ in defined} != published.keys():
            return False
        return published == duckdb_catalog.row_counts(connection, shared.catalog, published)


def _definitions(connection: duckdb.DuckDBPyConnection, catalog: str) -> frozenset[tuple[str, ...]]:
    query = f"SELECT schema_name, table_name, sql FROM duckdb_tables() WHERE {duckdb_catalog.USER} AND NOT temporary"
    return frozenset(duckdb_catalog.rows(connection, catalog, query))


def found(shared: Shared) -> Bypassed:
    """Return what was changed without capture; the rows of tables in doubt are read."""
    with shared.reading() as connection:
        layouts = duckdb_catalog.tables(connection, shared.catalog)
        objects = known_objects.changed(connection, shared.catalog)
        problems = _contradictions(connection, shared.catalog, layouts)
        shared.defined = _definitions(connection, shared.catalog)
    problems |= dict.fromkeys(changed(shared, layouts.keys() - problems.keys()), "has other rows")
    # An index comes and goes with its table.
    unmade = {name for name in problems if name not in layouts or problems[name] == "was created"}
    result = Bypassed(problems, tuple(each for each in objects if each.of not in unmade))
    is_altered = any(problem in _OF_SCHEMA for problem in problems.values())
    shared.doubt.settle(layouts, problems, of_schema=is_altered or bool(result.objects))
    return result


def _contradictions(connection: duckdb.DuckDBPyConnection, catalog: str, actual: dict[Name, Layout]) -> dict[Name, str]:
    """Return the tables whose layout or number of rows contradicts the capture, with the evidence."""
    expected_layouts: dict[Name, Layout] = dict(journal.read_layouts(connection, catalog).values())
    waiting = unpublished.pending(connection, catalog, sys.maxsize)
    expected = unpublished.count_pending_rows(digests.rows_of(waiting.held), waiting)
    rows = duckdb_catalog.row_counts(connection, catalog, actual)
    problems: dict[Name, str] = {}
    for name in sorted(expected.keys() | actual.keys()):
        if name not in actual:
            problems[name] = "was dropped"
        elif name not in expected:
            problems[name] = "was created"
        elif actual[name] != expected_layouts.get(name):
            problems[name] = "was altered"
        elif rows[name] != expected[name]:
            problems[name] = f"has {rows[name]} rows instead of {expected[name]}"
    return problems


def changed(shared: Shared, tables: Iterable[Name]) -> list[Name]:
    """Compare the tables in doubt, and return those whose rows differ from the captured ones."""
    if not (doubtful := shared.doubt.of(tables)):
        return []
    if unknown := [name for name in doubtful if name not in shared.doubt.differing]:
        with shared.reading() as connection:
            differs, read = _compared(connection, shared, unknown)
        shared.doubt.compared |= read - differs
        shared.doubt.differing |= differs
    return [name for name in doubtful if name in shared.doubt.differing]


def _compared(
    connection: duckdb.DuckDBPyConnection, shared: Shared, tables: Collection[Name]
) -> tuple[set[Name], set[Name]]:
    """Compare rows with the captured ones; return the tables that differ, and all that were compared."""
    catalog = shared.catalog
    waiting = unpublished.pending(connection, catalog, sys.maxsize)
    # A digest takes three times as long as a quick sum, and is exact.
    quick = digests.known_quick(waiting.held)
    known = (quick.keys() & set(tables)) - touched(waiting.logged)
    same: set[Name] = set()
    for name, layout in duckdb_catalog.tables(connection, catalog).items():
        if name in known and sum_quickly(connection, layout, f"{quote(catalog)}.{name.sql}", store_sql) == (
            waiting.held[name].rows,
            quick[name],
        ):
            same.add(name)
    rest = [name for name in tables if name not in same]
    held = snapshot.digests(connection, catalog, rest) if rest else {}
    expected = unpublished.expected_digests(connection, catalog, shared.work) if rest else {}
    return set(differing(held, expected)), same | held.keys()


def refuse_changed(shared: Shared, tables: Iterable[Name]) -> None:
    """Refuse to publish removed or changed rows of tables whose rows differ from the captured ones.

    Raises:
        UnsupportedError: There is such a table.
    """
    if names := changed(shared, tables):
        raise UnsupportedError(
            f"rows of {', '.join(map(str, names))} were changed without wlc.connect(), and replicas do not have them",
            hint=f"wlc farm repair {shlex.quote(shared.path)}",
            path=shared.path,
        )


def refuse_schema_change(shared: Shared) -> None:
    """Refuse a captured schema change on top of an uncaptured one: it may need objects that replicas do not have.

    Raises:
        UnsupportedError: There is an uncaptured one.
    """
    if shared.doubt.of_schema:
        raise UnsupportedError(
            f"the schema of {shared.path} was changed without wlc.connect(), and replicas do not have this change",
            hint=f"wlc farm repair {shlex.quote(shared.path)}",
            path=shared.path,
        )

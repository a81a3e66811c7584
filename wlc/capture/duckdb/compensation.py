"""Make net changes as a new transaction, through the ordinary capture, if rows are unchanged since.

Order of removals: rows that must be removed in a later transaction than the rows that refer to them.

DuckDB checks an index of the referring rows before it removes a row. A row leaves that index only when the transaction
that removes or changes it is committed. So a row and the rows that refer to it cannot be removed in one transaction:
referring rows are removed first.
"""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import taken_tables
from wlc.capture.duckdb.analysis import analyse
from wlc.capture.duckdb.session import CaptureSession
from wlc.dialect.duckdb import catalog as duckdb_catalog
from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.parquet_sql import rows_of
from wlc.dialect.duckdb.row_images import json_object_sql
from wlc.dialect.sql import quote
from wlc.dialect.types import load_sql
from wlc.farm.errors import ChangedSinceError, InvalidError, RowConflict, UnavailableError, UnsupportedError
from wlc.farm.model import WEIGHT, Column, file_column
from wlc.masters.compensation import ChangedRows, Compensated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wlc.capture.duckdb.shared import Shared
    from wlc.capture.duckdb.taken_tables import TakenTable
    from wlc.dialect.duckdb.catalog import ForeignKey
    from wlc.dialect.duckdb.fold import TargetTable
    from wlc.farm.model import Name
    from wlc.masters.compensation import WantedChange


@dataclass(frozen=True, slots=True)
class Removal:
    """Images of a table's rows to remove: those of `source`, a temporary table, with a negative weight."""

    table: TargetTable
    source: str


@dataclass(frozen=True, slots=True)
class RemovalOrder:
    """Removals of later transactions, in order, given the foreign keys between the tables of a database.

    Attributes:
        later: The removals of each later transaction; empty if all rows can be removed at once.
    """

    connection: duckdb.DuckDBPyConnection
    catalog: str
    keys: Sequence[ForeignKey]
    later: list[list[Removal]]

    def refuse_references(self, source: str) -> None:
        """Refuse to remove rows to which remaining rows will refer after the whole change.

        Args:
            source: The master's name in commands.

        Raises:
            InvalidError: There are such rows.
        """
        parts: dict[Name, list[Removal]] = {}
        for removals in self.later:
            for each in removals:
                parts.setdefault(each.table.name, []).append(each)
        for key in self.keys:
            if key.parent not in parts:
                continue
            parent, child = parts[key.parent], parts.get(key.table)
            rows = f"{quote(self.catalog)}.{key.table.sql}"
            there = f"(SELECT count(*) FROM {rows} AS c WHERE {_refers(key, parent[0].table)})"
            going = "0"
            if child:
                refers = _refers(key, parent[0].table, child[0].table)
                going = f"(SELECT coalesce(-sum(c.{WEIGHT}), 0) FROM {_union(child)} AS c WHERE {refers})"
            query = f"SELECT 1 FROM {_union(parent)} AS p WHERE {there} > {going} LIMIT 1"
            if self.connection.execute(query).fetchall():
                listing = f"wlc log {shlex.quote(source)} --table {shlex.quote(str(key.table))}"
                raise InvalidError(
                    f"the rows of {key.parent} cannot be written: rows of {key.table} refer to them by a foreign key",
                    hint=f"{listing} lists the transactions that made these rows: undo them first, or change the rows",
                )


def removal_order(connection: duckdb.DuckDBPyConnection, catalog: str, removals: Sequence[Removal]) -> RemovalOrder:
    """Move later removals from their sources to separate tables.

    Args:
        connection: In a transaction that has written nothing yet.
        catalog: The database.
        removals: One per table; their sources may hold other images, too, and are rebuilt.
    """
    keys = duckdb_catalog.references(connection, catalog)
    waiting: dict[Name, Removal] = {}
    for place, each in enumerate(removals):
        referred = " OR ".join(
            f"EXISTS (SELECT 1 FROM {quote(catalog)}.{key.table.sql} AS c WHERE {_refers(key, each.table)})"
            for key in keys
            if key.parent == each.table.name
        )
        if not referred:
            continue
        goes = f"p.{WEIGHT} < 0" + (f" AND NOT p.{fold.STAYS}" if each.table.keeps_rows else "")
        found = f'temp."wlc waiting 0 {place}"'
        if _make(connection, found, f"SELECT p.* FROM {each.source} AS p WHERE {goes} AND ({referred})"):
            waiting[each.table.name] = Removal(each.table, found)
            _make(connection, each.source, f"SELECT p.* FROM {each.source} AS p WHERE NOT ({goes} AND ({referred}))")
    later: list[list[Removal]] = []
    while waiting:
        ready, waiting = _next(connection, keys, waiting, len(later) + 1)
        assert ready, "DuckDB does not allow rows to refer to each other in a cycle"
        later.append(ready)
    return RemovalOrder(connection, catalog, keys, later)


def _next(
    connection: duckdb.DuckDBPyConnection, keys: Sequence[ForeignKey], waiting: Mapping[Name, Removal], number: int
) -> tuple[list[Removal], dict[Name, Removal]]:
    """Split waiting rows into those that no waiting row refers to, and the others."""
    ready, left = [], {}
    for place, (name, each) in enumerate(waiting.items()):
        referred = " OR ".join(
            f"EXISTS (SELECT 1 FROM {waiting[key.table].source} AS c"
            f" WHERE {_refers(key, each.table, waiting[key.table].table)})"
            for key in keys
            if key.parent == name and key.table in waiting
        )
        first, rest = f'temp."wlc later {number} {place}"', f'temp."wlc waiting {number} {place}"'
        if _make(connection, first, f"SELECT p.* FROM {each.source} AS p WHERE NOT ({referred or 'false'})"):
            ready.append(Removal(each.table, first))
        if _make(connection, rest, f"SELECT p.* FROM {each.source} AS p WHERE {referred or 'false'}"):
            left[name] = Removal(each.table, rest)
    return ready, left


def _refers(key: ForeignKey, parent: TargetTable, child: TargetTable | None = None) -> str:
    """SQL condition: `c`, an image or a row of the child, refers to the image `p` of the parent."""
    pairs = zip(key.columns, key.referred, strict=True)
    return " AND ".join(
        f"{_loaded(child, column, 'c') if child else f'c.{quote(column)}'} = {_loaded(parent, referred, 'p')}"
        for column, referred in pairs
    )


def _loaded(table: TargetTable, name: str, alias: str) -> str:
    column = next(column for column in table.layout.stored if column.name == name)
    return load_sql(column, f"{alias}.{quote(file_column(name))}")


def _union(removals: Sequence[Removal]) -> str:
    return f"({' UNION ALL '.join(f'SELECT * FROM {each.source}' for each in removals)})"


def _make(connection: duckdb.DuckDBPyConnection, name: str, query: str) -> bool:
    """Make a temporary table, and say whether it has rows."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name.removeprefix('temp.')} AS {query}")
    return bool(connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall())


# An error lists at most this many conflicts.
CONFLICTS_SHOWN = 100


def compensate(shared: Shared, changes: Sequence[WantedChange], *, force: bool, dry_run: bool) -> Compensated:
    """Make net changes; see `wlc.masters.operations.compensate`."""
    with shared.root.cursor() as raw:
        session = CaptureSession(raw, shared)
        transaction = session.begin("BEGIN TRANSACTION", explicit=False)
        transaction.look()
        try:
            run = _Run(raw, session, shared.catalog)
            nets = run.nets(changes)
            if not force:
                run.refuse_conflicts(nets)
            nets = [net for net in nets if run.resolve(net)]
            if (site := shared.site) is not None:
                # If a later transaction were refused, earlier ones would already be committed.
                present, _ = taken_tables.tables(raw, shared.catalog)
                site.refuse_rows(present[net.table.name].table for net in nets)
            done = tuple(sorted((run.counted(net) for net in nets), key=lambda each: each.table))
            order = removal_order(raw, shared.catalog, [Removal(net.table, net.present) for net in nets])
            count = 1 + len(order.later) if nets else 0
            if dry_run or not nets:
                session.rollback("ROLLBACK")
                return Compensated(None, done, count)
            with ExitStack() as alone:
                if order.later:
                    # The commit lock prevents other commits between the transactions.
                    alone.enter_context(shared.publish_lock)
                    alone.enter_context(shared.commit_lock)
                run.write(nets)
                order.refuse_references(shared.path)
                session.commit("COMMIT")
                tick = transaction.tick
                for number, removals in enumerate(order.later, start=1):
                    tick = run.remove_later(removals, f"{number} of {count}")
                return Compensated(tick, done, count)
        except BaseException:
            if session.transaction is not None:
                session.rollback("ROLLBACK")
            raise


@dataclass(frozen=True, slots=True)
class _Net:
    """The net change of one table.

    Attributes:
        wanted: Temporary table of the images, with weights that count copies.
        present: Temporary table of the present rows with the images' keys, or, for a table without a key, of the images
            to remove, each with the present number of copies.
    """

    table: TargetTable
    number: int

    @property
    def wanted(self) -> str:
        return f'temp."wlc wanted {self.number}"'

    @property
    def present(self) -> str:
        return f'temp."wlc present {self.number}"'


@dataclass(frozen=True, slots=True)
class _Run:
    connection: duckdb.DuckDBPyConnection
    session: CaptureSession
    catalog: str

    def nets(self, changes: Sequence[WantedChange]) -> list[_Net]:
        """Load the images and the present rows; parents come before the tables that refer to them."""
        present, order = taken_tables.tables(self.connection, self.catalog)
        taken_tables.refuse_triggers(self.connection, self.catalog, (c.table for c in changes), "rows that are undone")
        found = []
        for number, change in enumerate(sorted(changes, key=lambda change: order.get(change.table, 0))):
            net = _Net(_target(change, present), number)
            self._make(net.wanted, f"SELECT * FROM {rows_of(change.file)}")
            if net.table.key:
                # A separate table has the images' types without collations.
                self._make(net.present, f"SELECT {_listed(net)} FROM {net.wanted} LIMIT 0")
                self.connection.execute(f"INSERT INTO {net.present} {fold.present_sql(net.table, net.wanted)}")
            else:
                self._make(net.present, _copies_sql(net))
            found.append(net)
        return found

    def refuse_conflicts(self, nets: Sequence[_Net]) -> None:
        """Refuse rows that differ from both the expected and the wanted ones.

        Raises:
            ChangedSinceError: There are such rows.
        """
        found: list[RowConflict] = []
        count = 0
        for net in nets:
            conflicts = _keyed_conflicts_sql(net) if net.table.key else _bag_conflicts_sql(net)
            count += int(self.connection.execute(f"SELECT count(*) FROM ({conflicts})").fetchall()[0][0])
            shown = f"SELECT * FROM ({conflicts}) ORDER BY ALL LIMIT {CONFLICTS_SHOWN - len(found)}"
            found += [_conflict(net.table.name, *row) for row in self.connection.execute(shown).fetchall()]
        if not count:
            return
        first = found[0]
        where = f" {json.dumps(first.key, ensure_ascii=False)}" if first.key is not None else ""
        one = f"1 row was changed since: {first.table}{where}"
        many = f"{count} rows were changed since, the first one of {first.table}{where}"
        error = ChangedSinceError(one if count == 1 else many, path=first.table)
        error.conflicts, error.count = tuple(found), count
        raise error

    def resolve(self, net: _Net) -> bool:
        """Reduce the wanted images to the changes of present rows that are needed; return whether there are any."""
        if net.table.key:
            gone = f"SELECT *, -1 AS {WEIGHT} FROM {net.present}"
        else:
            gone = f"SELECT {_listed(net)}, -least(copies, -{WEIGHT}) AS {WEIGHT} FROM {net.present}"
        both = f"SELECT * FROM {net.wanted} WHERE {WEIGHT} > 0 UNION ALL BY NAME {gone}"
        self._make(net.present, fold.net_sql(net.table, both))
        self.connection.execute(f"DROP TABLE {net.wanted}")
        return bool(self.connection.execute(f"SELECT 1 FROM {net.present} LIMIT 1").fetchall())

    def counted(self, net: _Net) -> ChangedRows:
        """Count the changes of a resolved net."""
        stays = fold.STAYS if net.table.keeps_rows else "false"
        sums = (
            f"coalesce(sum(abs({WEIGHT})) FILTER ({WEIGHT} {sign} 0 AND {stayed}), 0)"
            for sign, stayed in ((">", f"NOT {stays}"), ("<", f"NOT {stays}"), (">", stays))
        )
        counts = self.connection.execute(f"SELECT {', '.join(sums)} FROM {net.present}").fetchall()[0]
        return ChangedRows(str(net.table.name), *map(int, counts))

    def write(self, nets: Sequence[_Net]) -> None:
        """Write resolved nets: removed rows, children before parents, then all others, parents before children.

        Raises:
            InvalidError: The rows violate a constraint.
        """
        try:
            for net in reversed(nets):
                self._remove(net.table, net.present)
            for net in nets:
                self._add(net)
        except duckdb.ConstraintException as error:
            said = str(error).partition("\n")[0]
            raise InvalidError(
                f"the rows of {net.table.name} cannot be written: {said}",
                hint="change the conflicting rows; or undo one transaction at a time, the newest first, or one table "
                "at a time, referring tables first: --table TABLE",
            ) from error

    def remove_later(self, removals: Sequence[Removal], done: str) -> int:
        """Remove later rows in a separate transaction; return its tick.

        Raises:
            UnavailableError: DuckDB or the machine fails; the earlier transactions stay committed.
        """
        transaction = self.session.begin("BEGIN TRANSACTION", explicit=False)
        transaction.look()
        try:
            for each in removals:
                self._remove(each.table, each.source)
        except duckdb.Error as error:
            said = str(error).partition("\n")[0]
            raise UnavailableError(
                f"{done} transactions were committed; then rows of {each.table.name} could not be removed: {said}",
                hint="run the same command again: it completes the change",
            ) from error
        self.session.commit("COMMIT")
        return transaction.tick

    def _remove(self, table: TargetTable, source: str) -> None:
        if table.key:
            self._run(fold.delete_keyed_sql(table, source))
        elif table.has_rowid:
            chosen = 'temp."wlc rows"'
            self._make(chosen, fold.bag_rowids_sql(table, source))
            self._run(f"DELETE FROM {table.sql} WHERE rowid IN (SELECT r FROM {chosen})")
        else:
            left = 'temp."wlc left"'
            self._make(left, fold.copies_left_sql(table, source))
            self._run(fold.delete_equal_sql(table, source))
            self._run(fold.insert_sql(table, left, copies=True))

    def _add(self, net: _Net) -> None:
        table, source = net.table, net.present
        if table.keeps_rows and fold.outside_key(table):
            for update in fold.updates(self.connection, self.catalog, table, source):
                self._run(update)
        if table.references_itself:
            self._add_ready(net)
        self._run(fold.insert_new_sql(table, source))

    def _add_ready(self, net: _Net) -> None:
        """Insert rows that refer to rows of their own table after those: DuckDB sees only earlier statements."""
        # Rows that stay are already updated: the rest is added.
        self.connection.execute(f"DELETE FROM {net.present} WHERE {WEIGHT} < 0 OR {fold.STAYS}")
        plain, ready = replace(net.table, is_referenced=False), 'temp."wlc ready"'
        while True:
            self._make(ready, f"SELECT n.* FROM {net.present} AS n WHERE {fold.ready_condition(plain)}")
            if not self.connection.execute(f"SELECT 1 FROM {ready} LIMIT 1").fetchall():
                return
            self._run(fold.insert_sql(plain, ready, copies=not plain.key))
            same = fold.same_stored_sql(plain.layout, "n", "r")
            left = f"SELECT n.* FROM {net.present} AS n ANTI JOIN {ready} AS r ON {same}"
            self._make('temp."wlc waiting"', left)
            self._make(net.present, 'SELECT * FROM temp."wlc waiting"')

    def _make(self, name: str, query: str) -> None:
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name.removeprefix('temp.')} AS {query}")

    def _run(self, text: str) -> None:
        self.session.run(analyse(text, text.split()[0]), text, None)


def _target(change: WantedChange, present: Mapping[Name, TakenTable]) -> TargetTable:
    """Describe the table of a change.

    Raises:
        UnsupportedError: It was dropped, renamed or altered since.
    """
    taken = present.get(change.table)
    if taken is None:
        raise UnsupportedError(
            f"table {change.table} was dropped or renamed since",
            hint="leave it out, with --table for each other one; or go back to before that: wlr replicate DB --tick N",
        )
    layout = taken.table.layout
    if layout.shape != change.layout.shape or layout.key_places != change.layout.key_places:
        raise UnsupportedError(
            f"table {change.table} has other columns or another primary key now",
            hint=f"write the intended rows: wlr rows diff DB --tick A:B --table {change.table} shows them",
        )
    has_rowid = all(column.name.lower() != "rowid" for column in layout.columns)
    # Treated as referenced: a row whose key stays is updated, which affects no foreign key.
    return fold.TargetTable(
        change.table, taken.table.sql, layout, True, bool(layout.primary_key), taken.references_itself, has_rowid
    )


def _listed(net: _Net, alias: str = "") -> str:
    return ", ".join(alias + column for column in fold.stored_columns(net.table.layout))


def _copies_sql(net: _Net) -> str:
    """Select the images to remove with the present number of copies."""
    left = fold.copies_left_sql(net.table, net.wanted)
    same = fold.same_stored_sql(net.table.layout, "l", "w")
    return (
        f"SELECT {_listed(net, 'l.')}, w.{WEIGHT}, l.{WEIGHT} - w.{WEIGHT} AS copies"
        f" FROM ({left}) AS l JOIN (SELECT * FROM {net.wanted} WHERE {WEIGHT} < 0) AS w ON {same}"
    )


def _keyed_conflicts_sql(net: _Net) -> str:
    """Select key, present and expected row of conflicts as JSON, and a number of copies."""
    table, columns = net.table, _listed(net)
    keys = ", ".join(quote(file_column(column.name)) for column in table.key)
    expected, wanted = (f"(SELECT {columns} FROM {net.wanted} WHERE {WEIGHT} {sign} 0)" for sign in "<>")

    def is_row(alias: str) -> str:
        # A key is never NULL.
        first = f"{quote(file_column(table.key[0].name))}"
        both = f"p.{first} IS NOT NULL AND {alias}.{first} IS NOT NULL"
        same = fold.same_stored_sql(table.layout, "p", alias)
        return f"(p.{first} IS NULL AND {alias}.{first} IS NULL OR {both} AND {same})"

    def joined(relation: str, alias: str) -> str:
        return f"LEFT JOIN {relation} AS {alias} ON {fold.same_stored_key_sql(table, 'k', alias)}"

    return (
        f"SELECT {_json(table.key, 'k')}, {_row_json(table, 'p')}, {_row_json(table, 'e')}, 1"
        f" FROM (SELECT DISTINCT {keys} FROM {net.wanted}) AS k"
        f" {joined(net.present, 'p')} {joined(expected, 'e')} {joined(wanted, 'w')}"
        f" WHERE NOT {is_row('e')} AND NOT {is_row('w')}"
    )


def _bag_conflicts_sql(net: _Net) -> str:
    expected = _json(net.table.layout.stored, "p")
    missing = f"-p.{WEIGHT} - p.copies"
    return f"SELECT NULL, NULL, {expected}, {missing} FROM {net.present} AS p WHERE {missing} > 0"


def _row_json(table: TargetTable, alias: str) -> str:
    absent = f"{alias}.{quote(file_column(table.key[0].name))} IS NULL"
    return f"CASE WHEN {absent} THEN NULL ELSE {_json(table.layout.stored, alias)} END"


def _json(columns: Sequence[Column], alias: str) -> str:
    return json_object_sql((column, f"{alias}.{quote(file_column(column.name))}") for column in columns)


def _conflict(table: Name, key: str | None, present: str | None, expected: str | None, copies: int) -> RowConflict:
    key_of, there, wanted = (None if text is None else json.loads(text) for text in (key, present, expected))
    return RowConflict(str(table), key_of, there, wanted, int(copies))

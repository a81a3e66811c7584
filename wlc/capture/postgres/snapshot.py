"""Snapshots of a PostgreSQL master: every table as of one place in the server's log, while others go on writing."""

from __future__ import annotations

import secrets
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.capture.postgres import access, ddl, digests, objects, setup
from wlc.capture.postgres.connection import connect, talking
from wlc.capture.postgres.copying import copy_tables
from wlc.capture.postgres.creation_order import CATALOG_OF_TABLES, in_order, needs
from wlc.capture.postgres.effects import carried_back
from wlc.capture.postgres.sequences import read_sequences
from wlc.dialect.sql import literal, quote
from wlc.farm.addresses import without_password
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.model import Ddl, Layout, Manifest, Name, SequencePosition, SnapshotTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from wlc.capture.postgres.copying import Copied
    from wlc.capture.postgres.described import DescribedTable
    from wlc.capture.postgres.sequences import Sequences
    from wlc.dialect.postgres.connection import Connection
    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Digest
    from wlc.masters.state import Reached

# Moments that are tried before nobody may publish until the next one.
MOMENTS = 3
# As many numbers transactions have in the server's log, before they begin anew.
_NUMBERS = 1 << 32
# Extensions that hold what objects outside of them are made with. Functions in other languages are left out.
_EXTENSIONS = """
    SELECT DISTINCT e.extname FROM pg_depend d
    LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid AND t.typlen = -1
    JOIN pg_depend m ON m.classid = d.refclassid AND m.deptype = 'e'
        AND m.objid = coalesce(nullif(t.typelem, 0), d.refobjid)
    JOIN pg_extension e ON m.refclassid = 'pg_extension'::regclass AND e.oid = m.refobjid
    WHERE d.deptype IN ('n', 'a') AND e.extname <> 'plpgsql' AND d.classid IN ('pg_class'::regclass,
        'pg_type'::regclass, 'pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_rewrite'::regclass)
        AND NOT EXISTS (SELECT FROM pg_depend x WHERE x.classid = d.classid AND x.objid = d.objid AND x.deptype = 'e')
    ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in the server's log, and the name under which other connections see what was committed before it."""

    lsn: str
    name: str


@contextmanager
def exported(url: str, slot: str, *, is_temporary: bool) -> Iterator[Moment]:
    """Create a slot, and hold the moment after which it has everything that is committed.

    Waits for the transactions that are open at the time.

    Args:
        url: The master.
        slot: Name of the slot.
        is_temporary: The slot is dropped when the moment ends.
    """
    with connect(url, replication=True) as connection, talking(url):
        kind = "TEMPORARY " if is_temporary else ""
        command = f"CREATE_REPLICATION_SLOT {quote(slot)} {kind}LOGICAL pgoutput EXPORT_SNAPSHOT"
        # The replication protocol allows simple queries only.
        result = connection.pgconn.exec_(command.encode())
        if result.status != 2:  # PGRES_TUPLES_OK
            message = result.error_message.decode().strip()
            where = without_password(url)
            raise UnavailableError(f"{where}: {message}", hint="try again", path=where)
        values = [result.get_value(0, column) or b"" for column in range(4)]
        yield Moment(values[1].decode(), values[2].decode())


@contextmanager
def published(
    url: str, publishing: Callable[[], AbstractContextManager[None]], publish_to: Callable[[str], bool]
) -> Iterator[Moment]:
    """Hold a moment up to which everything is published, and nothing that came later; nobody publishes meanwhile.

    It begins when the transactions that are open now have ended. Others publish until then; if one of them gets past
    the moment, another one is taken.

    Args:
        url: The master.
        publishing: Keeps others from publishing.
        publish_to: Publishes up to a place in the server's log, and says whether nothing behind it is published.
    """
    for is_last in (*[False] * MOMENTS, True):
        with ExitStack() as stack:
            if is_last:
                stack.enter_context(publishing())
            moment = stack.enter_context(exported(url, f"dbfarm_s_{secrets.token_hex(8)}", is_temporary=True))
            if not is_last:
                stack.enter_context(publishing())
            if publish_to(moment.lsn):
                yield moment
                return


@dataclass(frozen=True, slots=True)
class Look:
    """A transaction's view of the tables: which others it sees, and what the tables hold in it.

    Attributes:
        moment: A place in the server's log behind everything that it sees.
        end: Number from which on it sees no transaction.
        open: Numbers below of those that it does not see.
    """

    url: str
    moment: Moment
    end: int
    open: frozenset[int]

    def sees(self, xid: int) -> bool:
        """Say whether it sees a transaction that is in the log, whose number has 32 bits there and rolls over."""
        is_before = (xid - self.end) % _NUMBERS >= _NUMBERS // 2
        return is_before and xid not in self.open

    def digests(self, names: Collection[Name]) -> dict[Name, Digest]:
        """Return what tables hold in it; nothing where somebody has locked or dropped one since."""
        try:
            return digest_tables(self.url, self.moment, names) if names else {}
        except (UnavailableError, InvalidError):
            return {}


@contextmanager
def looking(url: str) -> Iterator[Look]:
    """Hold a view of everything that is committed. Unlike `exported`, it waits for nobody."""
    with connect(url) as connection, connect(url) as writer, talking(url):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((name, seen),) = connection.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchall()
        # Writing this flushes the server's log up to here, with what others committed without waiting for that.
        writer.execute(
            "BEGIN; SET LOCAL synchronous_commit = local; UPDATE wlc.state SET value = value WHERE key = 'lsn'; COMMIT"
        )
        ((lsn,),) = writer.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        _, end, numbers = seen.split(":")
        yield Look(url, Moment(lsn, name), int(end), frozenset(int(n) % _NUMBERS for n in numbers.split(",") if n))


def take(
    url: str,
    moment: Moment,
    database: FarmDatabase,
    reached: Reached,
    known: Mapping[Name, Digest],
) -> tuple[Manifest, dict[int, tuple[DescribedTable, int]], Sequences]:
    """Copy every captured table and the schema as of a moment, and publish them as a snapshot.

    Args:
        url: The master.
        moment: What `exported` gave.
        database: Where to publish.
        reached: What is published up to the moment.
        known: What the tables must hold according to the capture.

    Returns:
        The published manifest; every captured table and its rows, by oid; every sequence, by oid.
    """
    with connect(url) as connection, talking(url), tempfile.TemporaryDirectory(prefix="wlc-snapshot-") as folder:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT {literal(moment.name)}")
        tables = setup.descriptions(connection)
        made_before, made_after = _created(connection, tables)
        # Captured tables are in these schemas only.
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE NOT wlc.is_system(nspname)").fetchall()
        ordered = sorted(tables.values(), key=lambda table: table.oid)
        rows = [table for table in ordered if not table.is_root]
        copied = copy_tables(url, moment.name, rows, Path(folder))
        sequences = read_sequences(connection)
        roots = [table for table in ordered if table.is_root]
        lowest_first = sorted(roots, key=lambda root: -ddl.depth(root, tables))
        extensions = connection.execute(_EXTENSIONS).fetchall()
        before = (
            *(objects.extension(name) for (name,) in extensions),
            *(objects.schema(schema) for (schema,) in sorted(schemas)),
            *made_before,
        )
        connected = carried_back(statement for table in ordered for statement in ddl.connect(table))
        after = (
            *(statement for statement in connected if isinstance(statement, Ddl)),
            *(ddl.partition_view(root, ordered) for root in lowest_first),
            *made_after,
            *(statement for found in setup.described_access(connection) for statement in access.changed(None, found)),
        )
        positions = (SequencePosition(name, value) for name, value in sequences.values() if value is not None)
        files = {file.path: Path(folder) / file.path for _, found in copied for file in found}
        held = digests.of_files(_as_declared(rows, copied, Path(folder)))
        digests.refuse_changed(held, known, without_password(url))
        manifest = database.publish_snapshot(
            Manifest(
                database=database.name,
                position=reached.position,
                clock=reached.clock,
                catalog=database.name,
                schema=before,
                schema_after=after,
                tables=tuple(
                    SnapshotTable(table.qualified, layout, found)
                    for table, (layout, found) in zip(rows, copied, strict=True)
                ),
                sequences=tuple(positions),
                vector=reached.vector,
                digests=held,
            ),
            files,
        )
        return manifest, {**_counts(rows, copied), **{root.oid: (root, 0) for root in roots}}, sequences


def digest_tables(url: str, moment: Moment, names: Collection[Name] | None = None) -> dict[Name, Digest]:
    """Return what captured tables hold as of a moment, if all their values fit their types.

    Args:
        url: The master.
        moment: What `exported` or `looking` gave.
        names: Of the tables; all if omitted. Whoever has locked one of these is not waited for.
    """
    with connect(url) as connection, talking(url), tempfile.TemporaryDirectory(prefix="wlc-verify-") as folder:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(f"SET TRANSACTION SNAPSHOT {literal(moment.name)}")
        if names is not None:
            connection.execute("SET LOCAL lock_timeout = '1s'")
        found = [table for table in setup.descriptions(connection).values() if not table.is_root]
        rows = [table for table in found if names is None or table.qualified in names]
        if names:
            connection.execute(f"LOCK TABLE {', '.join(table.qualified.sql for table in rows)} IN ACCESS SHARE MODE")
        copied = copy_tables(url, moment.name, rows, Path(folder))
        return digests.of_files(_as_declared(rows, copied, Path(folder)))


def _counts(tables: list[DescribedTable], copied: Copied) -> dict[int, tuple[DescribedTable, int]]:
    counted = (sum(file.rows for file in found) for _, found in copied)
    return {table.oid: (table, rows) for table, rows in zip(tables, counted, strict=True)}


def _as_declared(tables: list[DescribedTable], copied: Copied, folder: Path) -> dict[Name, tuple[Layout, list[Path]]]:
    """Return layout and files of the tables whose files have the types of the table."""
    return {
        table.qualified: (layout, [folder / file.path for file in found])
        for table, (layout, found) in zip(tables, copied, strict=True)
        if layout.shape == table.layout.shape
    }


def _created(connection: Connection, tables: Mapping[int, DescribedTable]) -> tuple[list[Ddl], list[Ddl]]:
    """Return the statements that create tables and other objects: before rows are loaded, and afterwards.

    Types, sequences, functions and tables come before the rows, with what they are made with; indexes, views and what
    else is made of tables and views come afterwards.
    """
    first, last = setup.objects(connection, 1, 3), setup.objects(connection, 4, 5)
    described = {(CATALOG_OF_TABLES, oid): table for oid, table in sorted(tables.items())}
    waiting = {*first, *described}
    before: list[Ddl] = []
    after: list[Ddl] = []
    for thing in in_order([*first, *described, *last], needs(connection)):
        made = before if waiting else after
        waiting.discard(thing)
        if thing in described:
            made += ddl.create_apart(described[thing])
            continue
        found = first.get(thing) or last[thing]
        made += objects.create(found)
        if made is before and found.kind == "materialized view":
            after.append(objects.refresh(found))
    return before, after

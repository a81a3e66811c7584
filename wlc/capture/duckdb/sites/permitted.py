"""What a site of several may not write, decided before a transaction commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb.captured_tables import CapturedTables
from wlc.capture.duckdb.journal import JournalledImages
from wlc.capture.duckdb.sites import added_rows
from wlc.dialect.duckdb.catalog import references
from wlc.dialect.rule_columns import refuse_without_columns
from wlc.farm.circle import ADD, OWNER, SHARED_RULES, naming
from wlc.farm.errors import InvalidError, UnsupportedError
from wlc.farm.model import Clear, Ddl, DroppedObject, RenamedObject
from wlc.farm.schema_fold import table_effects
from wlc.masters.circle_place import founder_of
from wlc.masters.contract import database_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from wlc.capture.duckdb.journal import CapturedTable, JournalRecord
    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Name
    from wlc.masters.circle_place import SiteState


def refuse_schema_change(site: SiteState, records: Sequence[JournalRecord], present: Iterable[Name]) -> None:
    """Refuse a schema change at another site than the one that may make it, and one that takes a rule its table.

    Args:
        site: The site that would publish the records.
        records: What a transaction is about to journal. A site clears a table only where it publishes it again, after
            a statement that changes its schema.
        present: The tables as the transaction leaves them.

    Raises:
        InvalidError: There is one.
    """
    circle = site.circle
    changes = [record for record in records if isinstance(record, Ddl)]
    if circle is None or not (changes or any(isinstance(record, Clear) for record in records)):
        return
    if circle.ddl != site.name:
        raise InvalidError(
            f"site {site.name} cannot change the schema: only site {circle.ddl} of {circle.database} can",
            hint=f"run the statement at {circle.ddl}, then wlc take FILE here, once it is published there",
        )
    gone = {
        effect.object.name
        for each in changes
        for effect in table_effects(each)
        if isinstance(effect, DroppedObject | RenamedObject)
    }
    left = {name.folded for name in present}
    for name in sorted(gone):
        if name.folded not in left and (rule := circle.rule_of(name)) is not None:
            raise InvalidError(
                f"cannot rename or drop {name}, which has the rule {rule.rule}",
                hint=f"first remove the rule: wlc rule DB {name} none, then wlc take at {site.name}",
            )


def refuse_schema_in_mesh(site: SiteState, records: Sequence[JournalRecord], tables: CapturedTables) -> None:
    """Refuse a schema change after which the newest change of each row could not be told, or could break a constraint.

    Args:
        site: The site that would publish the records.
        records: What a transaction is about to journal.
        tables: The tables as the transaction leaves them.

    Raises:
        InvalidError: A transaction changes the schema and writes rows of a table that all sites write, or takes away a
            column that a rule compares.
        UnsupportedError: Such a table has a constraint beside its primary key.
    """
    circle = site.circle
    if circle is None or not circle.is_mesh:
        return
    wanted = {rule.table.folded: rule for rule in circle.rules if rule.rule in SHARED_RULES}
    for record in records:
        if isinstance(record, JournalledImages | Clear) and record.table.folded in wanted:
            raise InvalidError(
                f"a transaction that changes the schema cannot write rows of {record.table}, which has the rule"
                f" {wanted[record.table.folded].rule}",
                hint="commit the schema change by itself; a statement that computes all rows anew needs a new column:"
                " ADD COLUMN, then UPDATE",
            )
    checked = {rule.table for rule in tables.rules if rule.kind == "CHECK"}
    linked = [(key.table, key.parent) for key in references(tables.connection, tables.catalog)]
    for table in tables.by_name.values():
        if (rule := wanted.get(table.name.folded)) is not None:
            refuse_without_columns(table.name, table.layout, rule, "DB")
            problem = (
                "a UNIQUE constraint"
                if table.keys is None or len(table.keys) > bool(table.layout.primary_key)
                else None
            )
            if any(table.name in pair for pair in linked):
                problem = "a FOREIGN KEY"
            if rule.add and table.name in checked:
                problem = "a CHECK constraint while columns are added"
            if problem is not None:
                raise UnsupportedError(
                    f"{table.name} has the rule {rule.rule}, which decides each row by itself, and cannot have"
                    f" {problem}",
                    hint=f"first give the table another rule: wlc rule DB {table.name} owner --site"
                    f" {site.name}, then wlc take at {site.name}",
                )


def refuse_rules(shared: Shared, site: SiteState) -> None:
    """Refuse rules of a mesh that the tables cannot keep which its first site has committed and not published.

    Args:
        shared: Database of the site.
        site: With the circle as it is in the farm, whose rules were judged by the published tables.

    Raises:
        InvalidError: A table lacks a column that its rule compares or adds.
        UnsupportedError: A table has a constraint beside its primary key.
    """
    circle = site.circle
    if circle is None or not circle.is_mesh or circle.ddl != site.name:
        return
    url = founder_of(database_of(shared.require_state()), site).url
    with shared.reading() as connection, naming(lambda: url):
        tables = CapturedTables(connection, shared.catalog)
        tables.refresh(-1)
        refuse_schema_in_mesh(site, (), tables)


def refuse_deletions(
    connection: duckdb.DuckDBPyConnection, site: SiteState, tables: Iterable[CapturedTable], tick: int
) -> None:
    """Refuse to delete rows of tables in which columns are added, or to which other sites only add rows.

    Args:
        connection: In the transaction, whose images are complete.
        site: The site.
        tables: Tables from which rows are removed.
        tick: Under which the images are journalled.

    Raises:
        InvalidError: A row is deleted, or its key changes; or a row of a table without a key is changed.
    """
    if site.circle is None:
        return
    for table in tables:
        added_rows.refuse_own_removals(connection, site.circle, site.name, table, tick)
        if site.circle.added_columns(table.name):
            keys = ", ".join(f"c{place}" for place in table.layout.key_places)
            gone = f"FROM {table.images} WHERE _tick = {tick} GROUP BY {keys} HAVING sum(_weight) < 0 LIMIT 1"
            if connection.execute(f"SELECT 1 {gone}").fetchall():
                columns = ", ".join(site.circle.added_columns(table.name))
                raise InvalidError(
                    f"rows of {table.name} cannot be deleted, or get another key: changes of {columns} are added, and"
                    " what another site adds to a row meanwhile would be lost",
                    hint="mark the row instead, in a column for that; or let all sites take everything, then"
                    f" wlc rule DB {table.name} newest",
                )


def refuse_rows(site: SiteState, tables: Iterable[CapturedTable]) -> None:
    """Refuse rows of tables that only another site may write.

    Raises:
        InvalidError: There is one.
    """
    circle = site.circle
    if circle is None:
        return
    for table in tables:
        rule = circle.rule_of(table.name)
        if circle.is_mesh and rule is None and table.layout.primary_key and circle.primary != site.name:
            raise InvalidError(
                f"site {site.name} cannot write {table.name}, which has no rule: only the primary, {circle.primary},"
                " can",
                hint=f"wlc rule DB {table.name} newest lets all sites write it, each from its next wlc"
                f" take; or wlc rule DB {table.name} owner --site {site.name}",
            )
        if rule is not None and rule.rule == OWNER and rule.site != site.name:
            raise InvalidError(
                f"site {site.name} cannot write {table.name}: the table belongs to site {rule.site}",
                hint=f"write it at {rule.site}; or let this site own it from its next wlc take:"
                f" wlc rule DB {table.name} owner --site {site.name}",
            )
        if not table.layout.primary_key and circle.primary != site.name and (rule is None or rule.rule != ADD):
            raise InvalidError(
                f"site {site.name} cannot write {table.name}, which has no primary key: only the primary,"
                f" {circle.primary}, can",
                hint=f"write it at {circle.primary}, or give the table a primary key there"
                + (f"; wlc rule DB {table.name} add lets all sites add rows" if circle.is_mesh else ""),
            )

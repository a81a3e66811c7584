"""What a site of several may not write, decided before a transaction commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.capture.duckdb.journal import JournalledDdl
from wlc.farm.circle import OWNER
from wlc.farm.errors import InvalidError
from wlc.farm.model import Clear

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wlc.capture.duckdb.journal import CapturedTable, JournalRecord
    from wlc.farm.model import Name
    from wlc.masters.state import SiteState


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
    changes = [record for record in records if isinstance(record, JournalledDdl)]
    if circle is None or not (changes or any(isinstance(record, Clear) for record in records)):
        return
    if circle.ddl != site.name:
        raise InvalidError(
            f"site {site.name} cannot change the schema: only site {circle.ddl} of {circle.database} can",
            hint=f"run the statement at {circle.ddl}, then wlc take FILE here, once it is published there",
        )
    gone = {name for each in changes for name in (*each.dropped, *(before for before, _ in each.renamed))}
    left = {name.folded for name in present}
    for name in sorted(gone):
        if name.folded not in left and (rule := circle.rule_of(name)) is not None:
            raise InvalidError(
                f"cannot rename or drop {name}, which has the rule {rule.rule}",
                hint=f"first remove the rule: wlc rule {circle.database} {name} none, then wlc take at {site.name}",
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
        if rule is not None and rule.rule == OWNER and rule.site != site.name:
            raise InvalidError(
                f"site {site.name} cannot write {table.name}: the table belongs to site {rule.site}",
                hint=f"write it at {rule.site}; wlc rule {circle.database} {table.name} changes that",
            )
        if not table.layout.primary_key and circle.primary != site.name:
            raise InvalidError(
                f"site {site.name} cannot write {table.name}, which has no primary key: only the primary,"
                f" {circle.primary}, can",
                hint=f"write it at {circle.primary}, or give the table a primary key there",
            )

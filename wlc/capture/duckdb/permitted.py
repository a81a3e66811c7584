"""What a site of several may not write, decided before a transaction commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.circle import OWNER
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.capture.duckdb.journal import CapturedTable
    from wlc.masters.state import SiteState


def refuse_schema_change(site: SiteState) -> None:
    """Refuse a schema change at another site than the one that may make it.

    Raises:
        InvalidError: This is another one.
    """
    circle = site.circle
    if circle is not None and circle.ddl != site.name:
        raise InvalidError(
            f"site {site.name} cannot change the schema: only site {circle.ddl} of {circle.database} can",
            hint=f"run the statement at {circle.ddl}; wlc take brings it here",
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

"""Compare tables that are in doubt with what was captured; see `home`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from wlc.capture.duckdb import unpublished
from wlc.dialect.duckdb import snapshot
from wlc.farm.digest import differing
from wlc.farm.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import Name


def changed(shared: Shared, tables: Iterable[Name]) -> list[Name]:
    """Compare the tables that are in doubt, and return those that hold other rows than were captured."""
    if not (doubtful := shared.doubt.of(tables)):
        return []
    with shared.reading() as connection:
        expected = unpublished.expected_digests(connection, shared.catalog, shared.work)
        held = snapshot.digests(connection, shared.catalog, doubtful)
    found = differing(held, expected)
    shared.doubt.compared.update(held.keys() - set(found))
    return found


def refuse_changed(shared: Shared, tables: Iterable[Name]) -> None:
    """Refuse to publish removed or changed rows of tables that hold other rows than were captured.

    Raises:
        UnsupportedError: There is such a table.
    """
    if found := changed(shared, tables):
        raise UnsupportedError(
            f"rows of {', '.join(map(str, found))} were changed without wlc.connect(), and replicas do not have them",
            hint=f"wlc repair {shlex.quote(shared.path)}",
            path=shared.path,
        )

"""Row images of a derived database: filtered in DuckDB, and summed up for each transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.dialect.duckdb.digest_sql import numbered_sql
from wlc.dialect.duckdb.parquet_sql import KEPT, rows_of
from wlc.dialect.sql import literal, quote
from wlc.farm.digest import MODULUS
from wlc.farm.model import WEIGHT, file_column
from wlr.filtering.images import chosen_images

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from wlc.farm.model import Layout
    from wlr.plan.row_filters import TableFilter


@dataclass(frozen=True, slots=True)
class Passed:
    """What passes of the changes that one transaction made to a table.

    Attributes:
        total: Of the numbers of its images, each times its weight; see `wlc.farm.digest`.
    """

    added: int
    removed: int
    total: int


@dataclass(frozen=True, slots=True)
class PassedFile:
    """A data file with what passes of another one: by tick what it adds up to, and the layout of its rows."""

    layout: Layout
    by_tick: dict[int, Passed]

    @property
    def rows(self) -> int:
        """Row images in it."""
        return sum(passed.added + passed.removed for passed in self.by_tick.values())


def write_passing(
    connection: duckdb.DuckDBPyConnection, chosen: TableFilter, layout: Layout, images: fold.RowImages, into: Path
) -> PassedFile:
    """Write the images of a data file that pass, each under its tick.

    What a transaction changed in columns that are left out, or that a mask makes equal, is no change: images that add
    up to nothing would tell that it was made.

    Args:
        connection: Filters, see `wlr.filtering.images.masking`.
        chosen: The table's filter.
        layout: Of the images.
        images: Where they are.
        into: The file to write.
    """
    columns = fold.stored_columns(layout)
    raw = (
        f"SELECT {', '.join(columns)}, {WEIGHT}, _tick FROM {rows_of(*images.files)}"
        f" WHERE _tick BETWEEN {images.first} AND {images.last}"
    )
    passing = chosen_images(connection, chosen, layout, raw, keeps_ticks=True)
    own = passing.layout
    with passing.reading():
        query = _netted(own, passing.sql) if chosen.columns or chosen.masks else passing.sql
        stored = ", ".join(fold.stored_columns(own))
        connection.execute(
            f"COPY (SELECT _tick, {WEIGHT}, {stored} FROM ({query}) ORDER BY _tick) TO {literal(str(into))} ({KEPT})"
        )
        numbered = numbered_sql(own, rows_of(into), tick="_tick", w=WEIGHT)
        counts = "count(*) FILTER (w > 0), count(*) FILTER (w < 0)"
        query = f"SELECT tick, {counts}, sum(CAST(h AS HUGEINT) * w) FROM {numbered} GROUP BY tick"
        found = connection.execute(query).fetchall()
    return PassedFile(
        own, {tick: Passed(added, removed, int(total) % MODULUS) for tick, added, removed, total in found}
    )


def _netted(layout: Layout, images: str) -> str:
    """Select images of which those of one transaction that add up to nothing are left out."""
    columns = [quote(file_column(column.name)) for column in layout.stored]
    told_apart = (fold.tell_apart(c, quote(file_column(c.name))) for c in layout.stored)
    summed = (
        f'SELECT _tick, {", ".join(columns)}, CAST(sum({WEIGHT}) AS BIGINT) AS "dbfarm sum" FROM ({images})'
        f" GROUP BY {', '.join(['_tick', *columns, *filter(None, told_apart)])} HAVING sum({WEIGHT}) <> 0"
    )
    return (
        f'SELECT _tick, CAST(sign("dbfarm sum") AS TINYINT) AS {WEIGHT}, {", ".join(columns)}'
        f' FROM ({summed}), range(abs("dbfarm sum"))'
    )

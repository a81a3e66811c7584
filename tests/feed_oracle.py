"""What a feed has to say, taken from the log without any of the feed's code: the simplest reader of log and data files."""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from wlc.farm.model import Change, Clear, Ddl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Layout

Row = dict[str, Any]
# Operation, table, tick, the image before and the one after; a note has what it is about in their stead.
Record = tuple[str, str, int, Any, Any]


def projection(database: FarmDatabase, *patterns: str, after: int = 0) -> list[list[Record]]:
    """Return the records of every transaction, those of one in any order: a list per tick that has some."""
    found: list[list[Record]] = []
    for number in database.batch_numbers():
        batch, _ = database.read_batch(number)
        layouts = {file.file.path: (file.layout, file.file) for file in batch.files}
        for transaction in batch.transactions:
            records: list[Record] = []
            for record in transaction.records:
                if isinstance(record, Ddl) and record.layout is None and record.kind != "DROP TABLE":
                    continue
                table = record.object if isinstance(record, Ddl) else getattr(record, "table", None)
                if table is None or not _matches(str(table), patterns):
                    continue
                if isinstance(record, Change):
                    layout, file = layouts[record.path]
                    images = pq.read_table(database.fetch(file)).to_pylist()
                    of_tick = [image for image in images if image["_tick"] == transaction.tick]
                    records += _paired(layout, of_tick, str(table), transaction.tick)
                elif isinstance(record, Clear):
                    records.append(("truncate", str(table), transaction.tick, record.removed, None))
                elif isinstance(record, Ddl):
                    records.append(("schema", str(table), transaction.tick, record.statement, None))
            if records and transaction.tick > after:
                found.append(records)
    return found


def _matches(table: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(table, pattern) for pattern in patterns)


def _paired(layout: Layout, images: list[Row], table: str, tick: int) -> Iterator[Record]:
    weights: dict[str, int] = defaultdict(int)
    rows: dict[str, Row] = {}
    for image in images:
        row = {name: value for name, value in image.items() if name not in ("_tick", "_weight")}
        weights[repr(row)] += image["_weight"]
        rows[repr(row)] = row
    before: dict[Any, list[Row]] = defaultdict(list)
    added: dict[Any, list[Row]] = defaultdict(list)
    for text, weight in weights.items():
        key = tuple(rows[text][name] for name in layout.primary_key) or text
        (before if weight < 0 else added)[key] += [rows[text]] * abs(weight)
    for key in {**before, **added}:
        if key in before and key in added:
            yield ("update", table, tick, before[key][0], added[key][0])
        else:
            yield from (("delete", table, tick, row, None) for row in before[key])
            yield from (("insert", table, tick, None, row) for row in added[key])


def flat(ticks: Sequence[Sequence[Record]]) -> list[str]:
    """Return the records as texts, those of a transaction sorted, so that lists can be compared."""
    return [text for records in ticks for text in sorted(map(repr, records))]

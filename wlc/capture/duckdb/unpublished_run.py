"""Journalled transactions that only changed rows of one table, as columns: a hundred thousand of them may wait."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb.journal import JournalEntry, JournalledImages, decode_entry, images_sql
from wlc.farm.log_columns import PlainRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import duckdb

    from wlc.farm.model import Name

# What stands before and behind the user in a transaction's own data, if there is nothing else in it; see
# `wlc.capture.duckdb.journal`. In LIKE, `_` is any character: times have 27.
_HEAD = '{"user": '
_TIME = "_" * 27
_TAIL = f', "started": "{_TIME}", "committed": "{_TIME}"}}'
_STARTED = len(', "started": "')
_COMMITTED = _STARTED + len(f'{_TIME}", "committed": "')


def read_run(
    connection: duckdb.DuckDBPyConnection, catalog: str, tables: Mapping[int, Name], wanted: str
) -> tuple[PlainRun, list[JournalEntry]]:
    """Read the transactions whose own data is with their images.

    Args:
        connection: In a transaction.
        catalog: The master's database.
        tables: Number and table of each image table.
        wanted: Condition on ticks, such as `BETWEEN 1 AND 5`.

    Returns:
        Those that were first committed here, as a run whose paths are the numbers of image tables; and the others.
    """
    import numpy as np

    users: dict[str, int] = {}
    others: list[JournalEntry] = []
    parts: list[dict[str, Any]] = []
    for place, (number, name) in enumerate(tables.items()):
        found = connection.execute(_query(images_sql(catalog, number), wanted)).fetchnumpy()
        metas = found.pop("meta")
        is_plain = np.ma.getmaskarray(metas)
        for at in np.flatnonzero(~is_plain).tolist():
            images = JournalledImages(name, number, int(found["added"][at]), int(found["removed"][at]))
            others.append(decode_entry(int(found["tick"][at]), metas[at], images))
        found = {column: values[is_plain] for column, values in found.items()}
        found["user"] = np.fromiter((users.setdefault(user, len(users)) for user in found["user"].tolist()), np.int64)
        parts.append({**found, "file": np.full(len(found["tick"]), place)})
    names = ("tick", "user", "started", "committed", "file", "added", "removed")
    columns = {name: np.concatenate([np.zeros(0, np.int64), *(part[name] for part in parts)]) for name in names}
    order = np.argsort(columns["tick"], kind="stable")
    columns = {name: np.asarray(column[order], np.int64) for name, column in columns.items()}
    run = PlainRun(
        ticks=columns["tick"],
        users=columns["user"],
        started=columns["started"],
        committed=columns["committed"],
        xids=np.full(len(order), -1),
        ends=np.arange(len(order) + 1),
        files=columns["file"],
        added=columns["added"],
        removed=columns["removed"],
        names=tuple(map(json.loads, users)),
        targets=tuple((name, str(number)) for number, name in tables.items()),
    )
    return run, others


def _query(images: str, wanted: str) -> str:
    head, tail = len(_HEAD), len(_TAIL)
    started, committed = (
        f"epoch_us(TRY_CAST(substr(right(meta, {tail}), {at + 1}, {len(_TIME)}) AS TIMESTAMP))"
        for at in (_STARTED, _COMMITTED)
    )
    return f"""
        WITH found AS (
            SELECT _tick AS tick, max(_meta) AS meta, count(*) FILTER (_weight > 0) AS added,
                count(*) FILTER (_weight < 0) AS removed
            FROM {images} WHERE _tick {wanted} GROUP BY _tick
            -- The images of a transaction with an entry are listed in it.
            HAVING max(_meta) IS NOT NULL
        ), parsed AS (
            SELECT tick, added, removed, meta, substr(meta, {head + 1}, len(meta) - {head + tail}) AS who,
                {started} AS begun, {committed} AS ended,
                meta LIKE '{_HEAD}"%"{_TAIL}' AND begun IS NOT NULL AND ended IS NOT NULL AS is_plain
            FROM found
        )
        SELECT tick, added, removed, who AS "user", coalesce(begun, 0) AS started, coalesce(ended, 0) AS committed,
            CASE WHEN NOT is_plain THEN meta END AS meta
        FROM parsed
    """


def entries_of(part: PlainRun | Iterable[JournalEntry]) -> Iterator[JournalEntry]:
    """Yield the transactions of a run, or those given, as the journal has them."""
    if not isinstance(part, PlainRun):
        yield from part
        return
    for found in part:
        (change,) = found.records
        images = JournalledImages(change.table, int(change.path), change.added, change.removed)  # type: ignore[union-attr]
        yield JournalEntry(found.tick, found.user, found.started, found.committed, (images,))


def with_paths(run: PlainRun, paths: Mapping[int, str]) -> PlainRun:
    """Let a run have the paths of data files, by image table."""
    return replace(run, targets=tuple((name, paths.get(int(number), "")) for name, number in run.targets))

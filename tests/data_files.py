"""Data files that do not hold what their log file says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.scratch import scratch

if TYPE_CHECKING:
    from pathlib import Path

# A row is `2, 'b'` of transaction 2 in the log. Each query makes a data file that holds something else.
OTHER_IMAGES = {
    "type": ("SELECT 2::BIGINT _tick, 1::TINYINT _weight, 2::BIGINT id, 'b' v", "id is BIGINT, .* INTEGER"),
    "type of text": ("SELECT 2::BIGINT _tick, 1::TINYINT _weight, 2 id, '1'::BLOB v", "v is BLOB, .* VARCHAR"),
    "type of weights": ("SELECT 2::BIGINT _tick, 1 _weight, 2 id, 'b' v", "_weight is INTEGER"),
    "more columns": ("SELECT 2::BIGINT _tick, 1::TINYINT _weight, 2 id, 'b' v, 1 w", "w INTEGER is not one of"),
    "fewer columns": ("SELECT 2::BIGINT _tick, 1::TINYINT _weight, 2 id", "has no column v"),
    "order": ("SELECT 2::BIGINT _tick, 1::TINYINT _weight, 'b' v, 2 id", "another order"),
    "nullability": ("SELECT 2::BIGINT _tick, 1::TINYINT _weight, NULL::INTEGER id, 'b' v", "no value in column id"),
    "weight": ("SELECT 2::BIGINT _tick, 5::TINYINT _weight, 2 id, 'b' v", "0 of weight -1 and 1 of other weights"),
    "no weight": ("SELECT 2::BIGINT _tick, NULL::TINYINT _weight, 2 id, 'b' v", "1 of other weights"),
    "sign": ("SELECT 2::BIGINT _tick, -1::TINYINT _weight, 1 id, 'a' v", "1 of weight -1"),
    "tick": ("SELECT 3::BIGINT _tick, 1::TINYINT _weight, 2 id, 'b' v", "0 rows of weight 1"),
    "count": (
        "SELECT 2::BIGINT _tick, w::TINYINT _weight, i id, 'b' v FROM (VALUES (1, 2), (1, 3), (-1, 3)) AS x(w, i)",
        "2 rows of weight 1 and 1 of weight -1",
    ),
}


def write_parquet(query: str, file: Path) -> None:
    """Write a query as a Parquet file."""
    with scratch() as connection:
        connection.execute(f"COPY ({query}) TO '{file}' (FORMAT parquet)")

"""The memory of a feed is bounded, however large a transaction is, and however well its values are compressed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import wlc
from wlc.farm.database import open_database
from wlc.farm.model import Position
from wlr.reading.feeds.feed_state import FeedState
from wlr.reading.feeds.formats import format_of
from wlr.reading.feeds.log_source import FeedReader
from wlr.reading.feeds.rendering import FeedPiece

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

FEED = """
import sys
from pathlib import Path
import wlr
done = wlr.feed("shop", farm=sys.argv[1], to=sys.argv[2], start=int(sys.argv[3]), max_bytes=int(sys.argv[4]))
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print("\\n", done.records, int(peak.split()[1]) // 1024)
"""


def made(folder: Path, rows: int, value: str, after: str = "") -> str:
    """Make a farm with one transaction of so many rows at tick 2, and return its URL."""
    farm = str(folder / "farm")
    wlc.master(folder / "shop.duckdb", farm=farm, beat_s=0, create=True)
    with wlc.connect(folder / "shop.duckdb") as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, v VARCHAR)")
        connection.execute(f"INSERT INTO t SELECT i, {value} FROM range({rows}) r(i)")
        if after:
            connection.execute(after)
    return farm


@pytest.mark.parametrize(
    "bytes_max", [6_000_000, 0, *(pytest.param(bound, marks=pytest.mark.deep) for bound in (100_000, 64_000_000))]
)
def test_no_more_records_are_rendered_at_once_than_is_allowed(tmp_path: Path, bytes_max: int) -> None:
    # Parquet needs next to nothing for these values, which have a kilobyte each.
    database = open_database("shop", made(tmp_path, 20_000, "repeat('x', 1000)"))
    state = FeedState("f", database.url, "out", (), "json", position=Position(database.config().history, 0))
    with closing(FeedReader(database, format_of("json")("shop", "f"), bytes_max)) as reader:
        pieces = [found for found in reader.found(state) if isinstance(found, FeedPiece)]
    assert sum(len(piece.records) for piece in pieces) == 20_001
    # DuckDB gives 2,048 rows at least.
    most = max(piece.bytes for piece in pieces)
    assert most < (max(bytes_max, 2048 * 1200) if bytes_max else 30_000_000)
    assert most > 2_000_000


@pytest.mark.deep
def test_a_feed_of_a_large_transaction_stays_within_its_bound(tmp_path: Path) -> None:
    rows = 1_000_000
    farm = made(tmp_path, rows, "repeat(md5(i::VARCHAR), 30)", "DELETE FROM t WHERE i = 0")

    def feed(name: str, start: int, max_bytes: int) -> int:
        """Feed in another process, and return its peak in MB."""
        command = [sys.executable, "-c", FEED, farm, str(tmp_path / name), str(start), str(max_bytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        records, peak_mb = map(int, done.stdout.split()[-2:])
        assert records == (1 if start == 3 else rows + 2)
        return peak_mb

    usual_mb = feed("usual", 3, 4_000_000)
    bounded_mb = feed("bounded", 1, 4_000_000)
    unbounded_mb = feed("unbounded", 1, 0)
    print(f"{usual_mb} MB for one record, {bounded_mb} MB with a bound, {unbounded_mb} MB without")
    # DuckDB may have 1 GB; the records have 1.1 GB, which would come on top of that.
    assert bounded_mb - usual_mb < 1400
    assert unbounded_mb > bounded_mb + 200

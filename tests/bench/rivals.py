"""How others rewrite the same table with the same changes: DuckDB by hand, Spark data frames, delta-rs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.bench import tables
from tests.bench.lakes import COLUMNS, peak_gb, plain, read
from tests.bench.measure import ROOT
from wlc.dialect.duckdb.parquet_sql import KEPT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

NO_DELTA = "deltalake is missing, so its lines are left out: pip install deltalake, or pip install 'dbfarm[bench]'"
# A merge that takes longer has met a limit of the machine.
TIMEOUT_S = 240
_NAMES = ", ".join(COLUMNS)
# As many rows as a file of a replica has, and as its row groups have.
_LIKE_OURS = f"{KEPT}, ROW_GROUP_SIZE 122880, ROW_GROUPS_PER_FILE 10"


def net_sql(changes: Sequence[str]) -> str:
    """Select the last image of each key that changes; one of weight -1 means that the row went."""
    last = "row_number() OVER (PARTITION BY id ORDER BY _tick DESC, _weight DESC) = 1"
    return f"SELECT * EXCLUDE (_tick) FROM {read(changes)} QUALIFY {last}"


def by_duckdb(base: Sequence[str], changes: Sequence[str], into: Path) -> list[str]:
    """Rewrite the table with plain DuckDB, and return the files."""
    with plain() as connection:
        connection.execute(f"SET temp_directory = '{into}.spill'")
        connection.execute(f"CREATE TEMP TABLE net AS {net_sql(changes)}")
        kept = f"SELECT {_NAMES} FROM {read(base)} AS t ANTI JOIN net USING (id)"
        query = f"{kept} UNION ALL SELECT {_NAMES} FROM net WHERE _weight > 0"
        connection.execute(f"COPY ({query}) TO '{into}' ({_LIKE_OURS})")
    return files_in(into)


def by_data_frame(spark: SparkSession, base: Sequence[str], changes: Sequence[str], into: Path) -> list[str]:
    """Rewrite the table with Spark as one would write it down, and return the files."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    latest = Window.partitionBy("id").orderBy(f.desc("_tick"), f.desc("_weight"))
    net = spark.read.parquet(*changes).withColumn("n", f.row_number().over(latest)).where("n = 1")
    kept = spark.read.parquet(*base).join(net, "id", "left_anti")
    added = net.where("_weight > 0").select(*COLUMNS)
    kept.unionByName(added).write.option("compression", "zstd").parquet(str(into))
    return files_in(into)


def files_in(folder: Path) -> list[str]:
    """The Parquet files of a folder."""
    return sorted(str(file) for file in folder.glob("*.parquet"))


# delta-rs, in a process of its own: what it needs of memory is not limited -------------------------------------------


def has_delta() -> bool:
    """Whether deltalake is installed."""
    return importlib.util.find_spec("deltalake") is not None


def write_net(changes: Sequence[str], into: Path) -> None:
    """Write the net change to a file, as the source of a MERGE."""
    with plain() as connection:
        connection.execute(f"COPY ({net_sql(changes)}) TO '{into}' (FORMAT parquet)")


def by_delta(base: Sequence[str], net: Path, into: Path) -> tuple[float, float, list[str]]:
    """MERGE into a Delta table of the same files.

    Returns:
        Seconds of the MERGE alone, the peak of its process in GB, and the files of the table afterwards.
    """
    tables.fresh(into)
    for number, file in enumerate(base):
        os.link(file, into / f"{number}.parquet")
    os.sync()
    command = [sys.executable, "-m", "tests.bench.rivals", str(into), str(net)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    if found.returncode:
        raise RuntimeError(f"delta-rs ended with {found.returncode}: {found.stderr.strip()[-300:]}")
    seconds, peak, files = json.loads(found.stdout.splitlines()[-1])
    return seconds, peak, files


def main(folder: str, net: str) -> None:
    """MERGE in this process and print what came of it."""
    import pyarrow.parquet
    from deltalake import DeltaTable, WriterProperties, convert_to_deltalake

    convert_to_deltalake(folder)
    table, source = DeltaTable(folder), pyarrow.parquet.read_table(net)
    values = {name: f"s.{name}" for name in COLUMNS}
    properties = WriterProperties(compression="ZSTD", max_row_group_size=122_880)
    started = time.perf_counter()
    merger = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t", writer_properties=properties)
    merger = merger.when_matched_delete("s._weight < 0").when_matched_update(values)
    merger.when_not_matched_insert(values, "s._weight > 0").execute()
    seconds = time.perf_counter() - started
    files = [uri.removeprefix("file://") for uri in table.file_uris()]
    print(json.dumps([seconds, peak_gb(), files]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

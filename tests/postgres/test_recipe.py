"""The recipe of docs/howto/postgresql.md, from a fresh cluster on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.ports import free_port
from tests.postgres.cluster import new_folder, user_that_may_run_it
from tests.postgres.programs import program

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RECIPE = re.compile(r"```sh\n(.*?)```", re.DOTALL)
AS_SERVER = ("initdb", "pg_ctl")


def test_the_recipe_works_as_it_is_written(tmp_path: Path) -> None:
    found = RECIPE.search((ROOT / "docs" / "howto" / "postgresql.md").read_text(encoding="utf-8"))
    assert found
    folder, port = new_folder(), str(free_port())
    user = user_that_may_run_it()
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(Path(program("initdb")).parent), os.environ["PATH"]])
    lines = [line for line in found.group(1).replace("5433", port).splitlines() if not line.startswith("pip ")]
    # A server does not run as root, which these tests may do.
    prefix = f"setpriv --reuid={user.pw_uid} --regid={user.pw_gid} --clear-groups " if user else ""
    script = [prefix + line if line.startswith(AS_SERVER) else line for line in lines]
    script = [line.replace("-D cluster -l cluster.log", f"-D {folder}/cluster -l {folder}/log") for line in script]
    script = [line.replace("-D cluster", f"-D {folder}/cluster") for line in script]
    # Whoever types it reads what `wlc run` prints; a busy machine takes longer than the recipe says.
    seen = 'until [ "$(wlc tick shop)" = 1 ]; do sleep 0.2; done'
    script = [seen if line == "sleep 5" else line for line in script]
    environment = {**os.environ, "PATH": path, "WLC_FARM": str(tmp_path / "farm")}
    try:
        done = subprocess.run(
            ["bash", "-emc", "\n".join(script)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        stop = f"{prefix}pg_ctl -D {folder}/cluster -m immediate stop; rm -rf {folder}"
        subprocess.run(["bash", "-c", stop], env=environment, check=False, capture_output=True)
    assert "run: batches 1, transactions 1, rows 2, tick 1" in done.stderr
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        assert connection.execute("FROM public.orders ORDER BY id").fetchall() == [(1, "pen"), (2, "ink")]

"""Whoever uses `wlc` and `wlr` from Python sees real types: mypy, strict, from outside of the source tree."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parent.parent
SNIPPET = """
from datetime import datetime

import wlc
import wlr


def use(since: datetime) -> None:
    reveal_type(wlc.tick("sales", "farm"))  # int
    reveal_type(wlc.clock("sales"))  # datetime.datetime | None
    reveal_type(wlc.beat("sales", 10))  # float
    reveal_type(wlc.status("sales").tick)  # int
    reveal_type(wlc.snapshot("sales.duckdb").position.tick)  # int
    reveal_type(wlr.replicate("sales", into="copy.duckdb", until=since))  # wlr.replay.run.Replicated
    reveal_type(wlr.replicate(into="copy.duckdb").clock)  # datetime.datetime | None
    reveal_type(wlr.status("copy.duckdb"))  # wlr.care.replica_status.ReplicaStatus
    reveal_type(wlr.status("copy.duckdb").failure)  # wlr.replay.plan.failure.Failure | None
    reveal_type(wlr.tick("copy.duckdb"))  # int
    reveal_type(wlr.clock("copy.duckdb"))  # datetime.datetime | None
    reveal_type(wlr.beat("copy.duckdb"))  # float
    reveal_type(wlr.accept("copy.duckdb").cause)  # str
    reveal_type(wlr.lock("copy.duckdb"))  # None
    reveal_type(wlr.unlock("copy.duckdb"))  # None
    reveal_type(wlr.verify("copy.duckdb").tables)  # tuple[wlr.care.verification.TableCheck, ...]
    reveal_type(wlr.verify("copy.duckdb", locate=True).tables[0].ranges)  # tuple[wlr.care.verification.KeyRange, ...]
    reveal_type(wlr.repair("copy.duckdb", ["orders"]))  # list[wlr.care.repairing.RepairedTable]
    reveal_type(wlr.verify_farm("sales", farm="farm").problems)  # tuple[wlr.care.farm_audit.FarmProblem, ...]
    reveal_type(wlr.drill("sales").restore_s)  # float
    reveal_type(wlr.files("lake", "orders"))  # list[str]
    reveal_type(wlr.read("sales", "orders", tick=1, columns=["id"], where="id > 1"))  # duckdb._relation.DuckDBPyRelation
    reveal_type(wlr.changes("sales", "orders", since=1040))  # typing.Iterator[Any]
    reveal_type(wlr.diff("sales", 1, 2)[0].changed)  # int | None
    reveal_type(wlr.differing_rows("sales", 1, 2, "orders"))  # duckdb._relation.DuckDBPyRelation
    reveal_type(wlr.prune("lake", keep="3 days").ticks)  # tuple[int, ...]
    reveal_type(wlr.snapshot_from_log("sales"))  # wlc.farm.model.Manifest
    reveal_type(wlr.__version__)  # str
    try:
        wlr.tick("copy.duckdb")
    except wlr.UnavailableError as error:
        reveal_type(error.hint)  # str | None


wlr.replicate(into=5)  # error: arg-type
wlr.replicate("sales")  # error: call-arg
wlr.nothing  # error: attr-defined
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says of each line of the snippet, in an environment where the packages are installed."""
    folder = tmp_path_factory.mktemp("types")
    venv.create(folder / "venv", with_pip=False)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    for package in ("wlc", "wlr"):
        (site / package).symlink_to(ROOT / package)
    # What they depend on is installed where the tests run.
    paths = [sysconfig.get_path("purelib"), *(path for path in sys.path if "site-packages" in path)]
    (site / "others.pth").write_text("\n".join(dict.fromkeys(paths)))
    (folder / "snippet.py").write_text(SNIPPET)
    python = folder / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--python-executable={python}"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        [*command, "snippet.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.stderr == ""
    lines = re.findall(r"^snippet\.py:(\d+): (?:note: Revealed type is \"(.*)\"|error: (.*))$", done.stdout, re.M)
    return {int(line): revealed or error for line, revealed, error in lines}


@pytest.mark.slow
def test_types_are_those_of_the_functions(told: dict[int, str]) -> None:
    expected = {
        number: line.partition("  # ")[2]
        for number, line in enumerate(SNIPPET.splitlines(), 1)
        if "reveal_type" in line
    }
    found = {number: re.sub(r"\bbuiltins\.", "", told.get(number, "nothing")) for number in expected}
    assert found == expected


@pytest.mark.slow
def test_wrong_calls_are_found(told: dict[int, str]) -> None:
    wrong = {number: line.partition("  # error: ")[2] for number, line in enumerate(SNIPPET.splitlines(), 1)}
    wrong = {number: code for number, code in wrong.items() if code}
    assert {number: re.findall(r"\[([a-z-]+)\]$", told.get(number, "")) for number in wrong} == {
        number: [code] for number, code in wrong.items()
    }
    assert {number for number, said in told.items() if said.endswith("]") and " [" in said} == wrong.keys()


@pytest.mark.parametrize("package", [wlc, wlr])
def test_every_public_name_is_there(package: ModuleType) -> None:
    assert sorted(set(package.__all__)) == sorted(package.__all__)
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert (Path(str(package.__file__)).parent / "py.typed").is_file()


@pytest.mark.parametrize("package", ["wlc", "wlr"])
def test_importing_a_package_costs_little_more_than_importing_duckdb(package: str) -> None:
    code = f"import sys, duckdb\nbefore = set(sys.modules)\nimport {package}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted({"wlc", "wlc.farm", "wlc.farm.lazy_import", package})

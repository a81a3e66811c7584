"""A real Spark for the tests of this folder: one local session, and a standalone cluster on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.ui.enabled": "false",
}


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool(home and (Path(home) / "bin" / "java").exists()) or shutil.which("java") is not None


@pytest.fixture(autouse=True)
def java() -> None:
    if not has_java():
        pytest.skip("Spark needs Java, and there is none: sh tests/run.sh installs it where it may")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests: starting one takes longer than most of them."""
    if not has_java():
        pytest.skip("Spark needs Java, and there is none")
    import wlr.spark
    from wlr.spark.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = spark_session(
        "local[2]", {**SETTINGS, "spark.sql.warehouse.dir": str(folder), "spark.local.dir": str(folder)}
    )
    assert session.started
    session.spark.dataSource.register(wlr.spark.FarmDataSource)
    yield session.spark
    session.spark.stop()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a standalone cluster: a master and two workers, processes of their own with one core each."""
    if not has_java():
        pytest.skip("Spark needs Java, and there is none")
    with standalone(tmp_path_factory.mktemp("cluster"), 2) as url:
        yield url


@contextmanager
def standalone(folder: Path, workers: int, own: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a standalone cluster; `own` are variables of its workers."""
    port = free_port()
    with ExitStack() as stack:
        name = "org.apache.spark.deploy.master.Master"
        stack.enter_context(process(name, folder, "--host", "127.0.0.1", "--port", str(port)))
        url = f"spark://127.0.0.1:{port}"
        wait_for(lambda: is_open(port), "the master to listen")
        folders = [folder / str(number) for number in range(workers)]
        for work in folders:
            arguments = ("--host", "127.0.0.1", "--cores", "1", "--memory", "700m", "--work-dir", str(work), url)
            stack.enter_context(process("org.apache.spark.deploy.worker.Worker", work, *arguments, own=own))
        wait_for(lambda: all(map(registered, folders)), "the workers to register")
        yield url


@contextmanager
def process(name: str, folder: Path, *arguments: str, own: Mapping[str, str] | None = None) -> Iterator[None]:
    """Run one of Spark's daemons until the end of the block."""
    import pyspark

    home = Path(pyspark.__file__).parent
    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        **(own or {}),
    }
    with (folder / "log").open("wb") as log:
        command = [str(home / "bin" / "spark-class"), name, "--webui-port", str(free_port()), *arguments]
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def registered(folder: Path) -> bool:
    return b"Successfully registered with master" in (folder / "log").read_bytes()


def is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 300.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited {limit_s} s for {what}"
        time.sleep(0.1)


@pytest.fixture
def run_on() -> Callable[[str, str], str]:
    """Run a program on a cluster, in a process of its own: this one has its local session; return what it printed."""

    def run(master: str, program: str) -> str:
        settings = {**SETTINGS, "spark.executor.memory": "500m", "spark.executorEnv.PYTHONPATH": str(ROOT)}
        script = f"""
import wlr.spark
from wlr.spark.session import spark_session
with spark_session({master!r}, {settings!r}) as spark:
    spark.dataSource.register(wlr.spark.FarmDataSource)
{textwrap.indent(textwrap.dedent(program), "    ")}
"""
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run

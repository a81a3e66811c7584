"""The Spark session: the program's own, or a new one."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from wlc.farm.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

_NAME = "dbfarm"
# Spark's errors if its workers have no Python, another version, or one without dbfarm and its dependencies.
_OTHER_PYTHON = re.compile(r"No module named|PYTHON_VERSION_MISMATCH|Cannot run program")
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


@dataclass(frozen=True, slots=True)
class SparkHandle:
    """A Spark session; as a context, it stops the session at the end if `spark_session` started it.

    Attributes:
        started: Whether `spark_session` started it.
    """

    spark: SparkSession
    started: bool

    def __enter__(self) -> SparkSession:
        return self.spark

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.started:
            self.spark.stop()


def spark_session(master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkHandle:
    """Return the program's session, or start one.

    Args:
        master: URL of a cluster, `sc://…` for Spark Connect. If omitted, that of spark-submit, `SPARK_REMOTE` or
            spark-defaults.conf, else this machine.
        settings: Settings of a new session; an existing one keeps its own.

    Raises:
        UnavailableError: Java is not installed, or Spark cannot be reached.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return SparkHandle(active, started=False)
    remote = master if master and master.startswith("sc://") else None
    if master is None:
        remote = os.environ.get("SPARK_REMOTE")
    if remote:
        _choose_python(remote)
        return SparkHandle(_connected(remote, settings or {}), started=True)
    _find_java()
    return _local(master, settings or {})


@contextmanager
def described(session: SparkSession, text: str) -> Iterator[None]:
    """Describe the jobs of this thread in Spark's user interface."""
    if not _is_classic(session):
        # Spark Connect has only tags, and a tag cannot hold a comma.
        tag = text.replace(",", ";")
        session.addTag(tag)
        try:
            yield
        finally:
            session.removeTag(tag)
        return
    context = session.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setJobDescription(before)


def cores(session: SparkSession) -> int:
    """Return the number of tasks that can run at once; a large number if the session does not report it."""
    return int(session.sparkContext.defaultParallelism) if _is_classic(session) else 64


@contextmanager
def few_rows_at_once(session: SparkSession) -> Iterator[None]:
    """Pass a few rows at a time to tasks: a row may be a whole file, and ten thousand files would fill the memory."""
    before = session.conf.get(_BATCH_ROWS)
    session.conf.set(_BATCH_ROWS, "8")
    try:
        yield
    finally:
        session.conf.set(_BATCH_ROWS, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress pyspark's warning about the version of pandas, which pyspark needs and dbfarm does not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet", category=FutureWarning)
        yield


@contextmanager
def translated() -> Iterator[None]:
    """Turn Spark's own errors into `UnavailableError`."""
    try:
        yield
    except PySparkException as error:
        lines = str(error).strip().splitlines()
        said = next((line for line in reversed(lines) if "Error" in line), lines[0] if lines else "")
        hint = "Nothing was lost: run it again, or with --engine local. Spark's log says more."
        if _OTHER_PYTHON.search(str(error)):
            hint = (
                f"export PYSPARK_PYTHON=PATH, where dbfarm and Python {_VERSION} are on Spark's workers; docs/spark.md"
            )
        raise UnavailableError(f"Spark failed: {said.strip()[:300]}", hint=hint) from error


def _is_classic(session: SparkSession) -> bool:
    return ".connect." not in type(session).__module__


def _connected(remote: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.remote(remote)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (ImportError, ValueError, PySparkException) as error:
        hint = "pip install 'pyspark[connect]', and check that the server runs."
        # The URL can hold a token.
        host = remote.partition("://")[2].partition("/")[0]
        reason = _first_line(error).replace(remote, host)
        raise UnavailableError(f"Spark Connect at {host} cannot be used: {reason}", hint=hint) from error


def _find_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return
    if shutil.which("java") is None:
        raise UnavailableError(
            "Spark needs Java, and there is none", hint="apt-get install default-jre-headless, or set JAVA_HOME."
        )


def _local(master: str | None, settings: Mapping[str, str]) -> SparkHandle:
    _choose_python(master)
    try:
        # Anything else comes from spark-submit and spark-defaults.conf, and by default from Spark itself: local[*].
        conf = SparkConf()
        if master:
            conf.setMaster(master)
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            # spark-submit has already named its program.
            conf.setAppName(_NAME)
        for key, value in settings.items():
            conf.set(key, value)
        before = _context()
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        started = before is None
        if started:
            spark.sparkContext.setLogLevel("ERROR")
    except (PySparkException, OSError) as error:
        raise UnavailableError(f"Spark could not be started: {_first_line(error)}") from error
    return SparkHandle(spark, started)


def _choose_python(master: str | None) -> None:
    """Run workers on this machine with the Python of this process, not with the first `python3` of the path."""
    is_local = master is None or master.startswith("local")
    is_configured = any(name in os.environ for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT"))
    if is_local and not is_configured:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _context() -> object | None:
    """Return the Spark context of this process, started by any thread; the public way would start a new one."""
    from pyspark import SparkContext

    active: object | None = SparkContext._active_spark_context
    return active


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]

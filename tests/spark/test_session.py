"""The session is the one that is there; what we start, and nothing else, is ours to stop."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.spark.conftest import wait_for
from wlc.farm.errors import UnavailableError
from wlr.spark.session import described, spark_session, translated

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_session_that_is_there_is_taken_and_left(spark: SparkSession) -> None:
    with spark_session("local[1]", {"spark.app.name": "other"}) as taken:
        assert taken is spark
    assert not spark_session().started
    assert spark.range(3).count() == 3
    assert spark.sparkContext.appName == "dbfarm"
    assert spark.sparkContext.master == "local[2]"


def test_descriptions_reach_the_jobs_and_end(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setJobDescription("before")
    with described(spark, "replay of sales to tick 5, table orders"):
        assert spark.range(10).count() == 10
        assert context.getLocalProperty("spark.job.description") == "replay of sales to tick 5, table orders"
    assert context.getLocalProperty("spark.job.description") == "before"
    context.setJobDescription(None)
    store = context._jsc.sc().statusStore()

    def said() -> list[str]:
        jobs = store.jobsList(None)
        return [jobs.apply(place).description().toString() for place in range(jobs.size())]

    wait_for(lambda: "Some(replay of sales to tick 5, table orders)" in said(), "the job to be listed")


def test_missing_java_is_said_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(UnavailableError, match="Spark needs Java") as raised:
        spark_session()
    assert "JAVA_HOME" in str(raised.value.hint)


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_bad_url_of_spark_connect_is_said_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    # Where the main module has no file, as in a process of pytest-xdist, pyspark takes this for a doctest and exits.
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    with pytest.raises(UnavailableError, match="Spark Connect at 127.0.0.1:port cannot be used") as raised:
        spark_session("sc://127.0.0.1:port/;token=hunter2")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "text, hint",
    [
        ("ModuleNotFoundError: No module named 'wlr'", "export PYSPARK_PYTHON="),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "export PYSPARK_PYTHON="),
        ('java.io.IOException: Cannot run program "./environment/bin/python"', "export PYSPARK_PYTHON="),
        ("java.lang.OutOfMemoryError: Java heap space", "--engine local"),
    ],
)
def test_workers_with_another_python_are_told_from_other_failures(text: str, hint: str) -> None:
    with pytest.raises(UnavailableError, match="Spark failed") as caught, translated():
        raise PySparkException(text)
    assert hint in str(caught.value.hint)


@pytest.mark.deep
def test_session_of_our_own_is_stopped(tmp_path: Path) -> None:
    """In a process of its own: this one has the session of the other tests."""
    script = """
from pyspark import SparkContext
from wlr.spark.session import spark_session
with spark_session(settings={"spark.ui.enabled": "false", "spark.driver.memory": "600m"}) as spark:
    context = spark.sparkContext
    print(context.master, context.appName, context.getConf().get("spark.driver.memory"))
    assert not spark_session().started
print(SparkContext._active_spark_context)
"""
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[1]\n")
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n")[:2] == ["local[1] dbfarm 600m", "None"], done.stderr

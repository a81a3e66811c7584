"""A farm in a bucket is read with options alone, and nothing that was downloaded stays behind."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from tests.handmade import HandmadeFarm, Rows
from tests.spark.reading import tasks_rows
from wlc.farm.model import Clear, Name

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_options_are_enough(s3_url: str, s3_environment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    farm = HandmadeFarm(s3_url)
    farm.publish(["CREATE TABLE t (i INTEGER)", Rows("t", added=("1", "2"))], [Rows("t", removed=("1",))])
    farm.publish([Clear(Name("main", "t"), 1), Rows("t", added=("5",))])
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = {
        "farm": s3_url,
        "storage.endpoint_url": s3_environment,
        "storage.key": "testing",
        "storage.secret": "topsecretvalue",
        "storage.client_kwargs.region_name": "us-east-1",
    }
    assert tasks_rows("sales", "t", **options) == {("5",): 1}
    feed = tasks_rows("sales", "t", "i", "_tick", "_weight", changes="true", from_tick="2", **options)
    assert feed == {("1", "2", "-1"): 1, ("2", "3", "-1"): 1, ("5", "3", "1"): 1}
    assert list(tmp_path.iterdir()) == []

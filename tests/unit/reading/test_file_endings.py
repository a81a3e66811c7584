"""What a file's name says of its format, and what somebody who says otherwise is told."""

from __future__ import annotations

import pytest

from wlc.farm.errors import InvalidError
from wlr.reading.feeds.adapters import OutputSettings, output_at
from wlr.reading.file_endings import format_of_file

ENDINGS = {".jsonl": ("json", "debezium"), ".json": ("json", "debezium"), ".csv": ("csv",)}


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("out.csv", None, "csv"),
        ("out.CSV", None, "csv"),
        ("folder.csv/out", None, "json"),
        ("out.csv.000001", None, "json"),
        ("out.csv.000001", "csv", "csv"),
        ("out.json", None, "json"),
        ("out.json", "debezium", "debezium"),
        ("out.log", None, "json"),
        ("out", "csv", "csv"),
    ],
)
def test_the_ending_says_the_format(name: str, asked: str | None, expected: str) -> None:
    assert format_of_file(name, asked, ENDINGS, "json") == expected


@pytest.mark.parametrize(
    ("name", "asked", "hint"),
    [
        ("out.csv", "json", "--format csv, or a name that ends in .jsonl"),
        ("out.csv", "debezium", "--format csv, or a name that ends in .jsonl"),
        ("out.json", "csv", "--format json, or a name that ends in .csv"),
    ],
)
def test_another_format_than_the_name_says_is_refused(name: str, asked: str, hint: str) -> None:
    with pytest.raises(InvalidError, match=rf"{name} ends in .*, and --format is {asked}") as caught:
        format_of_file(name, asked, ENDINGS, "json")
    assert caught.value.hint == hint


def test_a_topic_has_no_ending() -> None:
    topic = output_at("kafka://127.0.0.1:9092/orders.csv", OutputSettings())
    assert topic.choose_format(None) == "json"

"""A traceback shows the hint of an error, in words of Python."""

from __future__ import annotations

import traceback

import pytest

from wlc.farm.errors import PARAMETERS, InvalidError, in_python
from wlc.farm.parameters import declared
from wlc.tiers.options import RelayOptions
from wlr.reading.feeds.options import FeedOptions
from wlr.replay.options import ReplicaOptions


@pytest.mark.parametrize(
    "hint, shown",
    [
        ("Use --tick 5, or wait with --follow.", "Use tick=5, or wait with follow."),
        ("--keep-for 1h", "keep_for='1h'"),
        ("--from 7 begins with the next one.", "start=7 begins with the next one."),
        ("Leave --keep out.", "Leave keep out."),
        (
            "--anew begins its new history with the newest snapshot",
            "anew begins its new history with the newest snapshot",
        ),
        ("--upstream auto", "upstream='auto'"),
        ("--format json, or a name that ends in .jsonl", "format='json', or a name that ends in .jsonl"),
        ("--to s3://b/x --name NAME", "to='s3://b/x' name=NAME"),
        ("Name it with --farm URL or set WLC_FARM.", "Name it with farm=URL or set WLC_FARM."),
        ("wlr status copy.duckdb --json", "in a shell: wlr status copy.duckdb --json"),
        ("Use --tick 3; wlc flush SOURCE", "Use tick=3; in a shell: wlc flush SOURCE"),
    ],
)
def test_hints_in_words_of_python(hint: str, shown: str) -> None:
    assert in_python(hint) == shown


def test_a_traceback_shows_the_newest_hint_once_and_other_notes() -> None:
    error = InvalidError("no", hint="--tick 1")
    error.add_note("something else")
    error.hint = "--tick 2"
    lines = traceback.format_exception_only(error)
    assert [line.strip() for line in lines[1:]] == ["hint: tick=2", "something else"]
    error.hint = None
    assert len(traceback.format_exception_only(error)) == 2


@pytest.mark.parametrize("declaration", [FeedOptions, RelayOptions, ReplicaOptions])
def test_every_option_with_another_name_is_known(declaration: type) -> None:
    other = {option.flag[2:]: option.name for option in declared(declaration) if option.key != option.name}
    assert other.items() <= PARAMETERS.items()

"""Options that need reading."""

from __future__ import annotations

import pytest

from cli.options import storage_options, tick_range
from tests.commands import commands
from wlc.farm.errors import InvalidError


@pytest.mark.parametrize(
    "text, expected",
    [("3:5", (3, 5)), ("3:", (3, None)), (":5", (None, 5)), ("3", (3, 3)), ("0:0", (0, 0))],
)
def test_tick_range(text, expected) -> None:
    assert tick_range(text) == expected


@pytest.mark.parametrize("text", ["", ":", "5:3", "a:b", "1:2:3", "-1", "1.5"])
def test_what_is_no_tick_range_is_refused_with_an_example(text) -> None:
    with pytest.raises(InvalidError, match="not a range of ticks") as refused:
        tick_range(text)
    assert "--tick 10:20" in (refused.value.hint or "")


def test_storage_options() -> None:
    assert storage_options(None) is None
    assert storage_options([]) is None
    assert storage_options(["key=a=b", "anon=true", "client_kwargs.region_name=eu"]) == {
        "key": "a=b",
        "anon": True,
        "client_kwargs": {"region_name": "eu"},
    }


@pytest.mark.parametrize("pairs", [["hush"], ["=hush"], ["a=hush", "a.b=hush"]])
def test_bad_storage_option_is_refused_without_repeating_what_may_be_a_secret(pairs) -> None:
    with pytest.raises(InvalidError) as refused:
        storage_options(pairs)
    assert "hush" not in str(refused.value) + str(refused.value.hint)


def test_every_command_that_uses_the_farm_takes_storage_options() -> None:
    without = {
        name
        for name, command in commands().items()
        if not any("--storage-option" in parameter.opts for parameter in command.params)
    }
    # The others ask and tell the replica alone, which may be a file. A key is made without a farm.
    with_farm = {name for name in without if name.startswith("wlc ") or name in ("wlr replicate", "wlr status")}
    assert with_farm == {"wlc farm key"}

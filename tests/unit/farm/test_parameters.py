"""An option is declared once: its function, its command and `dbfarm.toml` say the same of it."""

from __future__ import annotations

import inspect
from typing import Any, Unpack

import pytest

import wlc
import wlr
from tests.commands import commands
from wlc.farm.parameters import command_words, declared, takes
from wlc.tiers.options import RelayOptions
from wlr.reading.feeds.options import FeedOptions
from wlr.replay.options import ReplicaOptions
from wlr.service.settings_file import OPTIONS

DECLARED = [
    (ReplicaOptions, wlr.replicate, "wlr replicate", "replicas"),
    (FeedOptions, wlr.feed, "wlr feed", "feeds"),
    (RelayOptions, wlc.ship, "wlc tier ship", "relays"),
]


@pytest.mark.parametrize("declaration, function, name, section", DECLARED)
def test_each_place_has_all_options(declaration, function, name, section) -> None:
    shown: dict[str, Any] = {option: param for param in commands()[name].params for option in param.opts}
    parameters, text = inspect.signature(function).parameters, inspect.getdoc(function) or ""
    for option in declared(declaration):
        assert parameters[option.name].default == option.default
        assert f"\n    {option.name}: {option.help}" in text
        assert (shown[option.flag].name, shown[option.flag].help) == (option.name, option.help)
        assert (option.key in OPTIONS[section]) == option.is_in_file


@pytest.mark.parametrize("section", ["Returns", "Raises", "Examples"])
def test_options_are_explained_among_the_arguments_whatever_section_comes_next(section) -> None:
    def function(db: str, **options: Unpack[RelayOptions]) -> None:
        pass

    own = ["    db: The database,", "        or its URL."]
    function.__doc__ = "\n".join(["Do it.", "", "Args:", *own, "", f"{section}:", "    Something."])
    explained = [f"    {option.name}: {option.help}" for option in declared(RelayOptions)]
    text = inspect.getdoc(takes(RelayOptions)(function)) or ""
    assert text.splitlines() == ["Do it.", "", "Args:", *own, *explained, "", f"{section}:", "    Something."]


@pytest.mark.parametrize("function", [function for _, function, *_ in DECLARED])
def test_an_option_that_is_not_declared_is_refused(function) -> None:
    with pytest.raises(TypeError, match=f"{function.__name__}.. got an unexpected keyword argument 'swaps'"):
        function("sales", swaps=True)


def test_a_command_says_what_differs_from_defaults() -> None:
    options = {
        "engine": "auto",
        "adopt": True,
        "swap": None,
        "upstream": ["a", "b"],
        "class_name": "prod",
        "keep": "3 days",
    }
    words = ["--upstream", "a", "--upstream", "b", "--class", "prod", "--keep", "3 days", "--adopt"]
    assert command_words(ReplicaOptions, options) == words

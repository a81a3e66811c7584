"""All commands of both programs, as typer builds them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, cast

import typer

import cli.wlc
import cli.wlr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

APPS = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}


@functools.cache
def commands() -> Mapping[str, typer.core.TyperCommand]:
    """Each command by what is typed for it, such as `wlc site join`."""
    return {
        f"{program} {path}": command
        for program, app in APPS.items()
        for path, command in _below(cast("typer.core.TyperGroup", typer.main.get_command(app)))
    }


def _below(group: typer.core.TyperGroup) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    for name, found in group.commands.items():
        if isinstance(found, typer.core.TyperGroup):
            yield from ((f"{name} {path}", command) for path, command in _below(found))
        else:
            yield name, cast("typer.core.TyperCommand", found)


def named(words: list[str]) -> str | None:
    """Return the command that a command line begins with; None if it begins with none."""
    return next((name for n in (3, 2) if (name := " ".join(words[:n])) in commands()), None)

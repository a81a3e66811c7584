"""How `--help` lists commands and options: by task and by heading, those that most need first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .programs import Program

_SUMMARY_MAX = 200
_OF_ALL_COMMANDS = frozenset({"as_json", "verbose", "quiet", "log_format", "help"})


def page_of_program(program: Program) -> type[TyperGroup]:
    """Return the class of a program's first screen: what to begin with, what is needed every day, and the groups."""

    class FirstScreen(TyperGroup):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            if program.start:
                with formatter.section("To start"):
                    width = max(map(len, program.start))
                    for line, meaning in program.start.items():
                        formatter.write(f"  {line:{width}}  {meaning}\n")
            for task, names in program.tasks.items():
                _list(formatter, task, self, names)
            _list(formatter, f"Groups, each with --help ({program.name} GROUP COMMAND)", self, program.groups)
            _list_options(formatter, "Options", self.get_params(ctx), ctx)

    return FirstScreen


def page_of_group(names: Sequence[str]) -> type[TyperGroup]:
    """Return the class of the help of a group of commands."""

    class GroupPage(TyperGroup):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            _list(formatter, "Commands", self, names)
            _list_options(formatter, "Options", self.get_params(ctx), ctx)

    return GroupPage


def page_of_command(headings: Mapping[str, Sequence[str]]) -> type[TyperCommand]:
    """Return the class of the help of a command.

    Args:
        headings: Names of parameters that few need, by the heading under which they are listed.
    """
    last = "Of all commands" if headings else "Options"
    titles = dict.fromkeys(_OF_ALL_COMMANDS, last) | {
        name: title for title, names in headings.items() for name in names
    }

    class CommandPage(TyperCommand):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            params = self.get_params(ctx)
            _list_options(formatter, "Arguments", (each for each in params if each.param_type_name == "argument"), ctx)
            below: dict[str, list[Any]] = {title: [] for title in ("Options", *headings, last)}
            for each in params:
                if each.param_type_name == "option":
                    below[titles.get(str(each.name), "Options")].append(each)
            for title, options in below.items():
                _list_options(formatter, title, options, ctx)

    return CommandPage


def _list(formatter: Any, title: str, group: TyperGroup, names: Iterable[str]) -> None:
    known = [(name, group.commands[name].get_short_help_str(_SUMMARY_MAX)) for name in names]
    if known:
        with formatter.section(title):
            formatter.write_dl(known)


def _list_options(formatter: Any, title: str, params: Iterable[Any], context: Any) -> None:
    known = [record for param in params if (record := param.get_help_record(context)) is not None]
    if known:
        with formatter.section(title):
            formatter.write_dl(known)

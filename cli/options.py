"""Arguments and options of several commands: the same name and explanation everywhere.

Options that filter rows, columns and values.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from wlc.farm.config import typed_beat
from wlc.farm.errors import InvalidError
from wlc.farm.parameters import Option, declared

Where = Annotated[
    list[str] | None,
    typer.Option(metavar="TABLE: CONDITION", help="Only rows like \"orders: region = 'EU'\"; may be repeated."),
]
Columns = Annotated[
    list[str] | None, typer.Option(metavar="TABLE: NAMES", help="Only columns like 'users: id, name'; may be repeated.")
]
Masks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE: COLUMN = MASK", help="Hide values: hash, null, constant:VALUE, truncate:N; may be repeated."
    ),
]
MaskKey = Annotated[
    str | None, typer.Option(metavar="FILE", help="File with the key of hashes; only its path is remembered.")
]
ChangeFilters = Annotated[
    bool, typer.Option("--change-filters", help="Replace the filters of the tables that these options name.")
]


Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="The master database itself: path of a DuckDB file, or postgresql://…")
]
Database = Annotated[
    str,
    typer.Argument(metavar="DB", help="Name in the farm, URL of its folder, or a SOURCE that remembers its farm."),
]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="The replica: a DuckDB file, a folder, or a URL.")]
Farm = Annotated[
    str | None,
    # The variable applies to bare names only: a source remembers its farm.
    typer.Option("--farm", metavar="URL", help="Directory or bucket that holds the databases; default is WLC_FARM."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Repeat every beat until Ctrl-C or SIGTERM.")]
Repair = Annotated[
    bool, typer.Option("--repair", help="First publish what another program wrote to the file without capture.")
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="K=V", help="Option of the farm's file system; may be repeated."),
]


def takes(declaration: type, *, before: str) -> Callable[[Any], Any]:
    """Give a command with `**options` the options of a declaration, which `--help` lists before another option."""

    def decorate(function: Any) -> Any:
        signature = inspect.signature(function, eval_str=True)
        *own, _ = signature.parameters.values()
        place = list(signature.parameters).index(before)
        own[place:place] = [
            inspect.Parameter(each.name, own[place].kind, default=_default(each), annotation=_annotation(each))
            for each in declared(declaration)
        ]
        function.__signature__ = signature.replace(parameters=own)
        return function

    return decorate


def _default(option: Option) -> object:
    return False if option.is_flag and not option.has_opposite else None


def _annotation(option: Option) -> Any:
    """Return typer's description of an option: its type as text, list or number, its names and its help."""
    names = option.flag
    kind: Any = str | None
    if option.has_opposite:
        names, kind = f"{option.flag}/--no-{option.flag[2:]}", bool | None
    elif option.is_flag:
        kind = bool
    elif option.is_list:
        kind = list[str] | None
    elif option.is_number:
        kind = int | None
    least = 0 if option.is_number else None
    return Annotated[kind, typer.Option(names, metavar=option.metavar or None, min=least, help=option.help)]


def typed(options: Any) -> Any:
    """Return the options of a declaration that the user typed."""
    return {name: value for name, value in options.items() if value is not None and value != []}


def beat_of(text: str | None) -> float | None:
    """Read a beat as people type it, in seconds or with a unit; None where none is given."""
    return typed_beat(text) if text is not None else None


def storage_options(pairs: list[str] | None) -> dict[str, object] | None:
    """Turn repeated `k=v` into a dictionary, `a.b=v` into a nested one; None without any pair.

    Raises:
        InvalidError: A pair has no `=`. The message does not repeat its text, which may be a secret.
    """
    if not pairs:
        return None
    options: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (equals and key):
            raise InvalidError(
                "a --storage-option is not of the form key=value",
                hint="--storage-option endpoint_url=http://localhost:9000",
            )
        _put(options, key.split("."), {"true": True, "false": False}.get(value.lower(), value))
    return options


def flat_options(pairs: list[str] | None) -> dict[str, object]:
    """Turn repeated `k=v` of `--output-option` into a dictionary, whose keys may have dots.

    Raises:
        InvalidError: A pair has no `=`. The message does not repeat its text, which may be a secret.
    """
    options: dict[str, object] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not (equals and key):
            message = "an --output-option is not of the form key=value"
            raise InvalidError(message, hint="--output-option security.protocol=SASL_SSL")
        options[key] = value
    return options


def _put(options: dict[str, object], path: list[str], value: object) -> None:
    for key in path[:-1]:
        inner = options.setdefault(key, {})
        if not isinstance(inner, dict):
            raise InvalidError(f"--storage-option {key} has a value and options inside it", hint="give one of the two")
        options = inner
    if isinstance(options.get(path[-1]), dict):
        raise InvalidError(f"--storage-option {path[-1]} has a value and options inside it", hint="give one of the two")
    options[path[-1]] = value


def two_ticks(text: str) -> tuple[int, int]:
    """Read `A:B` as two ticks, in any order.

    Raises:
        InvalidError: The text is something else.
    """
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise InvalidError(f"{text!r} is not two ticks", hint="--tick 1040:1050")
    return int(first), int(last)


def tick_range(text: str) -> tuple[int | None, int | None]:
    """Read `A:B` as the first and the last tick, both included. Either may be missing; `A` alone is one tick.

    Raises:
        InvalidError: The text is not a range of ticks.
    """
    first, colon, last = text.partition(":")
    try:
        low = int(first) if first else None
        high = (int(last) if last else None) if colon else low
    except ValueError:
        raise _bad_range(text) from None
    if text in ("", ":") or min(low or 0, high or 0) < 0 or (low is not None and high is not None and high < low):
        raise _bad_range(text)
    return low, high


def _bad_range(text: str) -> InvalidError:
    return InvalidError(f"{text!r} is not a range of ticks", hint="--tick 10:20, --tick 10:, --tick :20 or --tick 10")


def agree(needed: str, hint: str, *, declined: str = "nothing was changed", instead: str | None = None) -> None:
    """Ask whether to go on, once the question is on the screen.

    Args:
        needed: The act that needs an agreement, for the error of a run without a terminal.
        hint: How to agree there.
        declined: The message if the user declines.
        instead: The hint then, if it is another one.

    Raises:
        InvalidError: There is no agreement.
    """
    if not sys.stdin.isatty():
        raise InvalidError(f"{needed} needs your agreement", hint=hint)
    if not typer.confirm("Go on?", err=True):
        raise InvalidError(declined, hint=instead or hint)

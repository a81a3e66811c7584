"""Options shared by a function, a command and a section of `dbfarm.toml`, each declared once.

A declaration is a `TypedDict` whose types are annotated with an `Option`. The function takes `**options: Unpack[…]`;
the command and the file read names, forms and meanings from the declaration.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from wlc.farm.addresses import without_password

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        help: One line for `--help` and `help()`.
        metavar: Kind of its value. `URL` and `FILE` are relative to the folder of `dbfarm.toml`, `AGE` is a length of
            time and `SIZE` a number of bytes; empty for a flag.
        flag: Its name in a command, `--` and the parameter's unless given; its key in the file is the same word.
        default: Default of the parameter.
        refuse_unfit: Refuses a value that the replica's target does not support; takes the target, the name that the
            user wrote, and the value.
        is_in_file: `dbfarm.toml` has it, too.
        is_remembered: The replica's state has a field of this name that stores the value.
        name: Of the parameter; `kind` is its type. Both are the declaration's.
    """

    help: str
    metavar: str = ""
    flag: str = ""
    default: object = None
    refuse_unfit: Callable[[Any, str, Any], object] | None = None
    is_in_file: bool = True
    is_remembered: bool = False
    name: str = ""
    kind: Any = None

    @property
    def key(self) -> str:
        return self.flag[2:].replace("-", "_")

    def holds(self, kind: object) -> bool:
        """Whether its values may be of a type; `None` stands for a value that is not set."""
        return kind in (get_args(self.kind) if isinstance(self.kind, UnionType) else (self.kind,))

    @property
    def is_flag(self) -> bool:
        return self.holds(bool)

    @property
    def is_list(self) -> bool:
        return self.holds(Sequence[str])

    @property
    def is_number(self) -> bool:
        return self.holds(int) and not self.holds(str)

    @property
    def has_opposite(self) -> bool:
        """Whether a flag can be set, unset, or left as it is."""
        return self.is_flag and self.holds(NoneType)

    def check(self, target: object, name: str, options: Mapping[str, Any]) -> None:
        """Refuse values that the target does not support, under the name that the user wrote."""
        if self.refuse_unfit is not None and (value := options.get(self.name)) is not None:
            self.refuse_unfit(target, name, value)

    def words(self, value: Any) -> Iterator[str]:
        """Yield the command-line words for a value."""
        if value is True:
            yield self.flag
        elif value is not None and value is not False:
            for each in value if isinstance(value, (list, tuple)) else [value]:
                yield from (self.flag, without_password(str(each)))


@functools.cache
def declared(declaration: type) -> tuple[Option, ...]:
    """Return the options of a declaration, in order."""
    found = []
    for name, hint in get_type_hints(declaration, include_extras=True).items():
        (option,) = hint.__metadata__
        flag = option.flag or "--" + name.replace("_", "-")
        found.append(replace(option, name=name, flag=flag, kind=hint.__origin__))
    return tuple(found)


def command_words(declaration: type, options: Mapping[str, Any]) -> list[str]:
    """Return the command-line words for options that differ from their defaults."""
    return [
        word
        for option in declared(declaration)
        if (value := options.get(option.name)) != option.default
        for word in option.words(value)
    ]


def takes(declaration: type) -> Callable[[_Function], _Function]:
    """Give a function with `**options: Unpack[declaration]` a signature with these parameters; refuse unknown ones."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        options = [
            inspect.Parameter(option.name, keyword, default=option.default, annotation=option.kind)
            for option in declared(declaration)
        ]
        signature = signature.replace(parameters=[*own, *options])

        @functools.wraps(function)
        def checked(*args: Any, **named: Any) -> Any:
            for unknown in named.keys() - signature.parameters.keys():
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {unknown!r}")
            return function(*args, **named)

        vars(checked)["__signature__"] = signature
        meanings = "".join(f"\n    {option.name}: {option.help}" for option in declared(declaration))
        text = inspect.getdoc(function) or ""
        checked.__doc__ = re.sub(r"^Args:(?:\n .*)+", lambda args: args[0] + meanings, text, flags=re.MULTILINE)
        return checked  # type: ignore[return-value]

    return decorate

"""The options of a read as Spark passes them: every value is text, names are in any case."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import parse_time
from wlc.farm.errors import InvalidError
from wlc.farm.model import Name
from wlc.farm.seal.keys import for_tasks
from wlr.plan.stop import Stop
from wlr.spark.task_reading import MEMORY, FarmPlace

if TYPE_CHECKING:
    from collections.abc import Mapping

_STORAGE = "storage."
_OF_A_CATALOG = "option."
_VIEW = "CREATE TEMPORARY VIEW orders USING dbfarm OPTIONS (farm '…', database '…', `table` 'orders') is read as one."
_KNOWN = {
    *("farm", "database", "table", "tick", "time", "changes", "from_tick", "to_tick"),
    *("maxbatchespertrigger", "memory", "partitions", "pushdown"),
}
_PARTITIONS = 32


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for.

    Attributes:
        table: Name of the table, in the case in which it was typed.
        stop: The moment as of which a table is read; the end of a change feed.
        changes: Read the change feed, from tick `first` on if given.
        batches_max: Most log files in one micro-batch of a stream; None for all.
        partitions: Most tasks of a read, about.
        pushdown: Use Spark's filter pushdown.
    """

    place: FarmPlace
    table: Name
    stop: Stop
    changes: bool
    first: int | None
    batches_max: int | None
    partitions: int
    pushdown: bool


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Read and check the options of `spark.read.format("dbfarm")`.

    Raises:
        InvalidError: An option is missing, unknown, or has an invalid value. The message holds no value of a storage
            option.
    """
    options = {name.lower(): value for name, value in given.items()}
    if any(name.startswith(_OF_A_CATALOG) for name in options):
        # So begins every option of CREATE TABLE … USING. When Spark reads such a table, it gives us none of them.
        raise InvalidError("Spark gives a source no options for a table of its catalog", hint=_VIEW)
    storage = {name.removeprefix(_STORAGE): options.pop(name) for name in list(options) if name.startswith(_STORAGE)}
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise InvalidError(
            f"unknown option {unknown[0]!r}", hint=f"Options are {', '.join(sorted(_KNOWN))}, storage.…."
        )
    for name in ("database", "table"):
        if not options.get(name):
            raise InvalidError(f"option {name!r} is missing", hint=f'Add .option("{name}", …).')
    changes = _flag(options, "changes")
    _refuse_others(options, changes)
    memory = options.get("memory", MEMORY)
    place = FarmPlace(options["database"], options.get("farm"), for_tasks(_nested(storage)), memory)
    until = parse_time(options["time"]) if "time" in options else None
    stop = Stop(_number(options, "to_tick" if changes else "tick", 0), until)
    return ReadOptions(
        place,
        _table(options["table"]),
        stop,
        changes,
        _number(options, "from_tick", 1),
        _number(options, "maxbatchespertrigger", 1),
        _number(options, "partitions", 1) or _PARTITIONS,
        _flag(options, "pushdown"),
    )


def _refuse_others(options: Mapping[str, str], changes: bool) -> None:
    """Refuse options that would have no effect: whoever gives them expects one."""
    others = ("tick", "time") if changes else ("from_tick", "to_tick", "maxbatchespertrigger")
    for name in others:
        if name in options:
            reason = (
                "is not for a change feed: use from_tick and to_tick" if changes else 'needs option("changes", "true")'
            )
            raise InvalidError(f"option {name!r} {reason}")
    if "tick" in options and "time" in options:
        raise InvalidError("options 'tick' and 'time' exclude each other")


def _table(text: str) -> Name:
    schema, _, name = text.rpartition(".")
    return Name(schema or "main", name)


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidError(f"option {name!r} is true or false, not {value!r}")
    return value == "true"


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < least:
        raise InvalidError(f"option {name!r} is a number from {least} on, not {text!r}")
    return int(text)


def _nested(storage: Mapping[str, str]) -> dict[str, Any]:
    """Put `client_kwargs.region_name` inside `client_kwargs`, as s3fs wants it."""
    options: dict[str, Any] = {}
    for name, text in storage.items():
        *outer, last = name.split(".")
        place = options
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise InvalidError(f"storage option {part!r} has a value and options inside it")
        if isinstance(place.get(last), dict):
            raise InvalidError(f"storage option {last!r} has a value and options inside it")
        place[last] = {"true": True, "false": False}.get(text.lower(), text)
    return options

"""The options of a read from Spark: every value is text, names are case-insensitive.

Resolves the options in the farm: the table, its columns, the last transaction that counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wlc.farm.clock import parse_time
from wlc.farm.errors import InvalidError
from wlc.farm.model import Name
from wlc.farm.seal.keys import for_tasks
from wlr.reading.query import CHANGE_TYPE, FEED, feed_column
from wlr.reading.trace import contents_at, refuse_broken, tick_at
from wlr.replay.plan.bounds import Stop
from wlr.spark.read.types import spark_schema, table_schema
from wlr.spark.task_reading import MEMORY, FarmPlace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pyspark.sql.types import StructType

    from wlr.reading.trace import TableContents


_STORAGE = "storage."
_OF_A_TABLE, _OF_A_FEED = ("tick", "time"), ("from_tick", "from_time", "to_tick", "to_time", "maxbatchespertrigger")
_KNOWN = {
    *("farm", "database", "table", "changes", "memory", "partitions", "pushdown", "verify"),
    *_OF_A_TABLE,
    *_OF_A_FEED,
}
_TOGETHER = (_OF_A_TABLE, ("from_tick", "from_time"), ("to_tick", "to_time"))
# Names of options of Delta readers, and ours.
_IN_DELTA = {
    "versionasof": "tick",
    "timestampasof": "time",
    "readchangefeed": "changes",
    "readchangedata": "changes",
    "startingversion": "from_tick",
    "startingtimestamp": "from_time",
    "endingversion": "to_tick",
    "endingtimestamp": "to_time",
    "maxfilespertrigger": "maxBatchesPerTrigger",
}
_PARTITIONS = 32


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The request of a read.

    Attributes:
        table: Name of the table as typed.
        stop: The moment as of which a table is read; the end of a change feed.
        changes: Read the change feed, from tick `first` on, or from the first transaction at or after a time `since`.
        batches_max: Maximal number of log files in one micro-batch of a stream; None for all.
        partitions: Approximate maximal number of tasks of a read.
        pushdown: Use Spark's filter pushdown.
        verify: Compare every data file with its checksum, which reads all of it once.
    """

    place: FarmPlace
    table: Name
    stop: Stop
    changes: bool
    first: int | None
    since: datetime | None
    batches_max: int | None
    partitions: int
    pushdown: bool
    verify: bool


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Read and check the options of `spark.read.format("dbfarm")`.

    Raises:
        InvalidError: An option is missing, unknown, or has an invalid value. The message holds no value of a storage
            option.
    """
    options = {name.lower(): value for name, value in given.items()}
    storage = {name.removeprefix(_STORAGE): options.pop(name) for name in list(options) if name.startswith(_STORAGE)}
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise InvalidError(f"unknown option {unknown[0]!r}", hint=_known(unknown[0]))
    for name in ("database", "table"):
        if not options.get(name):
            raise InvalidError(f"option {name!r} is missing", hint=_add(name, options))
    changes = _flag(options, "changes", "false")
    _refuse_others(options, changes)
    memory = options.get("memory", MEMORY)
    place = FarmPlace(options["database"], options.get("farm"), for_tasks(_nested(storage)), memory)
    stop = (
        Stop(_number(options, "to_tick", 0), _time(options, "to_time"))
        if changes
        else Stop(_number(options, "tick", 0), _time(options, "time"))
    )
    return ReadOptions(
        place,
        _table(options["table"]),
        stop,
        changes,
        _number(options, "from_tick", 1),
        _time(options, "from_time"),
        _number(options, "maxbatchespertrigger", 1),
        _number(options, "partitions", 1) or _PARTITIONS,
        _flag(options, "pushdown", "false"),
        _flag(options, "verify", "true"),
    )


def _known(unknown: str) -> str:
    if unknown in _IN_DELTA:
        return f"It is called {_IN_DELTA[unknown]!r} here."
    return f"Options are {', '.join(sorted(_KNOWN))}, storage.…."


def _add(missing: str, options: Mapping[str, str]) -> str:
    if not options:
        # Spark does not request the columns of a table that declares them.
        return "If it is a table of Spark's catalog: create it with OPTIONS (…) and without columns."
    return f'Add .option("{missing}", …).'


def _refuse_others(options: Mapping[str, str], changes: bool) -> None:
    """Refuse options without an effect."""
    for name in _OF_A_TABLE if changes else _OF_A_FEED:
        if name in options:
            reason = (
                f"is not for a change feed: use from_{name} and to_{name}"
                if changes
                else 'needs option("changes", "true")'
            )
            raise InvalidError(f"option {name!r} {reason}")
    for one, other in _TOGETHER:
        if one in options and other in options:
            raise InvalidError(f"options {one!r} and {other!r} exclude each other")


def _table(text: str) -> Name:
    schema, _, name = text.rpartition(".")
    return Name(schema or "main", name)


def _flag(options: Mapping[str, str], name: str, default: str) -> bool:
    value = options.get(name, default).lower()
    if value not in ("true", "false"):
        raise InvalidError(f"option {name!r} is true or false, not {value!r}")
    return value == "true"


def _time(options: Mapping[str, str], name: str) -> datetime | None:
    return parse_time(options[name]) if name in options else None


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not re.fullmatch("[0-9]{1,18}", text) or int(text) < least:
        raise InvalidError(f"option {name!r} is a number from {least} on, not {text!r}")
    return int(text)


def _nested(storage: Mapping[str, str]) -> dict[str, Any]:
    """Put `client_kwargs.region_name` inside `client_kwargs`, as s3fs requires."""
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


class FoundTable:
    """The resolved table of a read.

    Attributes:
        table: Name of the table in the log.
        first: The first transaction that counts in a change feed; None for the beginning of the log.
        tick: The last transaction that counts.
        contents: Contents of the table then, so that a query reads the log once; None for a change feed.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        stop = options.stop
        database = options.place.open()
        self.table, contents, self.tick = contents_at(database, str(options.table), stop)
        self.first = options.first
        if options.since is not None:
            # Transactions committed at exactly that time count, too.
            self.first = tick_at(database, Stop(until=options.since - timedelta(microseconds=1))) + 1
        self.layout = contents.layout
        self.contents: TableContents | None = None
        if not options.changes:
            refuse_broken(self.table, contents)
            self.contents = contents

    @property
    def schema(self) -> StructType:
        """The readable columns."""
        if not self.options.changes:
            return table_schema(self.layout)
        columns = [(feed_column(column.name), column.type) for column in self.layout.stored]
        tick, weight, *others = FEED
        return spark_schema([*columns, tick, weight, (CHANGE_TYPE, "VARCHAR"), *others])

    def check(self, schema: StructType) -> None:
        """Refuse a user's schema with a missing, differently typed or not nullable column."""
        there = {field.name: field.dataType for field in self.schema.fields}
        for field in schema.fields:
            if field.name not in there:
                message = f"there is no column {field.name} in {self.table}"
                raise InvalidError(message, hint=f"Columns are: {', '.join(there)}")
            if field.dataType != there[field.name]:
                message = f"column {field.name} of {self.table} is {there[field.name].simpleString()}"
                raise InvalidError(f"{message}, not {field.dataType.simpleString()}")
            if not field.nullable:
                raise InvalidError(f"column {field.name} of {self.table} must be nullable in a schema for Spark")

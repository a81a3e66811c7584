"""Reads `dbfarm.toml`. An invalid line is reported with file, line and key, and the whole file is refused.

Validates the values of `dbfarm.toml` with the modules that will use them, before anything starts or is opened.

Finds the line of a key in a TOML file, which the parser of the standard library does not report.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl, urlsplit

from wlc.farm.addresses import is_connection_string
from wlc.farm.clock import parse_age
from wlc.farm.config import typed_beat
from wlc.farm.errors import FarmError, InvalidError
from wlc.farm.human_form import parse_bytes, parse_rate
from wlc.farm.keeping import KeepPolicy, checked
from wlc.farm.parameters import Option, declared
from wlc.farm.paths import check_database_name, feed_path
from wlc.farm.seal.keys import KINDS, read_key_file
from wlc.farm.store import MissingError, open_store
from wlc.farm.store.options import FILES, recalled, refuse_unknown, remembered
from wlc.farm.typed_names import alike
from wlc.masters.running import check_run
from wlc.tiers.options import RelayOptions
from wlr.engine.adapters import target_at
from wlr.engine.contract import Lake
from wlr.reading.feeds.adapters import OutputSettings, output_at
from wlr.reading.feeds.options import BYTES_MAX, FeedOptions
from wlr.reading.feeds.rounds import feed_start
from wlr.replay.options import ReplicaOptions
from wlr.replay.plan.row_filters import RowFilters, row_filters
from wlr.service.settings import (
    DatabaseItem,
    DerivedItem,
    FeedItem,
    Item,
    ListedFarm,
    MasterItem,
    RelayItem,
    ReplicaItem,
    ServiceOptions,
    ServiceSettings,
    SiteItem,
)
from wlr.service.wildcards import PLACEHOLDER, STAR, database_of, named, refuse_missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Check = tuple[str, Callable[[], object]]


Reader = Callable[[object, Path], object]


class _WrongError(Exception):
    """A value cannot be used; the message omits a value that may be a secret."""


def _text(value: object, _: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _WrongError('must be a text in quotes, such as "sales"')
    return value


def _texts(value: object, _: Path) -> tuple[str, ...]:
    if isinstance(value, str) and value.strip():
        return (value,)
    if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
        raise _WrongError('must be a list of texts, such as ["main.sales_*"]')
    return tuple(value)


def _flag(value: object, _: Path) -> bool:
    if not isinstance(value, bool):
        raise _WrongError("must be true or false")
    return value


def _count(value: object, _: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _WrongError("must be a whole number, 0 or more")
    return value


def _beat(value: object, _: Path) -> float:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise _WrongError('must be a number of seconds, 0 or more, or a length of time, such as "5m"')
    return typed_beat(str(value))


def _age(value: object, _: Path) -> timedelta:
    if not isinstance(value, str):
        raise _WrongError('must be a length of time, such as "1h" or "2 days"')
    try:
        return parse_age(value)
    except InvalidError as error:
        raise _WrongError(f"{error.message}, such as 90s, 15m, 1h or '2 days'") from error


def _every(value: object, folder: Path) -> timedelta:
    age = _age(value, folder)
    if age < timedelta(seconds=1):
        raise _WrongError("must be a second or more")
    return age


def _bytes(value: object, folder: Path) -> int:
    if isinstance(value, int):
        return _count(value, folder)
    try:
        return int(parse_bytes(_text(value, folder)))
    except InvalidError as error:
        raise _WrongError(error.message) from error


def _place(value: object, folder: Path) -> str:
    """Read a path, relative to the folder of the file, or a URL without a password."""
    text = _text(value, folder)
    if is_connection_string(text):
        raise _WrongError(
            "is a connection string or a login: write postgresql://USER@HOST:PORT/DATABASE, and use ~/.pgpass"
        )
    if "://" not in text:
        # A slash at the end marks a folder, which need not exist yet.
        return str(folder / Path(text).expanduser()) + ("/" if text.endswith("/") else "")
    if _has_password(text):
        raise _WrongError("has a password in its URL, which other users can read: use ~/.pgpass, or a profile")
    return text


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = {name.lower() for name, _ in parse_qsl(parts.query)}
    except ValueError:
        return True
    user = parts.netloc.rpartition("@")[0]
    return ":" in user or bool(named & {"password", "sslpassword"})


def _places(value: object, folder: Path) -> tuple[str, ...]:
    return tuple(each if re.fullmatch("auto|none", each) else _place(each, folder) for each in _texts(value, folder))


def _farm_options(value: object, folder: Path) -> Mapping[str, object]:
    options = {name: _place(each, folder) if name in FILES else each for name, each in _table(value).items()}
    try:
        refuse_unknown({name: None for name in options if not name.endswith("_key")})
    except InvalidError as error:
        raise _WrongError(f"{error.message}: {error.hint}") from error
    _refuse_secrets(options)
    return options


def _output_options(value: object, _: Path) -> Mapping[str, object]:
    options = _table(value)
    _refuse_secrets({name: each for name, each in options.items() if not name.endswith(".location")})
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in options.items()}


def _refuse_secrets(options: Mapping[str, object]) -> None:
    for name, kept in ((name, recalled(remembered({name: value}))) for name, value in options.items()):
        if kept != {name: options[name]}:
            raise _WrongError(
                f"{name} holds a secret, which other users can read: use AWS_ACCESS_KEY_ID and such, a profile, or"
                " encryption_key_file and such for the farm's keys"
            )


def _table(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _WrongError('must be a table, such as { endpoint_url = "http://localhost:9000" }')
    return value


def _address(value: object, folder: Path) -> str:
    text = _text(value, folder)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or "/" in host:
        raise _WrongError('must be an address and a port, such as ":9188" or "127.0.0.1:9188"')
    return text


def _url(value: object, folder: Path) -> str:
    text = _text(value, folder)
    if not re.match(r"https?://[^/]", text):
        raise _WrongError("must be a URL that begins with https:// or http://")
    return text


_FILTERS: Mapping[str, Reader] = {"where": _texts, "columns": _texts, "mask": _texts, "mask_key": _place}
# Readers of values, by the type of a declared option.
_BY_METAVAR: Mapping[str, Reader] = {"AGE": _age, "FILE": _place, "SIZE": _bytes}


def _reader(option: Option) -> Reader:
    if option.is_list:
        return _places if option.metavar == "URL" else _texts
    if option.is_flag:
        return _flag
    return _count if option.is_number else _BY_METAVAR.get(option.metavar, _text)


_DECLARED = {"replicas": ReplicaOptions, "feeds": FeedOptions, "relays": RelayOptions}
# The declared options of each section, by their keys.
OPTIONS: Mapping[str, Mapping[str, Option]] = {
    section: {each.key: each for each in declared(declaration) if each.is_in_file}
    for section, declaration in _DECLARED.items()
}
# The class of each section, and the readers of its other keys.
SECTIONS: Mapping[str, tuple[type, Mapping[str, Reader]]] = {
    "service": (
        ServiceOptions,
        {
            "listen": _address,
            "metrics": _place,
            "heartbeat_url": _url,
            "heartbeat_every": _every,
            "on_failure": _texts,
            "on_failure_after": _age,
            "on_failure_limit": _every,
        },
    ),
    "farms": (
        ListedFarm,
        {
            "url": _place,
            "storage_options": _farm_options,
            "allow_unencrypted": _flag,
            "witness_file": _place,
            "encryption_key_file": _place,
            "signing_key_file": _place,
            "verify_key_file": _place,
        },
    ),
    "databases": (
        DatabaseItem,
        {
            "farm": _text,
            "name": _text,
            "beat": _beat,
            "expect_every": _age,
            "sign_every": _age,
            "keep": _age,
            "keep_daily": _count,
            "keep_weekly": _count,
            "snapshot_every": _age,
            "prune_every": _every,
            "verify_every": _every,
            "verify_window": _age,
            "drill_every": _every,
            "drill_folder": _place,
            "snapshot_from_log_every": _every,
        },
    ),
    "masters": (MasterItem, {"source": _place, "farm": _text}),
    "sites": (SiteItem, {"source": _place, "farm": _text}),
    "replicas": (
        ReplicaItem,
        {
            "database": _text,
            "farm": _text,
            "into": _place,
            **_FILTERS,
            "register": _flag,
            "verify_every": _every,
            "prune_every": _every,
        },
    ),
    "feeds": (
        FeedItem,
        {
            "database": _text,
            "farm": _text,
            "to": _place,
            "tables": _texts,
            "output_options": _output_options,
        },
    ),
    "relays": (
        RelayItem,
        {
            "database": _text,
            "farm": _text,
            "to": _text,
            "register": _flag,
            "prune_every": _every,
        },
    ),
    "derived": (
        DerivedItem,
        {
            "database": _text,
            "farm": _text,
            "to": _text,
            "name": _text,
            "tables": _texts,
            **_FILTERS,
        },
    ),
}
_NAME = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9_.*-]{0,63}")
_DEFAULTS = "defaults"


def read_settings(file: Path, *, is_run_here: bool = True, asks_farms: bool = False) -> ServiceSettings:
    """Read a file of settings.

    Relative paths in it are relative to its folder.

    Args:
        file: Its path.
        is_run_here: Also read the files of keys, which may be readable by the service only.
        asks_farms: Refuse sections about databases that are missing in their farms.

    Raises:
        UnavailableError: A farm is unreachable.
        InvalidError: It cannot be read, or a line is invalid; the message names file, line and key.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"cannot read {file}: {error}", hint="wlr serve FILE", path=str(file)) from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"{file} is not TOML: {error}", hint=_again(file), path=str(file)) from error
    reading = _Reading(file, lines_of(text))
    settings = reading.all(content)
    reading.check(settings, is_run_here=is_run_here)
    if asks_farms:
        reading.check_databases(settings)
    return settings


def _again(file: Path) -> str:
    return f"wlr serve {shlex.quote(str(file))} --check"


class _Reading:
    def __init__(self, file: Path, lines: Mapping[tuple[str, ...], int]) -> None:
        self._file = file
        self._lines = lines
        self._taken: dict[tuple[str, ...], tuple[str, ...]] = {}

    def all(self, content: Mapping[str, Any]) -> ServiceSettings:
        for name in content:
            self._check_known((name,), {**SECTIONS, _DEFAULTS: None})
        defaults = self._defaults(content.get(_DEFAULTS, {}))
        options = self._one(("service",), content.get("service", {}))
        farms = {name: self._one(("farms", name), given) for name, given in self._named("farms", content)}
        items: dict[str, Item] = {}
        for section in SECTIONS:
            if section not in ("service", "farms"):
                for name, given in self._named(section, content):
                    whole = {**defaults.get(section, {}), **given}
                    items[f"{section}.{name}"] = self._item(section, name, whole, farms)
        if not items:
            raise InvalidError(
                f"{self._file} names no item",
                hint="add a section such as [replicas.copy]; docs/service.md",
            )
        return ServiceSettings(options, farms, items)

    def check(self, settings: ServiceSettings, *, is_run_here: bool) -> None:
        """Refuse valid values that cannot be used."""
        for name, farm in settings.farms.items():
            self._check(("farms", name), checks_of_farm(farm), is_run_here=is_run_here)
        for name, item in settings.items.items():
            one = named(name, item, _SOME_DATABASE)[1] if STAR in database_of(item) else item
            checks = checks_of(one, settings.farm_of(item.farm))
            section, _, of = name.partition(".")
            self._check((section, of), checks, is_run_here=is_run_here)

    def _check(self, path: tuple[str, str], checks: Iterator[Check], *, is_run_here: bool) -> None:
        for key, check in checks:
            if not is_run_here and key in KEY_FILES:
                continue
            try:
                check()
            except FarmError as error:
                raise self._wrong((*path, key), error.message) from error

    def check_databases(self, settings: ServiceSettings) -> None:
        """Refuse sections about missing databases."""
        for name in settings.items:
            section, _, of = name.partition(".")
            try:
                refuse_missing(settings, name)
            except MissingError as error:
                raise self._wrong((section, of), f"{error.message}; {error.hint}") from error

    def _defaults(self, given: object) -> dict[str, dict[str, object]]:
        """Return the defaults of a kind of sections."""
        kinds = {kind: each for kind, each in SECTIONS.items() if kind not in ("service", "farms")}
        if not isinstance(given, dict):
            raise self._wrong((_DEFAULTS,), "must be tables by kind, such as [defaults.databases]")
        for kind, values in given.items():
            self._check_known((_DEFAULTS, kind), kinds)
            if not isinstance(values, dict):
                raise self._wrong((_DEFAULTS, kind), f"must be a table, such as [defaults.{kind}]")
            readers = self._readers(kind)
            for key, value in values.items():
                self._check_known((_DEFAULTS, kind, key), readers)
                self._read((_DEFAULTS, kind, key), readers[key], value)
        return given

    def _named(self, section: str, content: Mapping[str, Any]) -> list[tuple[str, dict[str, object]]]:
        """Return the tables of a section, each with its name."""
        given = content.get(section, {})
        if not isinstance(given, dict):
            raise self._wrong((section,), f"must be tables with names, such as [{section}.sales]")
        for name, inner in given.items():
            if not isinstance(inner, dict):
                raise self._wrong((section, name), f"must be in a table with a name, such as [{section}.sales]")
            if not _NAME.fullmatch(name):
                raise self._wrong((section, name), "is no name: letters, digits, '_', '-' and '.', at most 64")
        return list(given.items())

    def _item(self, section: str, name: str, given: Mapping[str, object], farms: Mapping[str, ListedFarm]) -> Any:
        item = self._one((section, name), given)
        path = (section, name, "farm")
        if item.farm and item.farm not in farms:
            raise self._wrong(path, f"there is no farm {item.farm!r} in this file{_meant(item.farm, farms)}")
        if not item.farm and len(farms) > 1 and section not in ("masters", "sites"):
            raise self._wrong(path[:2], f'must name its farm, as in farm = "{next(iter(farms))}"')
        if not item.farm and not farms and section == "databases":
            raise self._wrong(path[:2], "must be in a farm: add [farms.main] with its url")
        self._check_pattern(path[:2], item, farms)
        if isinstance(item, DerivedItem):
            return self._derived((section, name), item, farms)
        if isinstance(item, DatabaseItem):
            if (item.keep_daily or item.keep_weekly) and item.keep is None:
                raise self._wrong((*path[:2], "keep_daily"), "needs keep, which is missing")
            item = replace(item, name=item.name or name, farm=item.farm or next(iter(farms)))
            # Two policies of one database would overwrite each other.
            self._refuse_taken((section, item.farm, item.name), path[:2], "name")
            return item
        return self._with_places(path[:2], item, farms)

    def _check_pattern(self, path: tuple[str, str], item: Any, farms: Mapping[str, ListedFarm]) -> None:
        """Refuse a section of many databases without distinct places."""
        pattern = item.name or path[1] if isinstance(item, DatabaseItem) else database_of(item)
        if STAR not in f"{pattern}{path[1]}":
            return
        if not (STAR in pattern and STAR in path[1]) or isinstance(item, MasterItem | SiteItem):
            key = "name" if isinstance(item, DatabaseItem) else "database"
            raise self._wrong((*path, key), f'needs a star in both, as in [{path[0]}."*"] with {key} = "*"')
        if not farms:
            raise self._wrong(path, "must be in a farm: add [farms.main] with its url")
        key = "into" if isinstance(item, ReplicaItem) else "to"
        place = getattr(item, key, "")
        if place and PLACEHOLDER not in place and place not in farms:
            raise self._wrong((*path, key), f"must hold {PLACEHOLDER}: each database needs its own place")

    def _derived(self, path: tuple[str, str], item: DerivedItem, farms: Mapping[str, ListedFarm]) -> DerivedItem:
        if not farms:
            raise self._wrong(path, "must be in a farm: add [farms.main] with its url")
        if item.to and item.to not in farms:
            raise self._wrong((*path, "to"), f"there is no farm {item.to!r} in this file{_meant(item.to, farms)}")
        item = replace(item, name=item.name or path[1], to=item.to or item.farm or next(iter(farms)))
        self._refuse_taken((item.to, item.name), path, "name")
        return item

    def _with_places(self, path: tuple[str, ...], item: Any, farms: Mapping[str, ListedFarm]) -> Any:
        """Return an item with paths that may also be names."""
        if isinstance(item, RelayItem) and item.to not in farms:
            item = replace(item, to=self._read((*path, "to"), _place, item.to))
        if not isinstance(item, MasterItem | SiteItem) and not farms and "/" in item.database:
            item = replace(item, database=self._read((*path, "database"), _place, item.database))
        place = getattr(item, "into", None) or getattr(item, "to", None) or getattr(item, "source", None)
        if place is not None:
            taken = (place, item.database if isinstance(item, RelayItem) else "")
            keys = {ReplicaItem: "into", MasterItem: "source", SiteItem: "source"}
            self._refuse_taken(taken, path, keys.get(type(item), "to"))
        return item

    def _refuse_taken(self, taken: tuple[str, ...], path: tuple[str, ...], key: str) -> None:
        if (other := self._taken.setdefault(taken, path)) != path:
            raise self._wrong((*path, key), f"is the same as that of {'.'.join(other)}")

    def _one(self, path: tuple[str, ...], given: object) -> Any:
        made, options, readers = SECTIONS[path[0]][0], OPTIONS.get(path[0], {}), self._readers(path[0])
        if not isinstance(given, dict):
            raise self._wrong(path, "must be a table")
        read = {}
        for key, value in given.items():
            self._check_known((*path, key), readers)
            read[key] = self._read((*path, key), readers[key], value)
        values = {key: value for key, value in read.items() if key not in options}
        if options:
            values["options"] = {options[key].name: value for key, value in read.items() if key in options}
        for needed in fields(made):
            if needed.default is MISSING and needed.default_factory is MISSING and needed.name not in values:
                raise self._wrong(path, f"lacks the key {needed.name}")
        return made(**values)

    @staticmethod
    def _readers(section: str) -> dict[str, Reader]:
        return {**SECTIONS[section][1], **{key: _reader(each) for key, each in OPTIONS.get(section, {}).items()}}

    def _read(self, path: tuple[str, ...], reader: Reader, value: object) -> Any:
        try:
            return reader(value, self._file.absolute().parent)
        except (_WrongError, FarmError) as error:
            raise self._wrong(path, str(error)) from error

    def _check_known(self, path: tuple[str, ...], known: Mapping[str, object]) -> None:
        if path[-1] not in known:
            what = "section" if len(path) == 1 else "key"
            raise self._wrong(path, f"there is no such {what}{_meant(path[-1], known)}")

    def _wrong(self, path: tuple[str, ...], why: str) -> InvalidError:
        place = f"{self._file}, line {line_of(self._lines, path)}"
        return InvalidError(f"{place}: {'.'.join(path)}: {why}", hint=_again(self._file), path=str(self._file))


def _meant(wanted: str, known: Mapping[str, object]) -> str:
    meant = alike(wanted, known)
    return f"; did you mean {meant[0]}?" if meant else f"; there are {', '.join(known) or 'none'}"


# Options whose files may be readable by the service only.
KEY_FILES = frozenset({"mask_key", *(f"{kind}_key_file" for kind in KINDS)})


def checks_of_farm(farm: ListedFarm) -> Iterator[Check]:
    """Validate a farm without accessing it: its URL and its keys."""
    yield "url", partial(open_store, farm.url, farm.options)
    for kind in KINDS:
        if file := getattr(farm, f"{kind}_key_file"):
            yield f"{kind}_key_file", partial(read_key_file, Path(file), kind)


def checks_of(item: Item, farm: ListedFarm | None) -> Iterator[Check]:
    """Validate an item without accessing its places."""
    if isinstance(item, DatabaseItem):
        yield from _of_database(item)
    elif isinstance(item, MasterItem):
        yield "source", partial(check_run, item.source)
    elif isinstance(item, SiteItem):
        yield "source", partial(_refuse_server, item.source)
    elif isinstance(item, ReplicaItem):
        yield from _of_replica(item, farm)
    elif isinstance(item, FeedItem):
        yield from _of_feed(item)
    elif isinstance(item, RelayItem):
        # Names of farms have no slash.
        if "/" in item.to:
            yield "to", partial(open_store, item.to)
        yield "limit_rate", partial(parse_rate, str(item.options.get("rate", "1M")))
        yield "keep", partial(checked, KeepPolicy(keep=cast("timedelta | None", item.options.get("keep"))))
    else:
        yield "name", partial(check_database_name, item.name)
        yield from _of_filters(item)


def _refuse_server(source: str) -> None:
    # A service without sites loads none of their modules.
    from wlc.multi_master.joining import refuse_server

    refuse_server(source)


def _of_database(item: DatabaseItem) -> Iterator[Check]:
    yield "name", partial(check_database_name, item.name)
    yield "keep", partial(checked, KeepPolicy(keep=item.keep))
    yield "snapshot_every", partial(checked, KeepPolicy(snapshot_every=item.snapshot_every or None))
    yield "keep_daily", partial(checked, KeepPolicy(item.keep, keep_daily=item.keep_daily or 0))
    yield "keep_weekly", partial(checked, KeepPolicy(item.keep, keep_weekly=item.keep_weekly or 0))
    yield "verify_window", partial(_refuse_alone, item.verify_window, item.verify_every, "verify_every")
    yield "drill_folder", partial(_refuse_alone, item.drill_folder, item.drill_every, "drill_every")


def _of_replica(item: ReplicaItem, farm: ListedFarm | None) -> Iterator[Check]:
    made = partial(target_at, item.into, farm.options if farm else None)
    yield "into", made
    for key, option in OPTIONS["replicas"].items():
        if option.name in item.options:
            yield key, partial(_check_option, option, made, key, item.options)
    yield "swap", partial(_refuse_both, item.options.get("adopt"), item.options.get("swap"))
    if item.prune_every is not None:
        yield "prune_every", lambda: Lake.required(made(), "prune_every")
    yield from _of_filters(item)


def _check_option(option: Option, made: Callable[[], object], key: str, options: ReplicaOptions) -> None:
    option.check(made(), key, options)


def _of_filters(item: ReplicaItem | DerivedItem) -> Iterator[Check]:
    yield "where", partial(row_filters, item.where)
    yield "columns", partial(row_filters, None, item.columns)
    yield "mask", partial(row_filters, None, None, item.mask)
    filters = partial(row_filters, item.where, item.columns, item.mask, item.mask_key)
    yield "mask_key" if item.mask_key else "mask", lambda: _check_key(filters())


def _check_key(filters: object) -> None:
    # It needs DuckDB, which takes long to import.
    from wlr.replay.filters.images import with_key

    if isinstance(filters, RowFilters):
        with_key(filters, "")


def _of_feed(item: FeedItem) -> Iterator[Check]:
    options = item.options
    yield "to", partial(output_at, item.to, OutputSettings())
    yield "rotate", partial(output_at, item.to, OutputSettings(cast("int | None", options.get("rotate"))))
    yield (
        "transactional",
        partial(output_at, item.to, OutputSettings(is_transactional=options.get("transactional", False))),
    )
    yield "output_options", partial(output_at, item.to, OutputSettings(options=item.output_options))
    yield "format", lambda: output_at(item.to, OutputSettings()).check_format(options.get("format"))
    yield "from", partial(feed_start, options.get("start"))
    if (name := options.get("name")) is not None:
        yield "name", partial(feed_path, name)
    if options.get("drop"):
        yield "max_bytes", partial(_refuse_alone, True, options.get("max_bytes", BYTES_MAX), "max_bytes above 0")


def _refuse_alone(value: object, needed: object, key: str) -> None:
    if value and not needed:
        raise InvalidError(f"needs {key}")


def _refuse_both(adopt: object, swap: object) -> None:
    if adopt and swap:
        raise InvalidError("does not go with adopt: the next swap would lose the owner's rows")


# The sample name of a database for checking a section of many.
_SOME_DATABASE = "database"
_HEADER = re.compile(r"\s*\[(?!\[)")


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the line, from 1 on, of every table and key of a valid TOML file by its path, except arrays of tables."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    statement, began = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        began = began if statement else number
        statement += f"{line}\n"
        try:
            content = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            # It continues in the next line.
            continue
        if _HEADER.match(statement):
            table = path = _path(content)
        elif content:
            path = (*table, *_path(content))
        else:
            path = ()
        for length in range(1, len(path) + 1):
            found.setdefault(path[:length], began)
        statement = ""
    return found


def _path(content: Mapping[str, object]) -> tuple[str, ...]:
    """Return the path of the value that a statement sets, and the keys of an inline table."""
    path: list[str] = []
    inner: object = content
    while isinstance(inner, dict) and len(inner) == 1:
        ((name, inner),) = inner.items()
        path.append(name)
    return tuple(path)


def line_of(lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> int:
    """Return the line of a path, or of its nearest parent."""
    return next((lines[path[:length]] for length in range(len(path), 0, -1) if path[:length] in lines), 1)

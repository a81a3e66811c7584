"""Asks those who will use the values of `dbfarm.toml` whether they can, before anything starts; nothing is opened."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.farm.byte_count import parse_rate
from wlc.farm.errors import InvalidError
from wlc.farm.keep_policy import KeepPolicy, checked
from wlc.farm.paths import check_database_name, feed_path
from wlc.farm.seal.keys import KINDS, read_key_file
from wlc.farm.store import open_store
from wlc.masters.running import check_run
from wlr.engine.adapters import target_at
from wlr.engine.contract import DatabaseFile, Lake, Roles
from wlr.feeding import feed_start
from wlr.feeds.adapters import OutputSettings, output_at
from wlr.plan.row_filters import row_filters
from wlr.service.settings import DatabaseItem, DerivedItem, FeedItem, MasterItem, RelayItem, ReplicaItem
from wlr.workers import check_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wlr.service.settings import Item, ListedFarm

    # A key of a section, and what raises a FarmError if its value is of no use.
    Check = tuple[str, Callable[[], object]]


# What is read from files that only the service may be allowed to read.
KEY_FILES = frozenset({"mask_key", *(f"{kind}_key_file" for kind in KINDS)})


def checks_of_farm(farm: ListedFarm) -> Iterator[Check]:
    """Give what can be known of a farm without its being there: where it is, and whether its keys can be read."""
    yield "url", partial(open_store, farm.url, farm.options)
    for kind in KINDS:
        if file := getattr(farm, f"{kind}_key_file"):
            yield f"{kind}_key_file", partial(read_key_file, Path(file), kind)


def checks_of(item: Item, farm: ListedFarm | None) -> Iterator[Check]:
    """Give what can be known of an item without any place of it being there."""
    if isinstance(item, DatabaseItem):
        yield from _of_database(item)
    elif isinstance(item, MasterItem):
        yield "source", partial(check_run, item.source)
    elif isinstance(item, ReplicaItem):
        yield from _of_replica(item, farm)
    elif isinstance(item, FeedItem):
        yield from _of_feed(item)
    elif isinstance(item, RelayItem):
        # Names of farms have no slash.
        if "/" in item.to:
            yield "to", partial(open_store, item.to)
        yield "limit_rate", partial(parse_rate, item.limit_rate or "1M")
        yield "keep", partial(checked, KeepPolicy(keep=item.keep))
    else:
        yield "name", partial(check_database_name, item.name)
        yield from _of_filters(item)


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
    yield "engine", partial(check_engine, item.engine)
    if item.keep is not None:
        yield "keep", lambda: Lake.required(made(), "keep").check_keep(item.keep or "")
    if item.open is not None:
        yield "open", lambda: Lake.required(made(), "open").check_open_tables(item.open or "")
    if item.access:
        yield "access", lambda: Roles.required(made(), "access")
    if item.adopt:
        yield "adopt", lambda: DatabaseFile.required(made(), "adopt")
        yield "swap", partial(_refuse_both, item.swap)
    if item.swap:
        yield "swap", lambda: DatabaseFile.required(made(), "swap")
    if item.prune_every is not None:
        yield "prune_every", lambda: Lake.required(made(), "prune_every")
    yield from _of_filters(item)


def _of_filters(item: ReplicaItem | DerivedItem) -> Iterator[Check]:
    yield "where", partial(row_filters, item.where)
    yield "columns", partial(row_filters, None, item.columns)
    yield "mask", partial(row_filters, None, None, item.mask)
    filters = partial(row_filters, item.where, item.columns, item.mask, item.mask_key)
    yield "mask_key" if item.mask_key else "mask", lambda: _check_key(filters())


def _check_key(filters: object) -> None:
    # It needs DuckDB, which takes long to import.
    from wlr.filtering.images import with_key
    from wlr.plan.row_filters import RowFilters

    if isinstance(filters, RowFilters):
        with_key(filters, "")


def _of_feed(item: FeedItem) -> Iterator[Check]:
    yield "to", partial(output_at, item.to, OutputSettings())
    yield "rotate", partial(output_at, item.to, OutputSettings(item.rotate))
    yield "transactional", partial(output_at, item.to, OutputSettings(is_transactional=item.transactional))
    yield "output_options", partial(output_at, item.to, OutputSettings(options=item.output_options))
    yield "format", lambda: output_at(item.to, OutputSettings()).check_format(item.format)
    yield "from", partial(feed_start, item.start)
    if item.name is not None:
        yield "name", partial(feed_path, item.name)
    if item.drop:
        yield "max_bytes", partial(_refuse_alone, item.drop, item.max_bytes, "max_bytes above 0")


def _refuse_alone(value: object, needed: object, key: str) -> None:
    if value and not needed:
        raise InvalidError(f"is of no use without {key}")


def _refuse_both(swap: object) -> None:
    if swap:
        raise InvalidError("does not go with adopt: what the owner writes would be lost with the next swap")

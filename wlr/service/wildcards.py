"""Sections of `dbfarm.toml` for many databases, such as `[databases."*"]`: one item per database."""

from __future__ import annotations

from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from wlc.farm.database import open_database
from wlc.farm.store import join_url, open_store
from wlc.tiers.listing import database_names
from wlr.service.settings import DatabaseItem, Item, MasterItem, SiteItem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlr.service.settings import ListedFarm, ServiceSettings

STAR = "*"
# Placeholder of the name of the database in such a section.
PLACEHOLDER = "{database}"


def database_of(item: Item) -> str:
    """Return the database that an item names, or the pattern of several; "" for a master or a site."""
    if isinstance(item, MasterItem | SiteItem):
        return ""
    return item.name if isinstance(item, DatabaseItem) else item.database


def named(section: str, item: Any, database: str) -> tuple[str, Item]:
    """Return the item of one database, and its section, from those of many databases."""
    changed = {
        each.name: value.replace(PLACEHOLDER, database)
        for each in fields(item)
        if isinstance(value := getattr(item, each.name), str)
    }
    key = "name" if isinstance(item, DatabaseItem) else "database"
    return section.replace(STAR, database), replace(item, **{**changed, key: database})


def expanded(settings: ServiceSettings) -> ServiceSettings:
    """Return the settings with an item for each database that a pattern matches and no section of its kind names.

    Raises:
        UnavailableError: A farm is unreachable.
    """
    items: dict[str, Item] = {}
    for section, item in settings.items.items():
        if STAR not in database_of(item):
            items[section] = item
            continue
        farm = settings.farm_of(item.farm)
        assert farm is not None, "the reader of the file refuses a pattern without a farm"
        for database in _matching(item, farm, settings):
            key, one = named(section, item, database)
            items[key] = one
    return replace(settings, items=items)


def without_patterns(settings: ServiceSettings) -> ServiceSettings:
    """Return the settings without the items of many databases."""
    return replace(settings, items={key: item for key, item in settings.items.items() if STAR not in database_of(item)})


def _matching(item: Item, farm: ListedFarm, settings: ServiceSettings) -> Iterator[str]:
    own = {
        database_of(other)
        for other in settings.items.values()
        if type(other) is type(item) and settings.farm_of(other.farm) == farm
    }
    for name in database_names(open_store(farm.url, farm.options)):
        if fnmatchcase(name, database_of(item)) and name not in own:
            yield name


def refuse_missing(settings: ServiceSettings, section: str) -> None:
    """Refuse an item about a missing database; a farm without any database may be filled later.

    Raises:
        MissingError: There is none of that name.
        UnavailableError: The farm is unreachable.
    """
    item = settings.items[section]
    farm, database = settings.farm_of(item.farm), database_of(item)
    if farm is None or not database or STAR in database or "/" in database:
        return
    if database_names(open_store(farm.url, farm.options)):
        open_database(join_url(farm.url, database), storage_options=farm.options).config()

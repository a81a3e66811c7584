"""The content of `dbfarm.toml`: the farms, masters, sites, replicas, feeds and relays of a service, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

import wlc
from wlc.tiers.options import RelayOptions
from wlr.reading.feeds.options import FeedOptions
from wlr.replay.options import ReplicaOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlc.farm.database import FarmDatabase


@dataclass(frozen=True, slots=True)
class ListedFarm:
    """A farm: its URL, the options of its file system, and the files that hold its keys."""

    url: str
    storage_options: Mapping[str, object] = field(default_factory=dict)
    encryption_key_file: str | None = None
    signing_key_file: str | None = None
    verify_key_file: str | None = None
    witness_file: str | None = None
    allow_unencrypted: bool = False

    @property
    def options(self) -> dict[str, object]:
        """The options as `wlc` and `wlr` take them."""
        files = {
            "encryption_key_file": self.encryption_key_file,
            "signing_key_file": self.signing_key_file,
            "verify_key_file": self.verify_key_file,
            "witness_file": self.witness_file,
            "allow_unencrypted": self.allow_unencrypted or None,
        }
        return {**self.storage_options, **{name: value for name, value in files.items() if value is not None}}


class FarmArguments(TypedDict):
    """The farm of a database, as an argument of functions of `wlc` and `wlr`."""

    farm: str | None
    storage_options: dict[str, object] | None


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """A database as an argument of functions of `wlc` and `wlr`."""

    database: str
    farm: str | None
    options: dict[str, object] | None

    @classmethod
    def of(cls, database: str, farm: ListedFarm | None) -> DatabasePlace:
        """Return the place of a database in a farm of the file, or of a database with its own farm."""
        return cls(database, farm.url if farm else None, (farm.options if farm else None) or None)

    @property
    def where(self) -> FarmArguments:
        """The farm and its options."""
        return {"farm": self.farm, "storage_options": self.options}

    def found(self) -> FarmDatabase:
        """Return the database.

        Raises:
            InvalidError: There is none.
        """
        return wlc.resolve(self.database, **self.where)

    def url(self) -> str:
        """Return the URL of its folder."""
        return self.found().url

    def beat_s(self) -> float:
        """Return its beat, seconds."""
        return wlc.beat(self.database, **self.where)


@dataclass(frozen=True, slots=True)
class DatabaseItem:
    """A database of a farm: its retention, and the intervals of its checks."""

    farm: str = ""
    name: str = ""
    beat: float | None = None
    expect_every: timedelta | None = None
    sign_every: timedelta | None = None
    keep: timedelta | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    snapshot_every: timedelta | None = None
    prune_every: timedelta | None = None
    verify_every: timedelta | None = None
    verify_window: timedelta | None = None
    drill_every: timedelta | None = None
    drill_folder: str | None = None
    snapshot_from_log_every: timedelta | None = None


@dataclass(frozen=True, slots=True)
class MasterItem:
    """A PostgreSQL master that is published on its beat."""

    source: str
    farm: str = ""


@dataclass(frozen=True, slots=True)
class SiteItem:
    """A site's DuckDB file that takes transactions of other sites."""

    source: str
    farm: str = ""


@dataclass(frozen=True, slots=True)
class ReplicaItem:
    """A replica that follows."""

    into: str
    database: str
    farm: str = ""
    where: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    mask_key: str | None = None
    register: bool = True
    verify_every: timedelta | None = None
    prune_every: timedelta | None = None
    options: ReplicaOptions = field(default_factory=ReplicaOptions)


@dataclass(frozen=True, slots=True)
class FeedItem:
    """A feed that follows."""

    to: str
    database: str
    farm: str = ""
    tables: tuple[str, ...] = ()
    output_options: Mapping[str, object] = field(default_factory=dict)
    options: FeedOptions = field(default_factory=FeedOptions)


@dataclass(frozen=True, slots=True)
class RelayItem:
    """A relay; `to` is the name of a farm in the file, or its path or URL."""

    to: str
    database: str
    farm: str = ""
    register: bool = True
    prune_every: timedelta | None = None
    options: RelayOptions = field(default_factory=RelayOptions)


@dataclass(frozen=True, slots=True)
class DerivedItem:
    """A derived database that follows its source; `to` is a farm of the file, `name` its name there."""

    database: str
    farm: str = ""
    to: str = ""
    name: str = ""
    tables: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    mask_key: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The settings of the whole service.

    Attributes:
        listen: Address of `/metrics` and `/healthz`, such as `:9188`.
        metrics: File for the textfile collector of Prometheus.
        heartbeat_url: Requested every `heartbeat_every` while no job fails.
        on_failure: Command to run when a job begins to fail; for an error that passes by itself, after
            `on_failure_after`.
        on_failure_limit: Time limit of the command.
    """

    listen: str | None = None
    metrics: str | None = None
    heartbeat_url: str | None = None
    heartbeat_every: timedelta = timedelta(minutes=1)
    on_failure: tuple[str, ...] = ()
    on_failure_after: timedelta = timedelta(minutes=5)
    on_failure_limit: timedelta = timedelta(seconds=30)


Item = DatabaseItem | MasterItem | SiteItem | ReplicaItem | FeedItem | RelayItem | DerivedItem


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """A whole file: items by their section, such as `replicas.copy`."""

    options: ServiceOptions
    farms: Mapping[str, ListedFarm]
    items: Mapping[str, Item]

    def farm_of(self, name: str) -> ListedFarm | None:
        """Return a farm by its name; without a name, the only one of the file, or None."""
        if not name and len(self.farms) == 1:
            return next(iter(self.farms.values()))
        return self.farms[name] if name else None

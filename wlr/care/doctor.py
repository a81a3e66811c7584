"""Check a farm database, a master or a replica and the machine, and name remedies."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shlex
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wlc
from wlc.farm.clock import format_age, utc_now
from wlc.farm.errors import CorruptError, FarmError, InvalidError, UnavailableError, UnsupportedError
from wlc.farm.human_form import ForPeople, format_bytes, longest_unit
from wlc.farm.store.contract import PROBE
from wlc.tiers.listing import entry_of
from wlc.tiers.overview import continuing_command
from wlc.tiers.standing import IS_STOPPED
from wlr.engine.adapters import target_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from wlc.farm.database import FarmDatabase
    from wlc.tiers.listing import FarmEntry
    from wlr.engine.contract import Target
    from wlr.engine.replica_state import ReplicaState


GOOD, NOTE, WRONG = "good", "note", "wrong"
# The check of the database's state.
VERDICT = "database"

_PACKAGE = "dbfarm"
_REQUIRED_NAME = re.compile(r"[\w.-]+")
_CLOCK_MOST = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Checkup(ForPeople):
    """The result of one check.

    Attributes:
        check: Name of the check.
        state: "good"; "note": worth knowing; "wrong": it needs attention.
        found: One sentence.
        remedy: The command that repairs it; None without a fault.
    """

    check: str
    state: str
    found: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class _Patient:
    """The examined place, as commands name it."""

    place: str
    farm: str

    def __str__(self) -> str:
        return shlex.quote(self.place) + (f" --farm {shlex.quote(self.farm)}" if self.farm else "")


def examine(
    place: str | os.PathLike[str] | None = None,
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Checkup]:
    """Check versions, clocks, the store, rights, free space, keys, the beat and registrations.

    It tests the store by writing a small object and deleting it.

    Args:
        place: A database in a farm, a master, or a replica; if omitted, the machine and all databases of the farm.
        farm: URL of the farm, for a bare name; WLC_FARM if omitted.
        storage_options: Options of the file systems.

    Returns:
        One result for each check; later checks depend on earlier ones.

    Raises:
        InvalidError: The name stands for no such place.

    Examples:
        >>> [checkup.found for checkup in wlr.examine("copy.duckdb") if checkup.check == "replica"]
        ['it is at tick 3']
    """
    found = [_versions(), _scratch()]
    if place is None:
        url = farm or os.environ.get("WLC_FARM")
        entries = wlc.databases(url, storage_options=storage_options) if url else []
        return [*found, *(_verdict(f"database {entry.database}", entry) for entry in entries)]
    patient = _Patient(os.fspath(place), os.fspath(farm or ""))
    state, target = _replica(patient.place, storage_options)
    if state is not None and target is not None:
        found += _of_replica(patient, state, target, storage_options)
        database = wlc.resolve(state.master, storage_options=storage_options)
        return [*found, *_of_farm(_Patient(state.master, ""), database)]
    database = wlc.resolve(patient.place, farm, storage_options=storage_options)
    found += _of_master(patient, storage_options)
    return [*found, *_of_farm(patient, database)]


def _versions() -> Checkup:
    """Report the installed versions of the product's packages, extras included."""
    known = [f"Python {platform.python_version()}"]
    with suppress(PackageNotFoundError):
        wanted = [_PACKAGE, *(each for each in requires(_PACKAGE) or () if "'test'" not in each.replace('"', "'"))]
        names = [found.group() for each in wanted if (found := _REQUIRED_NAME.match(each))]
        for name in dict.fromkeys(names):
            with suppress(PackageNotFoundError):
                known.append(f"{name} {version(name)}")
    return Checkup("versions", GOOD, ", ".join(known))


def _scratch() -> Checkup:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    return Checkup("temporary folder", GOOD, f"{folder} has {format_bytes(free)} free")


def _replica(place: str, options: Mapping[str, Any] | None) -> tuple[ReplicaState | None, Target | None]:
    try:
        target = target_at(place, options)
        return target.find_state(), target
    except InvalidError:
        # The place is something else, such as a master.
        return None, None


def _of_replica(
    patient: _Patient, state: ReplicaState, target: Target, options: Mapping[str, Any] | None
) -> Iterator[Checkup]:
    tick = state.position.tick
    if state.failure is not None:
        message = f"it stopped at transaction {state.failure.tick}, which cannot be applied"
        yield Checkup("replica", WRONG, message, state.failure.remedy or f"wlr replicate --into {patient}")
    else:
        yield Checkup("replica", GOOD, f"it is at tick {tick}")
    if state.is_paused:
        yield Checkup("pause", NOTE, "its owner has paused it", f"wlr replica resume {patient}")
    if state.is_unlocked:
        yield Checkup("guard", NOTE, "replicated tables can be written directly", f"wlr replica lock {patient}")
    if state.not_locked:
        why = f"replicated tables can be written directly: {state.not_locked}"
        yield Checkup("guard", NOTE, why, f"wlr verify {patient}")
    again = f"wlr replicate --into {patient}"
    try:
        known = {reader.id for reader in wlc.readers(state.master, storage_options=options)}
    except FarmError as error:
        yield Checkup("registration", WRONG, error.message, error.hint)
    else:
        if state.attachment is not None or state.id in known:
            yield Checkup(
                "registration", GOOD, f"it is registered as {state.id}, so pruning keeps the files that it needs"
            )
        else:
            message = f"{state.master} does not list it, so pruning can delete files that it needs"
            yield Checkup("registration", NOTE, message, again)
    if "://" not in target.place.url:
        yield _space("replica's disk", Path(target.place.path), 0, again)


def _of_master(patient: _Patient, options: Mapping[str, Any] | None) -> Iterator[Checkup]:
    status = wlc.status(patient.place, patient.farm, storage_options=options)
    name = patient.place
    if status.fenced is not None:
        yield Checkup("master", WRONG, status.fenced, status.remedy)
    elif status.bypassed:
        tables = ", ".join(status.bypassed)
        yield Checkup(
            "master", WRONG, f"{tables} changed without being captured", f"wlc farm repair {shlex.quote(name)}"
        )
    elif status.slot not in (None, "reserved"):
        yield Checkup("master", WRONG, f"its slot is {status.slot}", f"wlc status {patient}")
    else:
        yield Checkup("master", GOOD, f"{status.state}, tick {status.tick}")
    waiting = status.unpublished or 0
    age = utc_now() - status.clock if status.clock else None
    summary = f"{status.beat_s:g} s" + (f", the last commit is {longest_unit(age)} old" if age else "")
    if waiting:
        yield Checkup("beat", NOTE, f"{summary}; {waiting} transactions wait", f"wlc flush {shlex.quote(name)}")
    else:
        yield Checkup("beat", GOOD, summary)


def _of_farm(patient: _Patient, database: FarmDatabase) -> Iterator[Checkup]:
    config = database.config()
    yield _verdict(VERDICT, entry_of(database.url, database.name, options=database.storage_options))
    yield _keys(patient, database)
    yield from _store(database)
    if config.write is not None and config.write - utc_now() > _CLOCK_MOST:
        message = "the last commit is in the future: this clock, or the master's, is wrong"
        yield Checkup("clock", WRONG, message, "timedatectl status")
    if "://" not in database.url:
        newest = [entry.bytes for entry in database.store.list(f"{config.snapshot}/")] if config.snapshot else []
        yield _space("farm's disk", Path(database.url), sum(newest), f"wlc prune {patient}")
    yield from _readers(patient, database)
    yield _retention(patient, database)


def _verdict(check: str, entry: FarmEntry) -> Checkup:
    state = WRONG if entry.is_wrong else NOTE if entry.state == IS_STOPPED else GOOD
    return Checkup(check, state, f"{entry.state}: {entry.why}", entry.remedy)


def _keys(patient: _Patient, database: FarmDatabase) -> Checkup:
    """Read the newest snapshot's manifest and the newest log file, which may need a key."""
    try:
        numbers, ticks = database.batch_numbers(), database.snapshot_ticks()
        if ticks:
            database.read_manifest(ticks[-1])
        if numbers:
            database.read_batch(numbers[-1])
    except InvalidError as error:
        return Checkup("keys", WRONG, error.message, error.hint)
    except CorruptError as error:
        return Checkup("keys", WRONG, error.message, f"wlc farm verify {patient}")
    signed = ", and their signatures verify" if database.keys.verifying else ""
    return Checkup("keys", GOOD, f"the newest files can be read{signed}")


def _store(database: FarmDatabase) -> Iterator[Checkup]:
    """Write a small object, and read its time at the store."""
    store = database.store.raw
    try:
        store.probe()
    except UnsupportedError as error:
        yield Checkup("store", WRONG, error.message, error.hint)
        return
    except (InvalidError, UnavailableError) as error:
        yield Checkup("store", NOTE, f"it can be read, but not written: {error.message}", error.hint)
        return
    yield Checkup("store", GOOD, f"{store.url} honours preconditions, and is writable")
    path = f"{PROBE}{secrets.token_hex(8)}"
    try:
        store.create(path, b"")
        arrived = next((entry.arrived for entry in store.list(path)), None)
    finally:
        with suppress(FarmError):
            store.delete(path)
    off = abs(utc_now() - arrived) if arrived is not None else timedelta(0)
    summary = f"this clock differs from the store's by {longest_unit(off)}"
    if off > _CLOCK_MOST:
        yield Checkup("clock", WRONG, f"{summary}: pruning and registrations compare the two", "timedatectl status")
    else:
        yield Checkup("clock", GOOD, summary)


def _space(check: str, place: Path, need: int, remedy: str) -> Checkup:
    there = next(folder for folder in (place.absolute(), *place.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    summary = f"{format_bytes(free)} free" + (f", the newest snapshot has {format_bytes(need)}" if need else "")
    if free < 2 * need:
        return Checkup(check, WRONG, f"{summary}: the next one may not fit", remedy)
    return Checkup(check, GOOD, summary)


def _readers(patient: _Patient, database: FarmDatabase) -> Iterator[Checkup]:
    try:
        found = wlc.readers(database.url, storage_options=database.storage_options)
        tree = wlc.tier_tree(database.url, storage_options=database.storage_options)
    except FarmError as error:
        yield Checkup("readers", WRONG, error.message, error.hint)
        return
    overdue = [reader for reader in found if reader.is_overdue]
    for reader in overdue:
        message = f"{reader.kind} {reader.id} ({reader.target} on {reader.host}) is silent, so pruning ignores it"
        where = f" --farm {shlex.quote(patient.farm)}" if patient.farm else ""
        yield Checkup("readers", NOTE, message, f"wlc farm forget {shlex.quote(patient.place)} {reader.id}{where}")
    for member in tree.stuck:
        message = f"{member.kind} {member.id} ({member.url}) is behind and makes no progress"
        yield Checkup("readers", WRONG, message, continuing_command(member, tree.url))
    if not overdue and not tree.stuck:
        yield Checkup("readers", GOOD, f"{len(found)} readers registered, all seen recently, none stuck")


def _retention(patient: _Patient, database: FarmDatabase) -> Checkup:
    try:
        kept = wlc.retention(database.url, storage_options=database.storage_options)
    except FarmError as error:
        return Checkup("retention", WRONG, error.message, error.hint or f"wlc farm verify {patient}")
    if kept.policy is None or kept.policy.keep is None:
        message = "there is no retention policy"
        return Checkup("retention", NOTE, message, f"wlc retention {patient} --keep 30d --snapshot-every 1d")
    if not kept.window.covers(kept.policy.keep, utc_now()):
        message = f"the farm does not reach back {format_age(kept.policy.keep)} yet, as the policy asks"
        return Checkup("retention", NOTE, message, f"wlc retention {patient}")
    return Checkup("retention", GOOD, f"the farm reaches back {format_age(kept.policy.keep)}, or to its beginning")

"""Settings of a tree of tiers: one sealed file in the registry, with a default for each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, ClassVar

from wlc.farm.documents import Document
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.json_fields import Later
from wlc.farm.paths import TIERS, is_token
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from wlc.farm.database import FarmDatabase


_NUMBER_MOST = 10**9


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Settings of all members of a tree of tiers.

    Attributes:
        penalty_s: First time of avoidance of a failed upstream; doubled with every failure.
        penalty_most_s: Maximum of that time.
        candidates: How many upstreams are tried in one round.
        fanout: Maximum number of readers of an upstream that sets none itself.
        fanouts: Overrides for single upstreams.
        keepalive_s: How often a running process renews its registration.
        recent_intervals: A reader is silent after this many of its intervals …
        recent_s: … and not before this many seconds.
        rechoose_s: How often a reader chooses again.
        stuck_s: A reader is stuck after this long without progress while its upstream is ahead.
        pending_s: How long a reader may be registered without data.
        push_dial_s: How often a pusher checks for new objects.
        push_list_s: How often it reads the push list.
        classes: Order of the classes from the lowest up; equal ones are joined by `=`.
    """

    may_have_info: ClassVar = True
    penalty_s: Later[float] = 5.0
    penalty_most_s: Later[float] = 300.0
    candidates: Later[int] = 6
    fanout: Later[int] = 8
    keepalive_s: Later[float] = 10.0
    recent_intervals: Later[float] = 3.0
    recent_s: Later[float] = 60.0
    rechoose_s: Later[float] = 3600.0
    stuck_s: Later[float] = 60.0
    pending_s: Later[float] = 600.0
    push_dial_s: Later[float] = 5.0
    push_list_s: Later[float] = 5.0
    classes: Later[str] = "test<alpha<beta=uat<prod"
    fanouts: Mapping[str, int] = field(default_factory=dict)

    def fanout_of(self, upstream: str, own: int | None) -> int:
        """Return the fan-out of an upstream: its override, its own number, or the general one."""
        return self.fanouts.get(upstream, self.fanout if own is None else own)

    def rank(self, class_name: str) -> int | None:
        """Return the rank of a class, None if it has none."""
        for place, level in enumerate(self.classes.split("<")):
            if class_name in level.split("="):
                return place
        return None


DEFAULTS = TierSettings()
NAMES = tuple(each.name for each in fields(TierSettings) if each.name != "fanouts")
_COUNTS = ("candidates", "fanout")


def with_setting(settings: TierSettings, pair: str) -> TierSettings:
    """Return settings with one of them changed, given as `name=value`.

    Raises:
        InvalidError: There is no such setting, or the value is invalid.
    """
    name, equals, text = pair.partition("=")
    if not equals or name not in NAMES:
        raise InvalidError(f"{pair!r} sets nothing", hint=f"wlc tier set DB NAME=VALUE, with one of {', '.join(NAMES)}")
    try:
        value: str | int | float = text
        if name != "classes":
            value = int(text) if name in _COUNTS else float(text)
        return _checked(replace(settings, **{name: value}))  # type: ignore[arg-type]
    except ValueError as error:
        hint = f"wlc tier set DB {name}={getattr(DEFAULTS, name)}"
        raise InvalidError(f"{text!r} is no value of {name}", hint=hint) from error


def _check_classes(text: str) -> None:
    names = [name for level in text.split("<") for name in level.split("=")]
    if not all(map(is_token, names)) or len(set(names)) < len(names):
        raise ValueError(text)


def _checked(settings: TierSettings) -> TierSettings:
    for name in NAMES:
        value = getattr(settings, name)
        if name != "classes" and not (math.isfinite(value) and 0 <= value <= _NUMBER_MOST):
            raise ValueError(f"{name}={value}")
    _check_classes(settings.classes)
    if settings.candidates < 1 or settings.recent_intervals < 1:
        raise ValueError("candidates and recent_intervals are 1 or more")
    return settings


_DOCUMENT = Document("tiers", TierSettings, check=_checked, hint="Delete {where}: the defaults then apply.")
encode_settings, decode_settings = _DOCUMENT.encode, _DOCUMENT.decode


def read_settings(database: FarmDatabase) -> TierSettings:
    """Return the settings of a registry, by default the default ones; warn of a damaged file."""
    try:
        found = _settings_object(database).load()
    except CorruptError as error:
        warnings.warn(f"{error.message}; the default settings hold. {error.hint}", stacklevel=2)
        return DEFAULTS
    return found[0] if found else DEFAULTS


def change_settings(database: FarmDatabase, pairs: tuple[str, ...]) -> TierSettings:
    """Set some of them, given as `name=value`, and return all.

    Raises:
        InvalidError: A setting or a value is invalid. Nothing was changed.
    """

    def change(present: TierSettings | None) -> TierSettings:
        settings = present or DEFAULTS
        for pair in pairs:
            settings = with_setting(settings, pair)
        return settings

    return _settings_object(database).change(change)


def change_fanout(database: FarmDatabase, upstream: str, fanout: int | None) -> TierSettings:
    """Override the fan-out of one upstream; None removes the override."""

    def change(present: TierSettings | None) -> TierSettings:
        settings = present or DEFAULTS
        others = {name: number for name, number in settings.fanouts.items() if name != upstream}
        return replace(settings, fanouts=others if fanout is None else {**others, upstream: fanout})

    return _settings_object(database).change(change)


def _settings_object(database: FarmDatabase) -> VersionedObject[TierSettings]:
    where = f"{database.url}/{TIERS}"
    return VersionedObject(database.store, TIERS, encode_settings, lambda data: decode_settings(data, where))

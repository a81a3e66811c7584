"""Options of readers that choose an upstream, and of relays, declared for functions, commands and `dbfarm.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, TypedDict

from wlc.farm.parameters import Option


class UpstreamOptions(TypedDict, total=False):
    """The upstream of a replica, relay or feed; replicas and feeds remember it."""

    upstream: Annotated[
        Sequence[str] | str | None,
        Option(
            "Where to read: auto chooses among the places registered at DB; a URL pins one; several are chosen from.",
            "URL",
        ),
    ]
    registry: Annotated[
        Sequence[str] | str | None,
        Option("Choose where to read by the registry there, not by DB's; with several, the first decides.", "URL"),
    ]
    class_name: Annotated[
        str | None, Option("Reads from and serves by class: prod, uat, beta, test …", "NAME", flag="--class")
    ]


class RelayOptions(UpstreamOptions, total=False):
    """Delay, speed and retention of a relay."""

    delay: Annotated[timedelta | str | None, Option("Leave out transactions younger than this: 1h, '2 days'.", "AGE")]
    rate: Annotated[float | str | None, Option("Maximum bytes per second: 500k, 10M.", "RATE", flag="--limit-rate")]
    fanout: Annotated[int | None, Option("How many may read from it; default is the registry's.", "N")]
    keep: Annotated[
        timedelta | str | None, Option("What wlc prune keeps in the relay, as wlc retention sets it: 30d.", "AGE")
    ]

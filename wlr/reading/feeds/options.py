"""Options of a feed, declared for `wlr.feed`, its command and `dbfarm.toml`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from wlc.farm.parameters import Option
from wlc.tiers.options import UpstreamOptions

BYTES_MAX = 64_000_000


class FeedOptions(UpstreamOptions, total=False):
    """The content and the start of a feed."""

    format: Annotated[
        str | None, Option("json, debezium, or csv; default: by OUTPUT's suffix, or json; remembered.", "FORMAT")
    ]
    start: Annotated[
        str | int | datetime | None,
        Option(
            "Start of a new feed; default is the start of the log. snapshot also restarts a feed whose next batch"
            " was pruned.",
            "TICK|TIME|snapshot",
            flag="--from",
        ),
    ]
    max_bytes: Annotated[
        int | str,
        Option("Bytes of records in memory at once; 0 for any number; default is 64M.", "SIZE", default=BYTES_MAX),
    ]
    drop: Annotated[
        bool,
        Option("Write only the newest records of each round, at most --max-bytes of them.", default=False),
    ]
    name: Annotated[str | None, Option("The feed's name in the farm; default is the output's.", "NAME")]
    rotate: Annotated[int | str | None, Option("Begin another file after so many bytes, as 1G.", "SIZE")]
    transactional: Annotated[bool, Option("Kafka: records become visible together. Experimental.", default=False)]

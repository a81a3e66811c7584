"""Work Load Capture: the farm's format and its masters.

The public API is `__all__`; everything else may change in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.lazy_import import importer

__all__ = [
    "ConflictCounter",
    "CorruptError",
    "ExpiredError",
    "Fanout",
    "FarmEntry",
    "FarmError",
    "FencedError",
    "Flushed",
    "Forgotten",
    "GapError",
    "GivenUp",
    "InseparableError",
    "InvalidError",
    "JoinedFrom",
    "KeepPolicy",
    "Keepalive",
    "Keeping",
    "Manifest",
    "MasterStatus",
    "Pushed",
    "Pusher",
    "RegisteredReader",
    "RejectedRow",
    "RejectionCount",
    "ReplayError",
    "Retention",
    "Shipped",
    "SiteStatus",
    "SourceCheck",
    "Tag",
    "TakenFrom",
    "TierTree",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "beat",
    "begin_anew",
    "clock",
    "conflicts",
    "connect",
    "databases",
    "exceptions",
    "fanout",
    "flush",
    "forget",
    "join",
    "joined_from",
    "leave",
    "master",
    "patched",
    "preparation",
    "prune",
    "push_list",
    "readers",
    "repair",
    "resolve",
    "resubmit",
    "retention",
    "rules",
    "run",
    "set_role",
    "set_rule",
    "set_tiers",
    "set_upstream",
    "ship",
    "sites",
    "snapshot",
    "status",
    "stop",
    "tables_to_change",
    "tag",
    "tags",
    "take",
    "tick",
    "tier_tree",
    "untag",
    "verify_source",
]

if TYPE_CHECKING:
    from wlc.connecting import connect
    from wlc.farm.errors import (
        CorruptError,
        ExpiredError,
        FarmError,
        FencedError,
        GapError,
        InseparableError,
        InvalidError,
        ReplayError,
        UnavailableError,
        UnsupportedError,
    )
    from wlc.farm.keeping import KeepPolicy, Tag
    from wlc.farm.model import Manifest
    from wlc.farm.version import __version__
    from wlc.masters.execution import patched
    from wlc.masters.lookup import beat, clock, resolve, tick
    from wlc.masters.operations import (
        SourceCheck,
        flush,
        master,
        repair,
        snapshot,
        stop,
        verify_source,
    )
    from wlc.masters.prune import prune
    from wlc.masters.publish import Flushed
    from wlc.masters.retention import Retention
    from wlc.masters.retention_policy import Keeping, retention, tag, tags, untag
    from wlc.masters.running import run
    from wlc.masters.status import MasterStatus, preparation, status, tables_to_change
    from wlc.multi_master.administration import leave, set_role
    from wlc.multi_master.conflicts import conflicts, exceptions, resubmit, rules, set_rule
    from wlc.multi_master.joining import GivenUp, JoinedFrom, begin_anew, join, joined_from
    from wlc.multi_master.overview import SiteStatus, sites
    from wlc.multi_master.site_step import ConflictCounter, RejectedRow, RejectionCount
    from wlc.multi_master.take_round import TakenFrom, take
    from wlc.tiers.administration import Fanout, Forgotten, fanout, forget, set_tiers, set_upstream
    from wlc.tiers.attachment import Keepalive
    from wlc.tiers.listing import FarmEntry, RegisteredReader, databases, readers
    from wlc.tiers.overview import TierTree, tier_tree
    from wlc.tiers.pushing import Pushed, Pusher, push_list
    from wlc.tiers.relay import Shipped, ship
else:
    __getattr__ = importer(
        __name__,
        {
            "wlc.farm.errors": tuple(name for name in __all__ if name.endswith("Error")),
            "wlc.connecting": ("connect",),
            "wlc.farm.keeping": (
                "KeepPolicy",
                "Tag",
            ),
            "wlc.farm.model": ("Manifest",),
            "wlc.farm.version": ("__version__",),
            "wlc.masters.execution": ("patched",),
            "wlc.masters.lookup": (
                "beat",
                "clock",
                "resolve",
                "tick",
            ),
            "wlc.masters.operations": (
                "SourceCheck",
                "flush",
                "master",
                "repair",
                "snapshot",
                "stop",
                "verify_source",
            ),
            "wlc.masters.prune": ("prune",),
            "wlc.masters.publish": ("Flushed",),
            "wlc.masters.retention": ("Retention",),
            "wlc.masters.retention_policy": (
                "Keeping",
                "retention",
                "tag",
                "tags",
                "untag",
            ),
            "wlc.masters.running": ("run",),
            "wlc.masters.status": (
                "MasterStatus",
                "preparation",
                "status",
                "tables_to_change",
            ),
            "wlc.multi_master.administration": (
                "leave",
                "set_role",
            ),
            "wlc.multi_master.conflicts": (
                "conflicts",
                "exceptions",
                "resubmit",
                "rules",
                "set_rule",
            ),
            "wlc.multi_master.joining": (
                "GivenUp",
                "JoinedFrom",
                "begin_anew",
                "join",
                "joined_from",
            ),
            "wlc.multi_master.overview": (
                "SiteStatus",
                "sites",
            ),
            "wlc.multi_master.site_step": (
                "ConflictCounter",
                "RejectedRow",
                "RejectionCount",
            ),
            "wlc.multi_master.take_round": (
                "TakenFrom",
                "take",
            ),
            "wlc.tiers.administration": (
                "Fanout",
                "Forgotten",
                "fanout",
                "forget",
                "set_tiers",
                "set_upstream",
            ),
            "wlc.tiers.attachment": ("Keepalive",),
            "wlc.tiers.listing": (
                "FarmEntry",
                "RegisteredReader",
                "databases",
                "readers",
            ),
            "wlc.tiers.overview": (
                "TierTree",
                "tier_tree",
            ),
            "wlc.tiers.pushing": (
                "Pushed",
                "Pusher",
                "push_list",
            ),
            "wlc.tiers.relay": (
                "Shipped",
                "ship",
            ),
        },
        {
            "derive": "wlr.derive",
            "doctor": "wlr.examine",
            "exec": "wlc.patched",
            "key": "the command wlc farm key",
            "list": "wlc.databases or wlc.sites",
            "log": "the command wlc log --json",
            "push": "wlc.push_list",
            "replicas": "wlc.readers",
            "report": "wlr.report and wlr.write_report",
            "role": "wlc.set_role",
            "rule": "wlc.rules or wlc.set_rule",
            "set": "wlc.set_tiers",
            "show": "wlc.tier_tree",
            "sql": "wlc.connect",
            "undo": "wlr.undo",
            "upstream": "wlc.set_upstream",
            "verify": "wlr.verify_farm or wlc.verify_source",
        },
    )

    def __dir__():
        return __all__

"""Work Load Replay: replicas, rolled forward from a farm.

Only the names in `__all__` are public; all others may change in any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wlc.farm.lazy_import import importer

__all__ = [
    "Attached",
    "Checkup",
    "CorruptError",
    "DatabaseReport",
    "Derived",
    "Drill",
    "ExpiredError",
    "Failure",
    "FarmAudit",
    "FarmError",
    "Fed",
    "FeedStatus",
    "FencedError",
    "GapError",
    "InseparableError",
    "InvalidError",
    "Manifest",
    "Promoted",
    "PrunedTicks",
    "RepairedTable",
    "ReplayError",
    "ReplicaStatus",
    "Replicated",
    "Retried",
    "RowFilters",
    "Switched",
    "TableDifference",
    "UnavailableError",
    "Undone",
    "UnsupportedError",
    "Verified",
    "__version__",
    "accept",
    "attach",
    "beat",
    "changes",
    "clock",
    "derive",
    "diff",
    "differing_rows",
    "drill",
    "drop",
    "examine",
    "feed",
    "feed_status",
    "files",
    "lock",
    "pause",
    "promote",
    "prune",
    "read",
    "repair",
    "replicate",
    "report",
    "resume",
    "retry",
    "row_filters",
    "snapshot_from_log",
    "status",
    "switch",
    "tick",
    "undo",
    "unlock",
    "verify",
    "verify_farm",
    "write_report",
]

if TYPE_CHECKING:
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
    from wlc.farm.model import Manifest
    from wlc.farm.version import __version__
    from wlr.care.doctor import Checkup, examine
    from wlr.care.drills import Drill, drill
    from wlr.care.farm_audit import FarmAudit, verify_farm
    from wlr.care.log_snapshot import snapshot_from_log
    from wlr.care.promotion import Promoted, promote
    from wlr.care.repairing import RepairedTable, repair
    from wlr.care.replica_settings import beat, drop, lock, pause, prune, resume, unlock
    from wlr.care.replica_status import ReplicaStatus, clock, status, tick
    from wlr.care.report import DatabaseReport, report
    from wlr.care.report_page import write_report
    from wlr.care.undoing import Undone, undo
    from wlr.care.verification import Verified, verify
    from wlr.reading.change_feed import changes
    from wlr.reading.difference import TableDifference, diff, differing_rows
    from wlr.reading.feeds.feed_state import FeedStatus, feed_status
    from wlr.reading.feeds.rounds import Fed, feed
    from wlr.reading.lake_views import Attached, attach
    from wlr.reading.place import files
    from wlr.reading.table import read
    from wlr.replay.derivation.rounds import Derived, derive
    from wlr.replay.other_log import Switched, switch
    from wlr.replay.plan.failure import Failure
    from wlr.replay.plan.retention import PrunedTicks
    from wlr.replay.plan.row_filters import RowFilters, row_filters
    from wlr.replay.request import replicate
    from wlr.replay.run import Replicated
    from wlr.replay.skipped_transactions import Retried, accept, retry
else:
    __getattr__ = importer(
        __name__,
        {
            "wlc.farm.errors": tuple(name for name in __all__ if name.endswith("Error")),
            "wlc.farm.model": ("Manifest",),
            "wlc.farm.version": ("__version__",),
            "wlr.care.doctor": (
                "Checkup",
                "examine",
            ),
            "wlr.care.drills": (
                "Drill",
                "drill",
            ),
            "wlr.care.farm_audit": (
                "FarmAudit",
                "verify_farm",
            ),
            "wlr.care.log_snapshot": ("snapshot_from_log",),
            "wlr.care.promotion": (
                "Promoted",
                "promote",
            ),
            "wlr.care.repairing": (
                "RepairedTable",
                "repair",
            ),
            "wlr.care.replica_settings": (
                "beat",
                "drop",
                "lock",
                "pause",
                "prune",
                "resume",
                "unlock",
            ),
            "wlr.care.replica_status": (
                "ReplicaStatus",
                "clock",
                "status",
                "tick",
            ),
            "wlr.care.report": (
                "DatabaseReport",
                "report",
            ),
            "wlr.care.report_page": ("write_report",),
            "wlr.care.undoing": (
                "Undone",
                "undo",
            ),
            "wlr.care.verification": (
                "Verified",
                "verify",
            ),
            "wlr.reading.change_feed": ("changes",),
            "wlr.reading.difference": (
                "TableDifference",
                "diff",
                "differing_rows",
            ),
            "wlr.reading.feeds.feed_state": (
                "FeedStatus",
                "feed_status",
            ),
            "wlr.reading.feeds.rounds": (
                "Fed",
                "feed",
            ),
            "wlr.reading.lake_views": (
                "Attached",
                "attach",
            ),
            "wlr.reading.place": ("files",),
            "wlr.reading.table": ("read",),
            "wlr.replay.derivation.rounds": (
                "Derived",
                "derive",
            ),
            "wlr.replay.other_log": (
                "Switched",
                "switch",
            ),
            "wlr.replay.plan.failure": ("Failure",),
            "wlr.replay.plan.retention": ("PrunedTicks",),
            "wlr.replay.plan.row_filters": (
                "RowFilters",
                "row_filters",
            ),
            "wlr.replay.request": ("replicate",),
            "wlr.replay.run": ("Replicated",),
            "wlr.replay.skipped_transactions": (
                "Retried",
                "accept",
                "retry",
            ),
        },
        {"serve": "the command wlr serve"},
    )

    def __dir__():
        return __all__

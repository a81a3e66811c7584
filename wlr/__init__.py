"""Work Load Replay: replicas, rolled forward from a farm.

Public is what `__all__` lists; all else may change in any release.
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
    from wlr.deriving import Derived, derive
    from wlr.doctor import Checkup, examine
    from wlr.drills import Drill, drill
    from wlr.dropping import drop
    from wlr.farm_audit import FarmAudit, verify_farm
    from wlr.feed_lag import FeedStatus, feed_status
    from wlr.feeding import Fed, feed
    from wlr.lake_files import files
    from wlr.lake_pruning import prune
    from wlr.lake_views import Attached, attach
    from wlr.log_snapshot import snapshot_from_log
    from wlr.plan.failure import Failure
    from wlr.plan.retention import PrunedTicks
    from wlr.plan.row_filters import RowFilters, row_filters
    from wlr.reading.change_feed import changes
    from wlr.reading.difference import TableDifference, diff, differing_rows
    from wlr.reading.table import read
    from wlr.repairing import RepairedTable, repair
    from wlr.replay import Replicated
    from wlr.replica_settings import beat, lock, pause, resume, unlock
    from wlr.replica_status import ReplicaStatus, clock, status, tick
    from wlr.replication import replicate
    from wlr.reporting.facts import DatabaseReport, report
    from wlr.reporting.writing import write_report
    from wlr.site_switch import Switched
    from wlr.skipped_transactions import Retried, accept, retry
    from wlr.switching import switch
    from wlr.undoing import Undone, undo
    from wlr.verification import Verified, verify
else:
    __getattr__ = importer(
        __name__,
        {
            "wlc.farm.model": ("Manifest",),
            "wlc.farm.version": ("__version__",),
            "wlr.deriving": ("Derived", "derive"),
            "wlr.doctor": ("Checkup", "examine"),
            "wlr.drills": ("Drill", "drill"),
            "wlr.dropping": ("drop",),
            "wlr.plan.failure": ("Failure",),
            "wlr.farm_audit": ("FarmAudit", "verify_farm"),
            "wlr.feed_lag": ("FeedStatus", "feed_status"),
            "wlr.feeding": ("Fed", "feed"),
            "wlr.lake_files": ("files",),
            "wlr.lake_pruning": ("prune",),
            "wlr.lake_views": ("Attached", "attach"),
            "wlr.log_snapshot": ("snapshot_from_log",),
            "wlr.plan.retention": ("PrunedTicks",),
            "wlr.plan.row_filters": ("RowFilters", "row_filters"),
            "wlr.skipped_transactions": ("Retried", "accept", "retry"),
            "wlr.reading.change_feed": ("changes",),
            "wlr.reading.difference": ("TableDifference", "diff", "differing_rows"),
            "wlr.reading.table": ("read",),
            "wlr.reporting.facts": ("DatabaseReport", "report"),
            "wlr.reporting.writing": ("write_report",),
            "wlr.repairing": ("RepairedTable", "repair"),
            "wlr.replay": ("Replicated",),
            "wlr.replica_settings": ("beat", "lock", "pause", "resume", "unlock"),
            "wlr.replica_status": ("ReplicaStatus", "clock", "status", "tick"),
            "wlr.replication": ("replicate",),
            "wlr.site_switch": ("Switched",),
            "wlr.switching": ("switch",),
            "wlr.undoing": ("Undone", "undo"),
            "wlr.verification": ("Verified", "verify"),
            "wlc.farm.errors": tuple(name for name in __all__ if name.endswith("Error")),
        },
    )

    def __dir__():
        return __all__

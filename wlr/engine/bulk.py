"""The contract of who does large work for a target: its caller hands it in, since engines know no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wlr.fold.files import Executor
    from wlr.fold.net_changes import FoldsElsewhere


class Bulk(Protocol):
    """Does large work outside of this process."""

    def folding(self, work: Path) -> FoldsElsewhere | None:
        """Return who folds changes for a database; None if this process does.

        Args:
            work: Existing folder for the files with net changes.
        """

    def executor(self, local: Executor, url: str, storage_options: Mapping[str, Any]) -> Executor:
        """Return who works on the files of a replica.

        Args:
            local: Does all work in this process; it is closed with the executor that is returned.
            url: Path or URL of the replica.
            storage_options: Options of the replica's file system.
        """

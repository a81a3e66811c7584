"""Local copies of a farm's data files, for as long as somebody reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import DataFile, TableFile


class LocalCopies:
    """Local copies of some data files of a farm database; a file of a local farm is read where it is.

    Args:
        database: The farm database.
        is_checked: Compare the content of each file with its checksum, which reads all of it. Files of a farm whose
            signatures are verified are compared in any case.
        only: Paths of the files to compare, if somebody else compares the others; None for all.

    Attributes:
        local: Where the files are, by their paths.
    """

    def __init__(self, database: FarmDatabase, *, is_checked: bool = True, only: Container[str] | None = None) -> None:
        self._database = database
        self._is_checked = is_checked or bool(database.keys.verifying)
        self._only = only
        self.local: dict[str, str] = {}

    def fetch_log(self, files: Iterable[TableFile]) -> None:
        """Fetch data files of batches, verified."""
        for file in files:
            if file.file.path not in self.local:
                self.local[file.file.path] = str(self._database.fetch(file, is_checked=self._checks(file.file.path)))

    def fetch_snapshot(self, tick: int | None, files: Iterable[DataFile]) -> None:
        """Fetch data files of the snapshot at a tick, verified."""
        wanted = [file for file in files if file.path not in self.local]
        if not wanted or tick is None:
            return
        manifest = self._database.read_manifest(tick)
        for file in wanted:
            local = self._database.fetch_snapshot(manifest, file, is_checked=self._checks(file.path))
            self.local[file.path] = str(local)

    def _checks(self, path: str) -> bool:
        return self._is_checked and (self._only is None or path in self._only)

    def release(self) -> None:
        """Release all copies."""
        for file in self.local.values():
            self._database.release(Path(file))
        self.local.clear()

"""Local copies of remote objects, gone with the store that made them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import weakref
from pathlib import Path


class Downloads:
    """A folder for local copies, made when it is first needed and removed with its store."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def new_file(self, path: str) -> Path:
        """Return an unused file name; its ending is that of `path`."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dbfarm_"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / f"{secrets.token_hex(8)}_{path.rpartition('/')[2]}"

    def release(self, file: Path) -> None:
        """Remove a copy early."""
        if file.parent == self._folder:
            file.unlink(missing_ok=True)

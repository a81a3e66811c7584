"""What it costs to encrypt a file on its way into a farm and to decrypt it on its way out, beside a plain copy."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tests.bench import tables
from tests.bench.measure import Line, Setting, duration, timed
from wlc.farm.seal.keys import Keys, new_key
from wlc.farm.store.encrypted import EncryptedStore
from wlc.farm.store.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL_MB = 500


def run(setting: Setting) -> Iterator[Line]:
    """Yield the speed of each direction."""
    folder = tables.fresh(setting.folder / "encryption")
    megabytes = setting.rows(FULL_MB)
    file = folder / "plain"
    with file.open("wb") as target:
        for _ in range(megabytes):
            target.write(os.urandom(1 << 20))
    store = EncryptedStore(LocalStore(folder / "farm"), "sales/", Keys({"encryption_key": new_key("encryption").word}))

    def create() -> None:
        store.delete("x")
        store.create("x", file)

    def fetch() -> None:
        store.release(store.fetch("x"))

    plain = min(timed(lambda: shutil.copyfile(file, folder / "copy")) for _ in range(setting.rounds))
    for what, call in (("encrypt", create), ("decrypt", fetch)):
        seconds = min(timed(call) for _ in range(setting.rounds))
        yield Line(f"{what} {megabytes} MB", duration(plain), duration(seconds), megabytes * 1.048576 / seconds, "MB/s")

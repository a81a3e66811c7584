"""Variables of the program that SQL names: DuckDB looks for them in the frames of its callers."""

from __future__ import annotations

import sys


def hide() -> None:
    """Let DuckDB skip dbfarm's frames, as it skips its own.

    Otherwise a variable of dbfarm would hide the program's of the same name. DuckDB goes by the name of the module in
    which a frame's function stands. Modules that are imported later are hidden by the next call.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("wlc.") and not hasattr(module, "__path__"):
            vars(module)["__name__"] = f"duckdb.{name}"

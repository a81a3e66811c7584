"""Python imports this module when it starts under `wlc exec`, before the program.

It also runs the `sitecustomize` of the environment, which it shadows.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = Path(__file__).resolve().parent


def _run(spec: ModuleSpec | None) -> ModuleType | None:
    if spec is None or spec.loader is None:
        return None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


try:
    _hook = _run(spec_from_file_location("_wlc_hook", _HERE.parent / "hook.py"))
    if _hook is not None:
        _hook.intercept_from_environment()
except Exception as error:  # noqa: BLE001 - Python would report it, and run the program without capture
    sys.stderr.write(f"error: wlc exec cannot capture in {sys.executable}: {error!r}\n")
    sys.stderr.flush()
    os._exit(2)
_run(PathFinder.find_spec("sitecustomize", [each for each in sys.path if Path(each or ".").resolve() != _HERE]))

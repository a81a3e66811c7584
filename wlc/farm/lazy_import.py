"""Public names of a package, imported at first use: a program pays only for the modules that it uses."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def importer(
    package: str, names: Mapping[str, tuple[str, ...]], elsewhere: Mapping[str, str]
) -> Callable[[str], object]:
    """Return the `__getattr__` of a package.

    Args:
        package: Its name.
        names: For each module, the public names of the package that come from it.
        elsewhere: For each command without a function of its name here, what Python uses instead.
    """
    homes = {name: module for module, listed in names.items() for name in listed}

    def find(name: str) -> object:
        if name not in homes:
            hint = f": use {elsewhere[name]}" if name in elsewhere else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        found = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find

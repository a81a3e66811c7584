"""Capture in programs that call `duckdb.connect` themselves: in this process, or in processes that it starts."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.capture.duckdb.home import settled_tick
from wlc.capture.duckdb.interception import hook
from wlc.dialect.duckdb.engine import BELOW, LEAST
from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_STARTUP = str(Path(__file__).parent / "startup")
_PATH = "PYTHONPATH"


class DuckDBInterception:
    """Captures connections to some masters, whichever code opens them.

    Args:
        sources: Paths of the masters. If this process itself runs with an interception, that is kept.
        storage_options: Options of the farm's file system, over those that the databases remember.

    Raises:
        InvalidError: A path is no DuckDB file that is a master.
    """

    def __init__(self, sources: Sequence[str], storage_options: Mapping[str, Any]) -> None:
        outer = hook.Wanted.decode(os.environ[hook.VARIABLE]).files if hook.VARIABLE in os.environ else {}
        files = {**outer, **{_master_file(source): dict(storage_options) for source in sources}}
        paths = sysconfig.get_paths()
        lent = dict.fromkeys((str(Path(__file__).parents[4]), paths["purelib"], paths["platlib"]))
        self._wanted = hook.Wanted(files, sys.version_info[:2], (LEAST, BELOW), list(lent))

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a Python process captures."""
        rest = [each for each in os.environ.get(_PATH, "").split(os.pathsep) if each not in ("", _STARTUP)]
        return {hook.VARIABLE: self._wanted.encode(), _PATH: os.pathsep.join((_STARTUP, *rest))}

    def settled_tick(self, source: str) -> int | None:
        """Return the last tick of a master in which its last session left nothing to do; None if unknown."""
        return settled_tick(source)

    def check(self, interpreter: str) -> None:
        """Refuse a Python whose environment cannot capture.

        Raises:
            InvalidError: It cannot; the hint says what to install.
        """
        if Path(interpreter).absolute().parent == Path(sys.executable).absolute().parent:
            return
        probe = subprocess.run(  # noqa: S603 - the command that the user gave
            [interpreter, "-I", hook.__file__],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if problem := probe.stdout.strip():
            raise InvalidError(problem, hint=f"{shlex.quote(interpreter)} -m pip install dbfarm")

    @contextmanager
    def here(self) -> Iterator[None]:
        """Capture in this process, and in Python processes that it starts meanwhile."""
        before = {name: os.environ.get(name) for name in (hook.VARIABLE, _PATH)}
        replaced = _intercept_everywhere(self._wanted)
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            for put_back in replaced:
                put_back()


def _master_file(source: str) -> str:
    shown = shlex.quote(source)
    if not Path(source).is_file():
        raise InvalidError(f"there is no file {source}", hint=f"wlc master {shown} --create makes a master there")
    if settled_tick(source) is not None:
        return os.path.realpath(source)
    # Importing DuckDB takes longer than all the rest of `wlc exec`.
    from wlc.capture.duckdb.shared import look_into

    state, away = look_into(source)
    if away is not None:
        raise away
    if not state.is_master:
        raise InvalidError(f"{source} was stopped", hint=f"wlc master {shown} starts a new history", path=source)
    return os.path.realpath(source)


def _intercept_everywhere(wanted: hook.Wanted) -> list[Callable[[], None]]:
    """Replace functions of `duckdb`, also where a module imported them by name; returns what puts them back."""
    import duckdb

    # The first captured connection replaces functions, too: it does so before.
    importlib.import_module("wlc.capture.duckdb.connection")
    from wlc.capture.duckdb.module_functions import replace_in_modules

    replaced = hook.intercept(duckdb, wanted)
    by = {id(original): vars(duckdb)[name] for place, name, original in replaced if place is duckdb}
    return [
        *(partial(setattr, *each) for each in replaced),
        *(partial(names.__setitem__, name, original) for names, name, original in replace_in_modules(by)),
    ]

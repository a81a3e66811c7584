"""Replaces `duckdb.connect`, so that all connections to some databases are captured.

Under `wlc exec`, this file runs in every Python of the command, also in environments without dbfarm and in other
versions of Python. So it imports only the standard library, and dbfarm at the first connection to capture.
"""

from __future__ import annotations

import json
import os
import sys
from functools import wraps
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Any

VARIABLE = "WLC_EXEC"
_OURS = "wlc"


class Wanted:
    """The databases to capture, and what a Python process needs for that.

    Attributes:
        files: Absolute paths of the databases, without symbolic links, each with options of its farm's file system.
        python: The version of Python whose packages can be lent, such as [3, 12].
        duckdb: The first version of DuckDB that dbfarm works with, and the first later one that it does not.
        lent: Folders with dbfarm and its packages, for environments without them.
    """

    def __init__(
        self,
        files: Mapping[str, Mapping[str, Any]],
        python: Sequence[int],
        duckdb: Sequence[str],
        lent: Sequence[str],
    ) -> None:
        self.files = dict(files)
        self.python = list(python)
        self.duckdb = list(duckdb)
        self.lent = list(lent)

    def encode(self) -> str:
        """Return the value of the variable `WLC_EXEC`, which `decode` reads in a child process."""
        return json.dumps(vars(self))

    @classmethod
    def decode(cls, text: str) -> Wanted:
        """Read the value of the variable `WLC_EXEC`."""
        return cls(**json.loads(text))

    def has(self, database: Any) -> bool:
        """Return whether a path names a database to capture."""
        return self.options(database) is not None

    def options(self, database: Any) -> Mapping[str, object] | None:
        """Return the options of a database to capture, None for any other path."""
        try:
            path = Path(os.fsdecode(database)).expanduser()
        except (TypeError, RuntimeError):
            return None
        # A hard link is another name of the same file.
        resolved = str(path.resolve())
        return next((options for file, options in self.files.items() if resolved == file or _is_same(path, file)), None)

    def problem(self, found: str) -> str | None:
        """Return why this environment, with the version `found` of DuckDB, cannot capture; None if it can."""
        least, below = self.duckdb
        if not _numbers(least) <= _numbers(found) < _numbers(below):
            return f"{sys.executable} has DuckDB {found}, and capture needs DuckDB {least} or later, before {below}"
        if list(sys.version_info[:2]) != self.python and PathFinder.find_spec(_OURS) is None:
            ours = ".".join(map(str, self.python))
            here = ".".join(map(str, sys.version_info[:2]))
            return (
                f"{sys.executable} is Python {here} without dbfarm, and wlc exec can lend dbfarm to Python {ours} only"
            )
        return None


def _is_same(path: Path, file: str) -> bool:
    try:
        return path.samefile(file)
    except OSError:
        return False


def _numbers(text: str) -> list[int]:
    return [int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:3]]


class _Lender:
    """Finds dbfarm, and what it imports, in the folders of its own environment if the program's lacks them.

    Other imports of the program are not answered: it must not find packages that it would not find otherwise.
    """

    def __init__(self, folders: list[str]) -> None:
        self._folders = folders

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if path is None and (name == _OURS or _imports_for_us()):
            return PathFinder.find_spec(name, self._folders)
        return None


def _imports_for_us() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # Not __name__, which wlc.capture.duckdb.frames changes.
        if str(frame.f_globals.get("__package__")).partition(".")[0] == _OURS:
            return True
        frame = frame.f_back
    return False


class _AtImport:
    """Changes the module `duckdb` when the program imports it."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._is_searching = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name != "duckdb" or self._is_searching:
            return None
        from importlib.util import find_spec

        self._is_searching = True
        try:
            spec = find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = self._executing(spec.loader.exec_module)
        return spec

    def _executing(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            execute(module)
            if problem := self._wanted.problem(vars(module)["__version__"]):
                raise ImportError(problem)
            intercept(module, self._wanted)

        return exec_module


def intercept_from_environment() -> None:
    """Capture as the variable `WLC_EXEC` says, from the program's import of `duckdb` on."""
    if VARIABLE not in os.environ:
        return
    wanted = Wanted.decode(os.environ[VARIABLE])
    sys.meta_path.insert(0, _AtImport(wanted))
    sys.meta_path.append(_Lender(wanted.lent))


def intercept(module: Any, wanted: Wanted) -> list[tuple[Any, str, Any]]:
    """Replace functions of the module `duckdb`, so that it captures; returns their places, names and originals."""
    # As wlc.capture.duckdb.frames does: DuckDB skips these functions when it looks for a program's variables.
    globals()["__name__"] = f"duckdb.{_OURS}.hook"
    replaced = [
        (module, "connect", _connecting(module.connect, wanted)),
        *(
            (place, name, _without_attaching(vars(place)[name], module.Statement, wanted))
            for place in (module, module.DuckDBPyConnection)
            for name in ("execute", "executemany", "from_query", "query", "sql")
        ),
    ]
    originals = [(place, name, vars(place)[name]) for place, name, _ in replaced]
    for place, name, function in replaced:
        setattr(place, name, function)
    return originals


def _connecting(connect: Callable[..., Any], wanted: Wanted) -> Callable[..., Any]:
    @wraps(connect)
    def captured_connect(
        database: Any = ":memory:", read_only: bool = False, config: dict[str, Any] | None = None
    ) -> Any:
        if read_only or (options := wanted.options(database)) is None:
            return connect(database, read_only, {} if config is None else config)
        return import_module(_OURS).connect(database, config=config, storage_options=options)

    return captured_connect


def _without_attaching(function: Callable[..., Any], statement: Any, wanted: Wanted) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        for given in (*args, *kwargs.values()):
            text = given if isinstance(given, str) else given.query if isinstance(given, statement) else ""
            if "attach" in text.lower():
                from wlc.capture.duckdb.interception.attaching import refuse_attaching

                refuse_attaching(text, wanted.has)
        return function(*args, **kwargs)

    return run


def _probe() -> None:
    """Print the problem of this environment, which starts without a hook."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        problem = Wanted.decode(os.environ[VARIABLE]).problem(version("duckdb"))
    except PackageNotFoundError:
        return
    sys.stdout.write(problem or "")


if __name__ == "__main__":
    _probe()

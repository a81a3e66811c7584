"""Programs that do not know of dbfarm: what they write to masters is captured."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wlc.farm.errors import FarmError, InvalidError
from wlc.masters import adapters
from wlc.masters.contract import bypassing
from wlc.masters.due_snapshots import try_take_due
from wlc.masters.lookup import opened_master
from wlc.masters.running import publish_and_repair
from wlc.masters.signs import note_flushed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wlc.masters.contract import Interception, Source

_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# From a terminal, the command has received these itself.
_OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


@contextmanager
def patched(
    *sources: str | os.PathLike[str], repair: bool = False, storage_options: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Capture every connection to some masters, also those that other packages open with `duckdb.connect`.

    This holds in all threads of the process, and in Python processes that start meanwhile. Read-only connections and
    other databases stay as they are. In the end, everything that was committed is published.

    Args:
        sources: Paths of the masters.
        repair: First publish what another program wrote to them without capture.
        storage_options: Options of the farm's file system, over those that the databases remember.

    Raises:
        InvalidError: A path is no DuckDB file that is a master.
        UnsupportedError: Something was written without capture, before or meanwhile; the hint says how to repair it.

    Examples:
        >>> with wlc.patched("sales.duckdb"), duckdb.connect("sales.duckdb") as connection:
        ...     connection.execute("DELETE FROM orders WHERE id = 1").fetchall()
        [(1,)]
        >>> wlc.tick("sales")
        4
    """
    interception = adapters.interception(sources, storage_options)
    for source in sources:
        _begin(interception, source, repair, storage_options)
    with interception.here():
        yield
    for source in sources:
        _finish(interception, source, storage_options)


def _begin(
    interception: Interception, source: str | os.PathLike[str], repair: bool, storage_options: Mapping[str, Any] | None
) -> None:
    if interception.settled_tick(os.fspath(source)) is None:
        with opened_master(source, storage_options) as (found, database):
            if repair:
                found.publish_bypassed(database)
            else:
                _refuse_bypassed(found)


def _finish(
    interception: Interception, source: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> int:
    """Publish what waits in a master, and return its last tick."""
    if (tick := interception.settled_tick(os.fspath(source))) is not None:
        return tick
    with opened_master(source, storage_options) as (found, database):
        tick = publish_and_repair(found, database).tick
        note_flushed(found, database)
        _refuse_bypassed(found)
        try_take_due(found, database)
        return tick


def _refuse_bypassed(found: Source) -> None:
    if bypassed := found.bypassed():
        raise bypassing(found, bypassed, "capture")


def execute(
    command: Sequence[str],
    sources: Sequence[str],
    *,
    repair: bool,
    storage_options: Mapping[str, Any] | None,
) -> tuple[int, dict[str, int | FarmError]]:
    """Run a command whose Python processes capture, and publish what waits when it has ended.

    Args:
        command: A program and its arguments.
        sources: As for `patched`.
        repair: As for `patched`.
        storage_options: As for `patched`.

    Returns:
        The exit code of the command, or 128 and the number of the signal that ended it, as a shell does. For each
        source: the last tick, or why it is not published or not captured.

    Raises:
        InvalidError: The command cannot be started, or the Python that it starts with cannot capture.
        UnsupportedError: Something was written without capture before.
    """
    interception = adapters.interception(sources, storage_options)
    if (interpreter := _interpreter(command[0])) is not None:
        interception.check(interpreter)
    for source in sources:
        _begin(interception, source, repair, storage_options)
    try:
        process = subprocess.Popen(command, env={**os.environ, **interception.environment})  # noqa: S603 - the user's
    except OSError as error:
        message = f"cannot start {command[0]}: {error.strerror}"
        raise InvalidError(message, hint=f"command -v {shlex.quote(command[0])}") from error
    with _forwarding_signals(process):
        code = process.wait()
    results: dict[str, int | FarmError] = {}
    for source in sources:
        try:
            results[source] = _finish(interception, source, storage_options)
        except FarmError as error:
            results[source] = error
    return code if code >= 0 else 128 - code, results


def _interpreter(command: str) -> str | None:
    """Return the Python that a command starts with, None if it is another program."""
    path = shutil.which(command)
    if path is None or Path(path).resolve().name.startswith("python"):
        return path
    with Path(path).open("rb") as file:
        first, second = (file.readline(4096).decode(errors="replace").strip() for _ in range(2))
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [each for each in words[1:] if not each.startswith("-") and "=" not in each]
    if words and Path(words[0]).name == "sh" and second.startswith("'''exec'"):
        # Installers write this where the path of the interpreter is too long for the first line.
        words = shlex.split(second.removeprefix("'''exec'"))
    return shutil.which(words[0]) if words and Path(words[0]).name.startswith("python") else None


@contextmanager
def _forwarding_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread only.
        yield
        return

    def forward(number: int, _: object) -> None:
        if not (number in _OF_TERMINAL and _is_in_foreground()):
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Return whether this process and its command read from a terminal, which signals both."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False

"""The command `wlr serve`: run everything that a file names."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.errors import FarmError, InvalidError

from .command import explain
from .interruption import go_on_until_interrupted
from .output import Listing, Report

if TYPE_CHECKING:
    from wlr.service.settings import ServiceSettings

Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file; default is dbfarm.toml here.")]
# How often the main thread checks that every job runs, if no watchdog wants it more often.
_LOOK_EVERY_S = 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(
    config: Config = Path("dbfarm.toml"),
    check: Annotated[bool, typer.Option("--check", help="Only read CONFIG, and show the jobs.")] = False,
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Serve a page of each database, /metrics, /healthz there: :9188."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write metrics for Prometheus' textfile collector.")
    ] = None,
    unit: Annotated[
        bool, typer.Option("--unit", help="Only show a hardened unit of systemd that runs this command.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Only write the unit into --folder, and say what to type next.")
    ] = False,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who runs the unit; default is the owner of its folders.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --install: where to; default is /etc/systemd/system.")
    ] = None,
) -> Report | None:
    """Run everything in CONFIG, in one process.

    It follows, publishes, takes snapshots, prunes, verifies and drills. SIGHUP reads CONFIG again; SIGTERM and Ctrl-C
    finish the step that is being applied.
    """
    from wlr.service.settings_file import read_settings

    shown = shlex.quote(str(config))
    if folder is not None and not install:
        raise InvalidError("--folder goes with --install", hint=f"wlr serve {shown} --install")
    if user is not None and not (unit or install):
        raise InvalidError("--user goes with --unit or --install", hint=f"wlr serve {shown} --unit")
    if unit or install:
        return _unit(config, user, folder, install=install)

    def read() -> ServiceSettings:
        settings = read_settings(config, asks_farms=check)
        options = settings.options
        given = replace(
            options,
            listen=options.listen if listen is None else listen,
            metrics=options.metrics if metrics is None else str(Path(metrics).absolute()),
        )
        return replace(settings, options=given)

    settings = read()
    if check:
        return _listing(settings)
    with _signals() as next_signal:
        go_on_until_interrupted()
        _run(config, settings, read, next_signal)
    return None


def _listing(settings: ServiceSettings) -> Listing:
    from wlc.farm.clock import format_age
    from wlr.service.jobs import works_of
    from wlr.service.wildcards import expanded

    works = works_of(expanded(settings))
    rows = [(work.item, work.name, format_age(work.every) if work.every else None) for work in works]
    return Listing(("item", "work", "every"), rows, null="-")


def _run(
    config: Path,
    settings: ServiceSettings,
    read: Callable[[], ServiceSettings],
    next_signal: Callable[[float], int | None],
) -> None:
    """Run the service until a signal ends it."""
    from wlr.service.health import READY, STOPPING, WATCHDOG, Attendant, Notifier
    from wlr.service.http_server import Pages
    from wlr.service.job_states import Board, ServiceMemory, memory_file
    from wlr.service.supervisor import Service, log

    notifier, board, wanted = Notifier(), Board(), _Wanted(settings)
    pages = Pages(wanted.settings, board)
    attendant = Attendant(settings.options, board, pages)
    service = Service(wanted.settings, board, ServiceMemory(memory_file(config)))
    service.start()
    attendant.start()
    log.info("%s: works under way: %d", config, len(service))
    notifier.send(READY, f"STATUS={len(service)} works")

    def waiting() -> None:
        notifier.send(WATCHDOG)

    def go_on() -> int:
        pages.change(wanted.settings)
        return service.change(wanted.settings, waiting)

    try:
        while True:
            number = next_signal(notifier.watchdog_s or _LOOK_EVERY_S)
            if service.is_alive:
                notifier.send(WATCHDOG)
            if number is None:
                if wanted.has_changed():
                    log.info("databases were added or removed: %d works changed", go_on())
                continue
            if number != signal.SIGHUP:
                break
            notifier.reloading()
            try:
                given = read()
                attendant.change(given.options)
                wanted.change(given)
                log.info("%s was read again: %d works changed", config, go_on())
            except FarmError as error:
                explain(error)
                log.warning("%s: the settings before stay in force", config)
            notifier.send(READY)
    finally:
        notifier.send(STOPPING)
        service.stop(waiting)
        attendant.close()
    log.info("%s: stopped", config)


class _Wanted:
    """The settings of a file, with an item for each database that its patterns match now."""

    def __init__(self, given: ServiceSettings) -> None:
        self.change(given)

    def change(self, given: ServiceSettings) -> None:
        """Go on with other settings."""
        from wlr.service.wildcards import without_patterns

        self._given, self.settings = given, without_patterns(given)
        self.has_changed()

    def has_changed(self) -> bool:
        """Find new and removed databases; an unreachable farm changes nothing."""
        from wlr.service.supervisor import log
        from wlr.service.wildcards import expanded

        before = self.settings
        try:
            self.settings = expanded(self._given)
        except FarmError as error:
            log.warning("a farm cannot be listed: %s", error)
        return before.items.keys() != self.settings.items.keys()


@contextmanager
def _signals() -> Iterator[Callable[[float], int | None]]:
    """Give a function that waits for a signal, at most so many seconds; it returns None without one.

    A handler that took a lock could deadlock with the main thread, so signals come as bytes of a socket.
    """
    reader, writer = socket.socketpair()
    with ExitStack() as stack:
        for end in (reader, writer):
            end.setblocking(False)
            stack.callback(end.close)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer.fileno()))
        for number in _SIGNALS:
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: None))

        def wait(seconds: float) -> int | None:
            select.select([reader], [], [], seconds)
            try:
                received = [number for number in reader.recv(64) if number in _SIGNALS]
            except BlockingIOError:
                return None
            # Of several signals, one that ends the service counts.
            return max(received, key=lambda number: number != signal.SIGHUP, default=None)

        yield wait


def _unit(config: Path, user: str | None, folder: Path | None, *, install: bool) -> Report | None:
    """Show the unit of systemd that runs the service, or write it."""
    from wlr.service.settings_file import read_settings
    from wlr.service.systemd_unit import FOLDER, NAME, unit_text

    path = config.absolute()
    text = unit_text(_program(), path, read_settings(path, is_run_here=False), user)
    if not install:
        print(text, end="")
        return None
    file = (folder or FOLDER) / NAME
    half = file.with_name(f".{NAME}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)
    return Listing(("wrote", "next"), [(str(file), "systemctl daemon-reload && systemctl enable --now " + NAME)])


def _program() -> str:
    """Return the path of the running `wlr`, or the one that the shell would find."""
    beside = Path(sys.executable).with_name("wlr")
    found = str(beside) if beside.is_file() else shutil.which("wlr")
    if found is None:
        raise InvalidError("there is no program wlr beside this Python", hint="pip install dbfarm")
    return found

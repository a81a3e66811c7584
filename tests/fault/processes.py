"""Programs that tests start, wait for and kill, each by its own process id and never for ever."""

from __future__ import annotations

import io
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import cli.wlc
import cli.wlr
from cli.command import run_app
from tests.pieces import seed_of_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
COMMANDS = Path(sys.executable).parent
DEADLINE_S = 300.0


def seed() -> int:
    """The seed of a test: DBFARM_SEED, or always the same; printed, so that a failure shows it."""
    found = seed_of_run()
    print(f"DBFARM_SEED={found}")
    return found


def started(url: str, target: Path | str, text: str) -> Program:
    """Start a replication whose program waits to be told to go, and tell it."""
    running = Program(url, target, text=text)
    running.wait_for("ready")
    running.say("go")
    return running


def rounds(usual: int) -> int:
    """How often to try something random: DBFARM_ROUNDS, or what fits into a run of all tests."""
    return int(os.environ.get("DBFARM_ROUNDS") or usual)


def wants_all() -> bool:
    """Whether everything is to be tried, and not a sample: DBFARM_FAULTS=all."""
    return os.environ.get("DBFARM_FAULTS") == "all"


class Program:
    """A running Python program and the lines that it has printed."""

    def __init__(self, *arguments: object, text: str | None = None) -> None:
        head = [sys.executable, "-W", "error", *(["-c", text] if text is not None else ["-m"])]
        self.process = subprocess.Popen(
            [*head, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.errors = ""
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            # A line that a killed program did not finish was not said.
            if line.endswith("\n"):
                self._arrived.put(line.strip())
        self._arrived.put(None)

    def _read_errors(self) -> None:
        self.errors = self.process.stderr.read() if self.process.stderr else ""

    def next_line(self) -> str:
        """Wait for the next line."""
        line = self._arrived.get(timeout=DEADLINE_S)
        if line is None:
            self._readers[1].join(DEADLINE_S)
            raise AssertionError(f"the program ended early: {self.errors}")
        self.lines.append(line)
        return line

    def wait_for(self, text: str) -> None:
        """Wait for a line."""
        while self.next_line() != text:
            pass

    def say(self, text: str) -> None:
        """Give it a line to read."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it as `kill -9` does, and take in what it had said."""
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Wait until it ends, take in what it had said, and return its exit code."""
        code = self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        while (line := self._arrived.get(timeout=DEADLINE_S)) is not None:
            self.lines.append(line)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


@contextmanager
def program(*arguments: object, text: str | None = None) -> Iterator[Program]:
    """A program that is killed at the end if it still runs."""
    running = Program(*arguments, text=text)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def run_command(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `wlc` or `wlr` as a user does."""
    command: list[str | Path] = [COMMANDS / name, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def call_command(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `wlc` or `wlr` in this process, which is quicker than a process of its own."""
    said, complained = io.StringIO(), io.StringIO()
    app = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}[name]
    with redirect_stdout(said), redirect_stderr(complained):
        code = run_app(app, name, [str(argument) for argument in arguments])
    return subprocess.CompletedProcess([name], code, said.getvalue(), complained.getvalue())


def wait_until(is_so: Callable[[], bool], what: str, most_s: float = 300.0) -> None:
    """Wait for something that happens in the background."""
    deadline = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < deadline, f"did not happen within {most_s} s: {what}"
        time.sleep(0.01)

"""Record a real terminal as an animated picture: `python contrib/record_terminal.py docs/recording.svg`.

Types the lines of `LINES` into a shell in an empty folder, as a person would, and writes what the screen shows. Needs
`pip install pyte`, and `wlc` and `wlr` on the path.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

LINES = (
    "wlc master shop.duckdb --create",
    'wlc sql shop.duckdb "CREATE TABLE orders AS FROM range(1000) t(id)"',
    'wlc sql shop.duckdb "DROP TABLE orders"    # oops',
    "wlc log shop",
    "wlr replicate shop --into before.duckdb --tick 1",
    """python -c "import duckdb; print(duckdb.connect('before.duckdb').sql('SELECT count(*) FROM orders'))\"""",
)
COLUMNS, ROWS = 104, 26
PROMPT = "$ "
# Seconds: between two keys, before Enter, after an answer, at the end; a longer wait for an answer is cut.
KEY_S, ENTER_S, READ_S, END_S, ANSWER_MOST_S = 0.025, 0.3, 0.9, 4.0, 0.4
SILENT_S, ANSWER_LIMIT_S = 0.3, 60.0
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 14
COLOURS = {"green": "#a3be8c", "red": "#e06c75", "brown": "#ebcb8b", "cyan": "#88c0d0"}

Run = tuple[int, str, str]
"""First column, text, and attributes of colour and weight."""


class Terminal:
    """A shell behind a pseudo-terminal, and what its screen showed when, in seconds of the recording."""

    def __init__(self, folder: str) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.frames: list[tuple[float, list[tuple[Run, ...]]]] = []
        self.now = 0.0
        self._stream = pyte.ByteStream(self.screen)
        environment = {**os.environ, "PS1": PROMPT, "TERM": "xterm-256color", "WLC_FARM": f"{folder}/farm"}
        process, self._file = pty.fork()
        if process == 0:
            os.chdir(folder)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile"], environment)  # noqa: S606
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._wait()

    def type(self, line: str) -> None:
        """Type a line key by key, and wait for its answer."""
        for key in line:
            os.write(self._file, key.encode())
            self._read(SILENT_S)
            self.now += KEY_S
            self._show()
        self.now += ENTER_S
        os.write(self._file, b"\n")
        began = time.monotonic()
        self._wait()
        self.now += min(time.monotonic() - began, ANSWER_MOST_S)
        self._show()
        self.now += READ_S

    def _wait(self) -> None:
        """Read until the shell asks for the next line."""
        limit = time.monotonic() + ANSWER_LIMIT_S
        while self._read(SILENT_S) or self.screen.display[self.screen.cursor.y].rstrip() != PROMPT.rstrip():
            if time.monotonic() > limit:
                raise TimeoutError("\n".join(self.screen.display))

    def _read(self, patience_s: float) -> bool:
        if not select.select([self._file], [], [], patience_s)[0]:
            return False
        self._stream.feed(os.read(self._file, 65536))
        return True

    def _show(self) -> None:
        rows = [_runs(self.screen.buffer[y]) for y in range(ROWS)]
        self.frames.append((self.now, rows))


def _runs(row: dict[int, pyte.screens.Char]) -> tuple[Run, ...]:
    cells = [(x, row[x]) for x in range(COLUMNS)]
    runs = []
    for (colour, bold), group in groupby(cells, key=lambda cell: (cell[1].fg, cell[1].bold)):
        found = list(group)
        if text := "".join(char.data for _, char in found).rstrip():
            style = f' fill="{COLOURS[colour]}"' if colour in COLOURS else ""
            runs.append((found[0][0], text, style + ' font-weight="bold"' * bold))
    return tuple(runs)


def picture(frames: list[tuple[float, list[tuple[Run, ...]]]], end: float) -> str:
    """Draw each row of the screen once for each time that it stayed the same, shown from then on until it changed."""
    shown = []
    for y in range(ROWS):
        for runs, group in groupby([*frames, (end, frames[-1][1])], key=lambda frame: frame[1][y]):
            times = [time for time, _ in group]
            until = next((time for time, _ in frames if time > times[-1]), end)
            if runs:
                shown.append(_row(y, runs, times[0], until))
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, ROWS * CELL_HEIGHT + 2 * MARGIN
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="#d8dee9" font-family="monospace" font-size="14">',
        "<title>A table is dropped by mistake, and read again from a replica of the moment before</title>",
        '<rect width="100%" height="100%" rx="8" fill="#1e222a">',
        f'<animate id="loop" attributeName="x" from="0" to="0" begin="0;loop.end" dur="{end:g}s"/></rect>',
    )
    return "\n".join((*head, *shown, "</svg>", ""))


def _row(y: int, runs: tuple[Run, ...], begin: float, end: float) -> str:
    spans = "".join(
        f'<tspan x="{MARGIN + x * CELL_WIDTH:g}" textLength="{len(text) * CELL_WIDTH:g}"{style}>{escape(text)}</tspan>'
        for x, text, style in runs
    )
    times = f'begin="loop.begin+{begin:.2f}s" dur="{end - begin:.2f}s"'
    text = f'<text y="{MARGIN + (y + 0.75) * CELL_HEIGHT:g}" xml:space="preserve" visibility="hidden">{spans}'
    return f'{text}<set attributeName="visibility" to="visible" {times}/></text>'


def main() -> None:
    """Record, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal(folder)
        for line in LINES:
            terminal.type(line)
    end = terminal.now + END_S
    Path(sys.argv[1]).write_text(picture(terminal.frames, end))
    sys.stdout.writelines(f"{line}\n" for line in LINES)


if __name__ == "__main__":
    main()

"""Code blocks of README and of the pages in docs/, and a shell that types them in process."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cli.wlc
import cli.wlr
from cli.command import run_app

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

ROOT = Path(__file__).resolve().parents[1]
APPS = {"wlc": cli.wlc.app, "wlr": cli.wlr.app}
# What somebody types, or a file that runs a command.
TYPED = {"sh", "python", "cron", "ini", "sql", "console"}
# Commands that touch nothing but the folder of the story.
PLAIN = {"mkdir", "cat", "mv", "cp", "echo", "head"}
ABSOLUTE = re.compile(r"(?<![\w./])/(srv|var|data|etc)(?=/)")

_MARK = r"(?:^ *<!-- (?P<mark>no-run|run-by): (?P<says>[^\n]+) -->\n)?"
_BLOCK = re.compile(_MARK + r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block, with the mark of the comment above it, and the output that the page shows below it."""

    page: str
    language: str
    text: str
    mark: str | None
    says: str | None
    shown: str | None

    @property
    def is_run_here(self) -> bool:
        """Whether the story of its page types it."""
        return self.mark is None and (self.language in TYPED or self.file is not None)

    @property
    def file(self) -> str | None:
        """Path of the file whose contents the block is, if its first line says so."""
        found = re.match(r"# (\S+\.toml)\n", self.text)
        return found[1] if found and self.language == "toml" else None


def pages() -> list[Path]:
    """README and every page of docs/, but for the decisions, which tell nobody to type anything."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in found if page.parent.name != "decisions")]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    found = list(_BLOCK.finditer(text))
    made = []
    for number, match in enumerate(found):
        after = found[number + 1] if number + 1 < len(found) else None
        is_shown = after is not None and after["language"] == "text" and not text[match.end() : after.start()].strip()
        shown = _dedented(after) if is_shown and after else None
        made.append(Block(name, match["language"], _dedented(match), match["mark"], match["says"], shown))
    return made


def _dedented(match: re.Match[str]) -> str:
    return re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)


class Shell:
    """Types lines in one folder: commands of dbfarm in this process, a few plain ones in a shell.

    Args:
        folder: Where the story plays; absolute paths and buckets of a page lie below it, too.
        monkeypatch: Takes exported variables back.
        instead: Texts of a page that stand for others here.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, instead: Mapping[str, str]) -> None:
        self._folder = folder
        self._patch = monkeypatch
        self._instead = instead
        self._names: dict[str, object] = {}
        self.goto(folder)

    def goto(self, folder: Path) -> None:
        """Change the current folder."""
        self._patch.chdir(folder)
        self._patch.setenv("PWD", str(folder))

    def export(self, name: str, value: str) -> None:
        """Set a variable of the environment."""
        self._patch.setenv(name, value)

    def adapted(self, text: str) -> str:
        """Return the text with what stands for something else here replaced."""
        for old, new in self._instead.items():
            text = text.replace(old, new)
        return ABSOLUTE.sub(rf"{self._folder}/\1", text)

    def run(self, block: Block) -> str:
        """Type a block; return what it printed, without progress and errors.

        Raises:
            AssertionError: A command failed.
        """
        text = self.adapted(block.text)
        if block.file:
            path = Path(self.adapted(block.file))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return ""
        if block.language == "python":
            return self._python(text)
        if block.language == "cron":
            text = "".join(f"{line.split(maxsplit=5)[5]}\n" for line in text.splitlines())
        if block.language == "ini":
            variables = re.findall(r"^Environment=(.*)$", text, re.MULTILINE)
            text = "\n".join(f"{' '.join(variables)} {line}" for line in re.findall(r"^ExecStart=(.*)$", text, re.M))
        return "".join(map(self._line, lines_of(text)))

    def _python(self, code: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, "docs", "exec"), self._names)
        return out.getvalue()

    def _line(self, line: str) -> str:
        first, *others = line.split(" || ")
        try:
            return self._command(first)
        except AssertionError:
            if not others:
                raise
            return self._line(" || ".join(others))

    def _command(self, line: str) -> str:
        words = [os.path.expandvars(word) for word in shlex.split(line, comments=True)]
        while words and re.fullmatch(r"\w+=.*", words[0]):
            self.export(*words.pop(0).split("=", 1))
        if not words:
            return ""
        program, arguments = words[0].removeprefix("/opt/dbfarm/bin/"), words[1:]
        if program in APPS:
            return self._dbfarm(program, arguments, line)
        if [program, *arguments[:1]] == ["python", "-c"]:
            self._names.clear()
            return self._python(arguments[1])
        if program in PLAIN:
            return subprocess.run(["sh", "-ec", line], check=True, capture_output=True, text=True).stdout
        self._quiet(program, arguments, line)
        return ""

    def _quiet(self, program: str, arguments: list[str], line: str) -> None:
        """Do what prints nothing."""
        if program == "export":
            for word in arguments:
                self.export(*word.split("=", 1))
        elif program == "cd":
            self.goto(Path.cwd() / arguments[0])
        elif program == "pip":
            _check_installation(arguments)
        else:
            assert program in ("pytest", "python"), f"nobody runs {line}"
            _check_test(arguments)

    def _dbfarm(self, program: str, words: list[str], line: str) -> str:
        # One round shows what a command does that goes on; others test how it goes on.
        arguments = [word for word in words if word not in ("--follow", "&")]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = run_app(APPS[program], program, arguments)
        assert code == 0, f"{line}\n{code}: {err.getvalue()}"
        return out.getvalue()


def _check_installation(arguments: list[str]) -> None:
    """Extras that a page tells to install exist; nothing is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in re.findall(r"\[(\w+)\]", " ".join(arguments)):
        assert extra in project["optional-dependencies"]


def _check_test(arguments: list[str]) -> None:
    """Tests and their programs exist; the suite itself runs them."""
    named = [word for word in arguments if word.startswith("tests")]
    assert named
    for name in named:
        path = ROOT / (name if "/" in name else f"{name.replace('.', '/')}.py")
        assert path.exists() or path.with_suffix("").is_dir(), name


def lines_of(text: str) -> list[str]:
    """Split what is typed into commands: text in double quotes may go on in the next line."""
    lines: list[str] = []
    for line in text.splitlines():
        if lines and len(re.findall(r'(?<!\\)"', lines[-1].partition(" # ")[0])) % 2:
            lines[-1] += f"\n{line}"
        else:
            lines.append(line)
    return lines


def resembles(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed: `…` alone in a line stands for any lines, elsewhere for any text."""
    parts = [
        r"(?:.*\n)*" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r" *\n"
        for line in shown.splitlines()
    ]
    # Spaces align columns whose width depends on the values.
    pattern = re.sub(r"(?:\\ )+", " +", "".join(parts))
    return re.fullmatch(pattern + r"\n*", printed) is not None

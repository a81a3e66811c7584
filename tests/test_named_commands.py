"""Every command line in messages, hints, docstrings and docs is one that the programs accept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.programs import WLC, WLR
from tests.commands import commands, named

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
TREES = ("wlc", "wlr", "cli", "docs", "contrib", "examples")
# Where a literal goes on in the next line, and a value in it.
BROKEN, VALUE = re.compile(r"""["']\n\s+f?["']"""), re.compile(r"\{[^{}\n]*\}")
# A command line ends with its sentence or its part of one, or where the next one begins. Before two spaces is a table.
LINE = re.compile(
    r"(?<![\w./\"'-])(wl[cr] [a-z][\w-]*+(?!  )[^;,.`()─\n]*?)(?=[;,.`()─\n]|: | or wl[cr] | then wl[cr] |$)"
)
# In sentences, the programs, packages, users and schemas of these names.
PROSE = {
    *("wlc and", "wlc belongs", "wlc import", "wlc in", "wlc is", "wlc with", "wlc wlc"),
    *("wlr and", "wlr beside", "wlr import", "wlr must", "wlr that", "wlr with", "wlr wlr"),
}
GROUPS = {f"{program.name} {word}" for program in (WLC, WLR) for word in program.groups}


def texts() -> Iterator[tuple[str, str]]:
    """Yield all files: of code, each literal on one line, with X for each value in it."""
    for file in (file for top in TREES for file in sorted((ROOT / top).rglob("*")) if file.is_file()):
        if file.suffix not in (".pyc", ".png", ".svg"):
            text = file.read_text(encoding="utf-8")
            is_code = file.suffix == ".py"
            yield str(file.relative_to(ROOT)), VALUE.sub("X", BROKEN.sub("", text)) if is_code else text
    for file in ROOT.glob("*.md"):
        yield file.name, file.read_text(encoding="utf-8")


def wrong(text: str) -> Iterator[str]:
    """Yield command lines that no program accepts: an unknown command, or an option that it does not have."""
    for line in LINE.findall(text):
        words = [word.strip("\"'") for word in line.split()]
        name = named(words)
        if name is None:
            if not (" ".join(words[:2]) in PROSE or " ".join(words) in GROUPS):
                yield line
            continue
        known = {option for param in commands()[name].params for option in (*param.opts, *param.secondary_opts)}
        yield from (f"{line}: {option}" for option in re.findall(r"(?<= )--[a-z][\w-]*", line) if option not in known)


def test_commands_in_messages_and_docs_are_accepted() -> None:
    found = [(place, line) for place, text in texts() for line in wrong(text)]
    assert found == []


@pytest.mark.parametrize(
    "text", ["see wlc ship DB", "wlc site ship DB", "`wlr tiers`", "wlr drill DB", "wlc site join FILE --into X"]
)
def test_other_commands_are_found(text: str) -> None:
    assert list(wrong(text))

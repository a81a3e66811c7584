"""The table of programs that dbfarm works with says which versions the tests install."""

from __future__ import annotations

import re

from tests.environments import ROOT


def test_the_table_has_the_pinned_versions() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "integrations").glob("test_*.py"))
    pinned = set(re.findall(r'"([\w-]+)(?:\[\w+\])?[<\d.,]*==([\d.]+)"', tests))
    page = (ROOT / "docs" / "works_with.md").read_text(encoding="utf-8")
    listed = set(
        re.findall(r"([\w-]+) (\d+(?:\.\d+)+)", "".join(re.findall(r"^\| \[.*?\| (.*?) \|", page, re.MULTILINE)))
    )
    assert len(listed) > 10
    assert listed == pinned

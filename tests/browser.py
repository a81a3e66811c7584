"""A page as a browser shows it: what it says, whether it fits a window, and a picture of it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_browser = pytest.mark.skipif(not shutil.which("chromium"), reason="there is no Chromium")

_PROBE = """<script>
  const seen = [];
  addEventListener("error", (event) => seen.push(event.message));
  addEventListener("load", () => setTimeout(() => {
    ACTION
    const drawn = [...document.querySelectorAll(".chart svg.main-svg")].map((e) => e.getBoundingClientRect().right);
    parent.postMessage(JSON.stringify({errors: seen, width: innerWidth, text: document.body.innerText,
      needed: document.documentElement.scrollWidth, drawn: Math.max(0, ...drawn)}), "*");
  }, 500));
</script>"""


@dataclass(frozen=True)
class Seen:
    """What a browser shows: errors of scripts, the text, widths in pixels of the window, the page and the charts."""

    errors: list[str]
    text: str
    width: int
    needed: int
    drawn: int


def look(page: str, folder: Path, width: int, name: str, action: str = "") -> Seen:
    """Show a page in a window of some width, after an action of its user, in JavaScript; the picture stays in DBFARM_SCREENSHOTS, if that names a folder."""
    (folder / "page.html").write_text(page.replace("<head>", "<head>" + _PROBE.replace("ACTION", action), 1))
    # Windows of this browser are at least 500 pixels wide, frames are not.
    frame = folder / "frame.html"
    frame.write_text(f"""<!doctype html><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
        <iframe src="page.html" width="{width}" height="2400"></iframe>
        <script>addEventListener("message", (event) => {{ document.title = event.data; }})</script>""")
    browser = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},2400"),
        *("--virtual-time-budget=5000", f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"),
    ]
    dumped = subprocess.run(
        [*browser, "--dump-dom", frame.as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    assert "CONSOLE" not in dumped.stderr
    title = re.search(r"<title>(.*?)</title>", dumped.stdout, re.DOTALL)
    assert title is not None
    picture = Path(os.environ.get("DBFARM_SCREENSHOTS") or folder) / f"{name}-{width}.png"
    shot = [*browser, "--hide-scrollbars", f"--screenshot={picture}", frame.as_uri()]
    subprocess.run(shot, capture_output=True, check=True, timeout=120)
    assert picture.stat().st_size > 10_000
    return Seen(**json.loads(html.unescape(title[1])))

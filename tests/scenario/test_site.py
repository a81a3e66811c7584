"""The site of docs/: built strictly, every link leads somewhere, and a browser shows it on a phone and on a desk."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("zensical", reason="pip install 'dbfarm[docs]'")

ROOT = Path(__file__).resolve().parents[2]
# Addresses elsewhere, and those that a script fills in.
ELSEWHERE = re.compile(r"^(?:javascript:|mailto:|data:|https?://)|^$")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning fails it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    for package in ("wlc", "wlr"):
        (folder / package).symlink_to(ROOT / package)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 50
    ids = {page: set(re.findall(r'\bid="?([^" >]+)', text)) for page, text in pages.items()}
    dead = []
    for page, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="?([^" >]*)', text):
            if ELSEWHERE.search(link):
                continue
            parts = urlsplit(html.unescape(link))
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


def test_python_is_described_from_its_docstrings(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in ("wlc.connect", "wlc.prune", "wlr.replicate", "wlr.read"):
        assert f'id="{name}"' in text, name


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("chromium"), reason="there is no Chromium")
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("name", ["index", "tutorial", "cli", "api", "comparison"])
def test_a_browser_shows_it_without_overflow(site: Path, tmp_path: Path, name: str, width: int) -> None:
    probe = """<script>addEventListener("load", () => setTimeout(() => {
      document.title = JSON.stringify({width: innerWidth, needed: document.documentElement.scrollWidth});
    }, 500));</script>"""
    page = site / f"probe-{name}-{width}.html"
    text = (site / f"{name}.html").read_text(encoding="utf-8")
    page.write_text(re.sub(r"(<head[^>]*>)", rf"\1{probe}", text, count=1), encoding="utf-8")
    shots = Path(os.environ.get("DBFARM_SCREENSHOTS") or tmp_path)
    browser = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},2400"),
        *("--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'profile'}"),
    ]
    try:
        dumped = subprocess.run([*browser, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
        title = re.search(r"<title>(\{.*?\})</title>", dumped.stdout, re.DOTALL)
        assert title, dumped.stderr[-2000:]
        found = json.loads(html.unescape(title[1]))
        assert found["needed"] <= found["width"]
        shot = shots / f"site-{name}-{width}.png"
        subprocess.run([*browser, "--hide-scrollbars", f"--screenshot={shot}", page.as_uri()], check=True, timeout=120)
        assert shot.stat().st_size > 10_000
    finally:
        page.unlink()

"""The pages of `wlc report`, live, for the databases that the service looks after."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import wlr
from wlc.farm.errors import FarmError, InvalidError
from wlr.reporting.writing import report_page
from wlr.service.settings import MasterItem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlr.service.settings import ListedFarm, ServiceSettings

log = logging.getLogger("wlr.service")

# A page is made anew when it is older than this, and older than it took to make.
_FRESH_S = 10.0
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """What is answered to a request: HTTP status, content type, content."""

    status: int
    kind: str
    content: bytes


@dataclass
class _Page:
    """The page of one database, and the lock that lets only one request make it."""

    database: str
    farm: ListedFarm | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: WebAnswer | None = None
    fresh_until: float = 0.0


class Pages:
    """The pages, made when somebody asks and kept for some seconds.

    Args:
        settings: Name the databases.
        now: A clock that never goes back, in seconds.
    """

    def __init__(self, settings: ServiceSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pages = _pages(settings)

    def change(self, settings: ServiceSettings) -> None:
        """Go on with other settings."""
        self._pages = _pages(settings)

    def answer(self, path: str) -> WebAnswer | None:
        """Answer a request: `/` shows the only database or lists them, `/NAME` shows one; None for another path."""
        pages, name = self._pages, unquote(path.removeprefix("/"))
        if name in pages:
            return self._made(pages[name])
        if name or not pages:
            return None
        return self._made(next(iter(pages.values()))) if len(pages) == 1 else _index(pages)

    def _made(self, page: _Page) -> WebAnswer:
        with page.lock:
            if page.answer is None or self._now() >= page.fresh_until:
                begun = self._now()
                page.answer = _answer(page)
                done = self._now()
                page.fresh_until = done + max(_FRESH_S, done - begun)
            return page.answer


def _pages(settings: ServiceSettings) -> dict[str, _Page]:
    """Name every database that an item is about, once; a name that is taken gets the name of its farm before it."""
    found: dict[str, _Page] = {}
    places = set()
    for section, item in settings.items.items():
        farm = settings.farm_of(item.farm)
        if isinstance(item, MasterItem):
            # What it is called in its farm, only its server knows.
            database, name = item.source, section.partition(".")[2]
            if name in found:
                continue
        else:
            database = getattr(item, "database", "") or getattr(item, "name", "")
            name = database.rstrip("/").rpartition("/")[2]
            if (place := (database, farm.url if farm else "")) in places:
                continue
            places.add(place)
            name = name if name not in found else f"{item.farm}/{name}" if item.farm else section
        found[name] = _Page(database, farm)
    return found


def _answer(page: _Page) -> WebAnswer:
    farm = page.farm
    try:
        found = wlr.report(
            page.database, farm=farm.url if farm else None, storage_options=(farm.options if farm else None) or None
        )
        return WebAnswer(200, HTML, report_page(found).encode())
    except (FarmError, OSError) as error:
        hint = f"\n{error.hint}" if isinstance(error, FarmError) and error.hint else ""
        # What is invalid here is the installation or the file, and not the request.
        status = 501 if isinstance(error, InvalidError) else 503
        return WebAnswer(status, TEXT, f"{error}{hint}\n".encode())
    except Exception as error:  # noqa: BLE001 - a defect of the page is no reason to answer nothing
        log.error("page: %s: %s", type(error).__name__, error, extra={"cause": error})
        return WebAnswer(500, TEXT, b"the page cannot be made; the log of the service says why\n")


def _index(pages: Mapping[str, _Page]) -> WebAnswer:
    listed = "\n".join(f'<li><a href="/{quote(name)}">{escape(name)}</a></li>' for name in sorted(pages))
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme"'
    style = "<style>body { font: 1.1rem/2 system-ui, sans-serif; margin: 2rem }</style>"
    return WebAnswer(
        200,
        HTML,
        f'<!doctype html>\n<html lang="en">{head} content="light dark"><title>dbfarm</title>{style}\n'
        f"<h1>Databases</h1>\n<ul>\n{listed}\n</ul>\n</html>\n".encode(),
    )

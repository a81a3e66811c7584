"""The page of a report as text, and as a file that is there whole or not at all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    import os

    from wlr.reporting.facts import DatabaseReport

_PACKAGES = ("jinja2", "plotly")


def report_page(report: DatabaseReport) -> str:
    """Return a report as one HTML page that needs nothing from the network.

    Raises:
        InvalidError: The packages that make pages are not installed; the hint names them.
    """
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise InvalidError(
            f"a page needs packages that are not installed: {', '.join(missing)}", hint="pip install 'dbfarm[report]'"
        )
    from wlr.reporting.page import render

    return render(report)


def write_report(report: DatabaseReport, out: str | os.PathLike[str]) -> Path:
    """Write the page of a report into a file, in place of what was there.

    Returns:
        The file.

    Raises:
        InvalidError: It cannot be written there, or the packages that make pages are not installed.
    """
    page, path = report_page(report), Path(out)
    try:
        with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".html", delete=False) as file:
            file.write(page)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise InvalidError(
            f"{path} cannot be written: {error.strerror}", hint="--out FILE in a folder of yours"
        ) from error
    return path

"""A report as one HTML file that needs nothing else: no network, no server.

The charts of a report, drawn in the reader's browser by plotly.js, which the page carries with it.

The page of a report as text, and as a file that is there whole or not at all.
"""

from __future__ import annotations

import html
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from wlc.farm.clock import format_age
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import format_bytes
from wlr.care.doctor import GOOD

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from wlr.care.report import BatchFact, DatabaseReport, TableDay

    _Table = tuple[str, Sequence[str], Sequence[Sequence[object]]]


def render(report: DatabaseReport) -> str:
    """Return the page of a report. Names and messages of the farm are escaped, wherever they stand."""
    # Everything is escaped but what this package made itself.
    environment = Environment(
        loader=PackageLoader("wlr.care", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"shown": shown, "bytes": format_bytes}
    drawn = charts(report)
    return environment.get_template("page.html").render(
        report=report,
        tiles=list(_tiles(report)),
        urgent=[check for check in report.checks if check.state != GOOD],
        audit_rows=[(problem.path, problem.problem) for problem in report.audit.problems] if report.audit else [],
        charts=list(drawn),
        figures=Markup(",".join(drawn.values())),  # noqa: S704 - `charts` makes it safe inside a script
        script=Markup(script()),  # noqa: S704 - plotly's own
        tables=list(_tables(report)),
    )


def shown(value: object) -> str:
    """Write a value for people; times are in UTC, because whoever reads the page may be anywhere."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if isinstance(value, timedelta):
        return format_age(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def _size(count: int | None) -> str | None:
    return None if count is None else format_bytes(count)


def _tiles(report: DatabaseReport) -> Iterator[tuple[str, object]]:
    yield "State", report.state
    yield "Last transaction", report.tick
    yield "Committed", report.clock
    yield "Beat", format_age(timedelta(seconds=report.beat_s))
    yield "Can go back to", report.can_go_back_to
    yield "Readers", len(report.readers)
    yield "Log", format_bytes(report.log_bytes)
    yield "Snapshots", f"{report.snapshot_count} ({format_bytes(report.snapshot_bytes)})"
    yield "Bytes per changed row", report.bytes_per_row


def _tables(report: DatabaseReport) -> Iterator[_Table]:
    yield (
        "Who reads it",
        ("target", "kind", "host", "transaction", "behind", "seconds behind", "last seen", "keeps from pruning"),
        [
            (
                *(each.target, each.kind, each.host, each.tick, each.lag_transactions, each.lag_s, each.seen),
                _size(each.held_bytes),
            )
            for each in report.readers
        ],
    )
    yield (
        "Tiers",
        ("tier", "id", "kind", "reads", "state", "attention", "transaction", "seconds behind"),
        [
            (each.tier, each.id, each.kind, each.upstream, each.state, ", ".join(each.marks), each.tick, each.lag_s)
            for each in report.tiers
            if any(other.kind == "relay" for other in report.tiers)
        ],
    )
    yield (
        "Sites",
        ("site", "role", "transaction", "committed", "lacked by", "rows in the window", "stable"),
        [
            (each.site, each.role, each.tick, each.clock, ", ".join(each.behind), each.window_rows, each.is_stable)
            for each in report.sites
        ],
    )
    yield (
        "Snapshots",
        ("transaction", "committed", "tables", "rows", "size"),
        [(each.tick, each.clock, each.tables, each.rows, format_bytes(each.bytes)) for each in report.snapshots],
    )
    yield "Tags", ("name", "transaction"), [(each.name, each.tick) for each in report.tags]
    yield "Checks", ("check", "state", "found"), [(each.check, each.state, each.found) for each in report.checks]


# More points than pixels show nothing; more tables than colours confuse.
_MOST_POINTS = 500
_MOST_TABLES = 8
# Most of a day, which is the unit of an axis of dates in milliseconds.
_BAR_MS = 20 * 3_600_000
# The bars of a database that is new would fill the chart.
_LEAST_DAYS = 7


def script() -> str:
    """Return the program that draws the charts, to be put into a page."""
    return str(get_plotlyjs())


def charts(report: DatabaseReport) -> dict[str, str]:
    """Return for each chart that has something to show its title and its figure as JSON, safe inside a script."""
    figures = {
        "How long commits waited until they were published": _waited(report.batches),
        "Size of the log per day": _growth(report.batches),
        "Changed rows per table and day": _table_chart(report.tables),
    }
    # What is between script tags must not end them.
    return {title: figure.to_json().replace("<", "\\u003c") for title, figure in figures.items() if figure is not None}


def _figure(unit: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        margin={"l": 60, "r": 10, "t": 10, "b": 40},
        height=280,
        yaxis={"title": {"text": unit}, "rangemode": "tozero", "automargin": True},
        legend={"orientation": "h", "y": -0.2},
        template="none",
    )
    return figure


def _waited(batches: Sequence[BatchFact]) -> go.Figure | None:
    if not batches:
        return None
    step = -(-len(batches) // _MOST_POINTS)
    worst = [max(batches[at : at + step], key=lambda batch: batch.waited_s) for at in range(0, len(batches), step)]
    figure = _figure("seconds")
    figure.add_scatter(
        x=[batch.arrived.isoformat() for batch in worst], y=[batch.waited_s for batch in worst], mode="lines+markers"
    )
    return figure


def _growth(batches: Sequence[BatchFact]) -> go.Figure | None:
    if not batches:
        return None
    bytes_of = Counter[date]()
    for batch in batches:
        bytes_of[batch.arrived.date()] += batch.bytes
    figure = _figure("bytes")
    _add_days(figure, bytes_of)
    _span_days(figure, bytes_of)
    return figure


def _add_days(figure: go.Figure, amounts: Mapping[date, int], name: str = "") -> None:
    days = sorted(amounts)
    figure.add_bar(x=[day.isoformat() for day in days], y=[amounts[day] for day in days], width=_BAR_MS, name=name)


def _span_days(figure: go.Figure, days: Collection[date]) -> None:
    """Let the axis show all days, and at least a week."""
    last, half = max(days), timedelta(hours=12)
    first = min(*days, last - timedelta(days=_LEAST_DAYS - 1))
    end = datetime.combine(last, time()) + half
    span = [(datetime.combine(first, time()) - half).isoformat(), end.isoformat()]
    figure.update_xaxes(tickformat="%e %b", nticks=min((last - first).days + 1, 8), range=span)


def _table_chart(days: Sequence[TableDay]) -> go.Figure | None:
    if not days:
        return None
    totals = Counter[str]()
    for day in days:
        totals[day.table] += day.rows
    shown = [table for table, _ in totals.most_common(_MOST_TABLES)]
    rows = Counter[tuple[str, date]]()
    for day in days:
        rows[day.table if day.table in shown else "", day.day] += day.rows
    figure = _figure("rows")
    for table in [*shown, ""]:
        found = {at: count for (name, at), count in rows.items() if name == table}
        if found:
            # plotly reads some HTML in names.
            _add_days(figure, found, html.escape(table) if table else "other tables")
    _span_days(figure, {day.day for day in days})
    figure.update_layout(barmode="stack", showlegend=True)
    return figure


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

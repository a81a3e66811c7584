"""The charts of a report, drawn in the reader's browser by plotly.js, which the page carries with it."""

from __future__ import annotations

import html
from collections import Counter
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from wlr.reporting.facts import BatchFact, DatabaseReport, TableDay

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
        "Changed rows per table and day": _tables(report.tables),
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


def _tables(days: Sequence[TableDay]) -> go.Figure | None:
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

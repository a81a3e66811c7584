"""A report as one self-contained HTML file, without network or server.

The charts of a report, drawn in the reader's browser by plotly.js, which the page contains.

The page of a report as text, and as an atomically written file.
"""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from wlc.farm.clock import format_age, utc_now
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import ago, duration, format_bytes, longest_unit, whole_seconds
from wlc.tiers.standing import STATES
from wlr.care.doctor import GOOD, VERDICT

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from wlc import FarmEntry
    from wlr.care.report import BatchFact, DatabaseReport, TableDay
    from wlr.service.job_states import WorkStanding

    _Table = tuple[str, Sequence[str], Sequence[Sequence[object]]]


class Size(int):
    """A number of bytes."""


class Length(float):
    """A length of time, in seconds."""


def render(report: DatabaseReport, asset: str = "") -> str:
    """Return the page of a report. All names and messages of the farm are escaped.

    Args:
        report: The report.
        asset: URL of the program that draws charts; the page contains the program if omitted.
    """
    drawn = charts(report)
    return (
        _environment(report.made)
        .get_template("page.html")
        .render(
            report=report,
            tiles=list(_tiles(report)),
            urgent=[check for check in report.checks if check.state != GOOD and check.check != VERDICT],
            audit_rows=[(problem.path, problem.problem) for problem in report.audit.problems] if report.audit else [],
            charts=list(drawn),
            figures=Markup(",".join(drawn.values())),  # noqa: S704 - `charts` makes it safe inside a script
            asset=asset,
            script=Markup("" if asset else script()),  # noqa: S704 - plotly's own
            tables=list(_tables(report)),
        )
    )


@dataclass(frozen=True, slots=True)
class ListedDatabase:
    """A line of the list of databases.

    Attributes:
        name: Its name here; `href`: URL of its page.
        counts: Log files that arrived in each of the last 24 hours, the oldest first; empty if unknown.
    """

    name: str
    href: str
    entry: FarmEntry
    counts: tuple[int, ...] = ()
    made: datetime = field(default_factory=utc_now)

    @property
    def rank(self) -> int:
        """Rank of its state, the worst first."""
        return STATES.index(self.entry.state)

    @property
    def commit_age(self) -> float:
        """Seconds since the last commit; a database without commits is the oldest."""
        return float("inf") if self.entry.age_s is None else self.entry.age_s

    @property
    def back_age(self) -> float:
        """Age of the oldest restorable state, in seconds."""
        since = self.entry.can_go_back_to
        return 0.0 if since is None else (self.made - since).total_seconds()

    @property
    def bars(self) -> list[tuple[int, float]]:
        """Place and height, up to 10, of a bar for each hour with arrivals."""
        most = max(self.counts, default=0)
        return [(at, round(10 * count / most, 1)) for at, count in enumerate(self.counts) if count]


_COLUMNS = (
    *(("database", "", False), ("state", "", False), ("commit", "number", False), ("lag", "number", True)),
    *(("back to", "number", True), ("verified", "number", True), ("drilled", "number", True)),
    *(("size", "number", True), ("24 hours", "", True), ("why", "", False)),
)


def databases_page(entries: Sequence[ListedDatabase], failing: Sequence[WorkStanding]) -> str:
    """Return the page that lists databases, and the failing jobs of a service.

    Raises:
        InvalidError: The packages that make pages are not installed; the hint names them.
    """
    require_packages()
    wrong = sum(each.entry.is_wrong for each in entries)
    summary = f"Databases: {len(entries)}, {f'in need of attention: {wrong}' if wrong else 'nothing is wrong'}"
    summary += f", failing jobs: {len(failing)}" if failing else ""
    made = utc_now()
    listed = sorted(entries, key=lambda each: (each.rank if each.entry.is_wrong else len(STATES), each.name))
    template = _environment(made).get_template("databases.html")
    return template.render(entries=listed, failing=failing, columns=_COLUMNS, summary=summary, made=made)


def _environment(made: datetime) -> Environment:
    # Everything is escaped except this package's own markup.
    environment = Environment(
        loader=PackageLoader("wlr.care", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.tests["moment"] = lambda value: isinstance(value, datetime)
    environment.filters |= {
        "moment": shown,
        "shown": lambda value: shown(value, made),
        "bytes": format_bytes,
        "size": lambda count: "–" if count is None else format_bytes(count),
        "age": lambda time: "–" if time is None else longest_unit(made - time),
        "length_of": lambda seconds: "–" if seconds is None else longest_unit(timedelta(seconds=seconds)),
    }
    return environment


def shown(value: object, made: datetime | None = None) -> str:
    """Write a value for people; times are in UTC, for readers anywhere, with their age at `made`."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        age = f" ({ago(value, made)})" if made is not None and made >= value else ""
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") + age
    if isinstance(value, timedelta):
        return format_age(value)
    if isinstance(value, Size):
        return format_bytes(value)
    if isinstance(value, Length):
        return duration(whole_seconds(timedelta(seconds=value)))
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def _size(count: int | None) -> Size | None:
    return None if count is None else Size(count)


def _length(seconds: float | None) -> Length | None:
    return None if seconds is None else Length(seconds)


def _tiles(report: DatabaseReport) -> Iterator[tuple[str, object]]:
    entry = report.entry
    yield "Last transaction", entry.tick
    yield "Committed", entry.clock
    yield "Publisher seen", entry.seen
    yield "Beat", format_age(timedelta(seconds=report.beat_s))
    yield "Restorable from", report.can_go_back_to
    yield "Slowest reader", _length(entry.lag_s)
    yield "Readers", len(report.readers)
    yield "Verified", entry.verified
    yield "Drilled", entry.drilled
    yield "Log", Size(report.log_bytes)
    yield f"{report.snapshot_count} snapshots", Size(report.snapshot_bytes)
    yield "Bytes per changed row", report.bytes_per_row


def _tables(report: DatabaseReport) -> Iterator[_Table]:
    yield (
        "Readers",
        ("target", "kind", "host", "transaction", "transactions behind", "behind", "last seen", "keeps from pruning"),
        [
            (
                *(each.target, each.kind, each.host, each.tick, each.lag_transactions, _length(each.lag_s), each.seen),
                _size(each.held_bytes),
            )
            for each in report.readers
        ],
    )
    yield (
        "Tiers",
        ("tier", "id", "kind", "reads", "state", "attention", "transaction", "behind"),
        [
            (
                each.tier,
                each.id,
                each.kind,
                each.upstream,
                each.state,
                ", ".join(each.marks),
                each.tick,
                _length(each.lag_s),
            )
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
        [(each.tick, each.clock, each.tables, each.rows, Size(each.bytes)) for each in report.snapshots],
    )
    yield "Tags", ("name", "transaction"), [(each.name, each.tick) for each in report.tags]
    yield "Checks", ("check", "state", "found"), [(each.check, each.state, each.found) for each in report.checks]


# More points than pixels are invisible; more tables than colours confuse.
_MOST_POINTS = 500
_MOST_TABLES = 8
# Most of a day, in the axis' unit of milliseconds.
_BAR_MS = 20 * 3_600_000
# The bars of a new database would fill the chart.
_LEAST_DAYS = 3


def script() -> str:
    """Return the program that draws the charts, for inclusion in a page."""
    return str(get_plotlyjs())


def charts(report: DatabaseReport) -> dict[str, str]:
    """Return title and figure (JSON, safe inside a script) of each chart with data."""
    figures = {
        "How long commits waited until they were published": _waited(report.batches),
        "Size of the log per day": _growth(report.batches),
        "Changed rows per table and day": _table_chart(report.tables),
    }
    # The text between script tags must not close them.
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
    figure.update_yaxes(tickformat="~s", ticksuffix="B")
    _add_days(figure, bytes_of)
    _span_days(figure, bytes_of)
    return figure


def _add_days(figure: go.Figure, amounts: Mapping[date, int], name: str = "") -> None:
    days = sorted(amounts)
    figure.add_bar(x=[day.isoformat() for day in days], y=[amounts[day] for day in days], width=_BAR_MS, name=name)


def _span_days(figure: go.Figure, days: Collection[date]) -> None:
    """Make the axis start with the first day, and show all days and at least three."""
    first, half = min(days), timedelta(hours=12)
    last = max(*days, first + timedelta(days=_LEAST_DAYS - 1))
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
            # plotly interprets some HTML in names.
            _add_days(figure, found, html.escape(table) if table else "other tables")
    _span_days(figure, {day.day for day in days})
    figure.update_layout(barmode="stack", showlegend=True)
    return figure


_PACKAGES = ("jinja2", "plotly")


def require_packages() -> None:
    """Refuse to make pages without the packages for that.

    Raises:
        InvalidError: They are not installed; the hint names them.
    """
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise InvalidError(
            f"a page needs packages that are not installed: {', '.join(missing)}", hint="pip install 'dbfarm[report]'"
        )


def report_page(report: DatabaseReport, asset: str = "") -> str:
    """Return a report as one HTML page, which needs no network without an `asset`.

    Raises:
        InvalidError: The packages that make pages are not installed; the hint names them.
    """
    require_packages()
    return render(report, asset)


def write_report(report: DatabaseReport, out: str | os.PathLike[str]) -> Path:
    """Write the page of a report to a file, replacing an old one.

    Returns:
        The file.

    Raises:
        InvalidError: It cannot be written there, or the packages that make pages are not installed.

    Examples:
        >>> wlr.write_report(wlr.report("sales"), "sales.html").name
        'sales.html'
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

"""A report as one HTML file that needs nothing else: no network, no server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wlc.farm.byte_count import format_bytes
from wlc.farm.clock import format_age
from wlr.doctor import GOOD
from wlr.reporting.charts import charts, script

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wlr.reporting.facts import DatabaseReport

    _Table = tuple[str, Sequence[str], Sequence[Sequence[object]]]


def render(report: DatabaseReport) -> str:
    """Return the page of a report. Names and messages of the farm are escaped, wherever they stand."""
    # Everything is escaped but what this package made itself.
    environment = Environment(
        loader=PackageLoader("wlr.reporting", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
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

"""Commands of `wlr` on the changes of rows: feed, changes, diff."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated

import typer

import wlc
import wlr
from wlc.farm.byte_count import parse_bytes

from .changes import ChangesRequest
from .following import in_rounds
from .options import (
    ClassName,
    Farm,
    Follow,
    Registries,
    StorageOptions,
    Upstreams,
    flat_options,
    storage_options,
    tick_or_time,
    two_ticks,
)
from .output import Listing, Report, record
from .progress import working

FeedStart = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TICK|TIME|snapshot", help="Where a new feed begins; default is the start of the log."
    ),
]
FeedFormat = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="json, debezium, or csv; default is what OUTPUT ends in, or json."),
]
ChangesFormat = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="jsonl, csv, parquet, or arrow; default is what FILE ends in, or jsonl."),
]
OutputOptions = Annotated[
    list[str] | None,
    typer.Option("--output-option", metavar="K=V", help="Kafka: property of librdkafka; may be repeated."),
]


def feed(
    db: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm, URL, or path of the master.")],
    to: Annotated[
        str, typer.Option(metavar="OUTPUT", help="A file, to which lines are appended; or kafka://HOST:PORT/TOPIC.")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="PATTERN", help="Only tables like main.sales_*; may be repeated."),
    ] = None,
    format: FeedFormat = None,
    start: FeedStart = None,
    max_bytes: Annotated[
        str, typer.Option(metavar="N", help="Bytes of records in memory at once, as 64M; 0 for any number.")
    ] = "64M",
    drop: Annotated[
        bool, typer.Option("--drop", help="Of each round write only the newest records, at most --max-bytes of them.")
    ] = False,
    rotate: Annotated[
        str | None, typer.Option(metavar="N", help="Begin another file after so many bytes, as 1G.")
    ] = None,
    transactional: Annotated[
        bool, typer.Option("--transactional", help="Kafka: records become visible together. Experimental.")
    ] = False,
    output_option: OutputOptions = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The feed's name in the farm; default is the output's.")
    ] = None,
    follow: Follow = False,
    upstream: Upstreams = None,
    class_name: ClassName = None,
    registry: Registries = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Write every change of some tables to a file or a topic of Kafka, in the order of the log."""
    options = storage_options(storage_option)
    keepalive = wlc.Keepalive() if follow else None

    def go_on() -> wlr.Fed:
        with working(f"feeding {to}") as progress:
            return wlr.feed(
                db,
                to=to,
                tables=table or None,
                format=format,
                start=start,
                max_bytes=int(parse_bytes(max_bytes)),
                drop=drop,
                name=name,
                transactional=transactional,
                output_options=flat_options(output_option),
                rotate=int(parse_bytes(rotate)) if rotate is not None else None,
                upstream=upstream,
                class_name=class_name,
                registry=registry,
                keepalive=keepalive,
                farm=farm,
                storage_options=options,
                progress=progress,
            )

    with keepalive or nullcontext():
        yield from in_rounds(
            go_on,
            record,
            follow=follow,
            has_news=lambda done: done.records or done.dropped,
            beat_s=lambda _: wlc.beat(db, farm=farm, storage_options=options),
            reads=lambda _: wlc.resolve(db, farm, storage_options=options).url,
        )


def changes(
    db: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm, URL, or path of the master.")],
    table: Annotated[str, typer.Option(metavar="TABLE", help="schema.table, or a table of schema main.")],
    since: Annotated[
        str | None,
        typer.Option(metavar="TICK|TIME", help="Only what was committed after it; default: all."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TICK|TIME", help="Only what was committed up to it; default: the end.")
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Begin with all rows at --since; without --since, with those of the end.")
    ] = False,
    format: ChangesFormat = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="A new file; default is standard output.")] = None,
    follow: Follow = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Write which rows transactions removed from a table and added to it, in the order of the log."""
    options = storage_options(storage_option)
    request = ChangesRequest(db, table, tick_or_time(since), tick_or_time(until), snapshot, format, out, follow)
    with request.opened(farm, options) as write_round:
        yield from in_rounds(
            write_round,
            lambda report: report,
            follow=follow,
            has_news=lambda report: report,
            beat_s=lambda _: wlc.beat(db, farm=farm, storage_options=options),
        )


def diff(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A replica, whose farm is read; or a DB of a farm.")],
    tick: Annotated[str, typer.Option(metavar="A:B", help="The ticks; B may be the earlier one.")],
    table: Annotated[str | None, typer.Option(metavar="TABLE", help="Show the rows of this table that differ.")] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show how many rows of each table differ between two transactions, or which rows of one table do."""
    first, last = two_ticks(tick)
    options = storage_options(storage_option)
    if table is None:
        found = wlr.diff(target, first, last, farm=farm, storage_options=options)
        rows = [(one.table, one.added, one.removed, one.changed) for one in found]
        return Listing(("table", "added", "removed", "changed"), rows, null="-")
    relation = wlr.differing_rows(target, first, last, table, farm=farm, storage_options=options)
    return Listing(relation.columns, relation.fetchall(), null="NULL")


# Each with the example that its help shows.
COMMANDS = (
    (feed, "wlr feed sales --farm s3://bucket/farm --table main.orders --to orders.jsonl --follow"),
    (changes, "wlr changes sales --farm s3://bucket/farm --table main.orders --since 1040 --format csv"),
    (diff, "wlr diff copy.duckdb --tick 1040:1050 --table main.orders"),
)

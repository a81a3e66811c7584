"""The command `wlr`: roll a replica forward, check it, and repair it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

import wlc
import wlr
from wlc.farm.byte_count import parse_bytes
from wlc.farm.clock import parse_time
from wlc.farm.errors import CorruptError, InvalidError
from wlr.engine.adapters import locate as place_of
from wlr.replica_settings import place_read

from .changes import ChangesRequest
from .command import command, new_app, run_app
from .following import follow_on
from .options import (
    ClassName,
    Farm,
    Follow,
    Registries,
    StorageOptions,
    Target,
    Upstreams,
    flat_options,
    storage_options,
    tick_or_time,
    two_ticks,
)
from .output import Lines, Listing, Report, record
from .progress import working
from .standing import COMMANDS as STANDING_COMMANDS

if TYPE_CHECKING:
    from datetime import datetime

    from wlr import KeyRange

app = new_app("Roll a replica forward from a farm: to the end, to a time, or to a transaction.")


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run_app(app, "wlr"))


Patterns = Annotated[
    list[str] | None, typer.Option(metavar="PATTERN", help="Only tables like main.sales_*; may be repeated.")
]
Ignored = Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Leave these tables out; may be repeated.")]
Delay = Annotated[
    str | None, typer.Option(metavar="AGE", help="Stay this far behind: 1h, '2 days'. Give it every time.")
]
Into = Annotated[
    str, typer.Option(metavar="TARGET", help="A DuckDB file; a folder or s3://… of Parquet files; postgresql://….")
]
Master = Annotated[
    str | None, typer.Argument(metavar="MASTER", help="Name in the farm, URL, or path of the master; remembered.")
]
Until = Annotated[
    str | None,
    typer.Option(metavar="TIME|TAG", help="Stop at this time: 9:00, '2026-11-20 10:00', '2 hours ago'; or at a tag."),
]
Engine = Annotated[
    str, typer.Option(metavar="ENGINE", help="Parquet: who does large work: local, spark, or auto by its size.")
]
Unregistered = Annotated[bool, typer.Option("--no-register", help="Do not register this replica in the farm.")]
Keep = Annotated[
    str | None, typer.Option(metavar="N|AGE", help="Parquet: old ticks that stay readable, as 10 or '3 days'.")
]
Access = Annotated[
    bool | None,
    typer.Option("--access/--no-access", help="PostgreSQL: give roles what the farm grants; default: if signed."),
]
SparkMaster = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark master, if no session or defaults name one.")
]


@command(app, example="wlr replicate sales --farm s3://bucket/farm --into copy.duckdb --until '2 hours ago'")
def replicate(
    into: Into,
    master: Master = None,
    until: Until = None,
    tick: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop after this transaction.")] = None,
    follow: Follow = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    rebase: Annotated[bool, typer.Option("--rebase", help="Take back, or make anew, what the log lacks.")] = False,
    tables: Patterns = None,
    ignore: Ignored = None,
    delay: Delay = None,
    keep: Keep = None,
    access: Access = None,
    engine: Engine = "auto",
    spark_master: SparkMaster = None,
    upstream: Upstreams = None,
    class_name: ClassName = None,
    registry: Registries = None,
    no_register: Unregistered = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Create a replica from the newest suitable snapshot, or roll it forward from its position."""
    stop = _fixed(until, dry_run=dry_run) if follow else until
    waits = follow and (until is not None or tick is not None)
    done: wlr.Replicated | None = None
    options = storage_options(storage_option)
    keepalive = wlc.Keepalive() if follow else None

    def roll_forward() -> wlr.Replicated:
        nonlocal done
        with working(f"rolling {place_of(into)} forward") as progress:
            done = wlr.replicate(
                master,
                into=into,
                farm=farm,
                until=stop,
                tick=tick,
                waits=waits,
                delay=delay,
                tables=tables or None,
                ignore=ignore or None,
                keep=keep,
                access=access,
                engine=engine,
                spark_master=spark_master,
                storage_options=options,
                register=not no_register,
                upstream=upstream,
                class_name=class_name,
                registry=registry,
                keepalive=keepalive,
                rebase=rebase,
                dry_run=dry_run,
                progress=progress,
            )
        return done

    with keepalive or nullcontext():
        yield record(roll_forward())
        if follow:
            yield from follow_on(
                lambda: record(now) if (now := roll_forward()).transactions else None,
                lambda: wlr.beat(into, storage_options=options),
                lambda: place_read(into, storage_options=options),
                lambda: waits and done is not None and done.is_reached,
            )


def _fixed(until: str | None, *, dry_run: bool) -> str | datetime | None:
    """Return the time that is meant now, so that later rounds mean the same; a tag stays one."""
    if dry_run:
        raise InvalidError("--follow goes on, and a dry run does not", hint="leave one of them out")
    if until is None:
        return None
    try:
        return parse_time(until)
    except InvalidError:
        return until


@command(app, example="wlr switch copy.duckdb /srv/farm/sales")
def switch(
    target: Target,
    upstream: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm or URL of the database's folder.")],
    no_register: Annotated[bool, typer.Option("--no-register", help="Do not register this replica there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say whether it can be done.")] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Let a replica read a relay, or another site, once the logs prove that it holds the same; no row is copied."""
    options = storage_options(storage_option)
    return record(
        wlr.switch(target, upstream, farm=farm, storage_options=options, register=not no_register, dry_run=dry_run)
    )


@command(app, example="wlr accept copy.duckdb")
def accept(target: Target, storage_option: StorageOptions = None) -> Report:
    """Skip exactly the one transaction whose replay failed."""
    return record(wlr.accept(target, storage_options=storage_options(storage_option)))


Tables = Annotated[
    list[str] | None, typer.Option("--table", metavar="TABLE", help="schema.table, or table; may be repeated.")
]
VERIFY_COLUMNS = ("table", "outcome", "rows", "expected", "missing", "surplus", "where")


@command(app, example="wlr verify copy.duckdb --locate")
def verify(
    target: Target,
    table: Tables = None,
    locate: Annotated[bool, typer.Option("--locate", help="Compare with the farm and show which rows differ.")] = False,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Read every row of a replica and compare what its tables hold with the master's log."""
    with working(f"reading {place_of(target)}") as progress:
        found = wlr.verify(
            target,
            tables=table or (),
            locate=locate,
            storage_options=storage_options(storage_option),
            progress=progress,
        )
    rows = [(t.table, t.outcome, t.rows, t.expected, t.missing, t.surplus, _where(t.ranges)) for t in found.tables]
    yield Listing(VERIFY_COLUMNS, rows, null="-")
    if found.differing:
        listed = [check.table for check in found.differing]
        options = "".join(f" --table {shlex.quote(name)}" for name in listed)
        raise CorruptError(
            f"{', '.join(listed)} of {place_of(target)} {'is' if len(listed) == 1 else 'are'} not as in the master at"
            f" tick {found.tick}",
            hint=f"wlr repair {shlex.quote(str(place_of(target)))}{options}",
        )
    if found.unverifiable:
        listed = [check.table for check in found.unverifiable]
        raise CorruptError(
            f"{', '.join(listed)} of {place_of(target)} cannot be verified: the log has lost the digests that it had",
            hint=f"wlc verify {shlex.quote(found.master)}",
        )


def _where(ranges: Sequence[KeyRange]) -> str | None:
    shown = [r.low if r.low == r.high else f"{r.low} to {r.high}" for r in ranges]
    return "; ".join(shown) or None


@command(app, example="wlr repair copy.duckdb --table main.orders")
def repair(
    target: Target,
    table: Annotated[
        list[str], typer.Option("--table", metavar="TABLE", help="schema.table, or table; may be repeated.")
    ],
    storage_option: StorageOptions = None,
) -> Report:
    """Make tables equal to the master's at the replica's tick; only rows that differ are written."""
    with working(f"repairing {place_of(target)}"):
        done = wlr.repair(target, table, storage_options=storage_options(storage_option))
    return Listing(("table", "added", "removed"), [(fix.table, fix.added, fix.removed) for fix in done])


@command(app, example="wlr drill sales --farm s3://bucket/farm --json")
def drill(
    db: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm, URL, or path of the master.")],
    tick: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Restore to this transaction instead of a random one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Makes the random choice repeatable.")] = None,
    folder: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the scratch database; default is the system's.")
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Restore to a random past transaction in a scratch database, verify every row, show the time, and clean up."""
    with working(f"restoring {db}") as progress:
        done = wlr.drill(
            db,
            farm=farm,
            tick=tick,
            seed=seed,
            folder=folder,
            storage_options=storage_options(storage_option),
            progress=progress,
        )
    yield record(done)
    if not done.is_sound:
        raise CorruptError(
            f"restored to tick {done.tick}, {', '.join(done.differing)} of {done.database} are not what the log says",
            hint=f"wlc verify {shlex.quote(db)} --full",
        )


FeedStart = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TICK|TIME|snapshot", help="Where a new feed begins; default is the start of the log."
    ),
]
OutputOptions = Annotated[
    list[str] | None,
    typer.Option("--output-option", metavar="K=V", help="Kafka: property of librdkafka; may be repeated."),
]


@command(app, example="wlr feed sales --farm s3://bucket/farm --table main.orders --to orders.jsonl --follow")
def feed(
    db: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm, URL, or path of the master.")],
    to: Annotated[
        str, typer.Option(metavar="OUTPUT", help="A file, to which lines are appended; or kafka://HOST:PORT/TOPIC.")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="PATTERN", help="Only tables like main.sales_*; may be repeated."),
    ] = None,
    format: Annotated[str, typer.Option(metavar="FORMAT", help="json, debezium, or csv.")] = "json",
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
        yield record(go_on())
        if follow:
            yield from follow_on(
                lambda: record(done) if (done := go_on()).records or done.dropped else None,
                lambda: wlc.beat(db, farm=farm, storage_options=options),
                lambda: wlc.resolve(db, farm, storage_options=options).url,
            )


@command(app, example="wlr changes sales --farm s3://bucket/farm --table main.orders --since 1040 --format csv")
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
    format: Annotated[str, typer.Option(metavar="FORMAT", help="jsonl, csv, parquet, or arrow.")] = "jsonl",
    out: Annotated[str | None, typer.Option(metavar="FILE", help="A new file; default is standard output.")] = None,
    follow: Follow = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Write which rows transactions removed from a table and added to it, in the order of the log."""
    options = storage_options(storage_option)
    request = ChangesRequest(db, table, tick_or_time(since), tick_or_time(until), snapshot, format, out, follow)
    with request.opened(farm, options) as write_round:
        yield from write_round()
        if follow:
            yield from follow_on(
                lambda: next(write_round(), None), lambda: wlc.beat(db, farm=farm, storage_options=options)
            )


@command(app, example="wlr diff copy.duckdb --tick 1040:1050 --table main.orders")
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


@command(app, example="wlr files lake main.orders --tick 1040")
def files(
    target: Target,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or a table of schema main.")],
    tick: Annotated[int | None, typer.Option(metavar="N", min=0, help="As of this transaction.")] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """List the files that hold a table of a Parquet replica, for any tool that reads Parquet."""
    return Lines(wlr.files(target, table, tick=tick, storage_options=storage_options(storage_option)))


@command(app, example="wlr prune lake --keep '3 days' --dry-run")
def prune(
    target: Target,
    keep: Annotated[
        str | None, typer.Option(metavar="N|AGE", help="Old ticks that stay readable; default is what was set before.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    storage_option: StorageOptions = None,
) -> Report:
    """Remove old ticks of a Parquet replica, and every file that no readable tick needs."""
    options = storage_options(storage_option)
    with working(f"pruning {place_of(target)}"):
        return record(wlr.prune(target, keep=keep, dry_run=dry_run, storage_options=options))


for _function, _example in STANDING_COMMANDS:
    command(app, example=_example)(_function)


if __name__ == "__main__":
    main()

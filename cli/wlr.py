"""The command `wlr`: roll a replica forward, check it, and repair it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

import wlc
import wlr
from wlc.farm.clock import parse_until
from wlc.farm.errors import InvalidError
from wlr.care.replica_settings import place_read
from wlr.engine.adapters import locate as place_of
from wlr.engine.adapters import target_at
from wlr.replay.options import ReplicaOptions

from .checking import COMMANDS as CHECKING_COMMANDS
from .command import command, new_app, run_app
from .following import in_rounds
from .options import (
    ChangeFilters,
    Columns,
    Farm,
    Follow,
    MaskKey,
    Masks,
    StorageOptions,
    Target,
    Where,
    storage_options,
    takes,
    typed,
)
from .output import Fields, Lines, Listing, Report, for_person, record
from .programs import WLR
from .progress import working
from .replica_settings import COMMANDS as STANDING_COMMANDS
from .row_changes import COMMANDS as ROW_COMMANDS
from .serving import serve

if TYPE_CHECKING:
    from datetime import datetime

app = new_app(WLR)


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run_app(app, "wlr"))


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
Registered = Annotated[
    bool | None,
    typer.Option(
        "--register/--no-register",
        help="Register this replica in the farm. Default: not a new one that stops at a time or a transaction.",
    ),
]


@command(app, "replicate", example="sales --farm s3://bucket/farm --into copy.duckdb --until '2 hours ago'")
@takes(ReplicaOptions, before="register")
def replicate(
    into: Into,
    master: Master = None,
    until: Until = None,
    tick: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop after this transaction.")] = None,
    follow: Follow = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")] = False,
    rebase: Annotated[bool, typer.Option("--rebase", help="Undo what the log lacks, or rebuild the replica.")] = False,
    where: Where = None,
    columns: Columns = None,
    mask: Masks = None,
    mask_key: MaskKey = None,
    change_filters: ChangeFilters = False,
    register: Registered = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
    **given: Unpack[ReplicaOptions],
) -> Iterator[Report]:
    """Create a replica, or roll it forward from its position.

    A new one begins with the newest suitable snapshot.
    """
    stop = _fixed(until, dry_run=dry_run) if follow else until
    waits = follow and (until is not None or tick is not None)
    options = storage_options(storage_option)
    filters = wlr.row_filters(where, columns, mask, mask_key, changes=change_filters)
    keepalive = wlc.Keepalive() if follow else None

    def roll_forward() -> wlr.Replicated:
        with working("rolling {} forward", place_of(into)) as progress:
            return wlr.replicate(
                master,
                into=into,
                farm=farm,
                until=stop,
                tick=tick,
                waits=waits,
                filters=filters,
                storage_options=options,
                register=register,
                keepalive=keepalive,
                rebase=rebase,
                dry_run=dry_run,
                progress=progress,
                **typed(given),
            )

    with keepalive or nullcontext():
        yield from _rounds(into, roll_forward, options, follow=follow, waits=waits)


def _rounds(
    into: str, roll_forward: Callable[[], wlr.Replicated], options: dict[str, Any] | None, *, follow: bool, waits: bool
) -> Iterator[Report]:
    return in_rounds(
        roll_forward,
        partial(_replicated, into),
        follow=follow,
        has_news=lambda done: done.transactions,
        beat_s=lambda _: wlr.beat(into, storage_options=options),
        reads=lambda _: place_read(into, storage_options=options),
        is_over=lambda done: waits and done.is_target_reached,
    )


def _replicated(into: str, done: wlr.Replicated) -> Fields:
    """Report a replication; a terminal also shows the place and the snapshot."""
    found = for_person(done, ("is_paused", "rebuilt_because"))

    def shown() -> Fields:
        values = dict(found.on_terminal().values) if found.on_terminal else {}
        made = values.pop("loaded", None), values.pop("snapshot", None)
        origin = {} if done.snapshot is None else {"from": f"snapshot at tick {made[1] or 0} ({made[0] or 0} rows)"}
        target = target_at(into)
        return Fields({"replica": f"{target.place}, {target.noun}", **origin, **values})

    return Fields(found.values, on_terminal=shown)


def _fixed(until: str | None, *, dry_run: bool) -> str | datetime | None:
    """Resolve a relative time now, so that later rounds use the same time; a tag stays one."""
    if dry_run:
        raise InvalidError("--follow never ends, and a dry run does", hint="leave one of them out")
    if until is None:
        return None
    try:
        return parse_until(until)
    except InvalidError:
        return until


@command(app, "replica switch", example="copy.duckdb /srv/farm/sales")
def switch(
    target: Target,
    upstream: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm or URL of the database's folder.")],
    no_register: Annotated[bool, typer.Option("--no-register", help="Do not register this replica there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check whether it is possible.")] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Let a replica read a relay, or another site, from now on.

    The logs must prove that it holds the same; no row is copied.
    """
    options = storage_options(storage_option)
    return record(
        wlr.switch(target, upstream, farm=farm, storage_options=options, register=not no_register, dry_run=dry_run)
    )


@command(app, "accept", example="copy.duckdb")
def accept(target: Target, storage_option: StorageOptions = None) -> Report:
    """Skip exactly the one transaction whose replay failed."""
    return record(wlr.accept(target, storage_options=storage_options(storage_option)))


@command(app, "replica retry", example="copy.duckdb --tick 1041")
def retry(
    target: Target,
    tick: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only this transaction; default is all accepted ones.")
    ] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Apply the rows of accepted transactions, if they fit now.

    A DuckDB or PostgreSQL replica keeps these rows.
    """
    done = wlr.retry(target, tick, storage_options=storage_options(storage_option))
    return Listing(("tick", "rows"), [(each.tick, each.rows) for each in done])


@command(app, "lake files", example="lake main.orders --tick 1040")
def files(
    target: Target,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or a table of schema main.")],
    tick: Annotated[int | None, typer.Option(metavar="N", min=0, help="As of this transaction.")] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """List the files of a table, for any tool that reads Parquet."""
    return Lines(wlr.files(target, table, tick=tick, storage_options=storage_options(storage_option)))


@command(app, "lake attach", example="lake views.duckdb")
def attach(
    target: Target,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The DuckDB file for the views; made if there is none.")],
    tick: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="As of this tick; default is the current one.")
    ] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Make views of all tables of a lake in a DuckDB file.

    They have the declared types, as of one tick; run the command again for a newer one.
    """
    return record(wlr.attach(target, file, tick=tick, storage_options=storage_options(storage_option)))


@command(app, "lake prune", example="lake --keep '3 days' --dry-run")
def prune(
    target: Target,
    keep: Annotated[
        str | None, typer.Option(metavar="N|AGE", help="Old ticks that stay readable; default is the last setting.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    storage_option: StorageOptions = None,
) -> Report:
    """Remove old ticks of a lake, and files that none needs.

    Every file goes that no readable tick needs.
    """
    options = storage_options(storage_option)
    with working("pruning {}", place_of(target)):
        return record(wlr.prune(target, keep=keep, dry_run=dry_run, storage_options=options))


for _function, _path, _example in (*STANDING_COMMANDS, *CHECKING_COMMANDS, *ROW_COMMANDS):
    command(app, _path, example=_example)(_function)
command(app, "serve", example="/etc/dbfarm/dbfarm.toml", goes_on=True, ends_with=("check", "unit", "install"))(serve)


if __name__ == "__main__":
    main()

"""Commands of `wlr` that check replicas and logs, and mend: verify, repair, drill, promote."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import wlr
from wlr.care.findings import check_drill, check_verified
from wlr.engine.adapters import locate as place_of

from .options import Farm, StorageOptions, Target, agree, storage_options
from .output import Listing, Report, counted, record
from .progress import working

if TYPE_CHECKING:
    from wlr.care.verification import KeyRange


Tables = Annotated[
    list[str] | None, typer.Option("--table", metavar="TABLE", help="schema.table, or table; may be repeated.")
]
VERIFY_COLUMNS = ("table", "outcome", "rows", "expected", "missing", "surplus", "where")


def verify(
    target: Target,
    table: Tables = None,
    locate: Annotated[bool, typer.Option("--locate", help="Compare with the farm and show which rows differ.")] = False,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Read every row of a replica, and compare it with the log."""
    with working("reading {}", place_of(target)) as progress:
        found = wlr.verify(
            target,
            tables=table or (),
            locate=locate,
            storage_options=storage_options(storage_option),
            progress=progress,
        )
    rows = [(t.table, t.outcome, t.rows, t.expected, t.missing, t.surplus, _where(t.ranges)) for t in found.tables]
    yield Listing(VERIFY_COLUMNS, rows, null="-")
    check_verified(found, target)


def _where(ranges: Sequence[KeyRange]) -> str | None:
    shown = [r.low if r.low == r.high else f"{r.low} to {r.high}" for r in ranges]
    return "; ".join(shown) or None


def repair(
    target: Target,
    table: Annotated[
        list[str], typer.Option("--table", metavar="TABLE", help="schema.table, or table; may be repeated.")
    ],
    storage_option: StorageOptions = None,
) -> Report:
    """Make tables equal to the master's at the replica's tick.

    Only rows that differ are written.
    """
    with working("repairing {}", place_of(target)):
        done = wlr.repair(target, table, storage_options=storage_options(storage_option))
    return Listing(("table", "added", "removed"), [(fix.table, fix.added, fix.removed) for fix in done])


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
    """Restore to a random past transaction, and verify every row.

    A scratch database is used and removed; the answer has the time that it took.
    """
    with working("restoring {}", db) as progress:
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
    check_drill(done, db)


def promote(
    target: Target,
    lose: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Give up so many transactions of the farm that the replica lacks."),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Take the former master's place without asking.")] = False,
    storage_option: StorageOptions = None,
) -> Report:
    """Make a DuckDB replica the master of its database.

    The former master can publish no more. Replicas that hold what this one holds, or less, go on with the new master.
    """
    options = storage_options(storage_option)
    if dry_run or not yes:
        found = wlr.promote(target, lose=lose, dry_run=True, storage_options=options)
        if dry_run:
            return record(found)
        _agree(found, target, lose, storage_option)
    with working("promoting {}", target) as progress:
        return record(wlr.promote(target, lose=lose, storage_options=options, progress=progress))


def _agree(found: wlr.Promoted, target: str, lose: int, options: list[str] | None) -> None:
    """Say what a promotion would do, and ask."""
    former = f" of {found.former}" if found.former else ""
    lost = f" {counted(found.lost, 'transaction')} behind it count no more." if found.lost else ""
    typer.echo(
        f"{target} holds {found.database} up to tick {found.tick} and becomes its master, in place{former}, which can"
        f" publish no more.{lost} End the programs of the former master first.",
        err=True,
    )
    given = "".join(f" --storage-option {shlex.quote(each)}" for each in options or ())
    command = f"wlr promote {shlex.quote(target)}{f' --lose {lose}' if lose else ''}{given} --yes"
    agree("a promotion takes the former master's place, which", command)


# Each with the example that its help shows.
COMMANDS = (
    (verify, "verify", "copy.duckdb --locate"),
    (repair, "repair", "copy.duckdb --table main.orders"),
    (drill, "replica drill", "sales --farm s3://bucket/farm --json"),
    (promote, "promote", "copy.duckdb"),
)

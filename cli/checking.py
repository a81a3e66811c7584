"""Commands of `wlr` that check replicas and logs: verify, repair, drill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import wlr
from wlr.care.findings import check_drill, check_verified
from wlr.engine.adapters import locate as place_of

from .options import Farm, StorageOptions, Target, storage_options
from .output import Listing, Report, record
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
    """Read every row of a replica and compare its tables with the master's log."""
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
    """Make tables equal to the master's at the replica's tick; write only rows that differ."""
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
    """Restore to a random past transaction in a scratch database, verify every row, show the time, and clean up."""
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


# Each with the example that its help shows.
COMMANDS = (
    (verify, "wlr verify copy.duckdb --locate"),
    (repair, "wlr repair copy.duckdb --table main.orders"),
    (drill, "wlr drill sales --farm s3://bucket/farm --json"),
)

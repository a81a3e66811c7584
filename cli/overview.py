"""Commands of `wlc` that show everything: the databases of a farm, who reads one, and what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Annotated

import typer

from wlc.farm.errors import ExceededError

from .options import Database, Farm, StorageOptions, storage_options
from .output import Listing, Report, in_columns
from .progress import working

LIST_COLUMNS = ("database", "kind", "state", "tick", "age_s", "bytes", "can_go_back_to", "problem")


def list_databases(
    farm: Annotated[
        str | None,
        typer.Argument(metavar="FARM", envvar="WLC_FARM", help="Directory or bucket; default is dbfarm/ here."),
    ] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """List the databases of a farm: state, last tick and its age, size, and how far back one can go."""
    import wlc

    found = wlc.databases(farm, storage_options=storage_options(storage_option))
    if not found:
        # A bucket has no folders: a mistyped one looks as an empty farm does.
        warnings.warn(f"{farm or 'dbfarm'} holds no database; check its URL", stacklevel=2)
    rows = [
        (
            each.database,
            each.kind,
            each.state,
            each.tick,
            None if each.age_s is None else round(each.age_s),
            each.bytes,
            each.can_go_back_to and each.can_go_back_to.replace(microsecond=0),
            each.problem or None,
        )
        for each in found
    ]
    return in_columns(LIST_COLUMNS, rows, whole=found, elastic=("problem",))


REPLICA_COLUMNS = ("id", "kind", "target", "host", "tick", "lag_s", "lag_transactions", "seen", "held_bytes", "marks")


def replicas(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """List who reads a database: where it is, how far behind, when last heard of, what it keeps from being pruned."""
    import wlc

    found = wlc.readers(db, farm=farm, storage_options=storage_options(storage_option))
    rows = [
        (
            *(each.id, each.kind, each.target, each.host, each.tick, each.lag_s, each.lag_transactions),
            each.seen.replace(microsecond=0),
            each.held_bytes,
            "overdue" if each.is_overdue else None,
        )
        for each in found
    ]
    return in_columns(REPLICA_COLUMNS, rows, whole=found, elastic=("target",))


CHECKUP_COLUMNS = ("check", "state", "found", "remedy")


def doctor(
    place: Annotated[
        str | None,
        typer.Argument(metavar="DB|SOURCE|TARGET", help="A database, a master, or a replica; this machine if omitted."),
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Check versions, keys, store, rights, clocks, free space, beat and registrations, and say what mends them.

    Ends with exit code 9 when something is wrong. The store is tested by writing a small object and deleting it.
    """
    import wlr

    found = wlr.examine(place, farm=farm, storage_options=storage_options(storage_option))
    rows = [(each.check, each.state, each.found, each.remedy) for each in found]
    yield Listing(CHECKUP_COLUMNS, rows, null="-")
    if wrong := [each for each in found if each.state == "wrong"]:
        listed = "; ".join(f"{each.check}: {each.found}" for each in wrong)
        raise ExceededError(listed, hint=next((each.remedy for each in wrong if each.remedy), None))


def report(
    db: Database,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where the page is written.")] = "report.html",
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin of the period that is shown; 30 days ago by default.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the farm's files as well, as wlc verify does.")
    ] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Write a page about a database: delays, growth, snapshots, readers, and what to do. It works without a network.

    With --json, the answer is everything that the page shows.
    """
    import wlr

    with working("reading {}", db) as progress:
        found = wlr.report(
            db,
            farm=farm,
            since=since,
            verify=verify,
            storage_options=storage_options(storage_option),
            progress=progress,
        )
    return Listing(("page",), [(wlr.write_report(found, out),)], whole=found)


# Each with the example that its help shows.
COMMANDS = (
    (replicas, "wlc replicas sales"),
    (doctor, "wlc doctor sales"),
    (report, "wlc report sales --out sales.html"),
)

"""Commands of `wlc` that give an overview: the databases of a farm, the readers of a database, and faults.

The command `wlc log`: the published transactions.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wlc.farm.clock import format_short, parse_time, utc_now, zone_of
from wlc.farm.errors import ExceededError, InvalidError
from wlc.farm.human_form import format_bytes, longest_unit
from wlc.farm.typed_names import is_meant, tables_meant

from .options import Database, Farm, StorageOptions, storage_options, tick_range
from .output import Listing, Report, in_columns
from .progress import working

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from wlc import FarmEntry
    from wlc.farm.database import FarmDatabase
    from wlc.farm.history import LogChoice, LogEntry


COLUMNS = ("tick", "batch", "user", "committed", "what", "object", "added", "removed", "statement")


def log(
    db: Database,
    batch: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only this log file.")] = None,
    tick: Annotated[
        str | None, typer.Option(metavar="A:B", help="Only these transactions, both ends included.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only those committed since: 9:00, yesterday, '10m ago'.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="T", help="Only this table, as t or schema.t.")] = None,
    what: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only this kind: change, clear, rollback, DROP, 'ALTER TABLE' …")
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the newest N lines.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Show the rows themselves: -1 removed, 1 added.")] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """List published transactions, the newest last.

    It shows user, times, rows per table, schema changes and rollbacks.
    """
    import wlc
    from wlc.farm import history

    first, last = tick_range(tick) if tick is not None else (None, None)
    begin = parse_time(since) if since is not None else None
    database = wlc.resolve(db, farm=farm, storage_options=storage_options(storage_option))
    if rows:
        if (begin, what, limit) != (None, None, None):
            raise InvalidError(
                "--rows goes with --tick, --batch and --table, not with --since, --what and --limit",
                hint=f"find the ticks without --rows; then: wlc log {shlex.quote(db)} --tick A:B --rows",
            )
        from wlc.dialect.duckdb import row_images

        changed = row_images.rows(database, batch=batch, first=first, last=last, table=table)
        return Listing(
            ("tick", "table", "weight", "row"), ((row.tick, str(row.table), row.weight, row.values) for row in changed)
        )
    choice = history.LogChoice(batch, first, last, begin, table, what)
    found = history.entries(database, choice) if limit is None else history.newest_entries(database, limit, choice)
    return Listing(COLUMNS, map(_row, _or_warned(found, database, choice)), on_terminal=_short)


def _or_warned(found: Iterable[LogEntry], database: FarmDatabase, choice: LogChoice) -> Iterator[LogEntry]:
    """Yield entries. If no transaction of the log names the chosen table, warn with the tables that are named."""
    from wlc.farm import history

    is_empty = True
    for entry in found:
        is_empty = False
        yield entry
    if is_empty and choice.table is not None:
        every = history.entries(database, replace(choice, since=None, what=None, table=None))
        names = {entry.object for entry in every if entry.object is not None}
        if names and not any(is_meant(name, choice.table) for name in names):
            warnings.warn(
                f"no transaction names a table {choice.table}. {tables_meant(choice.table, names)}", stacklevel=2
            )


def _row(entry: LogEntry) -> tuple[object, ...]:
    transaction = entry.transaction
    when = transaction.committed or transaction.started
    shown = (transaction.tick, entry.batch, transaction.user, when, entry.what)
    return (*shown, entry.object and str(entry.object), entry.added, entry.removed, entry.statement)


def _short(rows: Sequence[Sequence[Any]]) -> Listing:
    """Leave out the batch, write local times, and put both numbers of rows into one column."""
    times = format_short([row[3] for row in rows])
    return Listing(
        (
            "tick",
            f"committed {zone_of([row[3] for row in rows])}".rstrip(),
            "user",
            "what",
            "object",
            "rows",
            "statement",
        ),
        [
            (tick, time, user, what, name, _counts(added, removed), statement and " ".join(statement.split()))
            for (tick, _, user, _, what, name, added, removed, statement), time in zip(rows, times, strict=True)
        ],
        elastic=("statement", "object", "user"),
    )


def _counts(added: int | None, removed: int | None) -> str:
    return " ".join(f"{sign}{number:,}" for sign, number in (("+", added), ("-", removed)) if number)


LIST_COLUMNS = (
    *("database", "kind", "state", "last_commit", "lag_s", "can_go_back_to", "verified", "drilled", "bytes", "why"),
)


def list_databases(
    farm: Annotated[
        str | None,
        typer.Argument(metavar="FARM", envvar="WLC_FARM", help="Directory or bucket; default is dbfarm/ here."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="End with exit code 9 if a database needs attention.")] = False,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Say how each database of a farm is, and why.

    It also shows the last commit, slowest reader, last checks and size.

    States: ok: the publisher runs. quiet: it closed, or has never reported. stopped: wlc stop. A database needs
    attention if it is unreadable, damaged, failing (the publisher cannot publish), silent (the publisher died), late
    (see wlc beat --expect-every), or behind (a reader makes no progress).
    """
    import wlc

    found = wlc.databases(farm, storage_options=storage_options(storage_option))
    if not found:
        # A bucket has no folders: a mistyped URL looks like an empty farm.
        warnings.warn(f"{farm or 'dbfarm'} holds no database; check its URL", stacklevel=2)
    rows: list[tuple[object, ...]] = [
        (
            *(each.database, _kind(each), each.state, each.clock, each.lag_s, each.can_go_back_to),
            *(each.verified, each.drilled, each.bytes, each.why),
        )
        for each in found
    ]
    wrong = [each for each in found if each.is_wrong]
    yield Listing(LIST_COLUMNS, rows, null="-", whole=found, on_terminal=lambda _: _at_a_glance(found))
    if check and wrong:
        listed = "; ".join(f"{each.database} is {each.state}: {each.why}" for each in wrong)
        raise ExceededError(listed, hint=next((each.remedy for each in wrong if each.remedy), None))


def _kind(entry: FarmEntry) -> str | None:
    return None if entry.kind == "database" else entry.kind


def _at_a_glance(found: Sequence[FarmEntry]) -> Listing:
    """Show ages instead of times, and the causes of faults below the table."""
    now = utc_now()

    def age(time: datetime | None) -> str | None:
        return None if time is None else longest_unit(now - time)

    rows = [
        (
            *(each.database, _kind(each), each.state, age(each.clock)),
            None if each.lag_s is None else longest_unit(timedelta(seconds=each.lag_s)),
            *(age(each.can_go_back_to), age(each.verified), age(each.drilled)),
            None if each.bytes is None else format_bytes(each.bytes),
        )
        for each in found
    ]
    notes = [f"{each.database} is {each.state}: {each.why}" + _next(each.remedy) for each in found if each.is_wrong]
    columns = ("database", "kind", "state", "commit", "lag", "back to", "verified", "drilled", "size")
    return Listing(columns, rows, elastic=("database",), notes=notes)


def _next(remedy: str | None) -> str:
    return f"\n  next: {remedy}" if remedy else ""


REPLICA_COLUMNS = ("id", "kind", "target", "host", "tick", "lag_s", "lag_transactions", "seen", "held_bytes", "marks")


def replicas(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """List who reads a database: where, how far behind, last seen.

    It also shows what each reader keeps from being pruned.
    """
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
        typer.Argument(
            metavar="DB|SOURCE|TARGET", help="A database, a master, or a replica; all of WLC_FARM if omitted."
        ),
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Find what is wrong, and name the command that mends it.

    It checks versions, keys, store, rights, clocks, free space, beat and registrations.

    Ends with exit code 9 if a check fails. It tests the store by writing a small object and deleting it.
    """
    import wlr

    found = wlr.examine(place, farm=farm, storage_options=storage_options(storage_option))
    rows = [(each.check, each.state, each.found, each.remedy) for each in found]
    yield Listing(CHECKUP_COLUMNS, rows, null="-", on_terminal=_with_remedies)
    if wrong := [each for each in found if each.state == "wrong"]:
        listed = "; ".join(f"{each.check}: {each.found}" for each in wrong)
        raise ExceededError(listed, hint=next((each.remedy for each in wrong if each.remedy), None))


def _with_remedies(rows: Sequence[Sequence[Any]]) -> Listing:
    """Show each remedy on its own line, so that it can be copied."""
    notes = [f"{check}: {remedy}" for check, _, _, remedy in rows if remedy]
    return Listing(CHECKUP_COLUMNS[:3], [row[:3] for row in rows], null="-", notes=notes)


def report(
    db: Database,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where the page is written.")] = "report.html",
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin of the period that is shown; 30 days ago by default.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the farm's files as well, as wlc farm verify does.")
    ] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Write a page about a database, and remedies.

    It shows delays, growth, snapshots and readers, and works without a network.

    --json answers with all values of the page.
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
    (replicas, "farm replicas", "sales"),
    (doctor, "doctor", "sales"),
    (report, "farm report", "sales --out sales.html"),
)

"""The command `wlc log`: what was published, transaction by transaction."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wlc.farm.clock import format_short, parse_time
from wlc.farm.did_you_mean import tables_meant
from wlc.farm.errors import InvalidError
from wlc.farm.table_names import is_meant

from .options import Database, Farm, StorageOptions, storage_options, tick_range
from .output import Listing, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
        str | None, typer.Option(metavar="TIME", help="Only what was committed since: 9:00, yesterday, '10m ago'.")
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
    """List published transactions, the newest last: user, times, rows per table, schema changes, rollbacks."""
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
    """Go through entries; if there is none and no transaction names the table, say which one may have been meant."""
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
    """Leave out the batch, write local times and both numbers of rows in one column."""
    times = format_short([row[3] for row in rows])
    return Listing(
        ("tick", "committed", "user", "what", "object", "rows", "statement"),
        [
            (tick, time, user, what, name, _counts(added, removed), statement and " ".join(statement.split()))
            for (tick, _, user, _, what, name, added, removed, statement), time in zip(rows, times, strict=True)
        ],
        elastic=("statement", "object", "user"),
    )


def _counts(added: int | None, removed: int | None) -> str:
    return " ".join(f"{sign}{number:,}" for sign, number in (("+", added), ("-", removed)) if number)

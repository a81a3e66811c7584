"""The command `wlc undo`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer

from wlc.farm.errors import ChangedSinceError, InvalidError

from .options import Source, StorageOptions, storage_options, tick_range
from .output import Listing, Report, record, text
from .progress import working

CONFLICT_COLUMNS = ("table", "key", "present", "expected", "copies")


def undo(
    source: Source,
    tick: Annotated[
        str,
        typer.Option(metavar="A[:B]", help="The transactions to undo, both ends included, as wlc log numbers them."),
    ],
    table: Annotated[
        str | None, typer.Option(metavar="T", help="Undo only changes of this table, t or schema.t.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes and the conflicts.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Restore the old values even of rows that were changed since.")
    ] = False,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Undo transactions by a new one, and publish it.

    Rows get the values that they had before.

    If a row was changed since, nothing is written, and the row is listed with its current and its expected values:
    exit code 5. Transactions that change the schema are refused.
    """
    import wlr

    first, last = tick_range(tick)
    if first is None or last is None:
        raise InvalidError(f"{tick!r} has no end", hint="--tick 1041 or --tick 1041:1044")
    options = storage_options(storage_option)
    try:
        with working("undoing"):
            done = wlr.undo(source, first, last, table=table, dry_run=dry_run, force=force, storage_options=options)
    except ChangedSinceError as error:
        rows = [tuple(getattr(each, column) for column in CONFLICT_COLUMNS) for each in error.conflicts]
        yield Listing(CONFLICT_COLUMNS, rows, null="-", on_terminal=_in_words)
        raise
    yield record(done)


def _in_words(rows: Sequence[Sequence[object]]) -> Listing:
    """Write a row for a person, such as `id 7, name Ann`."""
    cells = [[_row(cell) if isinstance(cell, Mapping) else cell for cell in row] for row in rows]
    return Listing(CONFLICT_COLUMNS, cells, null="-")


def _row(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {text(value, null='NULL')}" for name, value in values.items())


COMMANDS = ((undo, "undo", "sales.duckdb --tick 1041:1044 --dry-run"),)

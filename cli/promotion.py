"""The command `wlr promote`."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

import wlr
from wlc.farm.errors import InvalidError

from .options import StorageOptions, Target, storage_options
from .output import Report, counted, record
from .progress import working


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
    if not sys.stdin.isatty():
        raise InvalidError("a promotion takes the former master's place, which needs your agreement", hint=command)
    if not typer.confirm("Go on?", err=True):
        raise InvalidError("nothing was changed", hint=command)


COMMANDS = ((promote, "promote", "copy.duckdb"),)

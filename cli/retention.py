"""Commands of `wlc` that go back and delete: retention, tag, prune, undo."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.clock import format_age, format_time
from wlc.farm.errors import ChangedSinceError, InvalidError
from wlc.farm.human_form import format_bytes

from .options import Database, Farm, Source, StorageOptions, agree, storage_options, tick_range
from .output import Fields, Listing, Numbers, Report, Value, counted, record, text
from .progress import working

if TYPE_CHECKING:
    import wlc
    from wlc.farm.reachable_past import Window


def retention(
    db: Database,
    keep: Annotated[
        str | None, typer.Option(metavar="AGE", help="Keep every state of this period restorable: 30d.")
    ] = None,
    keep_daily: Annotated[
        int | None,
        typer.Option("--keep-daily", metavar="N", min=0, help="Before it, one snapshot per day, for N days."),
    ] = None,
    keep_weekly: Annotated[
        int | None,
        typer.Option("--keep-weekly", metavar="N", min=0, help="Before those, one snapshot per week, for N weeks."),
    ] = None,
    snapshot_every: Annotated[
        str | None,
        typer.Option("--snapshot-every", metavar="AGE", help="How often the publisher takes a snapshot; 0s: never."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Forget the policy.")] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show or set what wlc prune keeps, and how far back one can go.

    It also sets how often a snapshot is taken.
    """
    import wlc

    kept = wlc.retention(
        db,
        keep=keep,
        keep_daily=keep_daily,
        keep_weekly=keep_weekly,
        snapshot_every=snapshot_every,
        delete=delete,
        farm=farm,
        storage_options=storage_options(storage_option),
    )
    policy, window = kept.policy or wlc.KeepPolicy(), kept.window
    return Fields(
        {
            "keep": _age(policy.keep),
            "keep_daily": policy.keep_daily,
            "keep_weekly": policy.keep_weekly,
            "snapshot_every": _age(policy.snapshot_every),
            "can_go_back_to": window.clock,
            "can_go_back_to_tick": window.tick,
            "older_snapshots": Numbers(window.older),
            "cannot_go_back_to": tuple(f"{first}-{'' if last is None else last}" for first, last in window.lost),
        }
    )


def _age(age: timedelta | None) -> str | None:
    return format_age(age) if age is not None else None


TAG_COLUMNS = ("name", "tick", "made", "by")


def tag(
    db: Database,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Neither a time nor a number.")] = None,
    tick: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The tick to name; default is the last published one.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the tag NAME.")] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """List tags, or name a tick, which keeps it from being pruned.

    wlr replicate --until NAME goes there.
    """
    import wlc

    options = storage_options(storage_option)
    if name is None:
        if delete or tick is not None:
            raise InvalidError("a tag needs a name", hint=f"wlc farm tag {shlex.quote(db)} NAME --tick N")
        return _tags(wlc.tags(db, farm=farm, storage_options=options))
    if not delete:
        return _tags([wlc.tag(db, name, tick, farm=farm, storage_options=options)])
    if tick is not None:
        message = f"tag {name} is deleted at any tick"
        raise InvalidError(
            message, hint=f"leave --tick out: wlc farm tag {shlex.quote(db)} {shlex.quote(name)} --delete"
        )
    return Value("deleted", wlc.untag(db, name, farm=farm, storage_options=options).name)


def _tags(found: list[wlc.Tag]) -> Listing:
    return Listing(
        TAG_COLUMNS, [(each.name, each.tick, each.made.replace(microsecond=0), each.actor) for each in found]
    )


# Default of --deadline, days, and of --keep-for, a length of time.
_DEADLINE: float = 7
_KEEP_FOR = "1h"


def prune(
    db: Database,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking where there is no policy.")] = False,
    deadline: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="Ignore replicas that have not reported for this many days.")
    ] = _DEADLINE,
    keep_for: Annotated[
        str,
        typer.Option("--keep-for", metavar="AGE", help="Keep the newest snapshot of this long ago: 1h, 0s."),
    ] = _KEEP_FOR,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Delete log files and snapshots that nothing needs any more.

    Policies, tags and registered readers keep what they need; the answer says which.

    Without a policy (wlc retention), the newest snapshot and the log after it stay, and the command asks first.
    """
    import wlc

    options, after = storage_options(storage_option), timedelta(days=deadline)

    def run(*, is_dry: bool, needs_policy: bool = False) -> wlc.Retention:
        with working("planning" if is_dry else "deleting unneeded files"):
            return wlc.prune(
                *(db, farm),
                dry_run=is_dry,
                deadline=after,
                keep_for=keep_for,
                needs_policy=needs_policy,
                storage_options=options,
            )

    found = run(is_dry=dry_run or not yes)
    if not dry_run and not yes:
        if not found.has_policy and (found.delete_batches or found.delete_snapshots):
            place = shlex.quote(db) + (f" --farm {shlex.quote(farm)}" if farm else "")
            chosen = (f" --deadline {deadline:g}" if deadline != _DEADLINE else "") + (
                f" --keep-for {shlex.quote(keep_for)}" if keep_for != _KEEP_FOR else ""
            )
            _agree(db, found, place, f"wlc prune {place}{chosen} --yes")
        found = run(is_dry=False, needs_policy=found.has_policy)
    return Fields(
        {
            "delete_batches": Numbers(found.delete_batches),
            "delete_snapshots": Numbers(found.delete_snapshots),
            "delete_bytes": found.delete_bytes,
            "keep_batches": Numbers(found.keep_batches),
            "keep_snapshots": Numbers(found.keep_snapshots),
            "holding": tuple(replica.id for replica in found.holding),
            "held_bytes": found.held_bytes,
            "overdue": tuple(replica.id for replica in found.overdue),
            "before": found.before.clock if found.before else None,
            "after": found.after.clock if found.after else None,
            "reasons": found.reasons,
        }
    )


def _agree(db: str, found: wlc.Retention, place: str, agreed: str) -> None:
    """Ask before deleting files of a database without a policy.

    Args:
        db: As it was given.
        found: The plan.
        place: The database as the command line names it.
        agreed: The same command with the agreement.
    """
    batches, snapshots = len(found.delete_batches), len(found.delete_snapshots)
    typer.echo(
        f"This deletes {counted(batches, 'log file')} and {counted(snapshots, 'snapshot')},"
        f" {format_bytes(found.delete_bytes)}. Oldest restorable state before: {_shown(found.before)}; after:"
        f" {_shown(found.after)}.",
        err=True,
    )
    instead = f"wlc retention {place} --keep 30d keeps 30 days"
    needed = f"{db} has no policy of retention, so deleting these files"
    agree(needed, f"{instead}; or agree: {agreed}", declined="nothing was deleted", instead=instead)


def _shown(window: Window | None) -> str:
    if window is None or window.clock is None:
        return "the beginning"
    return f"{format_time(window.clock)} (tick {window.tick})"


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


# Each with the example that its help shows.
COMMANDS = (
    (retention, "retention", "sales --keep 30d --keep-daily 30 --keep-weekly 12 --snapshot-every 1d"),
    (tag, "farm tag", "sales before-import --tick 1040"),
    (prune, "prune", "sales --dry-run"),
    (undo, "undo", "sales.duckdb --tick 1041:1044 --dry-run"),
)

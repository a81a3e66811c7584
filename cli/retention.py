"""Commands of `wlc` on what is kept: retention, tags, pruning."""

from __future__ import annotations

import shlex
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.clock import format_age, format_time
from wlc.farm.errors import InvalidError
from wlc.farm.human_form import format_bytes

from .options import Database, Farm, StorageOptions, storage_options
from .output import Fields, Listing, Numbers, Report, Value, counted
from .progress import working

if TYPE_CHECKING:
    import wlc
    from wlc.farm.reachable_past import Window


def retention(
    db: Database,
    keep: Annotated[
        str | None, typer.Option(metavar="AGE", help="Every transaction of this long can be gone back to: 30d.")
    ] = None,
    keep_daily: Annotated[
        int | None, typer.Option("--keep-daily", metavar="N", min=0, help="And before, one snapshot of each of N days.")
    ] = None,
    keep_weekly: Annotated[
        int | None,
        typer.Option("--keep-weekly", metavar="N", min=0, help="And before those, one snapshot of each of N weeks."),
    ] = None,
    snapshot_every: Annotated[
        str | None,
        typer.Option("--snapshot-every", metavar="AGE", help="Whoever publishes takes a snapshot so often; 0s: never."),
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
        message = f"tag {name} is deleted wherever it is"
        raise InvalidError(
            message, hint=f"leave --tick out: wlc farm tag {shlex.quote(db)} {shlex.quote(name)} --delete"
        )
    return Value("deleted", wlc.untag(db, name, farm=farm, storage_options=options).name)


def _tags(found: list[wlc.Tag]) -> Listing:
    return Listing(
        TAG_COLUMNS, [(each.name, each.tick, each.made.replace(microsecond=0), each.actor) for each in found]
    )


# Days, and a length of time.
_DEADLINE: float = 7
_KEEP_FOR = "1h"


def prune(
    db: Database,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking where there is no policy.")] = False,
    deadline: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="Ignore replicas that have not reported for this many days.")
    ] = _DEADLINE,
    keep_for: Annotated[
        str,
        typer.Option("--keep-for", metavar="AGE", help="Keep what was the newest snapshot this long ago: 1h, 0s."),
    ] = _KEEP_FOR,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Delete log files and snapshots that nothing needs any more.

    Policies, tags and registered readers keep what they need; the answer says which.

    Without a policy (wlc retention) the newest snapshot and the log after it stay, and the command asks before.
    """
    import wlc

    options, after = storage_options(storage_option), timedelta(days=deadline)

    def run(*, is_dry: bool, needs_policy: bool = False) -> wlc.Retention:
        with working("deciding what nobody needs" if is_dry else "deleting what nobody needs"):
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
            "could_go_back_to": found.before.clock if found.before else None,
            "can_go_back_to": found.after.clock if found.after else None,
            "reasons": found.reasons,
        }
    )


def _agree(db: str, found: wlc.Retention, place: str, agreed: str) -> None:
    """Ask before something is deleted of a database without a policy.

    Args:
        db: As it was given.
        found: What would be deleted.
        place: The database as the command line names it.
        agreed: The same command with the agreement.
    """
    batches, snapshots = len(found.delete_batches), len(found.delete_snapshots)
    typer.echo(
        f"This deletes {counted(batches, 'log file')} and {counted(snapshots, 'snapshot')},"
        f" {format_bytes(found.delete_bytes)}. Now one can go back to {_shown(found.before)}, afterwards to"
        f" {_shown(found.after)}.",
        err=True,
    )
    if not sys.stdin.isatty():
        raise InvalidError(
            f"{db} has no policy of retention, so deleting this needs your agreement",
            hint=f"wlc retention {place} --keep 30d keeps 30 days; or agree: {agreed}",
        )
    if not typer.confirm("Go on?", err=True):
        raise InvalidError("nothing was deleted", hint=f"wlc retention {place} --keep 30d keeps 30 days")


def _shown(window: Window | None) -> str:
    if window is None or window.clock is None:
        return "the beginning"
    return f"{format_time(window.clock)} (tick {window.tick})"


# Each with the example that its help shows.
COMMANDS = (
    (retention, "retention", "sales --keep 30d --keep-daily 30 --keep-weekly 12 --snapshot-every 1d"),
    (tag, "farm tag", "sales before-import --tick 1040"),
    (prune, "prune", "sales --dry-run"),
)

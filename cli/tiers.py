"""Commands of `wlc` on what reads a farm: relays, upstreams, tiers, and what nobody needs any more."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.clock import parse_age
from wlc.farm.errors import ExceededError, InvalidError

from .following import follow_on
from .options import ClassName, Database, Farm, Follow, StorageOptions, Upstreams, storage_options
from .output import Fields, Listing, Numbers, Report, record
from .progress import working

if TYPE_CHECKING:
    import wlc


TargetOptions = Annotated[
    list[str] | None,
    typer.Option("--target-option", metavar="K=V", help="Option of the relay's file system; may be repeated."),
]


def ship(
    db: Database,
    to: Annotated[str, typer.Option(metavar="URL", help="Farm of the relay; DB gets a folder of its name there.")],
    follow: Follow = False,
    delay: Annotated[
        str | None, typer.Option(metavar="AGE", help="Leave out what was committed less than this ago: 1h, '2 days'.")
    ] = None,
    limit_rate: Annotated[
        str | None, typer.Option("--limit-rate", metavar="RATE", help="Most bytes per second: 500k, 10M.")
    ] = None,
    upstream: Upstreams = None,
    class_name: ClassName = None,
    fanout: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="How many may read from it; default is the registry's."),
    ] = None,
    prune_every: Annotated[
        str | None,
        typer.Option("--prune-every", metavar="AGE", help="With --follow: run wlc prune on the relay this often."),
    ] = None,
    no_register: Annotated[
        bool, typer.Option("--no-register", help="Do not register the relay, neither as a reader nor as an upstream.")
    ] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
    target_option: TargetOptions = None,
) -> Iterator[Report]:
    """Copy a database of the farm byte for byte to another farm, a relay: new snapshots and batches only.

    Replicas read a relay as they read the original: wlr replicate DB --farm URL.
    """
    import wlc

    if no_register and (upstream or class_name is not None or fanout is not None):
        message = "--upstream, --class and --fanout are of no use to a relay that nobody knows"
        raise InvalidError(message, hint="leave out --no-register")
    if prune_every is not None and not follow:
        raise InvalidError("--prune-every needs --follow", hint=f"wlc prune {db} --farm {to}")
    options, target_options = storage_options(storage_option), storage_options(target_option)
    keepalive = wlc.Keepalive() if follow and upstream else None

    def copy() -> wlc.Shipped:
        with working(f"copying {db}") as progress:
            return wlc.ship(
                db,
                to=to,
                farm=farm,
                delay=delay,
                rate=limit_rate,
                storage_options=options,
                target_options=target_options,
                registers=not no_register,
                upstream=upstream,
                class_name=class_name,
                fanout=fanout,
                keepalive=keepalive,
                progress=progress,
            )

    with keepalive or nullcontext():
        done = copy()
        yield record(done)
        if follow:
            pruning = Pruning(done.url, prune_every, target_options)
            yield from follow_on(
                lambda: record(done) if pruning.after(done := copy()).bytes else None,
                lambda: wlc.beat(db, farm=farm, storage_options=options),
            )


class Pruning:
    """Prunes a relay between rounds, on its own schedule."""

    def __init__(self, url: str, every: str | None, options: dict[str, object] | None) -> None:
        self._url = url
        self._every_s = parse_age(every).total_seconds() if every is not None else None
        self._options = options
        self._last = time.monotonic()

    def after(self, done: wlc.Shipped) -> wlc.Shipped:
        """Prune if it is time, and return what the round did."""
        import wlc

        if self._every_s is not None and time.monotonic() - self._last >= self._every_s:
            self._last = time.monotonic()
            wlc.prune(self._url, storage_options=self._options)
        return done


def prune(
    db: Database,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    deadline: Annotated[
        float, typer.Option(metavar="DAYS", min=0, help="Ignore replicas that have not reported for this many days.")
    ] = 7,
    keep_for: Annotated[
        str,
        typer.Option("--keep-for", metavar="AGE", help="Keep what was the newest snapshot so long ago: 1h, 0s."),
    ] = "1h",
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Delete log files and snapshots that no snapshot and no registered replica needs, and show why."""
    import wlc

    with working("deleting what nobody needs"):
        options, after = storage_options(storage_option), timedelta(days=deadline)
        retention = wlc.prune(
            db, farm=farm, dry_run=dry_run, deadline=after, keep_for=keep_for, storage_options=options
        )
    return Fields(
        {
            "delete_batches": Numbers(retention.delete_batches),
            "delete_snapshots": Numbers(retention.delete_snapshots),
            "keep_batches": Numbers(retention.keep_batches),
            "keep_snapshots": Numbers(retention.keep_snapshots),
            "holding": tuple(replica.id for replica in retention.holding),
            "held_bytes": retention.held_bytes,
            "overdue": tuple(replica.id for replica in retention.overdue),
            "reasons": retention.reasons,
        }
    )


TIER_COLUMNS = ("tier", "id", "kind", "state", "marks", "used", "fanout", "tick", "lag_s", "seen", "upstream", "url")


def tiers(
    db: Database,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="Change a setting of the tree; may be repeated."),
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Show who reads from whom, tier by tier: state, fan-out, position, lag, last seen.

    Ends with exit code 9 when somebody is stuck.
    """
    import wlc

    options = storage_options(storage_option)
    if setting:
        yield record(wlc.set_tiers(db, setting, farm=farm, storage_options=options))
        return
    tree = wlc.tier_tree(db, farm=farm, storage_options=options)
    rows = [_tier_row(member) for member in tree.members]
    yield Listing(TIER_COLUMNS, rows, null="-", whole=tree)
    if tree.stuck:
        listed = ", ".join(f"{member.id} ({member.url})" for member in tree.stuck)
        verb = "does" if len(tree.stuck) == 1 else "do"
        raise ExceededError(
            f"{listed} {verb} not come further though there is something to read",
            hint=f"wlr status {shlex.quote(_status_target(tree, tree.stuck[0]))}",
        )


def _status_target(tree: wlc.TierTree, member: wlc.TierMember) -> str:
    """Return what `wlr status` calls somebody; a feed to Kafka keeps what it remembers in the farm."""
    if member.url.startswith("kafka://"):
        return f"{tree.members[0].url}/feeds/{member.id.removeprefix('feed-')}"
    return member.url


def _tier_row(member: wlc.TierMember) -> tuple[object, ...]:
    tier = "?" if member.tier is None else "  " * member.tier + str(member.tier)
    used = None if member.fanout is None else member.children
    seen = member.seen.replace(microsecond=0) if member.seen else None
    shown = (tier, member.id, member.kind, member.state, " ".join(member.marks) or None, used, member.fanout)
    return (*shown, member.tick, member.lag_s, seen, member.upstream or None, member.url)


def upstream(
    db: Database,
    member: Annotated[str, typer.Argument(metavar="ID", help="Id of a place that serves, as wlc tiers shows it.")],
    inactive: Annotated[bool, typer.Option("--inactive", help="Nobody may read there; readers move away.")] = False,
    active: Annotated[bool, typer.Option("--active", help="Readers may choose it again.")] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Take a place that serves out of the choice of readers, or put it back."""
    import wlc

    if active == inactive:
        raise InvalidError("give either --inactive or --active", hint=f"wlc upstream {shlex.quote(db)} ID --inactive")
    options = storage_options(storage_option)
    done = wlc.set_upstream(db, member, is_active=active, farm=farm, storage_options=options)
    return Fields({"id": done.id, "url": done.url, "state": done.state})


def fanout(
    db: Database,
    number: Annotated[int | None, typer.Argument(metavar="N", min=0, help="New number for places without own.")] = None,
    upstream: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this place, whatever it says; without N ends that.")
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show or set how many may read from one place."""
    import wlc

    found = wlc.fanout(db, number, upstream=upstream, farm=farm, storage_options=storage_options(storage_option))
    columns = ("upstream", "fanout", "used", "decided_by")
    return Listing(columns, [(each.upstream, each.fanout, each.used, each.decided_by) for each in found])


def forget(
    db: Database,
    member: Annotated[str, typer.Argument(metavar="ID", help="Id of a replica or relay that is gone.")],
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Forget a replica or relay that is gone: its registration, its claims, its entry as an upstream."""
    import wlc

    return record(wlc.forget(db, member, farm=farm, storage_options=storage_options(storage_option)))


# Each with the example that its help shows.
COMMANDS = (
    (ship, "wlc ship sales --to s3://branch/farm --follow"),
    (prune, "wlc prune sales --dry-run"),
    (tiers, "wlc tiers sales --farm s3://bucket/farm"),
    (upstream, "wlc upstream sales 9f2c1d --inactive"),
    (fanout, "wlc fanout sales 4"),
    (forget, "wlc forget sales 9f2c1d"),
)

"""Commands of `wlc` on relays, upstreams and tiers, and on derived databases."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

import wlc
from wlc.farm.addresses import without_password
from wlc.farm.clock import parse_age
from wlc.farm.errors import ExceededError, InvalidError, UnavailableError
from wlc.tiers.options import RelayOptions

from .following import in_rounds
from .options import (
    Columns,
    Database,
    Farm,
    Follow,
    MaskKey,
    Masks,
    StorageOptions,
    Where,
    storage_options,
    takes,
    typed,
)
from .output import Fields, Listing, Report, in_columns, record
from .progress import working

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.tiers.overview import TierMember
    from wlr import Derived


TargetOptions = Annotated[
    list[str] | None,
    typer.Option("--target-option", metavar="K=V", help="Option of the relay's file system; may be repeated."),
]


To = Annotated[str | None, typer.Option(metavar="URL", help="Farm of the relay; DB gets a folder of its name there.")]
Pushes = Annotated[
    str | None,
    typer.Option("--pushes", metavar="URL", help="Fill the places that wlc tier push lists there, instead of --to."),
]


PruneEvery = Annotated[
    str | None,
    typer.Option("--prune-every", metavar="AGE", help="With --follow: run wlc prune on the relay this often."),
]
Unregistered = Annotated[
    bool, typer.Option("--no-register", help="Do not register the relay, neither as a reader nor as an upstream.")
]


@takes(RelayOptions, before="pushes")
def ship(
    db: Database,
    to: To = None,
    follow: Follow = False,
    pushes: Pushes = None,
    prune_every: PruneEvery = None,
    no_register: Unregistered = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
    target_option: TargetOptions = None,
    **given: Unpack[RelayOptions],
) -> Iterator[Report]:
    """Copy a database byte for byte to another farm, a relay.

    It copies new snapshots and batches only.

    Replicas read a relay as they read the original: wlr replicate DB --farm URL.
    """
    import wlc

    options, target_options = storage_options(storage_option), storage_options(target_option)
    places: dict[str, Any] = {"farm": farm, "storage_options": options, "target_options": target_options}
    relay: RelayOptions = typed(given)
    chooses = relay.get("upstream") or relay.get("registry")
    if pushes is not None:
        _refuse(to or prune_every or no_register or relay.keys() - {"class_name", "rate"})
        begin = partial(
            wlc.Pusher, db, pushes, class_name=relay.get("class_name") or "", rate=relay.get("rate"), **places
        )
        yield from _push_on(begin, pushes, follow=follow)
        return
    to = _checked_place(_named(db, farm), to, prune_every=prune_every, follow=follow)
    _refuse_unknown(no_register and (chooses or "class_name" in relay or "fanout" in relay))
    keepalive = wlc.Keepalive() if follow and chooses else None

    def copy() -> wlc.Shipped:
        with working("copying {}", db) as progress:
            return wlc.ship(
                db,
                to=to,
                register=not no_register,
                keepalive=keepalive,
                progress=progress,
                **places,
                **relay,
            )

    pruning = Pruning(prune_every, target_options)
    with keepalive or nullcontext():
        yield from in_rounds(
            lambda: pruning.after(copy()),
            record,
            follow=follow,
            has_news=lambda done: done.bytes,
            # The relay holds the beat, and can be read while the farm is unreachable.
            beat_s=lambda done: wlc.beat(done.url, storage_options=target_options),
            reads=lambda _: wlc.resolve(db, farm, storage_options=options).url,
        )


def _refuse(has_others: object) -> None:
    if has_others:
        raise InvalidError(
            "--pushes goes with --class, --follow and --limit-rate only", hint="wlc tier ship DB --pushes URL --follow"
        )


def _refuse_unknown(has_others: object) -> None:
    if has_others:
        message = "--upstream, --registry, --class and --fanout need a registered relay"
        raise InvalidError(message, hint="leave out --no-register")


def _named(db: str, farm: str | None) -> str:
    """Return the words of a command that name a database as they were typed."""
    return shlex.join([without_password(db), *(["--farm", without_password(farm)] if farm else [])])


def _checked_place(named: str, to: str | None, *, prune_every: str | None, follow: bool) -> str:
    if to is None:
        raise InvalidError("a relay needs a place", hint=f"wlc tier ship {named} --to URL")
    if prune_every is not None and not follow:
        place, every = shlex.quote(without_password(to)), shlex.quote(prune_every)
        again = f"wlc tier ship {named} --to {place} --follow --prune-every {every}"
        raise InvalidError("--prune-every needs --follow", hint=again)
    return to


def _push_on(begin: Callable[[], wlc.Pusher], registry: str, *, follow: bool) -> Iterator[Report]:
    """Push once, or until a signal; report only new failures of a place."""
    pusher: wlc.Pusher | None = None
    done: wlc.Pushed | None = None

    def push() -> wlc.Pushed:
        nonlocal pusher, done
        pusher = pusher or stack.enter_context(begin())
        before, done = done, pusher.push()
        for place, why in done.failed.items():
            if before is None or before.failed.get(place) != why:
                typer.echo(f"error: {place}: {why}", err=True)
        if before is None and not (done.shipped or done.failed):
            # An empty list and a wrong URL look the same.
            quoted = shlex.quote(registry)
            typer.echo(
                f"warning: {registry} names no place to fill: wlc tier push {quoted} add NAME --to URL", err=True
            )
        return done

    with ExitStack() as stack:
        yield from in_rounds(
            push,
            _push_report,
            follow=follow,
            has_news=lambda done: done.bytes,
            beat_s=lambda _: pusher.settings.push_dial_s if pusher else 0.0,
        )
    if done is not None and done.failed:
        count = len(done.failed)
        raise UnavailableError(f"{count} of {count + len(done.shipped)} places could not be filled")


def _push_report(done: wlc.Pushed) -> Fields:
    places = {each.url: each.tick for each in done.shipped}
    return Fields({"places": places, "bytes": done.bytes, "failed": dict(done.failed)})


class Pruning:
    """Prunes a relay between rounds, on its own schedule; refuses a relay without a policy."""

    def __init__(self, every: str | None, options: dict[str, object] | None) -> None:
        self._every_s = parse_age(every).total_seconds() if every is not None else None
        self._options = options
        self._last: float | None = None

    def after(self, done: wlc.Shipped) -> wlc.Shipped:
        """Prune if it is time, and return what the round did."""
        import wlc

        if self._every_s is None:
            return done
        # A missing policy is reported after the first round, not after days.
        is_first = self._last is None
        if self._last is None or time.monotonic() - self._last >= self._every_s:
            wlc.prune(done.url, dry_run=is_first, needs_policy=True, storage_options=self._options)
            self._last = time.monotonic()
        return done


TIER_COLUMNS = ("tier", "id", "kind", "state", "marks", "used", "fanout", "tick", "lag_s", "seen", "upstream", "url")


def tiers(
    db: Database,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Show each reader below its upstream, tier by tier.

    It shows state, fan-out, position, lag, and when each was last seen.

    Ends with exit code 9 if a reader is stuck, or a relay is cut off from the origin.
    """
    import wlc

    tree = wlc.tier_tree(db, farm=farm, storage_options=storage_options(storage_option))
    rows = [_tier_row(member) for member in tree.members]
    yield in_columns(TIER_COLUMNS, rows, elastic=("url", "upstream"), whole=tree)
    if tree.stuck:
        from wlc.tiers.overview import continuing_command

        listed = ", ".join(f"{member.id} ({member.url})" for member in tree.stuck)
        verb = "makes" if len(tree.stuck) == 1 else "make"
        raise ExceededError(
            f"{listed} {verb} no progress though there is something to read",
            hint=continuing_command(tree.stuck[0], tree.url),
        )
    if tree.cut_off:
        listed = ", ".join(f"{member.id} ({member.url})" for member in tree.cut_off)
        relay = tree.cut_off[0].url.rpartition("/")[0]
        raise ExceededError(
            f"no path leads to the origin from {listed}: relays that read in a circle, or from what is not registered",
            hint=f"wlc tier ship {shlex.quote(tree.url)} --to {shlex.quote(relay)} --upstream auto",
        )


def set_tiers(
    db: Database,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="Settings and their new values.")],
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Change settings of the tree, such as stuck_s=600, and show all.

    They hold for all members.
    """
    import wlc

    return record(wlc.set_tiers(db, settings, farm=farm, storage_options=storage_options(storage_option)))


def _tier_row(member: TierMember) -> tuple[object, ...]:
    tier = "?" if member.tier is None else "  " * member.tier + str(member.tier)
    used = None if member.fanout is None else member.children
    seen = member.seen.replace(microsecond=0) if member.seen else None
    shown = (tier, member.id, member.kind, member.state, " ".join(member.marks) or None, used, member.fanout)
    return (*shown, member.tick, member.lag_s, seen, member.upstream or None, member.url)


def upstream(
    db: Database,
    member: Annotated[str, typer.Argument(metavar="ID", help="Id of an upstream, as wlc tier show shows it.")],
    inactive: Annotated[bool, typer.Option("--inactive", help="Readers move away and may not choose it.")] = False,
    active: Annotated[bool, typer.Option("--active", help="Readers may choose it again.")] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Take a place out of the choice of readers, or put it back."""
    import wlc

    if active == inactive:
        hint = f"wlc tier upstream {_named(db, farm)} {shlex.quote(member)} --inactive"
        raise InvalidError("give either --inactive or --active", hint=hint)
    options = storage_options(storage_option)
    done = wlc.set_upstream(db, member, is_active=active, farm=farm, storage_options=options)
    return Fields({"id": done.id, "url": done.url, "state": done.state})


def fanout(
    db: Database,
    number: Annotated[int | None, typer.Argument(metavar="N", min=0, help="New default.")] = None,
    upstream: Annotated[
        str | None, typer.Option(metavar="ID", help="Override it for this upstream; without N ends that.")
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show or set how many readers an upstream may have."""
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
    """Forget a replica or relay that is gone.

    Its registration, its claims and its entry as an upstream are removed.
    """
    import wlc

    return record(wlc.forget(db, member, farm=farm, storage_options=storage_options(storage_option)))


def push(
    db: Annotated[str, typer.Argument(metavar="DB", help="URL of the database's folder that holds the list.")],
    action: Annotated[str, typer.Argument(metavar="ACTION", help="list, add or remove.")] = "list",
    entry: Annotated[str | None, typer.Argument(metavar="ID", help="Name of the entry.")] = None,
    to: Annotated[str | None, typer.Option(metavar="URL", help="The database's folder in a place to fill.")] = None,
    host: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Places of registered readers on these hosts.")
    ] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", metavar="PATTERN", help="Places of registered readers of these classes.")
    ] = None,
    site: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Places of registered readers of these sites.")
    ] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """List, add or remove places that must be filled by pushing.

    wlc tier ship --pushes DB, run where the data comes from, fills them.
    """
    import wlc
    from wlc.tiers.upstreams import Push

    if action not in ("list", "add", "remove") or (action == "list") != (entry is None):
        raise InvalidError(f"{action!r} is not complete", hint=f"wlc tier push {_named(db, None)} add NAME --to URL")
    if action != "add" and (to or host or class_name or site):
        raise InvalidError("--to, --host, --class and --site are for add only", hint="wlc tier push --help")
    name = entry or ""
    if to and "/" not in to:
        folder = f"{to}/{db.rstrip('/').rpartition('/')[2]}"
        hint = f"wlc tier push {shlex.quote(db)} add {shlex.quote(name)} --to {shlex.quote(folder)}"
        raise InvalidError(f"--to {to} is not the folder of a database", hint=hint)
    found = wlc.push_list(
        db,
        add=Push(name, to or "", host or "", class_name or "", site or "") if action == "add" else None,
        remove=name if action == "remove" else None,
        storage_options=storage_options(storage_option),
    )
    rows = [(each.id, each.to or None, each.host or None, each.class_name or None, each.site or None) for each in found]
    return Listing(("id", "to", "host", "class", "site"), rows, null="-")


def derive(
    db: Database,
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name in the same farm, or URL of its folder.")],
    where: Where = None,
    columns: Columns = None,
    mask: Masks = None,
    mask_key: MaskKey = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="All of these tables, like main.sales_*; may be repeated."),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Begin a new history from the newest snapshot, also with other filters.")
    ] = False,
    follow: Follow = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
    target_option: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Option, or key, of the derived database's place; may be repeated."),
    ] = None,
) -> Iterator[Report]:
    """Publish chosen tables, rows and columns as another database.

    It has a log of its own, and other values where they are masked.

    Only named tables are published. The first round needs the choice, later ones remember it.
    """
    import wlr

    options, target_options = storage_options(storage_option), storage_options(target_option)
    filters = wlr.row_filters(where, columns, mask, mask_key)

    has_begun = False

    def derive_round() -> Derived:
        nonlocal has_begun
        with working("deriving {}", name) as progress:
            done = wlr.derive(
                db,
                name,
                farm=farm,
                filters=filters,
                tables=tables or None,
                anew=anew and not has_begun,
                storage_options=options,
                target_options=target_options,
                progress=progress,
            )
        has_begun = True
        return done

    yield from in_rounds(
        derive_round,
        record,
        follow=follow,
        has_news=lambda done: done.batches,
        beat_s=lambda _: wlc.beat(db, farm=farm, storage_options=options),
        reads=lambda _: wlc.resolve(db, farm, storage_options=options).url,
    )


# Each with the example that its help shows.
COMMANDS = (
    (ship, "tier ship", "sales --to s3://branch/farm --follow"),
    (tiers, "tier show", "sales --farm s3://bucket/farm"),
    (set_tiers, "tier set", "sales stuck_s=600 pending_s=600"),
    (upstream, "tier upstream", "sales 9f2c1d --inactive"),
    (fanout, "tier fanout", "sales 4"),
    (forget, "farm forget", "sales 9f2c1d"),
    (push, "tier push", "s3://edge/farm/sales add edge --to s3://edge/farm/sales"),
    (derive, "farm derive", "sales --as sales_eu --where \"orders: region = 'EU'\" --columns 'users: id, name'"),
)

"""Commands of `wlc` on databases with several masters."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.addresses import without_password
from wlc.farm.errors import InvalidError

from .following import in_rounds
from .options import Database, Farm, Follow, Source, StorageOptions, beat_of, storage_options
from .output import Listing, Report, in_columns, record
from .progress import working

if TYPE_CHECKING:
    import wlc
    from wlc.multi_master.circle import Circle

Site = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")]


def join(
    source: Source,
    name: Annotated[str, typer.Option("--name", metavar="DB", help="The database, as the farm calls it.")],
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="Name of the new site.")],
    farm: Farm = None,
    beat: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="Longest time until a commit is published: 60, 90s, 5m. Default: the primary's."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="SITE", help="Begin with the rows of this site. Default is the primary."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Begin anew as a site that cannot go on; its file is set aside.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --again: give up what nobody has taken without asking.")
    ] = False,
    storage_option: StorageOptions = None,
) -> Report:
    """Make another site of a database.

    It is a new file with all rows, and has a history and folder of its own.

    A command that was interrupted goes on when it is run again.
    """
    import wlc
    import wlr

    options = storage_options(storage_option)
    if again:
        kept = _begun_anew(source, name, site, farm, options, yes=yes)
        if kept is not None:
            typer.echo(f"The former file of site {site} is {kept} now.", err=True)
    with working("joining {}", name) as progress:
        found = wlc.joined_from(
            source, name=name, site=site, farm=farm, start=start, again=again, storage_options=options
        )
        if found is not None:
            try:
                wlr.replicate(
                    found.url, into=source, tick=found.tick, storage_options=options, register=False, progress=progress
                )
            except InvalidError as error:
                if error.path != source:
                    raise
                anew = f"wlc site join FILE {_place(name, farm)} --site {site}"
                raise InvalidError(error.message, hint=f"name a file that is not there: {anew}", path=source) from error
        return record(
            wlc.join(
                source, name=name, site=site, farm=farm, beat_s=beat_of(beat), again=again, storage_options=options
            )
        )


def _begun_anew(
    source: str, name: str, site: str, farm: str | None, options: dict[str, object] | None, *, yes: bool
) -> str | None:
    """Set the file of a site aside that begins anew, having asked if something gets lost; returns its new name."""
    import wlc

    if not yes:
        found = wlc.begin_anew(source, name=name, site=site, farm=farm, dry_run=True, storage_options=options)
        if found is not None and not found.is_nothing:
            _agree(found, source, name, site, farm)
    done = wlc.begin_anew(source, name=name, site=site, farm=farm, storage_options=options)
    return None if done is None else done.kept_as


def _place(name: str, farm: str | None) -> str:
    return f"--name {shlex.quote(name)}" + (f" --farm {shlex.quote(farm)}" if farm else "")


def _agree(found: wlc.GivenUp, source: str, name: str, site: str, farm: str | None) -> None:
    """Say what gets lost with a site that begins anew, and ask."""
    rows = ", ".join(f"{count} of {table}" for table, count in found.rows.items())
    published = f"{found.published} in its log {found.log}" + (f" (rows: {rows})" if rows else "")
    typer.echo(
        f"Site {site} gives up what the primary has not taken. Transactions of its own: {published}. Transactions that"
        f" are published nowhere: {found.unpublished}"
        + (
            f" in its file, which becomes {found.kept_as}."
            if found.kept_as
            else ", as far as can be seen: its file is not there."
        ),
        err=True,
    )
    command = f"wlc site join {shlex.quote(source)} {_place(name, farm)} --site {site} --again --yes"
    if not sys.stdin.isatty():
        raise InvalidError(
            f"to begin anew, site {site} gives up what nobody has taken, which needs your agreement",
            hint=f"take it first, if the primary still can: wlc site take PRIMARY; or agree: {command}",
        )
    if not typer.confirm("Go on?", err=True):
        raise InvalidError("nothing was changed", hint="take it first, if the primary still can: wlc site take PRIMARY")


def take(
    source: Source,
    from_: Annotated[str | None, typer.Option("--from", metavar="SITE", help="Read only the log of this site.")] = None,
    follow: Follow = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be taken, and what of it would be rejected.")
    ] = False,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Take what other sites published into this database.

    Their transactions become a part of this database and of its log.
    """
    import wlc

    options = storage_options(storage_option)

    def taken() -> list[wlc.TakenFrom]:
        with working("taking into {}", Path(without_password(source)).name):
            done = wlc.take(source, site=from_, dry_run=dry_run, storage_options=options)
        if not dry_run and any(each.in_conflict or each.own_rejected for each in done):
            typer.echo(f"Rows were rejected: wlc site exceptions {shlex.quote(source)}", err=True)
        return done

    yield from in_rounds(
        taken,
        _listing,
        follow=follow and not dry_run,
        has_news=lambda done: any(each.transactions for each in done),
        beat_s=lambda _: wlc.beat(source, storage_options=options),
    )


def _listing(done: list[wlc.TakenFrom]) -> Report:
    after = ("after",) if any(each.is_dry_run for each in done) else ()
    names = ("site", "transactions", "rows", "tick", *after, "rejected", "own_rejected", "in_conflict")
    rows = [[getattr(each, name) for name in names[:-1]] for each in done]
    shown = [[*row, "; ".join(map(_in_words, each.in_conflict))] for row, each in zip(rows, done, strict=True)]
    listed = [[{**record(count).values, "table": str(count.table)} for count in each.in_conflict] for each in done]
    whole = [dict(zip(names, [*row, counts], strict=True)) for row, counts in zip(rows, listed, strict=True)]
    return Listing(names, shown, whole=whole)


def _in_words(count: wlc.RejectionCount) -> str:
    rule = f" by {count.rule}" if count.rule else ""
    return f"{count.table}: {count.cause}{rule}, rows: {count.rows}, transactions: {count.transactions}"


SITE_COLUMNS = (
    *("site", "role", "history", "tick", "clock", "contained_by", "behind", "delay_s", "window_rows", "window_age_s"),
    *("is_stable", "seen", "read_by", "vector", "folder"),
)


def sites(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """Show the sites of a database, and what each has published.

    It also shows who has it, and what may be in conflict.
    """
    import wlc

    found = wlc.sites(db, farm=farm, storage_options=storage_options(storage_option))
    rows = [tuple(getattr(site, column) for column in SITE_COLUMNS) for site in found]
    return in_columns(SITE_COLUMNS, rows, elastic=("folder",))


def role(
    db: Database,
    site: Site,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="primary, secondary, none or pass.")],
    lost: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="The present primary, if its file, as DB, cannot be given: primary only."),
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Give a site another role: primary, secondary, none or pass.

    none neither reads nor is read; primary needs the file of the present one as DB.
    """
    import wlc

    options = storage_options(storage_option)
    return _roles(wlc.set_role(db, site, role, lost=lost, farm=farm, storage_options=options))


def leave(
    db: Database,
    site: Site,
    force: Annotated[
        bool, typer.Option("--force", help="Although others lack what it published, and never get it then.")
    ] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Let a site leave: its log ends, and no site waits for it."""
    import wlc

    return _roles(wlc.leave(db, site, farm=farm, force=force, storage_options=storage_options(storage_option)))


def _roles(circle: Circle) -> Report:
    return Listing(("site", "role", "history"), [(site.name, site.role, site.history) for site in circle.sites])


COMMANDS = (
    (join, "site join", "rome.duckdb --name sales --site rome --farm s3://bucket/farm"),
    (take, "site take", "rome.duckdb --follow"),
    (sites, "site list", "sales --farm s3://bucket/farm"),
    (role, "site role", "sales rome none"),
    (leave, "site leave", "sales rome"),
)

"""Commands of `wlc` on databases with several masters, and on changes that several sites make to the same rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.addresses import without_password
from wlc.farm.errors import InvalidError

from .following import in_rounds
from .options import Database, Farm, Follow, Source, StorageOptions, agree, beat_of, storage_options
from .output import Listing, Report, Value, in_columns, record
from .progress import working

if TYPE_CHECKING:
    from collections.abc import Sequence

    import wlc
    from wlc.multi_master.circle import Circle


Site = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")]


def join(
    source: Source,
    name: Annotated[str, typer.Option("--name", metavar="DB", help="Name of the database in the farm.")],
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
        bool, typer.Option("--again", help="Rejoin under the name of a site that cannot continue; its file is renamed.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --again: discard untaken transactions without asking.")
    ] = False,
    storage_option: StorageOptions = None,
) -> Report:
    """Make another site of a database.

    It is a new file with all rows, and has a history and folder of its own.

    Repeat an interrupted command to finish it.
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
                rejoin = f"wlc site join FILE {_place(name, farm)} --site {site}"
                raise InvalidError(
                    error.message, hint=f"name a file that is not there: {rejoin}", path=source
                ) from error
        return record(
            wlc.join(
                source, name=name, site=site, farm=farm, beat_s=beat_of(beat), again=again, storage_options=options
            )
        )


def _begun_anew(
    source: str, name: str, site: str, farm: str | None, options: dict[str, object] | None, *, yes: bool
) -> str | None:
    """Rename the file of a site that rejoins, after asking if the site loses transactions; returns the new name."""
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
    """List what a site loses when it rejoins, and ask."""
    rows = ", ".join(f"{count} of {table}" for table, count in found.rows.items())
    published = f"{found.published} in its log {found.log}" + (f" (rows: {rows})" if rows else "")
    typer.echo(
        f"Site {site} discards what the primary has not taken. Its published transactions: {published}. Its unpublished"
        f" transactions: {found.unpublished}"
        + (
            f" in its file, which becomes {found.kept_as}."
            if found.kept_as
            else ", as far as can be seen: its file is not there."
        ),
        err=True,
    )
    command = f"wlc site join {shlex.quote(source)} {_place(name, farm)} --site {site} --again --yes"
    instead = "take it first, if the primary still can: wlc site take PRIMARY"
    needed = f"if site {site} rejoins, it discards untaken transactions, which"
    agree(needed, f"{instead}; or agree: {command}", instead=instead)


def take(
    source: Source,
    from_: Annotated[str | None, typer.Option("--from", metavar="SITE", help="Read only the log of this site.")] = None,
    follow: Follow = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show which transactions would be taken, and which rejected.")
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
        typer.Option(metavar="SITE", help="The current primary, if its file cannot be given as DB: primary only."),
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
        bool, typer.Option("--force", help="Even if other sites lack its transactions; they never get them then.")
    ] = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Let a site leave: its log ends, and no site waits for it."""
    import wlc

    return _roles(wlc.leave(db, site, farm=farm, force=force, storage_options=storage_options(storage_option)))


def _roles(circle: Circle) -> Report:
    return Listing(("site", "role", "history"), [(site.name, site.role, site.history) for site in circle.sites])


RULE_COLUMNS = ("table", "rule", "site", "reads", "column", "add")


RULE_HELP = (
    "In a star epoch, epoch_trans or owner; in a mesh newest, add, owner, max, max_delete_wins, max_ins,"
    " max_del_win_ins or old; none removes the rule."
)


def rule(
    db: Database,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="The table, with its schema if that is not main.")
    ] = None,
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help=RULE_HELP)] = None,
    site: Annotated[str, typer.Option(metavar="NAME", help="With owner: the one site that may write the table.")] = "",
    reads: Annotated[
        str,
        typer.Option(
            metavar="READS",
            help="With epoch_trans: reads that count, too. exclusive: of SELECT … FOR UPDATE or FOR SHARE; shared:"
            " of every SELECT of one table; none.",
        ),
    ] = "none",
    column: Annotated[
        str, typer.Option(metavar="C", help="With the rules of max and old: the whole number that is compared.")
    ] = "",
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="COL", help="With newest: a number whose changes at all sites are added. Repeatable."),
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show or set how a table decides between concurrent changes.

    Such changes are made by two sites at the same time. Without RULE, the rules are shown.
    """
    import wlc

    options = storage_options(storage_option)
    if table is None or rule is None:
        _refuse_options(db, table, site=site, reads=reads, column=column, add=add)
        found = wlc.rules(db, table, farm=farm, storage_options=options)
    else:
        found = wlc.set_rule(
            db, table, rule, site=site, reads=reads, column=column, add=add or (), farm=farm, storage_options=options
        ).rules
    return _listed(RULE_COLUMNS, found)


def _listed(columns: tuple[str, ...], found: Sequence[object]) -> Listing:
    """Show values by the names of their attributes; a table is named in JSON as options name it."""
    return Listing(columns, [tuple(_named(getattr(each, column), column) for column in columns) for each in found])


def _named(value: object, column: str) -> object:
    return str(value) if column == "table" else value


def _refuse_options(db: str, table: str | None, *, site: str, reads: str, column: str, add: list[str] | None) -> None:
    """Refuse options of a rule where the rules are only shown."""
    if site or column or add or reads != "none":
        raise InvalidError(
            "the options belong to a rule, and none is given", hint=f"wlc site rule {db} {table or 'TABLE'} RULE …"
        )


EXCEPTION_COLUMNS = (
    *("id", "site", "source", "source_tick", "count", "detected", "table", "key", "op_type", "cause", "dependent"),
    *("old", "new", "local", "resubmitted"),
)


def exceptions(
    db: Database,
    table: Annotated[str | None, typer.Option(metavar="TABLE", help="Only rows of this table.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only rows rejected then or later: '2026-03-01 12:00'.")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Only show how many there are.")] = False,
    resubmit: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Write a rejected row (SITE:TICK:COUNT) or transaction (SITE:TICK) again."),
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show rejected rows, and why they were rejected.

    A site rejects rows of other sites, the primary rejects rows of the site; both are shown.
    """
    import wlc

    options = storage_options(storage_option)
    if resubmit is not None:
        return Value("resubmitted", wlc.resubmit(db, resubmit, storage_options=options))
    found = wlc.exceptions(db, table=table, since=since, farm=farm, storage_options=options)
    if count:
        return Value("exceptions", len(found))
    return _listed(EXCEPTION_COLUMNS, found)


COUNTER_COLUMNS = ("site", "rule", "name", "value")


def conflicts(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """Show how often a site rejected changes of other sites."""
    import wlc

    found = wlc.conflicts(db, farm=farm, storage_options=storage_options(storage_option))
    return _listed(COUNTER_COLUMNS, found)


# Each with the example that its help shows.
COMMANDS = (
    (join, "site join", "rome.duckdb --name sales --site rome --farm s3://bucket/farm"),
    (take, "site take", "rome.duckdb --follow"),
    (sites, "site list", "sales --farm s3://bucket/farm"),
    (role, "site role", "sales rome none"),
    (leave, "site leave", "sales rome"),
    (rule, "site rule", "sales main.accounts epoch_trans"),
    (exceptions, "site exceptions", "oslo.duckdb --since '2026-03-01 12:00'"),
    (conflicts, "site conflicts", "oslo.duckdb"),
)

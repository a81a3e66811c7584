"""Commands of `wlc` on changes that several sites make to the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.errors import InvalidError

from .options import Database, Farm, StorageOptions, storage_options
from .output import Listing, Report, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

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
            help="With epoch_trans: which reads count, too. exclusive: of SELECT … FOR UPDATE or FOR SHARE; shared:"
            " of every SELECT of one table; none.",
        ),
    ] = "none",
    column: Annotated[
        str, typer.Option(metavar="C", help="With max and old and their relatives: the whole number that is compared.")
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
    return _listing(RULE_COLUMNS, found)


def _listing(columns: tuple[str, ...], found: Sequence[object]) -> Listing:
    """Show values by the names of their attributes; a table is named in JSON as options name it."""
    return Listing(columns, [tuple(_named(getattr(each, column), column) for column in columns) for each in found])


def _named(value: object, column: str) -> object:
    return str(value) if column == "table" else value


def _refuse_options(db: str, table: str | None, *, site: str, reads: str, column: str, add: list[str] | None) -> None:
    """Refuse what belongs to a rule, where only the rules are shown."""
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
        str | None, typer.Option(metavar="TIME", help="Only what was rejected then or later: '2026-03-01 12:00'.")
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

    A site rejects rows of others, and the primary rejects rows of the site; both are shown.
    """
    import wlc

    options = storage_options(storage_option)
    if resubmit is not None:
        return Value("resubmitted", wlc.resubmit(db, resubmit, storage_options=options))
    found = wlc.exceptions(db, table=table, since=since, farm=farm, storage_options=options)
    if count:
        return Value("exceptions", len(found))
    return _listing(EXCEPTION_COLUMNS, found)


COUNTER_COLUMNS = ("site", "rule", "name", "value")


def conflicts(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """Show how often a site rejected changes of other sites."""
    import wlc

    found = wlc.conflicts(db, farm=farm, storage_options=storage_options(storage_option))
    return _listing(COUNTER_COLUMNS, found)


COMMANDS = (
    (rule, "site rule", "sales main.accounts epoch_trans"),
    (exceptions, "site exceptions", "oslo.duckdb --since '2026-03-01 12:00'"),
    (conflicts, "site conflicts", "oslo.duckdb"),
)

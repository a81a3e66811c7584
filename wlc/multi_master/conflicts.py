"""Rules that decide between concurrent changes, and the rows that they rejected.

Published tables, and constraints that prevent deciding row by row.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from wlc.farm.clock import parse_time
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError
from wlc.farm.model import Check, Ddl, Reference, RowRejected, Unique
from wlc.farm.registry import SITE, known_replicas
from wlc.farm.schema_fold import SchemaFold
from wlc.farm.typed_names import is_meant, tables_meant
from wlc.masters import adapters
from wlc.masters.lookup import opened_master, opened_or_held, resolve, warn_of_farm
from wlc.masters.publish import publish
from wlc.multi_master.administration import founder_of_database
from wlc.multi_master.circle import (
    ADD,
    COLUMN_RULES,
    EPOCH,
    EPOCH_TRANS,
    MAX,
    NEWEST,
    NO_READS,
    OWNER,
    READS,
    RULES,
    SHARED_RULES,
    Rule,
    change_circle,
    find_circle,
    read_circle,
    with_rule,
    without_rule,
)
from wlc.multi_master.circle_place import founder_of, site_database
from wlc.multi_master.membership import author_of
from wlc.multi_master.rule_columns import added_column, compared_column
from wlc.multi_master.site_step import ConflictCounter, RejectedRow

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import date, datetime

    from wlc.farm.database import FarmDatabase
    from wlc.farm.model import Batch, Layout, Name
    from wlc.farm.schema_fold import FoldedTable
    from wlc.masters.contract import Source
    from wlc.multi_master.circle import Circle


def constraint_beside_key(tables: SchemaFold, table: FoldedTable) -> str | None:
    """Return a constraint that row-by-row decisions could violate, None without one."""
    if any(isinstance(found, Unique) for found in table.constraints):
        return "a UNIQUE constraint"
    if any(isinstance(found, Reference) for found in table.constraints) or any(tables.references_to(table.name)):
        return "a FOREIGN KEY"
    return "a UNIQUE index" if any(i.of == table.name and i.unique for i in tables.indexes.values()) else None


def has_check(table: FoldedTable) -> bool:
    """Say whether a table has a CHECK constraint."""
    return any(isinstance(found, Check) for found in table.constraints)


def published_tables(database: FarmDatabase) -> SchemaFold:
    """Return the published tables of a database.

    Raises:
        CorruptError: A log file or a snapshot contradicts itself.
    """
    found = SchemaFold()
    ticks = database.snapshot_ticks()
    manifest = database.read_manifest(ticks[-1]) if ticks else None
    for ddl in (*manifest.schema, *manifest.schema_after) if manifest else ():
        found.apply(ddl)
    for number in database.batch_numbers(after=manifest.position.batch if manifest else 0):
        for each in database.read_batch(number)[0].transactions:
            for record in each.records:
                if isinstance(record, Ddl):
                    found.apply(record)
    return found


NO_RULE = "none"
_T = TypeVar("_T")


def set_rule(
    db: str | os.PathLike[str],
    table: str,
    rule: str,
    *,
    site: str = "",
    reads: str = NO_READS,
    column: str = "",
    add: Sequence[str] = (),
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Circle:
    """Set a table's conflict rule, and return the circle. Sites apply it from their next take.

    Args:
        db: Name or URL of the database, or the file of one of its sites.
        table: The table, as in `orders` or `main.orders`.
        rule: In a star of sites `epoch`, `epoch_trans` or `owner`; in a mesh `newest`, `owner`, `add` for tables
            without a primary key, or one that compares a column: `max`, `max_delete_wins`, `max_ins`,
            `max_del_win_ins`, `old`; `none` for no rule.
        site: The one site that may write the table, with `owner`.
        reads: With `epoch_trans`, the reads that count in conflicts: `exclusive` for queries with FOR UPDATE or FOR
            SHARE, `shared` also for all other queries in transactions that write, or `none`.
        column: The column that a rule compares; a whole number, not part of the primary key.
        add: With `newest`, columns whose changes are added; whole numbers or DECIMAL that are NOT NULL. Rows of the
            table cannot be deleted then.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no such rule, table, column or site, or the table has no primary key and the rule needs
            one, or the rule tracks no reads.
        UnsupportedError: The rule lets all sites of a mesh write the table, and it has a UNIQUE or FOREIGN KEY
            constraint.

    Examples:
        >>> circle = wlc.set_rule("sales", "orders", "epoch_trans")
        >>> [rule.rule for rule in circle.rules]
        ['epoch_trans']
    """
    founder = founder_of_database(db, farm, storage_options)
    # Hints can be typed as they stand.
    named = shlex.quote(founder.url)
    _refuse_call(named, table, rule, site, reads)
    _refuse_columns(named, table, rule, column, add)
    _publish_what_waits(db, storage_options)
    circle = read_circle(founder)
    primary = site_database(founder, circle.site(circle.primary).folder)
    tables, found, layout = _table(primary, table)
    name = found.name
    if rule == NO_RULE:
        return change_circle(founder, lambda circle: without_rule(circle, name))
    _refuse_key(named, name, layout, rule, circle)
    if rule in COLUMN_RULES:
        column = compared_column(name, layout, rule, column, named)
    added = tuple(dict.fromkeys(added_column(name, layout, each, named) for each in add))
    wanted = Rule(name, rule, site, reads, column, added)
    if rule in SHARED_RULES and circle.is_mesh:
        _refuse_constraints(named, wanted, found, constraint_beside_key(tables, found), circle)

    def change(circle: Circle) -> Circle:
        changed = with_rule(circle, wanted)
        if rule == OWNER and site != circle.primary and not layout.primary_key:
            message = f"{name} has no primary key, so only the primary, {circle.primary}, may write it, and not {site}"
            raise InvalidError(message, hint="give the table a primary key")
        return changed

    return change_circle(founder, change)


def rules(
    db: str | os.PathLike[str],
    table: str | None = None,
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Rule, ...]:
    """Return the conflict rules of tables, ordered by table.

    Args:
        db: Name or URL of the database, or the file of one of its sites.
        table: Only that of this table, as in `orders` or `main.orders`.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The database has one master only, or no such table.

    Examples:
        >>> [(str(rule.table), rule.rule) for rule in wlc.rules("sales")]
        [('main.orders', 'epoch')]
    """
    founder = founder_of_database(db, farm, storage_options)
    circle = read_circle(founder)
    if table is None:
        return circle.rules
    found = tuple(each for each in circle.rules if is_meant(each.table, table))
    if not found:
        _table(site_database(founder, circle.site(circle.primary).folder), table)
    return found


def _publish_what_waits(db: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> None:
    """Publish the pending transactions of a site's file, so that the rule is checked against its present tables."""
    if adapters.is_source(db):
        # Another process that has the file open publishes them, and then checks the rule.
        with suppress(UnavailableError), opened_master(db, storage_options) as (source, database), source.publishing():
            publish(source, database)


def _refuse_key(db: str, name: Name, layout: Layout, rule: str, circle: Circle) -> None:
    """Refuse a table without the primary key that the rule needs, or with one that the rule does not use."""
    if rule == ADD and layout.primary_key:
        raise InvalidError(
            f"{name} has a primary key: rule {ADD} is for tables without one, whose rows are only added up",
            hint=f"wlc site rule {db} {name} {NEWEST} decides row by row, and --add COL adds up a number",
        )
    if rule in (EPOCH, EPOCH_TRANS, *SHARED_RULES) and rule != ADD and not layout.primary_key:
        alone = f"; or wlc site rule {db} {name} {ADD}, by which all sites add rows" if circle.is_mesh else ""
        raise InvalidError(
            f"{name} has no primary key, so rule {rule} cannot tell its rows apart",
            hint=f"give the table a primary key at {circle.primary}, where only the primary may write it without one:"
            f" wlc sql FILE 'ALTER TABLE {name} ADD PRIMARY KEY (COLUMN)', then wlc flush FILE{alone}",
        )


def _refuse_constraints(db: str, rule: Rule, table: FoldedTable, problem: str | None, circle: Circle) -> None:
    """Refuse a table of a mesh with a constraint that each site satisfies but their merged changes may violate."""
    name = table.name
    if problem is not None:
        raise UnsupportedError(
            f"{name} has {problem}: rule {rule.rule} decides row by row, which could violate it",
            hint=f"let one site write the table: wlc site rule {db} {name} owner --site {circle.primary}",
        )
    if rule.add and has_check(table):
        raise UnsupportedError(
            f"{name} has a CHECK constraint, which the sum of several sites' changes could violate",
            hint=f"wlc site rule {db} {name} {NEWEST}, without --add, keeps it",
        )


def _refuse_call(db: str, table: str, rule: str, site: str, reads: str) -> None:
    """Refuse invalid combinations of arguments."""
    if rule not in (*RULES, NO_RULE):
        raise InvalidError(f"{rule!r} is no rule", hint=f"the rules are {', '.join(RULES)}, and {NO_RULE} removes one")
    if (rule == OWNER) != bool(site):
        without = "" if rule == OWNER else f"wlc site rule {db} {table} {rule}; or "
        raise InvalidError(
            "the rule owner, and no other one, names a site",
            hint=f"{without}wlc site rule {db} {table} owner --site {site or 'NAME'}",
        )
    if reads not in READS:
        raise InvalidError(f"{reads!r} are no reads", hint=f"--reads is one of {', '.join(READS)}")
    if reads != NO_READS and rule != EPOCH_TRANS:
        raise InvalidError(
            f"rule {rule} tracks no reads: only {EPOCH_TRANS} judges transactions as a whole",
            hint=f"wlc site rule {db} {table} {EPOCH_TRANS} --reads {reads}",
        )


def _refuse_columns(db: str, table: str, rule: str, column: str, add: Sequence[str]) -> None:
    """Refuse columns that the rule does not use."""
    if column and rule not in COLUMN_RULES:
        raise InvalidError(
            f"rule {rule} compares no column: {', '.join(COLUMN_RULES)} do",
            hint=f"wlc site rule {db} {table} {rule}, or wlc site rule {db} {table} {MAX} --column {column}",
        )
    if add and rule != NEWEST:
        raise InvalidError(
            f"rule {rule} adds no columns: only {NEWEST} does",
            hint=f"wlc site rule {db} {table} {NEWEST} --add {' --add '.join(add)}",
        )


def _table(primary: FarmDatabase, table: str) -> tuple[SchemaFold, FoldedTable, Layout]:
    """Find a table among the primary's published ones; of several with the name, the last changed one."""
    tables = published_tables(primary)
    found = [
        (each, each.layout) for each in tables.tables.values() if each.layout is not None and is_meant(each.name, table)
    ]
    if not found:
        meant = tables_meant(table, tables.tables)
        raise InvalidError(
            f"{primary.url} has no table {table!r}",
            hint=f"{meant} wlc flush SOURCE publishes a new one, SOURCE being the file of its site",
        )
    return tables, *found[-1]


def exceptions(
    db: str | os.PathLike[str],
    *,
    table: str | None = None,
    since: str | date | None = None,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[RejectedRow]:
    """Return the rows of other sites that a site rejected, and its own rows that the primary rejected, oldest first.

    Args:
        db: Path of the site's database. If another process has it open, and for a name or URL, the result is from the
            farm: rejections of primaries, as far back as their logs are kept, without resubmitted rows.
        table: Only this table, as in `orders` or `main.orders`.
        since: Only rejections at this time or later.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The primary has published no such table, or the result is from a farm without sites.

    Examples:
        >>> [(row.id, row.key, row.cause) for row in wlc.exceptions("rome.duckdb")]
        [('rome:1:1', {'id': 2}, 'DATA_IN_CONFLICT')]
    """
    time = None if since is None else parse_time(since)

    def ask_site() -> list[RejectedRow]:
        with opened_master(db, storage_options) as (found, database):
            rows = _of_table(facet.rejected_rows(time) if (facet := found.site) is not None else [], table)
            if table is not None and not rows:
                _refuse_unknown(found, database, table)
        return rows

    def ask_farm() -> list[RejectedRow]:
        founder, circle, site = _place_of(db, farm, storage_options)
        rows = _of_table(_rejected_in_farm(founder, circle, site, time), table)
        if table is not None and not rows:
            _table(site_database(founder, circle.site(circle.primary).folder), table)
        return rows

    return _answered(db, ask_site, ask_farm)


def _of_table(rows: Iterable[RejectedRow], table: str | None) -> list[RejectedRow]:
    return [row for row in rows if table is None or is_meant(row.table, table)]


def _answered(db: str | os.PathLike[str], ask_site: Callable[[], _T], ask_farm: Callable[[], _T]) -> _T:
    """Read a site, or the farm if another process has the site's file open, or `db` is a name or URL."""
    if not adapters.is_source(db):
        return ask_farm()
    with opened_or_held(db) as source:
        if not isinstance(source, UnavailableError):
            return ask_site()
        found = ask_farm()
        warn_of_farm(source)
        return found


def _place_of(
    db: str | os.PathLike[str], farm: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> tuple[FarmDatabase, Circle, str]:
    """Return the founder's folder, the circle, and the named site; "" for the whole database."""
    founder = founder_of_database(db, farm, storage_options)
    circle, url = read_circle(founder), resolve(db, farm, storage_options=storage_options).url
    is_site = adapters.is_source(db) or url != founder.url
    names = (each.name for each in circle.sites if site_database(founder, each.folder).url == url)
    return founder, circle, next(names, "") if is_site else ""


def _rejected_in_farm(founder: FarmDatabase, circle: Circle, site: str, since: datetime | None) -> list[RejectedRow]:
    """Return rejected rows from the logs of primaries, rejected by or of a site; of all sites for ""."""
    names = {circle.primary, *(each.site for each in circle.former_terms)} & {each.name for each in circle.sites}
    found: list[RejectedRow] = []
    for name in sorted(names):
        log = site_database(founder, circle.site(name).folder)
        for number in reversed(log.batch_numbers()):
            batch = log.read_batch(number)[0]
            if since is not None and batch.clock is not None and batch.clock < since:
                break
            found += _rejected_in(batch, name, circle)
    chosen = (row for row in found if site in ("", row.site, row.source) and (since is None or row.detected >= since))
    return sorted(chosen, key=lambda row: (row.detected, row.source, row.source_tick, row.count))


def _rejected_in(batch: Batch, site: str, circle: Circle) -> Iterator[RejectedRow]:
    for transaction in batch.transactions:
        for row in transaction.records:
            if isinstance(row, RowRejected) and transaction.committed is not None:
                source = author_of(circle, row.history) or row.history
                yield RejectedRow(
                    *(site, source, row.tick, row.count, row.table, row.key, row.op_type, row.cause, row.pg_type),
                    *(row.old, row.new, row.local, row.history, row.tick, transaction.committed, row.dependent),
                )


def _refuse_unknown(source: Source, database: FarmDatabase, table: str) -> None:
    """Refuse the name of a table that does not exist."""
    site = source.require_state().site
    # An empty result does not need the farm.
    with suppress(UnavailableError):
        founder = founder_of(database, site) if site is not None else database
        if site is not None and (circle := site.circle or find_circle(founder)) is not None:
            _table(site_database(founder, circle.site(circle.primary).folder), table)


def resubmit(
    source: str | os.PathLike[str], exception: str, *, storage_options: Mapping[str, Any] | None = None
) -> int:
    """Resubmit a rejected row, or all rejected rows of a transaction, as a new transaction of this site.

    An updated row gets the columns that the rejected transaction changed.

    Args:
        source: Path of the site's database.
        exception: `site:tick:count` for a row, as `RejectedRow.id` names it, or `site:tick` for a transaction.
        storage_options: Options of the farm's file system.

    Returns:
        Number of rows written.

    Raises:
        InvalidError: No such row was rejected, it was resubmitted before, or the present rows differ from those at the
            rejection. Write the intended values instead.

    Examples:
        >>> wlc.resubmit("rome.duckdb", "rome:1:1")
        1
    """
    site, *numbers = exception.split(":")
    if not 1 <= len(numbers) <= 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidError(
            f"{exception!r} names no exception: give SITE:TICK for a transaction, SITE:TICK:COUNT for a row",
            hint=f"wlc site exceptions {source} lists them",
        )
    if not adapters.is_source(source):
        raise InvalidError(
            f"{source} is no file, and only a site writes rows again",
            hint=f"with the file of the primary, or of site {site}: wlc site exceptions FILE --resubmit {exception}",
        )
    tick, count = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else None
    with opened_master(source, storage_options) as (found, database):
        rows = found.require_site().resubmit(site, tick, count)
        with found.publishing():
            publish(found, database)
        return rows


def conflicts(
    db: str | os.PathLike[str],
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[ConflictCounter]:
    """Return a site's counters of rejections, ordered by site, rule and name.

    Args:
        db: Path of the site's database. If another process has it open, and for a name or URL, the result is from the
            farm, as of the site's last take; a name means the primary.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Examples:
        >>> [(each.site, each.value) for each in wlc.conflicts("sales.duckdb") if each.name == "epoch"]
        [('rome', 1)]
    """

    def ask_site() -> list[ConflictCounter]:
        with opened_master(db, storage_options) as (found, _):
            return facet.conflict_counters() if (facet := found.site) is not None else []

    def ask_farm() -> list[ConflictCounter]:
        founder, circle, site = _place_of(db, farm, storage_options)
        counted: dict[str, int] = {}
        for other in circle.sites:
            for replica in known_replicas(site_database(founder, other.folder))[0]:
                if replica.kind == SITE and replica.id == (site or circle.primary):
                    counted |= replica.counters
        # The decoder of the farm's registrations has checked that these are texts and numbers.
        split = [(name.split(" "), value) for name, value in sorted(counted.items()) if name.count(" ") == 2]
        return [ConflictCounter(*(site, rule, name), value) for (site, rule, name), value in split]

    return _answered(db, ask_site, ask_farm)

"""Rules that decide between concurrent changes, and what was rejected by them.

The tables that a database has published, and why the rows of one cannot be decided each by itself.
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
    """Return a constraint that could not be kept if each row were decided by itself, None without one."""
    if any(isinstance(found, Unique) for found in table.constraints):
        return "a UNIQUE constraint"
    if any(isinstance(found, Reference) for found in table.constraints) or any(tables.references_to(table.name)):
        return "a FOREIGN KEY"
    return "a UNIQUE index" if any(i.of == table.name and i.unique for i in tables.indexes.values()) else None


def has_check(table: FoldedTable) -> bool:
    """Say whether a table has a CHECK constraint."""
    return any(isinstance(found, Check) for found in table.constraints)


def published_tables(database: FarmDatabase) -> SchemaFold:
    """Return the tables of a database, as far as they are published.

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
    """Say how a table decides between concurrent changes, and return the circle. Sites follow it from their next take.

    Args:
        db: Name or URL of the database, or the file of one of its sites.
        table: The table, as in `orders` or `main.orders`.
        rule: In a star of sites `epoch`, `epoch_trans` or `owner`; in a mesh `newest`, `owner`, `add` for tables
            without a primary key, or one that compares a column: `max`, `max_delete_wins`, `max_ins`,
            `max_del_win_ins`, `old`; `none` for no rule.
        site: The one site that may write the table, with `owner`.
        reads: With `epoch_trans`, which reads of the table count in conflicts: `exclusive` for those of queries with
            FOR UPDATE or FOR SHARE, `shared` also for those of all others in transactions that write, or `none`.
        column: The column that a rule compares; a whole number, not part of the primary key.
        add: With `newest`, columns whose changes are added; whole numbers or DECIMAL that are NOT NULL. Rows of the
            table cannot be deleted then.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: There is no such rule, table, column or site, or the table has no primary key and the rule needs
            one, or the rule tracks no reads.
        UnsupportedError: All sites of a mesh are to write the table, and it has a UNIQUE or FOREIGN KEY constraint.

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
            raise InvalidError(
                f"{name} has no primary key, so site {site} cannot own it: only the primary, {circle.primary}, may"
                " write it",
                hint="give the table a primary key",
            )
        return changed

    return change_circle(founder, change)


def rules(
    db: str | os.PathLike[str],
    table: str | None = None,
    *,
    farm: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Rule, ...]:
    """Return the rules by which tables decide between concurrent changes, ordered by table.

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
    """Publish what waits in the file of a site, so that its tables are judged as they are."""
    if adapters.is_source(db):
        # Another process that has the file open publishes what waits, and meets the rule then.
        with suppress(UnavailableError), opened_master(db, storage_options) as (source, database), source.publishing():
            publish(source, database)


def _refuse_key(db: str, name: Name, layout: Layout, rule: str, circle: Circle) -> None:
    """Refuse a table without a primary key that the rule needs, or with one that it does not go by."""
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
    """Refuse a table of a mesh with a constraint that each site keeps and all sites together do not."""
    name = table.name
    if problem is not None:
        raise UnsupportedError(
            f"{name} has {problem}: rule {rule.rule} decides each row by itself, after which it could be broken",
            hint=f"let one site write the table: wlc site rule {db} {name} owner --site {circle.primary}",
        )
    if rule.add and has_check(table):
        raise UnsupportedError(
            f"{name} has a CHECK constraint, which a sum of the changes of several sites could break",
            hint=f"wlc site rule {db} {name} {NEWEST}, without --add, keeps it",
        )


def _refuse_call(db: str, table: str, rule: str, site: str, reads: str) -> None:
    """Refuse what no database can follow."""
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
    """Refuse columns that the rule does not go by."""
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
    """Find a table in what the primary has published; if several have the name, the one that changed last."""
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
    """Return the rows that a site rejected of others, and those that the primary rejected of the site, oldest first.

    Args:
        db: Path of the site's database. If another process has it open, and for a name or URL, the farm answers: with
            what primaries rejected, as far back as their logs are kept, and without what was resubmitted.
        table: Only this table, as in `orders` or `main.orders`.
        since: Only what was rejected at this time or later.
        farm: URL of the farm; WLC_FARM if omitted, for a bare name.
        storage_options: Options of the farm's file system.

    Raises:
        InvalidError: The primary has published no such table, or only the farm was asked and has no sites there.

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
        rows = _of_table(_told_in_farm(founder, circle, site, time), table)
        if table is not None and not rows:
            _table(site_database(founder, circle.site(circle.primary).folder), table)
        return rows

    return _answered(db, ask_site, ask_farm)


def _of_table(rows: Iterable[RejectedRow], table: str | None) -> list[RejectedRow]:
    return [row for row in rows if table is None or is_meant(row.table, table)]


def _answered(db: str | os.PathLike[str], ask_site: Callable[[], _T], ask_farm: Callable[[], _T]) -> _T:
    """Ask a site, or the farm if another process has the site's file open, or `db` is a name or URL."""
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
    """Return the founder's folder, the circle, and the site that is meant; "" for the whole database."""
    founder = founder_of_database(db, farm, storage_options)
    circle, url = read_circle(founder), resolve(db, farm, storage_options=storage_options).url
    is_site = adapters.is_source(db) or url != founder.url
    names = (each.name for each in circle.sites if site_database(founder, each.folder).url == url)
    return founder, circle, next(names, "") if is_site else ""


def _told_in_farm(founder: FarmDatabase, circle: Circle, site: str, since: datetime | None) -> list[RejectedRow]:
    """Return what the logs of primaries say that they rejected, by or of a site; of all sites for ""."""
    names = {circle.primary, *(reign.site for reign in circle.reigns)} & {each.name for each in circle.sites}
    found: list[RejectedRow] = []
    for name in sorted(names):
        log = site_database(founder, circle.site(name).folder)
        for number in reversed(log.batch_numbers()):
            batch = log.read_batch(number)[0]
            if since is not None and batch.clock is not None and batch.clock < since:
                break
            found += _told_in(batch, name, circle)
    chosen = (row for row in found if site in ("", row.site, row.source) and (since is None or row.detected >= since))
    return sorted(chosen, key=lambda row: (row.detected, row.source, row.source_tick, row.count))


def _told_in(batch: Batch, site: str, circle: Circle) -> Iterator[RejectedRow]:
    for transaction in batch.transactions:
        for row in transaction.records:
            if isinstance(row, RowRejected) and transaction.committed is not None:
                source = author_of(circle, row.history) or row.history
                yield RejectedRow(
                    *(site, source, row.tick, row.count, row.table, row.key, row.op_type, row.cause, row.pg_type),
                    *(row.old, row.new, row.local, row.history, row.tick, transaction.committed, row.dependent),
                )


def _refuse_unknown(source: Source, database: FarmDatabase, table: str) -> None:
    """Refuse the name of a table of which nothing was rejected because there is none."""
    site = source.require_state().site
    # The farm is not needed to say that nothing was rejected.
    with suppress(UnavailableError):
        founder = founder_of(database, site) if site is not None else database
        if site is not None and (circle := site.circle or find_circle(founder)) is not None:
            _table(site_database(founder, circle.site(circle.primary).folder), table)


def resubmit(
    source: str | os.PathLike[str], exception: str, *, storage_options: Mapping[str, Any] | None = None
) -> int:
    """Write a rejected row again, or all rejected rows of a transaction, as a new transaction of this site.

    Of an updated row the columns are written that the rejected transaction changed.

    Args:
        source: Path of the site's database.
        exception: `site:tick:count` for a row, as `RejectedRow.id` names it, or `site:tick` for a transaction.
        storage_options: Options of the farm's file system.

    Returns:
        How many rows were written.

    Raises:
        InvalidError: Nothing such was rejected, it was written again before, or the rows that are there now are not
            those that were there then. Write what they should be now.

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
    """Return the counters of what a site rejected, ordered by site, rule and name.

    Args:
        db: Path of the site's database. If another process has it open, and for a name or URL, the farm answers, as of
            the site's last take; a name means the primary.
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
        # The reader of the farm checks that these are texts and numbers.
        split = [(name.split(" "), value) for name, value in sorted(counted.items()) if name.count(" ") == 2]
        return [ConflictCounter(*(site, rule, name), value) for (site, rule, name), value in split]

    return _answered(db, ask_site, ask_farm)

"""Change the filters of a replica of chosen rows: rebuild only tables whose filter differs, in one transaction."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wlc.dialect.duckdb import fold
from wlc.farm.clock import utc_now
from wlc.farm.database import describe_file
from wlc.farm.errors import InvalidError, UnavailableError
from wlc.farm.model import TableFile, Transaction
from wlc.farm.schema_fold import created_table
from wlr.replay import log_reader
from wlr.replay.filters import schema
from wlr.replay.filters.images import chosen_images, key_of, masking, refuse_unfit, write_images
from wlr.replay.moved_tables import read_entering
from wlr.replay.plan.failure import StepError
from wlr.replay.plan.patterns import exactly
from wlr.replay.plan.row_filters import RowFilters
from wlr.replay.plan.step import LOCAL, Fold, Mark, Read, Step, TableChange

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from wlr.engine.replica_state import ReplicaState
    from wlr.replay.plan.row_filters import TableFilter
    from wlr.replay.plan.step import Action
    from wlr.replay.run import Replay


def with_changed(known: RowFilters, asked: RowFilters) -> RowFilters:
    """Replace the filters of the tables that new filters name, and keep all others."""
    named = {each.table.folded for each in asked.tables}
    tables = (*(each for each in known.tables if each.table.folded not in named), *asked.tables)
    key_file, key_mark = (asked.key_file, asked.key_mark) if asked.key_mark else (known.key_file, known.key_mark)
    return RowFilters(tables, key_file, key_mark)


def refilter(replay: Replay, state: ReplicaState, asked: RowFilters) -> ReplicaState:
    """Apply new filters, and return the replica's new state.

    Args:
        replay: A replication into the replica.
        state: The replica's state.
        asked: New filters, each of which replaces the filter of its table.

    Raises:
        InvalidError: A filter does not fit, or the replica cannot take it. Nothing was changed.
        ExpiredError: The farm no longer has the rows of the replica's tick.
    """
    into, wanted = replay.into, with_changed(state.filters, asked)
    known = replace(state.filters, key_mark="")
    differing = [each for each in asked.tables if not RowFilters((each,)).is_same(known.only((each.table,)))]
    place = shlex.quote(str(into))
    if not state.filters:
        hint = "Make another replica with these filters."
        raise InvalidError(f"{into} was made of whole tables", hint=hint, path=str(into))
    if state.swaps:
        hint = f"wlr replicate --into {place} --no-swap, then change the filters, then --swap again"
        raise InvalidError(f"the second file of {into} has rows of the former filters", hint=hint, path=str(into))
    if not differing:
        return state
    with tempfile.TemporaryDirectory(prefix="wlr-filter-") as folder:
        work, local = Path(folder), dict[str, Path]()
        with masking(key_of(wanted), work) as connection:
            made = [_rebuilt(replay, state, each, connection, work, local) for each in differing]
        step = _step(state, [action for _, actions in made for action in actions], wanted, [each for each, _ in made])
        with into.open([*log_reader.local_folders(replay.database), work]) as replica:
            if replica.state.position != state.position:
                raise UnavailableError(f"another process rolled {into} forward", hint="try again", path=str(into))
            chosen = {each.table.folded for each, _ in made}
            for child, parents in replica.parents.items():
                referred = next((p for p in parents if p.folded in chosen and state.filters.of(p) is None), None)
                if referred and child.folded not in chosen and wanted.of(child) is None:
                    raise InvalidError(
                        f"table {child} has a foreign key to {referred}, which would be replicated in part",
                        hint=f"Leave out its foreign keys: --where '{child}: true'",
                    )
            try:
                replica.apply(step, lambda file: local[file.file.path])
            except StepError as error:
                raise InvalidError(
                    f"{into} cannot get these filters: {error.cause}",
                    hint=error.remedy or "Make another replica with them.",
                    path=str(into),
                ) from error
            return replica.state


def _step(state: ReplicaState, actions: list[Action], wanted: RowFilters, called: list[TableFilter]) -> Step:
    """Return a step that applies the filters and keeps the position."""
    position, now = state.position, state.clock or utc_now()
    names = {each.table.folded: each for each in called}
    tables = tuple(names.get(each.table.folded, each) for each in wanted.tables)
    return Step(
        (Transaction(position.tick, "wlr", now, now),),
        {},
        (Mark(position.tick, position.history, position.batch, position.chain, state.batch_last),),
        state.catalog,
        given=tuple(actions),
        filters=replace(wanted, tables=tables),
    )


def _rebuilt(
    replay: Replay,
    state: ReplicaState,
    chosen: TableFilter,
    connection: duckdb.DuckDBPyConnection,
    work: Path,
    local: dict[str, Path],
) -> tuple[TableFilter, list[Action]]:
    """Return a filter with the full name of its table, and the actions that rebuild the table at the replica's tick."""
    tick, number = state.position.tick, len(list(work.iterdir()))
    scratch = replay.scratch(work / f"whole {number}.duckdb", tick, (exactly(chosen.table),))
    with scratch.scanned(work) as scan:
        entering = read_entering(scan, chosen.table, tick, work / f"whole {number}.parquet")
    statement = next((ddl for ddl in entering.schema if created_table(ddl)), None) if entering else None
    if entering is None or statement is None or statement.layout is None:
        message = f"at tick {tick} there is no table {chosen.table} to choose rows or columns of"
        raise InvalidError(message, hint="Name a table that the replica has.")
    chosen = replace(chosen, table=statement.object)
    refuse_unfit(connection, chosen, statement.layout)
    actions: list[Action] = [schema.created(chosen.table, chosen.projected(statement.layout), replaces=True)]
    actions += _rows(chosen, entering.file, connection, entering.local, work / f"chosen {number}.parquet", tick, local)
    return chosen, actions


def _rows(
    chosen: TableFilter,
    whole: TableFile | None,
    connection: duckdb.DuckDBPyConnection,
    source: Path,
    into: Path,
    tick: int,
    local: dict[str, Path],
) -> Iterator[Fold]:
    if whole is None:
        return
    images = chosen_images(connection, chosen, whole.layout, fold.rows_sql(whole.layout, [str(source)]))
    added, _ = write_images(connection, images, into, tick)
    if not added:
        return
    path = f"{LOCAL}filtered/{into.name}"
    local[path] = into
    file = TableFile(describe_file(into, path, added), chosen.table, images.layout)
    yield Fold((TableChange(chosen.table, (Read(file, tick, tick),), added, 0),))

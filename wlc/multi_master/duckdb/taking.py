"""Taking the steps of another site's log in order: whole, in halves, or together with later ones.

Rows that a user's open transaction has deleted cannot be deleted before it ends: a step is taken in halves up to the
first transaction that changes such a row.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import duckdb

from wlc.capture.duckdb import taken_tables
from wlc.capture.duckdb.shared import explained
from wlc.farm.errors import CorruptError, ReplayError, UnavailableError, UnsupportedError
from wlc.farm.group_sizes import group_sizes
from wlc.farm.model import Change, RowsRefreshed
from wlc.farm.vectors import raised
from wlc.multi_master.duckdb import eviction, judging, parking, take_step
from wlc.multi_master.duckdb.conflict_window import KeptWindow
from wlc.multi_master.duckdb.take_step import Taking
from wlc.multi_master.site_step import SiteStep, TakenCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from wlc.capture.duckdb.shared import Shared
    from wlc.farm.model import TableFile
    from wlc.masters.master_state import MasterState


# Maximum number of transactions, and of row images, that are taken together with one that does not fit alone.
_FOLLOWING, _FOLLOWING_ROWS = 1_000, 100_000


class _MisfitError(Exception):
    """A transaction violates a constraint, and may fit together with later ones.

    Attributes:
        left: The transaction and the rest of the step.
        error: The error to report if no transaction follows.
    """

    def __init__(self, left: SiteStep, error: ReplayError) -> None:
        self.left = left
        self.error = error


def take(shared: Shared, steps: Iterable[SiteStep], fetch: Callable[[TableFile], Path]) -> TakenCount:
    """Take steps; see `wlc.masters.contract.SiteSource.take`."""
    with explained(shared.path, "could not take"), shared.root.cursor() as connection:
        its = Taking(shared, connection, fetch, KeptWindow())
        misfit: _MisfitError | None = None
        for step in steps:
            if misfit is not None and not _may_follow(misfit.left, step):
                raise misfit.error
            try:
                _take(its, step, misfit)
            except _MisfitError as error:
                misfit = error
            else:
                misfit = None
        if misfit is not None:
            raise misfit.error
    return TakenCount(its.transactions, its.rows)


def _may_follow(left: SiteStep, step: SiteStep) -> bool:
    return left.can_join(step) and len(left.transactions) < _FOLLOWING and left.rows < _FOLLOWING_ROWS


def _take(its: Taking, step: SiteStep, misfit: _MisfitError | None) -> None:
    shared = its.shared
    if not step.transactions and misfit is None:
        shared.remember(take_step.remembered(shared, step))
        return
    steps = (step,) if misfit is None else (misfit.left, step)
    with shared.publish_lock:
        for each in steps:
            _refuse_taken(shared, each)
        if shared.is_in_mesh and step.transactions:
            shared.witness(max(time for each in step.transactions if (time := each.origin.committed)))
        _take_in_turn(its, steps, misfit)


def _refuse_taken(shared: Shared, step: SiteStep) -> None:
    """Refuse a step that another round has partly taken meanwhile: each transaction is taken once.

    Raises:
        UnavailableError: Another round has taken some.
    """
    site = shared.require_state().member
    if any(each.origin.tick <= site.contained.get(each.origin.history, 0) for each in step.transactions):
        raise UnavailableError(
            f"{shared.path} is taking from site {step.site} already", hint="try again when that has ended"
        )


def _take_in_turn(its: Taking, steps: Sequence[SiteStep], misfit: _MisfitError | None = None) -> None:
    """Take steps in order; join a step that does not fit with as many later ones as it needs.

    A primary's transactions from before its term may not fit at other sites, which contain the rows that won: the
    primary sets them back in a later transaction.

    Args:
        its: The round.
        steps: Steps that can be joined.
        misfit: The error of the first step alone, if it does not fit.

    Raises:
        _MisfitError: The rest does not fit.
    """
    left = list(steps)
    while left:
        if misfit is None:
            try:
                _take_or_halve(its, left[0])
            except _MisfitError as error:
                misfit, left[0] = error, error.left
            else:
                del left[0]
                continue
        if len(left) == 1:
            raise misfit
        rest = _take_together(its, misfit, SiteStep.joined(left[1:]))
        left, misfit = [rest] if rest.transactions else [], None


def _take_together(its: Taking, misfit: _MisfitError, following: SiteStep) -> SiteStep:
    """Take a transaction that does not fit alone with as many later ones as it needs; return the remaining ones.

    Raises:
        _MisfitError: It does not fit with any number of them.
    """
    # A step that only moves the position is taken with the misfit before it.
    for count in group_sizes(max(min(len(following.transactions), _FOLLOWING), 1)):
        more, rest = _cut(following, count, misfit.left, its.shared.require_state())
        with suppress(_MisfitError):
            _take_fitting(its, SiteStep.joined([misfit.left, more if rest.transactions else following]))
            return rest
    raise _MisfitError(SiteStep.joined([misfit.left, following]), misfit.error)


def _cut(step: SiteStep, count: int, before: SiteStep, state: MasterState) -> tuple[SiteStep, SiteStep]:
    """Cut a step after its first transactions."""
    first, second = step.transactions[:count], step.transactions[count:]
    contained = raised(state.member.contained, (each.origin for each in (*before.transactions, *first)))
    rest = tuple(replace(each, line=line) for line, each in enumerate(second, start=1))
    return (
        replace(step, transactions=first, contained=contained, proof=None, parts=()),
        replace(step, transactions=rest, parts=()),
    )


def _take_or_halve(its: Taking, step: SiteStep) -> None:
    """Take a step, in halves if it violates a constraint as a whole or conflicts with a user's open transaction.

    If a batch cannot be taken, the batches before it are.

    Raises:
        UnavailableError: A user's open transaction has changed rows of the first transaction that is not taken.
        _MisfitError: A transaction does not fit, nor with those behind it.
    """
    if len(step.transactions) == 1:
        _take_fitting(its, step)
        return
    if step.parts and _is_constrained_between(its, step):
        _take_in_turn(its, step.parts)
        return
    try:
        take_step.take_beside_users(its, step)
    except (duckdb.TransactionException, duckdb.ConstraintException):
        pass
    except (CorruptError, UnsupportedError):
        if not step.parts:
            raise
    else:
        return
    _take_in_turn(its, _halves(step, its.shared.require_state()))


def _take_fitting(its: Taking, step: SiteStep) -> None:
    """Take a step of one transaction, or of several that fit only together.

    The primary rejects a transaction that violates a constraint, and a secondary evicts its own rows for it.

    Raises:
        UnavailableError: A user's open transaction has changed its rows.
        _MisfitError: It violates a constraint, and neither resolves that.
    """

    def attempt() -> None:
        if step.is_alone:
            take_step.take_beside_users(its, step)
        else:
            parking.with_parked(its.shared, lambda: take_step.take_beside_users(its, step))

    try:
        try:
            attempt()
            return
        except duckdb.ConstraintException:
            # In a mesh, a site that resolved the conflict alone would diverge from the others.
            if its.shared.is_in_mesh or not (step.is_primary or len(step.transactions) == 1):
                raise
        if not step.is_primary:
            take_step.take_beside_users(its, step, is_refused=True)
            return
        # An eviction may cause further conflicts.
        while eviction.evict(its.shared, step, its.fetch):
            with suppress(duckdb.ConstraintException):
                attempt()
                return
        attempt()
    except duckdb.TransactionException as error:
        raise UnavailableError(
            f"an open transaction of {its.shared.path} has changed rows that {_shown(step)} changes",
            hint="commit it or roll it back, then take again",
            path=its.shared.path,
        ) from error
    except duckdb.ConstraintException as error:
        report = ReplayError(
            f"{_shown(step)} does not fit this database: {str(error).splitlines()[0]}",
            hint=judging.how_to_fit(its.shared, step, str(error)),
        )
        report.__cause__ = error
        raise _MisfitError(step, report) from error


def _is_constrained_between(its: Taking, step: SiteStep) -> bool:
    """Say whether a single batch of a step, judged alone, could violate a constraint that the whole step satisfies."""
    records = (record for each in step.transactions for record in each.transaction.records)
    changed = {record.table for record in records if isinstance(record, Change | RowsRefreshed)}
    return not changed.isdisjoint(taken_tables.constrained(its.connection, its.shared.catalog))


def _shown(step: SiteStep) -> str:
    origin = step.transactions[0].origin
    return f"tick {origin.tick} of history {origin.history}, which site {step.site} published,"


def _halves(step: SiteStep, state: MasterState) -> tuple[SiteStep, SiteStep]:
    if step.parts:
        middle = len(step.parts) // 2
        return SiteStep.joined(step.parts[:middle]), SiteStep.joined(step.parts[middle:])
    return _cut(step, len(step.transactions) // 2, replace(step, transactions=()), state)

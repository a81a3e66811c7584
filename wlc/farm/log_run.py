"""The line `run` of a log file: consecutive plain transactions as columns of numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time
from wlc.farm.json_fields import TICK_MAX, FieldError
from wlc.farm.log_columns import EPOCH, PlainRun, columns_of, microseconds
from wlc.farm.model import Change
from wlc.farm.names import as_name, name_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wlc.farm.model import Transaction

    Numbers = NDArray[Any]

T = TypeVar("T")
_FIRST_TIME = microseconds(datetime(1, 1, 1, tzinfo=UTC))
_LAST_TIME = microseconds(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
_LONGEST = _LAST_TIME - _FIRST_TIME
# Rows of one change. Sums over all changes of a run stay below 2^63.
_MOST_ROWS = 10**10
_KEYS = "transactions tick ticks started starts lasted users user changes files file added removed"


def is_plain(transaction: Transaction) -> bool:
    """Say whether a transaction can be in a run: it is committed, was first committed here, and only changes rows."""
    return (
        transaction.committed is not None
        and transaction.origin is None
        and transaction.after is None
        and all(type(r) is Change and max(r.added, r.removed) < _MOST_ROWS for r in transaction.records)
    )


def is_short(run: PlainRun) -> bool:
    """Say whether every change of a run has few enough rows for its line."""
    _, added, removed = run.changes
    return not len(added) or max(int(added.max()), int(removed.max())) < _MOST_ROWS


def run_json(transactions: Sequence[Transaction]) -> dict[str, Any]:
    """Return the fields of the line for one or more plain transactions."""
    import numpy as np

    run = columns_of(transactions)
    user, users = _renumbered(run.users, run.names)
    of_file, added, removed = run.changes
    file, targets = _renumbered(of_file, run.targets)
    before = int(run.ticks[0]) - 1
    content = {
        "transactions": len(run),
        "tick": before,
        "ticks": _shortened(np.diff(run.ticks, prepend=before)),
        "started": format_time(EPOCH + timedelta(microseconds=int(run.started[0]))),
        "starts": np.diff(run.started, prepend=run.started[:1]).tolist(),
        "lasted": _shortened(run.committed - run.started),
        "users": users,
        "user": _shortened(user),
        "changes": _shortened(np.diff(run.ends)),
        "files": [{"table": name_json(table), "path": path} for table, path in targets],
        "file": _shortened(file),
        "added": added.tolist(),
        "removed": _shortened(removed),
    }
    return content if run.xids.max() < 0 else {**content, "xids": _shortened(run.xids)}


def _renumbered(column: Numbers, names: Sequence[T]) -> tuple[Numbers, list[T]]:
    """Number names in the order in which a column has them first, and leave out those that it has nowhere."""
    import numpy as np

    used, first, places = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    return numbers[places], [names[place] for place in used[order].tolist()]


def _shortened(column: Numbers) -> list[int] | int:
    """Write one number in place of a column that holds it everywhere."""
    if len(column) and (column == column[0]).all():
        return int(column[0])
    shown: list[int] = column.tolist()
    return shown


def as_run(content: Mapping[str, Any]) -> PlainRun:
    """Return the transactions of the line."""
    import numpy as np

    fields.known(content, _KEYS, "xids info")
    count = fields.as_tick(content["transactions"])
    # Columns that have to be written out come first: they bound the memory that all others take.
    starts = _listed(content["starts"], count, -_LONGEST, _LONGEST)
    users = tuple(map(fields.as_text, fields.as_list(content["users"])))
    targets = tuple(map(_target, fields.as_list(content["files"])))
    if len(set(targets)) < len(targets):
        raise FieldError("a file of the run is there twice")
    ends = np.concatenate([[0], np.cumsum(_column(content["changes"], count, 0, len(targets)))])
    changes = int(ends[-1])
    added = _listed(content["added"], changes, 0, _MOST_ROWS - 1)
    ticks = fields.as_tick(content["tick"], 0) + np.cumsum(_column(content["ticks"], count, 1, TICK_MAX))
    started = microseconds(fields.as_time(content["started"])) + np.cumsum(starts)
    committed = started + _column(content["lasted"], count, -_LONGEST, _LONGEST)
    _check_range(ticks, 1, TICK_MAX, "tick")
    for times in (started, committed):
        _check_range(times, _FIRST_TIME, _LAST_TIME, "time in microseconds since 1970")
    run = PlainRun(
        ticks=ticks,
        users=_column(content["user"], count, 0, len(users) - 1),
        started=started,
        committed=committed,
        xids=_column(content.get("xids", -1), count, -1, 2**63 - 1),
        ends=ends,
        files=_column(content["file"], changes, 0, len(targets) - 1),
        added=added,
        removed=_column(content["removed"], changes, 0, _MOST_ROWS - 1),
        names=users,
        targets=targets,
    )
    _refuse_file_twice(run)
    return run


def _target(value: object) -> tuple[Any, str]:
    content = fields.as_object(value)
    fields.known(content, "table path")
    return as_name(content["table"]), fields.as_text(content["path"])


def _column(value: object, count: int, least: int, most: int) -> Numbers:
    """Return a column, of which one number may stand for all."""
    import numpy as np

    if type(value) is not int:
        return _listed(value, count, least, most)
    if not least <= value <= most:
        raise FieldError(f"{value} is not a number from {least} to {most}")
    return np.full(count, value, np.int64)


def _listed(value: object, count: int, least: int, most: int) -> Numbers:
    import numpy as np

    listed = fields.as_list(value)
    if len(listed) != count:
        raise FieldError(f"a column of the run has {len(listed)} values instead of {count}")
    if not {int}.issuperset(map(type, listed)):
        raise FieldError("a column of the run has a value that is not an integer")
    try:
        column = np.array(listed, np.int64)
    except OverflowError as error:
        raise FieldError("a column of the run has a number above 2^63") from error
    _check_range(column, least, most, "number")
    return column


def _check_range(column: Numbers, least: int, most: int, what: str) -> None:
    if len(column) and not (least <= (low := int(column.min())) and (high := int(column.max())) <= most):
        raise FieldError(f"{low if low < least else high} is not a {what} from {least} to {most}")


def _refuse_file_twice(run: PlainRun) -> None:
    """Refuse a transaction with two changes in one data file."""
    import numpy as np

    counts = np.diff(run.ends)
    if len(counts) == 0 or counts.max() < 2:
        return
    changed = np.repeat(np.arange(len(run)), counts) * len(run.targets) + run.files
    order = np.sort(changed)
    if (again := order[1:][order[1:] == order[:-1]]).size:
        place, file = divmod(int(again[0]), len(run.targets))
        table, path = run.targets[file]
        raise FieldError(f"transaction {run.ticks[place]} cannot have a change of {table} in {path!r} twice")

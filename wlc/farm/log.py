"""Log files: a batch as JSON lines that a DBA can read with `less`, closed by a checksum.

Pause Python's garbage collector while many long-lived objects are created.

The line `run` of a log file: consecutive plain transactions as columns of numbers.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time
from wlc.farm.errors import CorruptError, FarmError, InvalidError
from wlc.farm.json_fields import (
    TICK_MAX,
    DatabaseName,
    FieldError,
    FormatVersion,
    History,
    JsonForm,
    Lsn,
    Omitted,
    Sha256OrEmpty,
    Tick,
    TickFrom0,
    Ticks,
)
from wlc.farm.json_records import record_of
from wlc.farm.log_columns import EPOCH, MOST_ROWS, Columns, Transactions, microseconds
from wlc.farm.model import (
    FORMAT_VERSION,
    Batch,
    Change,
    Clear,
    Ddl,
    Digest,
    Handover,
    Name,
    Origin,
    Parent,
    Record,
    RowRejected,
    RowsRead,
    RowsRefreshed,
    SequencePosition,
    TableFile,
    Taken,
    Transaction,
)
from wlc.farm.names import as_digests_or_none, as_name, digests_json, name_json
from wlc.farm.paths import check_database_name, log_path, parse_data_path
from wlc.farm.seal.checksum import CHECKSUM_LINE_BYTES, LINES_END, checksum_problem, with_checksum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[Any]


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collector: it would traverse a hundred thousand objects repeatedly, a third of the time."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


T = TypeVar("T")
_FIRST_TIME = microseconds(datetime(1, 1, 1, tzinfo=UTC))
_LAST_TIME = microseconds(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
_LONGEST = _LAST_TIME - _FIRST_TIME
_KEYS = "transactions tick ticks started starts lasted users user changes files file added removed"


def run_json(transactions: Sequence[Transaction]) -> dict[str, Any]:
    """Return the fields of a `run` line for one or more plain transactions."""
    import numpy as np

    run = Transactions.of(transactions).columns()
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
    """Number names in the order of their first use in a column, and leave out unused names."""
    import numpy as np

    used, first, places = np.unique(column, return_index=True, return_inverse=True)
    order = np.argsort(first)
    numbers = np.empty_like(order)
    numbers[order] = np.arange(len(order))
    return numbers[places], [names[place] for place in used[order].tolist()]


def _shortened(column: Numbers) -> list[int] | int:
    """Write a single number for a column in which all values are equal."""
    if len(column) and (column == column[0]).all():
        return int(column[0])
    shown: list[int] = column.tolist()
    return shown


def as_run(content: Mapping[str, Any]) -> Transactions:
    """Return the transactions of the line."""
    import numpy as np

    fields.known(content, _KEYS, "xids info")
    count = fields.as_tick(content["transactions"])
    # Columns that are always written in full come first: their length bounds the memory of all others.
    starts = _listed(content["starts"], count, -_LONGEST, _LONGEST)
    users = tuple(map(fields.as_text, fields.as_list(content["users"])))
    targets = tuple(map(_target, fields.as_list(content["files"])))
    if len(set(targets)) < len(targets):
        raise FieldError("a file of the run is there twice")
    ends = np.concatenate([[0], np.cumsum(_column(content["changes"], count, 0, len(targets)))])
    changes = int(ends[-1])
    added = _listed(content["added"], changes, 0, MOST_ROWS - 1)
    ticks = fields.as_tick(content["tick"], 0) + np.cumsum(_column(content["ticks"], count, 1, TICK_MAX))
    started = microseconds(fields.as_time(content["started"])) + np.cumsum(starts)
    committed = started + _column(content["lasted"], count, -_LONGEST, _LONGEST)
    _check_range(ticks, 1, TICK_MAX, "tick")
    for times in (started, committed):
        _check_range(times, _FIRST_TIME, _LAST_TIME, "time in microseconds since 1970")
    run = Columns(
        ticks=ticks,
        users=_column(content["user"], count, 0, len(users) - 1),
        started=started,
        committed=committed,
        xids=_column(content.get("xids", -1), count, -1, 2**63 - 1),
        ends=ends,
        files=_column(content["file"], changes, 0, len(targets) - 1),
        added=added,
        removed=_column(content["removed"], changes, 0, MOST_ROWS - 1),
        names=users,
        targets=targets,
    )
    _refuse_file_twice(run)
    return Transactions(run)


def _target(value: object) -> tuple[Any, str]:
    content = fields.as_object(value)
    fields.known(content, "table path")
    return as_name(content["table"]), fields.as_text(content["path"])


def _column(value: object, count: int, least: int, most: int) -> Numbers:
    """Return a column; a single number stands for equal values."""
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


def _refuse_file_twice(run: Columns) -> None:
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


# A tuple is tested several times as fast as a union of types.
_IN_FILES = (Change, RowsRead, RowsRefreshed)
# Columns of fewer transactions take longer than their lines.
_RUN_LEAST = 8
# The line of the signature, before the checksum.
SIGNATURE_START = b'{"signature":'


# Tables with a known digest, and tables without.
DigestsOrNone = Annotated[
    tuple[Mapping[Name, Digest], frozenset[Name]], JsonForm(as_digests_or_none, lambda both: digests_json(*both))
]


@dataclass(frozen=True, slots=True)
class _Header:
    """The first line."""

    may_have_info: ClassVar = True
    format: FormatVersion
    database: DatabaseName
    number: Tick
    history: History
    first: Tick
    last: Tick
    previous: Sha256OrEmpty
    catalog: str
    parent: Parent | None
    term: Omitted[Tick | None] = None
    continues: Omitted[bool] = False


@dataclass(frozen=True, slots=True)
class _End:
    """The last line; `transactions` is their number, and `digests` also lists tables with unknown digests."""

    may_have_info: ClassVar = True
    transactions: int
    files: tuple[TableFile, ...]
    vector: Ticks
    digests: DigestsOrNone
    lsn: Omitted[Lsn | None] = None
    own: Omitted[TickFrom0 | None] = None
    handover: Omitted[Handover | None] = None
    taken: Omitted[tuple[Taken, ...]] = ()


def _values(record: _Header | _End) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def encode_batch(batch: Batch, *, runs_from: int = 1_000) -> bytes:
    """Write a batch as the bytes of its log file.

    Args:
        batch: The batch.
        runs_from: From this number of transactions on, plain ones are written as columns, which people cannot read
            easily.

    Raises:
        InvalidError: The batch is inconsistent, so that every reader would refuse it.
    """
    try:
        if problem := _problem(batch):
            raise InvalidError(f"batch {batch.number} of {batch.database} cannot be published: {problem}")
        lines = [_line("batch", record_of(_Header).write(batch))]
        listed = Transactions.of(batch.transactions)
        for are_plain, group in listed.groups() if len(listed) >= runs_from else [(False, listed)]:
            is_run = are_plain and len(group) >= _RUN_LEAST
            lines.extend([_line("run", run_json(group))] if is_run else _lines_of(group))
        lines.append(_line("end", record_of(_End).write(_end(batch))))
        body = ("\n".join(lines) + "\n").encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"batch {batch.number} holds text that is not Unicode: {error}") from error
    return with_checksum(body, LINES_END)


def decode_batch(data: bytes, path: str) -> Batch:
    """Read and check a log file.

    Args:
        data: The file's bytes.
        path: Where it is, for messages.

    Raises:
        CorruptError: It is damaged, truncated or of an unknown version; nothing of it may be applied.
    """
    reader = _Reader(path, _unsealed(data, path))
    try:
        with uncollected():
            batch = reader.batch()
            problem = _problem(batch)
    except KeyError as error:
        raise reader.corrupt(f"no {error.args[0]!r}") from error
    except (ValueError, RecursionError) as error:
        raise reader.corrupt(str(error)) from error
    except CorruptError as error:
        raise reader.corrupt(error.message) from error
    if problem:
        raise CorruptError(f"{path}: {problem}", path=path)
    return batch


def _unsealed(data: bytes, path: str) -> bytes:
    """Verify the checksum, and return the lines above it."""
    if problem := checksum_problem(data, LINES_END):
        raise CorruptError(f"{path}: {problem}", path=path)
    body = data[: -len(LINES_END) - CHECKSUM_LINE_BYTES]
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"{path}: it is not UTF-8", path=path) from error
    last = body.rfind(b"\n", 0, len(body) - 1) + 1
    # Readers that have keys have verified the signature already; see `wlc.farm.seal.signatures`.
    return body[:last] if body.startswith(SIGNATURE_START, last) else body


def _line(kind: str, value: object) -> str:
    return f'{{"{kind}":{json.dumps(value, ensure_ascii=False, separators=(",", ":"))}}}'


def _end(batch: Batch) -> _End:
    digests = batch.digests, batch.undigested
    proofs = batch.lsn, batch.own, batch.handover, batch.taken
    return _End(len(batch.transactions), batch.files, batch.vector, digests, *proofs)


def _lines_of(transactions: Iterable[Transaction]) -> Iterator[str]:
    for transaction in transactions:
        yield from _transaction_lines(transaction)


def _transaction_lines(transaction: Transaction) -> Iterator[str]:
    origin = "null"
    started = committed = format_time(transaction.started)
    if transaction.committed is not None and transaction.committed is not transaction.started:
        committed = format_time(transaction.committed)
    if transaction.origin is not None:
        origin = json.dumps(record_of(Origin).write(transaction.origin), separators=(",", ":"))
    more = "" if transaction.xid is None else f',"xid":{transaction.xid}'
    if transaction.after is not None:
        more += f',"after":{transaction.after}'
    yield (
        f'{{"begin":{{"tick":{transaction.tick},"user":{encode_basestring(transaction.user)},'
        f'"started":"{started}","origin":{origin}{more}}}}}'
    )
    for record in transaction.records:
        yield _record_line(record)
    if transaction.committed is None:
        yield f'{{"rollback":{{"tick":{transaction.tick}}}}}'
    else:
        yield f'{{"commit":{{"tick":{transaction.tick},"committed":"{committed}"}}}}'


def _record_line(record: Record) -> str:
    if isinstance(record, Change):
        name = f"[{encode_basestring(record.table.schema)},{encode_basestring(record.table.name)}]"
        counts = f'"added":{record.added},"removed":{record.removed}'
        return f'{{"change":{{"table":{name},"path":"{record.path}",{counts}}}}}'
    return _line(_KINDS[type(record)], record_of(type(record)).write(record))


class _Reader:
    """Walks through the lines of one log file and keeps the line number for messages."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data
        self.line = 0
        self.at = 0

    def corrupt(self, problem: str) -> CorruptError:
        return CorruptError(f"{self.path}, line {self.line}: {problem}", path=self.path)

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next line's kind and fields."""
        self.line += 1
        if self.at == len(self.data):
            raise FieldError("the file ends too early")
        end = self.data.index(b"\n", self.at)
        line = self.data[self.at : end].decode()
        self.at = end + 1
        value, end = fields.DECODER.raw_decode(line)
        if end != len(line) or type(value) is not dict or len(value) != 1:
            raise FieldError("not a JSON object with one key")
        fields.refuse_half_characters(value, line)
        ((kind, content),) = value.items()
        if type(content) is not dict:
            raise FieldError(f"the content of {kind!r} is not an object")
        return kind, content

    def batch(self) -> Batch:
        kind, header = self.next()
        if kind != "batch":
            raise FieldError("not the header of a log file")
        begun: _Header = record_of(_Header).read(header)
        parts: list[Iterable[Transaction]] = []
        kind, content = self.next()
        while kind in ("begin", "run"):
            parts.append(as_run(content) if kind == "run" else (self.transaction(content),))
            kind, content = self.next()
        transactions = Transactions(*parts)
        if kind != "end":
            raise FieldError(f"{kind!r} where a transaction or the end was expected")
        end: _End = record_of(_End).read(content)
        if end.transactions != len(transactions) or self.at != len(self.data):
            raise FieldError("the number of transactions or lines is wrong")
        digests, undigested = end.digests
        both = _values(begun) | _values(end)
        return Batch(**(both | {"transactions": transactions, "digests": digests, "undigested": undigested}))

    def transaction(self, begin: dict[str, Any]) -> Transaction:
        tick = fields.as_tick(begin["tick"])
        fields.known(begin, "tick user started origin", "xid after info")
        records = []
        kind, content = self.next()
        while kind in _RECORDS:
            records.append(record_of(_RECORDS[kind]).read(content))
            kind, content = self.next()
        if kind not in ("commit", "rollback") or content["tick"] != tick:
            raise FieldError(f"{kind!r} where a record, commit or rollback of transaction {tick} was expected")
        fields.known(content, "tick committed" if kind == "commit" else "tick", "info")
        return Transaction(
            tick,
            fields.as_text(begin["user"]),
            fields.as_time(begin["started"]),
            fields.as_time(content["committed"]) if kind == "commit" else None,
            tuple(records),
            None if begin["origin"] is None else record_of(Origin).read(begin["origin"]),
            None if begin.get("xid") is None else fields.as_count(begin["xid"]),
            None if begin.get("after") is None else fields.as_tick(begin["after"], 0),
        )


_RECORDS: dict[str, type[Record]] = {
    "change": Change,
    "ddl": Ddl,
    "clear": Clear,
    "sequence": SequencePosition,
    "read": RowsRead,
    "refresh": RowsRefreshed,
    "rejected": RowRejected,
}
_KINDS = {record: kind for kind, record in _RECORDS.items()}


def _problem(batch: Batch) -> str | None:
    """Say why a batch is inconsistent, None if it is consistent."""
    transactions = Transactions.of(batch.transactions)
    if not transactions:
        return "it holds no transaction"
    if (batch.first, batch.last) != (transactions[0].tick, transactions[-1].tick) or not transactions.is_rising:
        return "its ticks do not rise from the header's first to its last"
    if batch.format != FORMAT_VERSION or batch.vector.get(batch.history) != batch.last:
        return f"format {batch.format} or the vector {dict(batch.vector)} does not fit tick {batch.last}"
    if any(transaction.committed is None and transaction.records for transaction in transactions.objects):
        return "a transaction that was rolled back has records"
    if late := [t.tick for t in transactions.objects if t.after is not None and t.after >= t.tick]:
        return f"transaction {late[0]} began after itself"
    if batch.own is not None and batch.own > batch.last:
        return f"own tick {batch.own} is after the last one"
    if len({taken.site for taken in batch.taken}) != len(batch.taken):
        return "a site was taken from twice"
    if batch.continues and (batch.parent is None or batch.parent.tick >= batch.first):
        return "it continues another history, and does not say at which earlier tick"
    try:
        log_path(check_database_name(batch.database), batch.number)
    except FarmError as error:
        return error.message
    return _files_problem(batch, transactions)


def _files_problem(batch: Batch, transactions: Transactions) -> str | None:
    number_before = -1
    tables: dict[str, Name] = {}
    for file in batch.files:
        parsed = parse_data_path(batch.database, file.file.path)
        if parsed is None or parsed[0] != batch.number or parsed[1] <= number_before:
            return f"{file.file.path!r} is not the next data file of batch {batch.number}"
        number_before = parsed[1]
        tables[file.file.path] = file.table
    rows = dict.fromkeys(tables, 0)
    # Rows of weight 0 are in files of their own, so that readers of changes never read them.
    uses: dict[str, type] = {}
    latest: dict[str, int] = {}
    for tick, _, record in transactions.records():
        if isinstance(record, _IN_FILES):
            if tables.get(record.path) != record.table or latest.get(record.path) == tick:
                return f"transaction {tick} cannot have a change of {record.table} in {record.path!r}"
            if uses.setdefault(record.path, type(record)) is not type(record):
                return f"{record.path} holds rows of two kinds of records"
            latest[record.path] = tick
            rows[record.path] += record.rows
    for file in batch.files:
        if rows[file.file.path] != file.file.rows:
            return f"{file.file.path} has {file.file.rows} rows, its transactions have {rows[file.file.path]}"
    return None


def refuse_other_past(batch: Batch, previous: str, where: str) -> None:
    """Refuse a batch that does not follow the one with the chain hash `previous`.

    Raises:
        CorruptError: It does not.
    """
    if batch.previous != previous:
        message = f"{where} does not follow the batch before it: the hash chain is broken"
        raise CorruptError(
            message, hint="The farm or the replica belongs to another past: make the replica anew.", path=where
        )

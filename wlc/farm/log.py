"""Log files: a batch as JSON lines that a DBA can read with `less`, closed by a checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from json.encoder import encode_basestring
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from wlc.farm import json_fields as fields
from wlc.farm.clock import format_time
from wlc.farm.errors import CorruptError, FarmError, InvalidError
from wlc.farm.gc_pause import uncollected
from wlc.farm.json_fields import (
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
from wlc.farm.log_columns import PlainRun, Total, joined, parts_of
from wlc.farm.log_run import as_run, is_plain, is_short, run_json
from wlc.farm.model import (
    FORMAT_VERSION,
    Batch,
    Change,
    Clear,
    Ddl,
    Digest,
    FileRecord,
    Handover,
    Name,
    Origin,
    Parent,
    Record,
    RowsRead,
    RowsRefreshed,
    SequencePosition,
    TableFile,
    Taken,
    Transaction,
)
from wlc.farm.names import as_digests_or_none, digests_json
from wlc.farm.paths import check_database_name, log_path, parse_data_path
from wlc.farm.seal.checksum import CHECKSUM_LINE_BYTES, LINES_END, checksum_problem, with_checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wlc.farm.log_columns import Part

# A tuple is tested several times as fast as a union of types.
_IN_FILES = (Change, RowsRead, RowsRefreshed)
# Columns of fewer transactions take longer than their lines.
_RUN_LEAST = 8
# The line that can stand before the checksum.
SIGNATURE_START = b'{"signature":'


# Of which tables what they hold is known, and of which it is not.
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


@dataclass(frozen=True, slots=True)
class _End:
    """The last line; `transactions` says how many there are, `digests` of which tables they are unknown, too."""

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
        runs_from: Number of transactions from which on plain ones are written as columns, which nobody reads by eye.

    Raises:
        InvalidError: The batch contradicts itself, so that no reader would take it.
    """
    try:
        if problem := _problem(batch):
            raise InvalidError(f"batch {batch.number} of {batch.database} cannot be published: {problem}")
        lines = [_line("batch", record_of(_Header).write(batch))]
        for group in _groups(batch.transactions, runs_from):
            lines.extend([_line("run", run_json(group))] if len(group) >= _RUN_LEAST else _lines_of(group))
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
    """Check the checksum, and return the lines above it."""
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


def _groups(transactions: Sequence[Transaction], runs_from: int) -> Iterator[Sequence[Transaction]]:
    """Yield plain transactions that follow each other together, and each of the others alone."""
    if len(transactions) < runs_from:
        yield from ((transaction,) for transaction in transactions)
        return
    for are_plain, found in groupby(_sorted_out(transactions), itemgetter(0)):
        groups = [group for _, group in found]
        if not are_plain:
            yield from ((transaction,) for group in groups for transaction in group)
        else:
            yield groups[0] if len(groups) == 1 else tuple(chain.from_iterable(groups))


def _sorted_out(transactions: Sequence[Transaction]) -> Iterator[tuple[bool, Sequence[Transaction]]]:
    """Yield transactions that follow each other, and whether they are plain."""
    for part in parts_of(transactions):
        if isinstance(part, PlainRun) and is_short(part):
            yield True, part
        else:
            yield from ((are_plain, tuple(group)) for are_plain, group in groupby(part, is_plain))


def _lines_of(transactions: Sequence[Transaction]) -> Iterator[str]:
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
    """Walks through the lines of one log file and knows where it is."""

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
        parts: list[Part] = []
        kind, content = self.next()
        while kind in ("begin", "run"):
            parts.append(as_run(content) if kind == "run" else (self.transaction(content),))
            kind, content = self.next()
        transactions = joined(parts)
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
}
_KINDS = {record: kind for kind, record in _RECORDS.items()}


def _problem(batch: Batch) -> str | None:
    """Say how a batch contradicts itself, None if it does not."""
    parts = parts_of(batch.transactions)
    # Within a run they are compared as columns.
    ends = ((part[0], part[-1]) if isinstance(part, PlainRun) and len(part) > 1 else part for part in parts)
    ticks = [transaction.tick for pair in ends for transaction in pair]
    if not ticks:
        return "it holds no transaction"
    if (
        (batch.first, batch.last) != (ticks[0], ticks[-1])
        or any(a >= b for a, b in pairwise(ticks))
        or any(isinstance(part, PlainRun) and not part.is_rising for part in parts)
    ):
        return "its ticks do not rise from the header's first to its last"
    if batch.format != FORMAT_VERSION or batch.vector.get(batch.history) != batch.last:
        return f"format {batch.format} or the vector {dict(batch.vector)} does not fit tick {batch.last}"
    singles = [transaction for part in parts if isinstance(part, tuple) for transaction in part]
    if any(transaction.committed is None and transaction.records for transaction in singles):
        return "a transaction that was rolled back has records"
    if late := [t.tick for t in singles if t.after is not None and t.after >= t.tick]:
        return f"transaction {late[0]} began after itself"
    if batch.own is not None and batch.own > batch.last:
        return f"own tick {batch.own} is after the last one"
    if len({taken.site for taken in batch.taken}) != len(batch.taken):
        return "a site was taken from twice"
    try:
        log_path(check_database_name(batch.database), batch.number)
    except FarmError as error:
        return error.message
    return _files_problem(batch)


def _files_problem(batch: Batch) -> str | None:
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
    for tick, records in (listed for part in parts_of(batch.transactions) for listed in _with_rows(part)):
        paths = set()
        for record in records:
            kind = Change if type(record) is Total else type(record)
            if tables.get(record.path) != record.table or record.path in paths:
                return f"transaction {tick} cannot have a change of {record.table} in {record.path!r}"
            if uses.setdefault(record.path, kind) is not kind:
                return f"{record.path} holds rows of two kinds of records"
            paths.add(record.path)
            rows[record.path] += record.rows
    for file in batch.files:
        if rows[file.file.path] != file.file.rows:
            return f"{file.file.path} has {file.file.rows} rows, its transactions have {rows[file.file.path]}"
    return None


def _with_rows(part: Part) -> Iterator[tuple[int, Sequence[FileRecord | Total]]]:
    """Yield the records that have rows in data files, by tick."""
    if isinstance(part, PlainRun):
        # No transaction of it has two changes in one file.
        yield from ((total.first, (total,)) for total in part.totals())
    else:
        for transaction in part:
            yield transaction.tick, [r for r in transaction.records if isinstance(r, _IN_FILES)]


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

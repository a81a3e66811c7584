"""Log files: a batch as JSON lines that a DBA can read with `less`, closed by a checksum."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import pairwise
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from wlc import fields
from wlc.clock import format_time
from wlc.errors import CorruptError, FarmError, InvalidError
from wlc.fields import FieldError
from wlc.garbage import uncollected
from wlc.model import (
    FORMAT_VERSION,
    Batch,
    Change,
    Clear,
    Ddl,
    Name,
    Record,
    SequencePosition,
    TableFile,
    Transaction,
)
from wlc.paths import check_database_name, log_path, parse_data_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Lines as `_transaction_lines` writes them: no escapes, numbers that need no second look.
_PLAIN = r'[^"\\\x00-\x1f]'
_NUMBER = "(0|[1-9][0-9]{0,17})"
_BEGIN = re.compile(
    rf'\{{"begin":\{{"tick":{_NUMBER},"user":"({_PLAIN}*)","started":"({_PLAIN}*)","origin":null'
    rf'(?:,"xid":{_NUMBER})?\}}\}}'
)
_CHANGE = re.compile(
    rf'\{{"change":\{{"table":\["({_PLAIN}+)","({_PLAIN}+)"\],"path":"({_PLAIN}*)","added":{_NUMBER},"removed":{_NUMBER}\}}\}}'
)
_COMMIT = re.compile(rf'\{{"commit":\{{"tick":{_NUMBER},"committed":"({_PLAIN}*)"\}}\}}')
# The line that may stand before the seal.
SIGNATURE_START = '{"signature":'
_SEAL_START = b'{"sha256":"'
_SEAL_BYTES = len(_SEAL_START) + 64 + len(b'"}\n')


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal, as the chain and the footers hold it."""
    return hashlib.sha256(data).hexdigest()


def encode_batch(batch: Batch) -> bytes:
    """Write a batch as the bytes of its log file.

    Raises:
        InvalidError: The batch contradicts itself, so that no reader would take it.
    """
    try:
        if problem := _problem(batch):
            raise InvalidError(f"batch {batch.number} of {batch.database} cannot be published: {problem}")
        lines = [_line("batch", _header_json(batch))]
        for transaction in batch.transactions:
            lines.extend(_transaction_lines(transaction))
        lines.append(_line("end", _end_json(batch)))
        body = ("\n".join(lines) + "\n").encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"batch {batch.number} holds text that is not Unicode: {error}") from error
    return body + _seal(body)


def decode_batch(data: bytes, path: str) -> Batch:
    """Read and check a log file.

    Args:
        data: The file's bytes.
        path: Where it lies, for messages.

    Raises:
        CorruptError: It is damaged, truncated or of an unknown version; nothing of it may be applied.
    """
    reader = _Reader(path, _sealed_lines(data, path))
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


def seal_problem(data: bytes, last_line_start: bytes) -> str | None:
    """Say what is wrong with the checksum line at the end of a sealed file, None if it is right.

    The last line holds the SHA-256 of all lines above it, so `head -n -1 FILE | sha256sum` checks a file by hand.
    """
    body = data[: -len(last_line_start) - 67]
    seal = data[len(body) :]
    if not (body.endswith(b"\n") and seal.startswith(last_line_start) and seal.endswith(b'"}\n')):
        return "it does not end with its checksum; it is truncated or damaged"
    if digest(body).encode() != seal[-67:-3]:
        return "its checksum does not match its content"
    return None


def _seal(body: bytes) -> bytes:
    return _SEAL_START + digest(body).encode() + b'"}\n'


def _sealed_lines(data: bytes, path: str) -> list[str]:
    if problem := seal_problem(data, _SEAL_START):
        raise CorruptError(f"{path}: {problem}", path=path)
    try:
        lines = data[: -_SEAL_BYTES - 1].decode().split("\n")
        # Who has a key has looked at it; see `wlc.signing`.
        return lines[:-1] if lines[-1].startswith(SIGNATURE_START) else lines
    except UnicodeDecodeError as error:
        raise CorruptError(f"{path}: it is not UTF-8", path=path) from error


def _line(kind: str, value: object) -> str:
    return f'{{"{kind}":{json.dumps(value, ensure_ascii=False, separators=(",", ":"))}}}'


def _header_json(batch: Batch) -> dict[str, Any]:
    return {
        "format": batch.format,
        "database": batch.database,
        "number": batch.number,
        "history": batch.history,
        "first": batch.first,
        "last": batch.last,
        "previous": batch.previous,
        "catalog": batch.catalog,
        "parent": fields.origin_json(batch.parent),
    }


def _end_json(batch: Batch) -> dict[str, Any]:
    files = [
        fields.data_file_json(file.file)
        | {"table": fields.name_json(file.table), "layout": fields.layout_json(file.layout)}
        for file in batch.files
    ]
    content = {
        "transactions": len(batch.transactions),
        "files": files,
        "vector": fields.vector_json(batch.vector),
        "digests": fields.digests_json(batch.digests),
    }
    return content if batch.lsn is None else {**content, "lsn": batch.lsn}


def _transaction_lines(transaction: Transaction) -> Iterator[str]:
    # Written by hand because a batch can hold a hundred thousand of them.
    origin = "null"
    started = committed = format_time(transaction.started)
    if transaction.committed is not None and transaction.committed is not transaction.started:
        committed = format_time(transaction.committed)
    if transaction.origin is not None:
        origin = json.dumps(fields.origin_json(transaction.origin), separators=(",", ":"))
    xid = "" if transaction.xid is None else f',"xid":{transaction.xid}'
    yield (
        f'{{"begin":{{"tick":{transaction.tick},"user":{encode_basestring(transaction.user)},'
        f'"started":"{started}","origin":{origin}{xid}}}}}'
    )
    for record in transaction.records:
        yield _record_line(record)
    if transaction.committed is None:
        yield f'{{"rollback":{{"tick":{transaction.tick}}}}}'
    else:
        yield f'{{"commit":{{"tick":{transaction.tick},"committed":"{committed}"}}}}'


def _record_line(record: Record) -> str:
    match record:
        case Change(table, path, added, removed):
            name = f"[{encode_basestring(table.schema)},{encode_basestring(table.name)}]"
            return f'{{"change":{{"table":{name},"path":"{path}","added":{added},"removed":{removed}}}}}'
        case Ddl():
            return _line("ddl", fields.ddl_json(record))
        case Clear(table, removed):
            return _line("clear", {"table": fields.name_json(table), "removed": removed})
        case SequencePosition():
            return _line("sequence", fields.sequence_json(record))


class _Reader:
    """Walks through the lines of one log file and knows where it is."""

    def __init__(self, path: str, lines: list[str]) -> None:
        self.path = path
        self.lines = lines
        self.at = 0
        self.may_hold_surrogates = any("\\ud" in line or "\\uD" in line for line in lines)

    def corrupt(self, problem: str) -> CorruptError:
        return CorruptError(f"{self.path}, line {self.at}: {problem}", path=self.path)

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return the next line's kind and fields."""
        self.at += 1
        if self.at > len(self.lines):
            raise FieldError("the file ends too early")
        line = self.lines[self.at - 1]
        value, end = fields.DECODER.raw_decode(line)
        if end != len(line) or type(value) is not dict or len(value) != 1:
            raise FieldError("not a JSON object with one key")
        if self.may_hold_surrogates:
            # A lone half of a surrogate pair is no character; nothing could write it again.
            json.dumps(value, ensure_ascii=False).encode()
        ((kind, content),) = value.items()
        if type(content) is not dict:
            raise FieldError(f"the content of {kind!r} is not an object")
        return kind, content

    def batch(self) -> Batch:
        kind, header = self.next()
        if kind != "batch":
            raise FieldError("not the header of a log file")
        fields.as_format(header["format"], FORMAT_VERSION)
        transactions: list[Transaction] = []
        while True:
            transactions += self.plain_transactions()
            kind, content = self.next()
            if kind != "begin":
                break
            transactions.append(self.transaction(content))
        if kind != "end":
            raise FieldError(f"{kind!r} where a transaction or the end was expected")
        if content["transactions"] != len(transactions) or self.at != len(self.lines):
            raise FieldError("the number of transactions or lines is wrong")
        previous = header["previous"]
        return Batch(
            database=check_database_name(fields.as_text(header["database"])),
            number=fields.as_tick(header["number"]),
            history=fields.as_history(header["history"]),
            first=fields.as_tick(header["first"]),
            last=fields.as_tick(header["last"]),
            previous="" if previous == "" else fields.as_sha256(previous),
            catalog=fields.as_text(header["catalog"]),
            transactions=tuple(transactions),
            files=tuple(self.file(file) for file in fields.as_list(content["files"])),
            vector=fields.as_vector(content["vector"]),
            parent=fields.as_origin(header["parent"], 0),
            digests=fields.as_digests(content["digests"]),
            lsn=None if content.get("lsn") is None else fields.as_lsn(content["lsn"]),
        )

    def plain_transactions(self) -> Iterator[Transaction]:
        """Yield the next transactions while they are as nearly all are: rows changed, then committed here.

        Their lines are read by what they look like as this program writes them, which takes a third of the time of
        reading JSON. Whatever looks different is left to `transaction`, which says what is wrong with it, if anything.
        """
        names: dict[tuple[str, str], Name] = {}
        lines, count = self.lines, len(self.lines)
        while self.at + 1 < count and (begin := _BEGIN.fullmatch(lines[self.at])):
            at, records = self.at + 1, []
            while at < count and (change := _CHANGE.fullmatch(lines[at])):
                schema, table, path, added, removed = change.groups()
                name = names.get((schema, table)) or names.setdefault((schema, table), Name(schema, table))
                records.append(Change(name, path, int(added), int(removed)))
                at += 1
            commit = _COMMIT.fullmatch(lines[at]) if at < count else None
            tick, user, started, xid = begin.groups()
            if commit is None or commit[1] != tick:
                return
            begun = fields.as_time(started)
            committed = begun if commit[2] == started else fields.as_time(commit[2])
            self.at = at + 1
            number = None if xid is None else int(xid)
            yield Transaction(fields.as_tick(int(tick)), user, begun, committed, tuple(records), None, number)

    def file(self, value: object) -> TableFile:
        content = fields.as_object(value)
        file = fields.as_data_file(content, self.path)
        return TableFile(file, fields.as_name(content["table"]), fields.as_layout(content["layout"]))

    def transaction(self, begin: dict[str, Any]) -> Transaction:
        tick = fields.as_tick(begin["tick"])
        records = []
        kind, content = self.next()
        while kind in _RECORDS:
            records.append(_RECORDS[kind](content))
            kind, content = self.next()
        if kind not in ("commit", "rollback") or content["tick"] != tick:
            raise FieldError(f"{kind!r} where a record, commit or rollback of transaction {tick} was expected")
        return Transaction(
            tick,
            fields.as_text(begin["user"]),
            fields.as_time(begin["started"]),
            fields.as_time(content["committed"]) if kind == "commit" else None,
            tuple(records),
            fields.as_origin(begin["origin"]),
            None if begin.get("xid") is None else fields.as_count(begin["xid"]),
        )


def _change(content: dict[str, Any]) -> Change:
    return Change(
        fields.as_name(content["table"]),
        fields.as_text(content["path"]),
        fields.as_count(content["added"]),
        fields.as_count(content["removed"]),
    )


def _clear(content: dict[str, Any]) -> Clear:
    return Clear(fields.as_name(content["table"]), fields.as_count(content["removed"]))


_RECORDS: dict[str, Callable[[dict[str, Any]], Record]] = {
    "change": _change,
    "ddl": fields.as_ddl,
    "clear": _clear,
    "sequence": fields.as_sequence,
}


def _problem(batch: Batch) -> str | None:
    """Say how a batch contradicts itself, None if it does not."""
    ticks = [transaction.tick for transaction in batch.transactions]
    if not ticks:
        return "it holds no transaction"
    if (batch.first, batch.last) != (ticks[0], ticks[-1]) or any(a >= b for a, b in pairwise(ticks)):
        return "its ticks do not rise from the header's first to its last"
    if batch.format != FORMAT_VERSION or batch.vector.get(batch.history) != batch.last:
        return f"format {batch.format} or the vector {dict(batch.vector)} does not fit tick {batch.last}"
    if any(transaction.committed is None and transaction.records for transaction in batch.transactions):
        return "a transaction that was rolled back has records"
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
    for transaction in batch.transactions:
        paths = set()
        for record in transaction.records:
            if type(record) is not Change:
                continue
            if tables.get(record.path) != record.table or record.path in paths:
                return f"transaction {transaction.tick} cannot have a change of {record.table} in {record.path!r}"
            paths.add(record.path)
            rows[record.path] += record.added + record.removed
    for file in batch.files:
        if rows[file.file.path] != file.file.rows:
            return f"{file.file.path} has {file.file.rows} rows, its transactions have {rows[file.file.path]}"
    return None

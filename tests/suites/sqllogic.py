"""Files in DuckDB's form of sqllogictest, as the statements that they run; what they expect is left out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SORTS = {"nosort", "rowsort", "valuesort", "sort"}
# A collection of values that `foreach` names.
COLLECTIONS = {
    "<signed>": "tinyint smallint integer bigint hugeint",
    "<unsigned>": "utinyint usmallint uinteger ubigint uhugeint",
    "<integral>": "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint",
    "<numeric>": "tinyint smallint integer bigint hugeint utinyint usmallint uinteger ubigint uhugeint float double",
    "<alltypes>": "bool tinyint smallint integer bigint hugeint float double varchar date time timestamp interval",
    "<compression>": "none uncompressed rle bitpacking dictionary fsst alp alprd",
    "<all_types_columns>": "bool tinyint smallint int bigint hugeint float double varchar",
}


@dataclass(frozen=True)
class Command:
    """One thing that a file does.

    Attributes:
        verb: statement, query, restart, load, require or halt.
        text: SQL of a statement or query, else what follows the verb.
        connection: Name of the connection, "" for the first.
        line: Where it stands in its file.
    """

    verb: str
    text: str
    connection: str
    line: int


def commands(text: str) -> Iterator[Command]:
    """Read a file; loops are unrolled as they are read."""
    blocks = [(line, block) for line, block in _blocks(text.splitlines()) if block]
    yield from _run(blocks, {})


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    start = 1
    block: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        if line.startswith("#"):
            continue
        if line.strip():
            start = start if block else number
            block.append(line)
        elif block:
            yield start, block
            block = []


def _run(blocks: list[tuple[int, list[str]]], values: dict[str, str]) -> Iterator[Command]:
    at, skips = 0, False
    pending = [(line, block) for line, block in _split(blocks)]
    while at < len(pending):
        line, block = pending[at]
        verb, *words = block[0].split()
        at += 1
        if verb in ("loop", "concurrentloop", "foreach", "concurrentforeach"):
            end = _end(pending, at)
            if not skips:
                for value in _values(verb, [_filled(word, values) for word in words]):
                    yield from _run(pending[at : end - 1], {**values, **value})
            at = end
        elif verb == "mode":
            skips = words[:1] == ["skip"] or (skips and words[:1] != ["unskip"])
        elif not skips:
            yield from _command(line, verb, words, block[1:], values)


def _split(blocks: list[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Commands of one line need no empty line behind them."""
    single = {"loop", "foreach", "endloop", "concurrentloop", "concurrentforeach", "mode", "require", "load", "restart"}
    single |= {"halt", "sleep", "set", "require-env", "unzip", "reconnect", "continue", "test-env", "hash-threshold"}
    for line, block in blocks:
        alone = len(list(itertools.takewhile(lambda text: text.split()[0] in single, block)))
        yield from ((line + number, [text]) for number, text in enumerate(block[:alone]))
        if block[alone:]:
            yield line + alone, block[alone:]


def _end(pending: list[tuple[int, list[str]]], at: int) -> int:
    depth = 1
    while depth and at < len(pending):
        verb = pending[at][1][0].split()[0]
        depth += verb in ("loop", "concurrentloop", "foreach", "concurrentforeach")
        depth -= verb == "endloop"
        at += 1
    return at


def _values(verb: str, words: list[str]) -> Iterator[dict[str, str]]:
    name, rest = words[0], words[1:]
    if verb.endswith("foreach"):
        listed = [value for word in rest for value in COLLECTIONS.get(word, word).split()]
        names = name.split(",")
        for value in listed:
            parts = value.split(",") if len(names) > 1 else [value]
            yield dict(itertools.zip_longest(names, parts[: len(names)], fillvalue=""))
    else:
        for number in range(int(rest[0]), int(rest[1])):
            yield {name: str(number)}


def _command(line: int, verb: str, words: list[str], body: list[str], values: dict[str, str]) -> Iterator[Command]:
    while verb in ("skipif", "onlyif"):
        condition = _filled(" ".join(words), values)
        if (verb == "skipif" and condition == "duckdb") or "=" in condition or not body:
            return
        verb, *words = body[0].split()
        body = body[1:]
    if verb in ("statement", "query"):
        sql = list(itertools.takewhile(lambda text: text.strip() != "----", body))
        options = [word for word in words[1:] if word not in SORTS]
        made = Command(verb, _filled("\n".join(sql), values), options[0] if options else "", line)
        # The second option of a query is a label.
        yield replace(made, connection="" if verb == "query" and len(options) > 1 else made.connection)
    else:
        yield Command(verb, _filled(" ".join(words), values), "", line)


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("${" + name + "}", value)
    return text

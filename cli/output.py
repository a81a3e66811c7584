"""Output of commands: a rich table on a terminal, plain text in a pipe, JSON for programs.

Numbers and times as people read them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

from wlc.farm.clock import utc_now
from wlc.farm.human_form import duration, in_words, is_absent, label

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


def short(name: str, value: object) -> object:
    """Write a value as `in_words` does, for a cell of a table; a time is written as its age."""
    if isinstance(value, datetime) and (past := utc_now() - value) >= timedelta(0):
        return f"{duration(past)} ago"
    return None if is_absent(value) else in_words(name, value)


def counted(number: int, what: str) -> str:
    """Write a number with its noun, such as `1 batch`."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"


@dataclass(frozen=True)
class Value:
    """One value; plain output is the bare value, which a script can use as it is."""

    name: str
    value: object


@dataclass(frozen=True)
class Lines:
    """Several values of one kind, each on its own line."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Sentence:
    """The result of a command as a sentence; JSON shows the values."""

    said: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class Fields:
    """Facts about one thing, by name; a terminal shows what `on_terminal` returns, by default those with units."""

    values: Mapping[str, object]
    on_terminal: Callable[[], Fields] | None = None


@dataclass(frozen=True)
class Listing:
    """Rows under column names.

    Attributes:
        columns: Their names.
        rows: May be an iterator, which is read once.
        null: Text of an absent value.
        whole: JSON shows this instead of the rows.
        on_terminal: Makes the listing that a terminal shows instead of the rows.
        elastic: Columns that are cut, in this order, so that a line fits the width of a terminal.
        cut_before: Elastic columns that keep their end, such as paths.
        notes: Lines below the rows on a terminal.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    null: str = ""
    whole: object = None
    on_terminal: Callable[[Sequence[Sequence[object]]], Listing] | None = None
    elastic: Sequence[str] = ()
    cut_before: Sequence[str] = ()
    notes: Sequence[str] = ()


class Numbers(tuple[int, ...]):
    """Rising whole numbers, for example of batches; text shows a run of them as `1-41`."""

    __slots__ = ()

    def __str__(self) -> str:
        runs: list[list[int]] = []
        for number in self:
            if runs and number == runs[-1][1] + 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs) or "none"


Report = Value | Lines | Sentence | Fields | Listing

# Control characters that a terminal obeys or that change the direction of text; not tab and new line.
_CONTROLS = {
    number: f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
    for number in (
        *(set(range(0x20)) - {0x09, 0x0A}),
        *range(0x7F, 0xA0),
        *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    )
}
_CONTROLS_IN_JSON = {number: f"\\u{number:04x}" for number in _CONTROLS if number > 0x20}


def printable(line: str) -> str:
    """Write control characters as escapes: texts of a farm and values of its rows must not command a terminal."""
    return line if line.isprintable() else line.translate(_CONTROLS)


def printable_rows(text: str, *, is_json: bool) -> str:
    """Write control characters of many lines as escapes; in JSON as JSON's own, so that values stay the same."""
    return text.translate(_CONTROLS_IN_JSON if is_json else _CONTROLS)


def _json(value: Any) -> str:
    # JSON itself escapes only the first 32.
    line = json.dumps(value, ensure_ascii=False)
    return line if line.isprintable() else line.translate(_CONTROLS_IN_JSON)


def record(value: Any) -> Fields:
    """Report a dataclass field by field, under the names of the Python API."""
    return Fields({field.name: getattr(value, field.name) for field in fields(value)})


def for_person(found: Any, wrong: Collection[str], unknown: Collection[str] = ()) -> Fields:
    """Report a dataclass field by field; a terminal shows units and leaves absent values out.

    Args:
        found: The dataclass.
        wrong: Names of fields that report a fault or an unusual state if they have a value. They come first, in this
            order.
        unknown: Names of fields that are unknown, and not inapplicable, if they are absent.
    """
    plain_ = record(found)

    def shown() -> Fields:
        there = {name: value for name, value in plain_.values.items() if not is_absent(value)}
        first = {name: there[name] for name in wrong if there.get(name)}
        first |= {name: "unknown" for name in unknown if name not in there}
        return Fields({label(name): in_words(name, value) for name, value in (first | there).items()})

    return Fields(plain_.values, on_terminal=shown)


def in_columns(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, elastic: Sequence[str], whole: object = None
) -> Listing:
    """List things, one per line; a terminal shows units and leaves empty columns out.

    Args:
        columns: Names, with units.
        rows: One line each.
        elastic: Columns of paths, which may be cut.
        whole: JSON shows this instead of the rows.
    """

    def shown(found: Sequence[Sequence[object]]) -> Listing:
        cells = [[short(name, value) for name, value in zip(columns, row, strict=True)] for row in found]
        names = [label(name) for name in columns]
        return Listing(names, cells, elastic=elastic, cut_before=elastic)

    return Listing(columns, rows, null="-", whole=whole, on_terminal=shown)


def with_units(report: Fields) -> Fields:
    """Show facts as a person reads them; an empty list of problems becomes "none"."""
    there = {name: v for name, v in report.values.items() if not is_absent(v) or isinstance(v, tuple | Mapping)}
    return Fields({label(name): in_words(name, value) for name, value in there.items()})


def show(report: Report, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Write a report to `stream`, by default to standard output."""
    out = stream or sys.stdout
    if as_json:
        _write_json(report, out)
    elif isinstance(report, Value):
        print(printable(text(report.value, null="")), file=out)
    elif isinstance(report, Sentence):
        print(printable(report.said), file=out)
    elif isinstance(report, Lines):
        out.writelines(printable(line) + "\n" for line in report.lines)
    elif out.isatty():
        if isinstance(report, Listing) and report.on_terminal is not None:
            report = report.on_terminal(list(report.rows))
        elif isinstance(report, Fields):
            report = report.on_terminal() if report.on_terminal is not None else with_units(report)
        if isinstance(report, Listing) and report.elastic:
            _write_fitting(report, out)
        else:
            _write_rich(report, out)
        if isinstance(report, Listing):
            out.writelines(f"{printable_rows(note, is_json=False)}\n" for note in report.notes)
    else:
        out.writelines(printable(line) + "\n" for line in _plain_lines(report))
    out.flush()


def text(value: object, *, null: str) -> str:
    """Write one value as a person reads it, on one line unless the value itself has several."""
    if value is None:
        return null
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return _time(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, Numbers):
        return str(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset) or (
        is_dataclass(value) and type(value).__str__ is object.__str__
    ):
        return json.dumps(plain(value), ensure_ascii=False)
    return str(value)


def plain(value: object) -> Any:
    """Turn a value into JSON's numbers, text, lists and objects; a value that JSON cannot hold exactly becomes text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {text(key, null="null"): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | PurePath):
        return str(value)
    return text(value, null="")


def unique_names(names: Sequence[str]) -> list[str]:
    """Number repeated names: a JSON object has each name only once."""
    taken: set[str] = set()
    result = []
    for name in names:
        candidate, number = name, 1
        while candidate in taken:
            candidate, number = f"{name}_{number}", number + 1
        taken.add(candidate)
        result.append(candidate)
    return result


def _time(moment: datetime) -> str:
    if moment.utcoffset() == timedelta(0):
        return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return moment.isoformat()


def _write_json(report: Report, out: TextIO) -> None:
    if isinstance(report, Listing) and report.whole is not None:
        print(_json(plain(report.whole)), file=out)
    elif isinstance(report, Listing):
        names = unique_names(report.columns)
        _write_json_rows(names, report.rows, out)
    elif isinstance(report, Value):
        print(_json({report.name: plain(report.value)}), file=out)
    elif isinstance(report, Lines):
        print(_json(list(report.lines)), file=out)
    else:
        print(_json(plain(report.values)), file=out)


def _write_json_rows(names: Sequence[str], rows: Iterable[Sequence[object]], out: TextIO) -> None:
    # One array with a row per line: valid JSON that is written row by row, for any number of rows.
    separator = "["
    for row in rows:
        line = _json(dict(zip(names, map(plain, row), strict=True)))
        out.write(f"{separator}{line}")
        separator = ",\n "
    out.write("[]\n" if separator == "[" else "]\n")


def _plain_lines(report: Fields | Listing) -> Iterable[str]:
    if isinstance(report, Fields):
        width = max((len(name) for name in report.values), default=0)
        indented = "\n" + " " * (width + 2)
        shown = {name: _field_text(value).replace("\n", indented) for name, value in report.values.items()}
        return [f"{name:<{width}}  {value}".rstrip() for name, value in shown.items()]
    rows = ([text(cell, null=report.null) for cell in row] for row in report.rows)
    return _aligned([list(report.columns), *rows])


def _field_text(value: object) -> str:
    if isinstance(value, Numbers):
        return str(value)
    if isinstance(value, Mapping | list | tuple) and not value:
        return "-"
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{text(key, null='-')}: {text(inner, null='-')}" for key, inner in value.items())
    return text(value, null="-")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[printable(" ".join(cell.splitlines())) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


# Least width of an elastic column, unless all of them together are still too wide.
_ELASTIC_MIN = 12


def _write_fitting(listing: Listing, out: TextIO) -> None:
    """Write a line per row that is no longer than the terminal is wide; a column without any text is left out."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(file=out)
    cells = [[printable(" ".join(text(cell, null=listing.null).split("\n"))) for cell in row] for row in listing.rows]
    columns = [column for column in zip(listing.columns, *cells, strict=True) if any(column[1:]) or not cells]
    widths = {column[0]: max(map(cell_len, column)) for column in columns}
    for name in (name for name in listing.elastic if name in widths):
        surplus = sum(widths.values()) + 2 * (len(widths) - 1) - console.width
        if surplus > 0:
            widths[name] = max(widths[name] - surplus, min(widths[name], _ELASTIC_MIN))
    if listing.cut_before and sum(widths.values()) + 2 * (len(widths) - 1) > console.width:
        # Columns cut to half a word are useless: show each row as its own block of lines.
        for row in zip(*(column[1:] for column in columns), strict=True):
            _write_rich(Fields({name: cell for (name, *_), cell in zip(columns, row, strict=True) if cell}), out)
        return
    table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, *_ in columns:
        table.add_column(Text(name), no_wrap=True, overflow="ellipsis", width=widths[name])
    for row in zip(*(column[1:] for column in columns), strict=True):
        cut = (
            _cut_before(cell, widths[name]) if name in listing.cut_before else cell
            for (name, *_), cell in zip(columns, row, strict=True)
        )
        table.add_row(*_styled(cut, [name for name, *_ in columns]))
    console.print(table)


_REMEDY = "remedy"
# Styles of the words in a column `state`.
_STYLES = {
    **dict.fromkeys(("ok", "good", "active"), "green"),
    **dict.fromkeys(("quiet", "stopped", "inactive"), "dim"),
    **dict.fromkeys(("note", "late", "behind", "pending"), "yellow"),
    **dict.fromkeys(("wrong", "unreadable", "damaged", "failing", "silent", "stuck"), "bold red"),
}


def _styled(cells: Iterable[str], columns: Sequence[str]) -> Iterable[Any]:
    from rich.text import Text

    for cell, name in zip(cells, columns, strict=True):
        yield Text(cell, style=_STYLES.get(cell, "") if name == "state" else "")


def _cut_before(cell: str, width: int) -> str:
    return cell if len(cell) <= width else "…" + cell[len(cell) - width + 1 :]


def _write_rich(report: Fields | Listing, out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(show_header=isinstance(report, Listing), header_style="bold")
    if isinstance(report, Fields):
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in report.values.items():
            if name != _REMEDY:
                table.add_row(Text(printable(name)), Text(printable(_field_text(value))))
    else:
        for name in report.columns:
            table.add_column(Text(printable(name)), overflow="fold")
        for row in report.rows:
            table.add_row(*_styled((printable(text(cell, null=report.null)) for cell in row), report.columns))
    Console(file=out).print(table)
    if isinstance(report, Fields) and report.values.get(_REMEDY):
        # A command that a table cuts into lines cannot be copied.
        print(f"next: {printable(_field_text(report.values[_REMEDY]))}", file=out)

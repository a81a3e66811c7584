"""Commands of `wlr` on the changes of rows: feed, changes, diff.

The work of `wlr rows changes`: rounds of changes, written to a file, a pipe, or a terminal.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Unpack, cast

import typer

import wlc
import wlr
from wlc.farm.errors import InvalidError
from wlr.reading.feeds.options import FeedOptions

from .following import in_rounds
from .options import (
    Farm,
    Follow,
    StorageOptions,
    flat_options,
    storage_options,
    takes,
    two_ticks,
    typed,
)
from .output import Fields, Listing, Report, printable_rows, record
from .progress import working

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlr.reading.change_output import ChangeFormat


@dataclass(frozen=True)
class ChangesRequest:
    """What the command was asked for."""

    db: str
    table: str
    since: int | str | None
    until: int | str | None
    is_whole: bool
    format: str | None
    out: str | None
    follows: bool

    @contextmanager
    def opened(self, farm: str | None, options: Mapping[str, Any] | None) -> Iterator[Callable[[], Report | None]]:
        """Open the output and give the function that writes a round.

        Raises:
            InvalidError: The options do not fit each other, or the output.
        """
        # Importing Arrow takes longer than --help may.
        from wlr.reading.change_output import change_format, resume

        form = change_format(self.format, self.out)
        self._check(form)
        since = self.since
        with ExitStack() as stack:
            if self.out is None:
                out = _Terminal(form.name) if sys.stdout.isatty() else sys.stdout.buffer
            else:
                file = Path(self.out)
                if _is_begun(file):
                    since = resume(file)
                out = stack.enter_context(_written(file, is_kept=self.follows))
            yield _Rounds(self, form, cast("BinaryIO", out), since, farm, options).write

    def _check(self, form: ChangeFormat) -> None:
        if self.follows and self.until is not None:
            raise InvalidError("--follow goes on for ever, and --until ends", hint="leave one of them out")
        if not form.is_text and self.follows:
            raise InvalidError(f"--follow writes lines, and {form.name} has none", hint="--format jsonl")
        if not form.is_text and self.out is None and sys.stdout.isatty():
            raise InvalidError(f"{form.name} is not for a terminal", hint=f"--out changes.{form.name}")
        if self.out is not None and (_is_begun(Path(self.out)) if self.follows else Path(self.out).exists()):
            self._check_present(self.out, form.name)

    def _check_present(self, out: str, form: str) -> None:
        if not (self.follows and form == "jsonl"):
            other = Path(out).with_stem(f"{Path(out).stem}-2")
            message = f"{out} exists: only --follow with --format jsonl goes on in a file"
            raise InvalidError(message, hint=f"--out {shlex.quote(str(other))}", path=out)
        if self.since is not None or self.is_whole:
            message = f"{out} exists and says itself where to go on"
            raise InvalidError(message, hint="leave --since and --snapshot out", path=out)


class _Rounds:
    """Writes what is new, round by round."""

    def __init__(
        self,
        request: ChangesRequest,
        form: ChangeFormat,
        out: BinaryIO,
        since: int | str | None,
        farm: str | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._request = request
        self._form = form
        self._out = out
        self._since = since
        self._place = (farm, options)
        self._is_first = True

    def write(self) -> Report | None:
        """Write what is new; report where the next one goes on if the output is a file."""
        from wlr.reading.change_feed import ChangeFeed

        request, (farm, options) = self._request, self._place
        database = wlc.resolve(request.db, farm, storage_options=options)
        is_whole = request.is_whole and self._is_first
        feed = ChangeFeed.open(database, request.table, self._since, request.until, is_whole=is_whole)
        is_new = self._is_first or feed.last >= feed.first
        if is_new:
            self._form.write(feed, self._out, self._note, is_first=self._is_first)
            self._out.flush()
        self._note(max(feed.last, feed.first - 1))
        if request.out is None or not is_new:
            return None
        return Fields({"table": str(feed.name), "out": request.out, "last": self._since})

    def _note(self, tick: int) -> None:
        """Note up to which tick all is written: a round that fails after it goes on there."""
        self._since, self._is_first = tick, False


def _is_begun(file: Path) -> bool:
    """Say whether a file holds anything: a run that found no farm leaves an empty one."""
    return file.exists() and file.stat().st_size > 0


@contextmanager
def _written(file: Path, *, is_kept: bool) -> Iterator[BinaryIO]:
    """Open a file for writing; one that is not to grow appears when all of it is there."""
    if is_kept:
        with file.open("ab") as out:
            yield out
        return
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("wb") as out:
            yield out
        os.link(part, file)
    finally:
        part.unlink(missing_ok=True)


class _Terminal:
    """Standard output of a person, which values of rows must not command."""

    def __init__(self, form: str) -> None:
        self._is_json = form == "jsonl"

    def write(self, data: bytes | memoryview) -> None:
        """Write whole lines."""
        sys.stdout.write(printable_rows(bytes(data).decode(), is_json=self._is_json))

    def flush(self) -> None:
        """Show everything."""
        sys.stdout.flush()


ChangesFormat = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="jsonl, csv, parquet, or arrow; default is what FILE ends in, or jsonl."),
]
OutputOptions = Annotated[
    list[str] | None,
    typer.Option("--output-option", metavar="K=V", help="Kafka: property of librdkafka; may be repeated."),
]


@takes(FeedOptions, before="output_option")
def feed(
    db: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm, URL, or path of the master.")],
    to: Annotated[
        str, typer.Option(metavar="OUTPUT", help="A file, to which lines are appended; or kafka://HOST:PORT/TOPIC.")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="PATTERN", help="Only tables like main.sales_*; may be repeated."),
    ] = None,
    output_option: OutputOptions = None,
    follow: Follow = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
    **given: Unpack[FeedOptions],
) -> Iterator[Report]:
    """Write every change of tables to a file or a topic of Kafka.

    Changes are in the order of the log.
    """
    options = storage_options(storage_option)
    keepalive = wlc.Keepalive() if follow else None

    def go_on() -> wlr.Fed:
        with working("feeding {}", to) as progress:
            return wlr.feed(
                db,
                to=to,
                tables=table or None,
                output_options=flat_options(output_option),
                keepalive=keepalive,
                farm=farm,
                storage_options=options,
                progress=progress,
                **typed(given),
            )

    with keepalive or nullcontext():
        yield from in_rounds(
            go_on,
            record,
            follow=follow,
            has_news=lambda done: done.records or done.dropped,
            beat_s=lambda _: wlc.beat(db, farm=farm, storage_options=options),
            reads=lambda _: wlc.resolve(db, farm, storage_options=options).url,
        )


def changes(
    db: Annotated[str, typer.Argument(metavar="DB", help="Name in the farm, URL, or path of the master.")],
    table: Annotated[str, typer.Option(metavar="TABLE", help="schema.table, or a table of schema main.")],
    since: Annotated[
        str | None,
        typer.Option(metavar="TICK|TIME", help="Only what was committed after it; default: all."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TICK|TIME", help="Only what was committed up to it; default: the end.")
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Begin with all rows at --since; without --since, with those of the end.")
    ] = False,
    format: ChangesFormat = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="A new file; default is standard output.")] = None,
    follow: Follow = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """List the rows that transactions removed and added.

    They are those of one table, in the order of the log.
    """
    options = storage_options(storage_option)
    request = ChangesRequest(db, table, since, until, snapshot, format, out, follow)
    with request.opened(farm, options) as write_round:
        yield from in_rounds(
            write_round,
            lambda report: report,
            follow=follow,
            has_news=lambda report: report,
            beat_s=lambda _: wlc.beat(db, farm=farm, storage_options=options),
        )


def diff(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A replica, whose farm is read; or a DB of a farm.")],
    tick: Annotated[str, typer.Option(metavar="A:B", help="The ticks; B may be the earlier one.")],
    table: Annotated[str | None, typer.Option(metavar="TABLE", help="Show the rows of this table that differ.")] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show which rows differ between two transactions.

    Without --table, it counts them for each table.
    """
    first, last = two_ticks(tick)
    options = storage_options(storage_option)
    if table is None:
        found = wlr.diff(target, first, last, farm=farm, storage_options=options)
        rows = [(one.table, one.added, one.removed, one.changed) for one in found]
        return Listing(("table", "added", "removed", "changed"), rows, null="-")
    relation = wlr.differing_rows(target, first, last, table, farm=farm, storage_options=options)
    return Listing(relation.columns, relation.fetchall(), null="NULL")


# Each with the example that its help shows.
COMMANDS = (
    (feed, "feed", "sales --farm s3://bucket/farm --table main.orders --to orders.jsonl --follow"),
    (changes, "rows changes", "sales --farm s3://bucket/farm --table main.orders --since 1040 --format csv"),
    (diff, "rows diff", "copy.duckdb --tick 1040:1050 --table main.orders"),
)

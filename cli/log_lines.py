"""Log lines of long-running commands: one for each change, with its time, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from wlc.farm.errors import InvalidError

from .output import Lines, Listing, Value, plain, printable, text, unique_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .output import Report

TEXT, JSON = "text", "json"

Quiet = Annotated[bool, typer.Option("--quiet", help="Log only warnings and errors.")]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", metavar="FORMAT", help="Form of log lines: text (default) or json.")
]

# While a log is written, every message is a record of this logger or of the packages' loggers.
_log = logging.getLogger("wlr")
_LOGGERS = ("wlc", "wlr")
_handlers: list[logging.Handler] = []


def is_logging() -> bool:
    """Return whether messages go to a log, not to a person who waits."""
    return bool(_handlers)


@contextmanager
def logging_to_stderr(form: str | None, *, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
    """Write all reports of `wlc` and `wlr` as log lines.

    Args:
        form: "text" or "json"; text if omitted.
        quiet: Leave out everything below a warning.
        verbose: Add tracebacks.

    Raises:
        InvalidError: There is no such form.
    """
    if form not in (None, TEXT, JSON):
        raise InvalidError(f"there is no log format {form!r}", hint="--log-format text, or --log-format json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine(verbose) if form == JSON else _TextLine(verbose))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    _handlers.append(handler)
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING if quiet else logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        _handlers.remove(handler)
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def log_report(subject: str, report: Report) -> None:
    """Write the result of a round as one line."""
    _log.info("%s", subject, extra={"facts": _facts(report)})


def log_warning(message: str) -> None:
    """Write a warning as one line."""
    _log.warning("%s", message)


def log_error(message: str, hint: str | None, error: BaseException) -> None:
    """Write an error as one line."""
    _log.error("%s", message, extra={"hint": hint, "cause": error})


def _facts(report: Report) -> Mapping[str, object]:
    """Write a report's values with their names; absent, false and empty values are left out."""
    if isinstance(report, Value):
        return {report.name: report.value}
    if isinstance(report, Lines):
        return {"lines": list(report.lines)}
    if isinstance(report, Listing):
        names = unique_names(report.columns)
        return {"rows": [dict(zip(names, map(plain, row), strict=True)) for row in report.rows]}
    return {name: value for name, value in report.values.items() if value or name == "tick"}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Line(logging.Formatter):
    def __init__(self, is_verbose: bool) -> None:
        super().__init__()
        self._is_verbose = is_verbose

    def traceback(self, record: logging.LogRecord) -> str:
        cause = getattr(record, "cause", None)
        if not (self._is_verbose and isinstance(cause, BaseException)):
            return ""
        return self.formatException((type(cause), cause, cause.__traceback__))


class _TextLine(_Line):
    """`2026-11-23T16:47:08.123Z info replica copy: tick 42, transactions 3`; always one line."""

    def format(self, record: logging.LogRecord) -> str:
        facts, hint = getattr(record, "facts", None), getattr(record, "hint", None)
        said = record.getMessage()
        if facts:
            said += ": " + ", ".join(f"{name} {text(value, null='-')}" for name, value in facts.items())
        if hint:
            said += f" (hint: {hint})"
        line = printable(" ".join(f"{_time(record)} {record.levelname.lower()} {said}".splitlines()))
        trace = "".join(f"\n    {printable(part)}" for part in self.traceback(record).splitlines())
        return line + trace


class _JsonLine(_Line):
    def format(self, record: logging.LogRecord) -> str:
        content = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        if hint := getattr(record, "hint", None):
            content["hint"] = hint
        facts = getattr(record, "facts", {})
        content |= {name: plain(value) for name, value in facts.items() if name not in content}
        if trace := self.traceback(record):
            content["traceback"] = trace
        return json.dumps(content)

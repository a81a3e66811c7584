"""Shared parts of all commands: `--json`, `--verbose`, and the report of errors.

How `--help` lists commands and options: by task and by heading, those that most need first.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from wlc.farm.addresses import refuse_connection_string
from wlc.farm.errors import HINT, FarmError, InvalidError
from wlc.farm.version import __version__

from .interruption import has_ended, interruptible, is_silent, note_reported, received
from .log_lines import LogFormat, Quiet, is_logging, log_error, log_report, log_warning, logging_to_stderr
from .output import Report, printable, show
from .programs import HEADINGS, namesakes
from .progress import without_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .programs import Program


EXIT_OTHER = 1
EXIT_USAGE = 2
EXIT_DEFECT = 70
# The value of these arguments is a path, a URL, or the name of a database.
PLACES = frozenset({"DB", "DB|SOURCE|TARGET", "FARM", "MASTER", "OUTPUT", "SITE", "SOURCE", "TARGET", "URL"})


class CommandLine(NamedTuple):
    """The words of another program's command line, and whether they stand behind `--`.

    Commands with an argument whose metavar has `--` find it in `obj` of their context.
    """

    words: list[str]
    is_marked: bool = True


AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]


def new_app(program: Program) -> typer.Typer:
    """Build a command line program with its groups, and without any command."""
    # Plain help: rich markup would double the time that --help takes.
    plain: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "pretty_exceptions_enable": False}
    app = typer.Typer(
        name=program.name,
        cls=page_of_program(program),
        help=program.summary,
        add_completion=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        **plain,
    )
    for word, group in program.groups.items():
        app.add_typer(typer.Typer(**plain), name=word, cls=page_of_group(group.commands), help=group.summary)

    @app.callback()
    def main(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        pass

    main.__doc__ = program.summary
    return app


def _show_version(context: typer.Context, is_wanted: bool) -> None:
    if is_wanted:
        print(f"{context.find_root().info_name} {__version__}")
        raise typer.Exit


def command(
    app: typer.Typer,
    path: str,
    *,
    example: str,
    goes_on: bool = False,
    ends_with: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Any]:
    """Add a function that returns a report, or yields several, as a command of `app`.

    Args:
        app: The program.
        path: What is typed for the command behind the program: `status`, or `site join` in a group.
        example: Arguments and options with which `--help` shows the command.
        goes_on: It runs until a signal, and writes a log. A command with an option `--follow` does so with it.
        ends_with: Options with which a command that goes on ends at once.
    """
    *group, named = path.split()
    typed = f"{app.info.name} {path}"
    (place,) = [each.typer_instance for each in app.registered_groups if [each.name] == group] if group else [app]
    assert place is not None

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)
        places = [each.name for each in signature.parameters.values() if _is_place(each.annotation)]

        @functools.wraps(function)
        def run(
            *args: Any,
            as_json: bool,
            verbose: bool,
            quiet: bool = False,
            log_format: str | None = None,
            **options: Any,
        ) -> None:
            with ExitStack() as stack:
                try:
                    if options.get("follow", goes_on and not any(options[name] for name in ends_with)):
                        stack.enter_context(logging_to_stderr(log_format, quiet=quiet, verbose=verbose))
                    stack.enter_context(_plain_warnings())
                    stack.enter_context(without_progress(wanted=quiet))
                    _refuse_connection_strings(options[name] for name in places)
                    _refuse_memory(options)
                    _show_all(function(*args, **options), as_json, subject=named, quiet=quiet)
                except (Exception, KeyboardInterrupt) as error:
                    raise _exit_of(error, verbose=verbose) from error

        shared = [
            inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson),
            inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose),
            inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
        ]
        if goes_on or "follow" in signature.parameters:
            logs = inspect.Parameter("log_format", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=LogFormat)
            shared.append(logs)
        parameters = [*signature.parameters.values(), *shared]
        vars(run)["__signature__"] = signature.replace(parameters=parameters, return_annotation=None)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__  # It leads to the signature without the shared options.
        summary = inspect.getdoc(function) or ""
        place.command(
            named,
            cls=page_of_command(HEADINGS.get(typed, {})),
            short_help=summary.partition("\n")[0],
            epilog=f"Example: {typed} {example}",
        )(run)
        return function

    return register


def _exit_of(error: BaseException, *, verbose: bool) -> typer.Exit:
    if isinstance(error, typer.Exit):
        return error
    return typer.Exit(0 if has_ended(error) else explain(error, verbose=verbose))


def _is_place(annotation: Any) -> bool:
    return any(getattr(mark, "metavar", None) in PLACES for mark in getattr(annotation, "__metadata__", ()))


def _refuse_connection_strings(typed: Iterable[object]) -> None:
    """Refuse a login instead of a path or URL, before any message can repeat it."""
    for given in typed:
        for each in given if isinstance(given, list) else [given]:
            refuse_connection_string(str(each or ""))


def _refuse_memory(options: Mapping[str, object]) -> None:
    """Refuse a farm in memory, which ends with the command."""
    by_default = os.environ.get("WLC_FARM") if options.get("farm", "") is None else None
    for given in (*options.values(), by_default):
        if isinstance(given, str) and given.lower().startswith("memory://"):
            message = f"{given} is in the memory of one process, and this command would end with it"
            raise InvalidError(message, hint="give a directory or s3://bucket/folder")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show each warning of `wlc` and `wlr` on one line, like errors, without its place in the source."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) in shown:
            return
        shown.add(str(message))
        if is_logging():
            log_warning(str(message))
        else:
            print(_label("warning:", _YELLOW), printable(str(message)), file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _show_all(answer: Report | Iterator[Report] | None, as_json: bool, *, subject: str, quiet: bool) -> None:
    is_logged = is_logging() and not as_json and isinstance(answer, Iterator)
    for report in answer if isinstance(answer, Iterator) else [answer]:
        if report is None or quiet:
            continue
        if is_logged:
            log_report(subject, report)
        else:
            show(report, as_json=as_json)


def explain(error: BaseException, *, verbose: bool = False) -> int:
    """Write an error to standard error as a message and a hint, and return the exit code of its class."""
    message, hint, code = diagnosis(error)
    if is_logging() and message:
        log_error(message, hint, error)
        return code
    if verbose:
        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if message:
        print(_label("error:", _RED), printable(message), file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        if not note.startswith(HINT):
            print(printable(f"also: {note}"), file=sys.stderr)
    if hint:
        print(_label("hint:", _BOLD), printable(hint), file=sys.stderr)
    return code


_RED, _YELLOW, _BOLD = "1;31", "33", "1"


def _label(word: str, style: str) -> str:
    """Return a word that begins a message, coloured on a terminal; https://no-color.org."""
    is_plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return word if is_plain else f"\x1b[{style}m{word}\x1b[0m"


def diagnosis(error: BaseException) -> tuple[str, str | None, int]:
    """Return the message, the hint and the exit code of an error."""
    if number := received(error):
        note_reported()
        how = "interrupted" if number == signal.SIGINT else f"interrupted by {number.name}"
        return how, "nothing that was committed is lost; type the same command again", 128 + number
    if isinstance(error, FarmError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, BrokenPipeError):
        # The reader has closed the output. Without this, the interpreter reports the error again at its exit.
        sys.stdout = None
        return "", None, EXIT_OTHER
    # The user's SQL causes DuckDB's own errors. Importing duckdb only to name their class would slow every command.
    if type(error).__module__.partition(".")[0] in {"duckdb", "_duckdb"}:
        return str(error), None, EXIT_OTHER
    if isinstance(error, OSError):
        return str(error), None, EXIT_OTHER
    hint = "this is a defect of dbfarm: run the command with --verbose and report its output"
    return f"{type(error).__name__}: {error}", hint, EXIT_DEFECT


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _named(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The program with only what the words lead to: to build all commands takes longer than some of them run."""
    first, rest = (words[0], words[1:]) if words else ("", words)
    commands = [found for found in app.registered_commands if found.name == first]
    groups = [copy.copy(found) for found in app.registered_groups if found.name == first]
    if not commands and not groups:
        return app
    for group in groups:
        group.typer_instance = group.typer_instance and _named(group.typer_instance, rest)
    one = copy.copy(app)
    one.registered_commands, one.registered_groups = commands, groups
    return one


def run_app(app: typer.Typer, program: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; report wrong usage, too, as a message and a hint."""
    if logging.lastResort is not None:
        # This logger writes warnings of the library to standard error.
        logging.lastResort.setFormatter(_PrintableFormatter())
    with interruptible():
        try:
            words = sys.argv[1:] if arguments is None else arguments
            code = _named(app, words)(args=arguments, prog_name=program, standalone_mode=False)
        except typer.TyperException as error:
            return _explain_usage(error, program)
        except (typer.Abort, KeyboardInterrupt) as error:
            return explain(KeyboardInterrupt() if isinstance(error, typer.Abort) else error)
        return explain(KeyboardInterrupt()) if code and is_silent() else int(code or 0)


def _explain_usage(error: Any, program: str) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else program
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return EXIT_USAGE
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    unknown = re.match(r"No such command '([\w-]+)'", message)
    meant = [f"{found} --help" for found in (namesakes(program, unknown[1]) if unknown else ())]
    hint = " or ".join(meant or [f"{path} --help"])
    print(printable(f"error: {message}"), f"hint: {hint}", sep="\n", file=sys.stderr)
    return EXIT_USAGE


_SUMMARY_MAX = 200
_OF_ALL_COMMANDS = frozenset({"as_json", "verbose", "quiet", "log_format", "help"})


def page_of_program(program: Program) -> type[TyperGroup]:
    """Return the class of a program's first screen: what to begin with, what is needed every day, and the groups."""

    class FirstScreen(TyperGroup):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            if program.start:
                with formatter.section("To start"):
                    width = max(map(len, program.start))
                    for line, meaning in program.start.items():
                        formatter.write(f"  {line:{width}}  {meaning}\n")
            for task, names in program.tasks.items():
                _list(formatter, task, self, names)
            _list(formatter, f"Groups, each with --help ({program.name} GROUP COMMAND)", self, program.groups)
            _list_options(formatter, "Options", self.get_params(ctx), ctx)

    return FirstScreen


def page_of_group(names: Sequence[str]) -> type[TyperGroup]:
    """Return the class of the help of a group of commands."""

    class GroupPage(TyperGroup):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            _list(formatter, "Commands", self, names)
            _list_options(formatter, "Options", self.get_params(ctx), ctx)

    return GroupPage


def page_of_command(headings: Mapping[str, Sequence[str]]) -> type[TyperCommand]:
    """Return the class of the help of a command.

    Args:
        headings: Names of parameters that few need, by the heading under which they are listed.
    """
    last = "Of all commands" if headings else "Options"
    titles = dict.fromkeys(_OF_ALL_COMMANDS, last) | {
        name: title for title, names in headings.items() for name in names
    }

    class CommandPage(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if any(" -- " in (each.metavar or "") for each in self.params if isinstance(each, TyperArgument)):
                args, ctx.obj = _split(args)
            return super().parse_args(ctx, args)

        def format_options(self, ctx: Any, formatter: Any) -> None:
            params = self.get_params(ctx)
            _list_options(formatter, "Arguments", (each for each in params if each.param_type_name == "argument"), ctx)
            below: dict[str, list[Any]] = {title: [] for title in ("Options", *headings, last)}
            for each in params:
                if each.param_type_name == "option":
                    below[titles.get(str(each.name), "Options")].append(each)
            for title, options in below.items():
                _list_options(formatter, title, options, ctx)

    return CommandPage


def _split(args: list[str]) -> tuple[list[str], CommandLine]:
    if "--" in args:
        place = args.index("--")
        return args[:place], CommandLine(args[place + 1 :])
    # The first word that is neither an option nor a file is where the command line probably begins.
    words = (place for place, word in enumerate(args) if not word.startswith("-") and not Path(word).is_file())
    place = next(words, len(args))
    return args[:place], CommandLine(args[place:], is_marked=False)


def _list(formatter: Any, title: str, group: TyperGroup, names: Iterable[str]) -> None:
    known = [(name, group.commands[name].get_short_help_str(_SUMMARY_MAX)) for name in names]
    if known:
        with formatter.section(title):
            formatter.write_dl(known)


def _list_options(formatter: Any, title: str, params: Iterable[Any], context: Any) -> None:
    known = [record for param in params if (record := param.get_help_record(context)) is not None]
    if known:
        with formatter.section(title):
            formatter.write_dl(known)

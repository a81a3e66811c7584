"""The command `wlc`: make a database a master, write to it, publish, and list published transactions."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wlc.farm.clock import format_age
from wlc.farm.errors import CorruptError, FarmError, FencedError, InvalidError, ReplayError

from .command import CommandLine, command, explain, new_app, run_app
from .interruption import stop_on_signal
from .log_lines import log_report
from .options import Database, Farm, Repair, Source, StorageOptions, beat_of, storage_options
from .output import Fields, Listing, Report, Sentence, Value, counted, for_person, record, with_units
from .overview import COMMANDS as LOOKING_COMMANDS
from .overview import list_databases, log
from .programs import WLC
from .progress import working
from .retention import COMMANDS as KEEPING_COMMANDS
from .sites import COMMANDS as SITE_COMMANDS
from .tiers import COMMANDS as TIER_COMMANDS

if TYPE_CHECKING:
    from wlc import Flushed
    from wlr.care.farm_audit import FarmAudit


app = new_app(WLC)


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run_app(app, "wlc"))


@command(app, "master", example="sales.duckdb --farm s3://bucket/farm --beat 60")
def master(
    source: Source,
    farm: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="WLC_FARM", help="Where to publish; default is dbfarm/ beside the source."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="N", help="Name in the farm; default is the file's stem.")] = None,
    logs: Annotated[str | None, typer.Option(metavar="URL", help="Put the log files in another place.")] = None,
    beat: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="Longest time until a commit is published: 60, 90s, 5m; 0 publishes each. Default is 300."
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only these tables of a PostgreSQL database; may be repeated."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Set REPLICA IDENTITY FULL of PostgreSQL tables without asking.")
    ] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="The database replaces the master that it is a copy of.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Make an empty DuckDB database unless there is one.")
    ] = False,
    site: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the first of several sites, which the database becomes."),
    ] = None,
    mesh: Annotated[
        bool, typer.Option("--mesh", help="With --site: every site reads all others; there is no primary.")
    ] = False,
    print_sql: Annotated[
        bool,
        typer.Option(
            "--print-sql", help="Only print the SQL that lets a role without superuser rights be the one of SOURCE."
        ),
    ] = False,
    storage_option: StorageOptions = None,
) -> Report:
    """Make a database a master, once.

    Creates its folder in the farm with wlc.config, and a snapshot unless the database is empty. In a PostgreSQL
    database it makes a schema wlc, a publication, a replication slot and event triggers; wlc stop removes them.
    """
    import wlc

    if print_sql:
        return Value("sql", wlc.preparation(source))
    _agree_to_identity(source, tables or (), is_agreed=yes)
    given = {"farm": farm, "name": name, "logs": logs, "beat": beat, "site": site, "mesh": mesh or None}
    with working("making the first snapshot") as progress, _creating_as(given):
        return record(
            wlc.master(
                source,
                farm=farm,
                name=name,
                logs=logs,
                beat_s=beat_of(beat),
                tables=tables or (),
                moved=moved,
                create=create,
                site=site,
                mesh=mesh,
                storage_options=storage_options(storage_option),
                progress=progress,
            )
        )


@contextmanager
def _creating_as(given: Mapping[str, object]) -> Iterator[None]:
    """If a hint names the command that creates the file, repeat the user's options in it."""
    try:
        yield
    except InvalidError as error:
        if error.hint:
            known = (None, os.environ.get("WLC_FARM"))
            options = [
                f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
                for name, value in given.items()
                if value not in known
            ]
            error.hint = error.hint.replace("--create", " ".join(["--create", *options]))
        raise


def _agree_to_identity(source: str, patterns: Sequence[str], *, is_agreed: bool) -> None:
    """Ask before changing tables."""
    import wlc

    needing = () if is_agreed else wlc.tables_to_change(source, patterns)
    if not needing:
        return
    listed = ", ".join(map(str, needing))
    typer.echo(f"These tables get REPLICA IDENTITY FULL, until wlc stop: {listed}", err=True)
    if not sys.stdin.isatty():
        raise InvalidError("changing these tables needs your agreement", hint="give --yes to agree")
    typer.confirm("Go on?", abort=True, err=True)


@command(app, "run", example="postgresql://localhost/shop", goes_on=True)
def run(source: Source, storage_option: StorageOptions = None) -> Report:
    """Publish a PostgreSQL master on the beat, until stopped.

    SIGTERM or Ctrl-C stop it; the batch at hand is finished.
    """
    import wlc

    is_stopped = stop_on_signal()

    def tell(flushed: Flushed) -> None:
        log_report("run", record(flushed))

    options = storage_options(storage_option)
    return record(wlc.run(source, is_stopped=is_stopped, tell=tell, storage_options=options))


@command(app, "sql", example="sales.duckdb \"insert into orders values (1, 'pen')\"")
def sql(
    source: Source,
    statements: Annotated[str | None, typer.Argument(metavar="SQL", help="One or more statements.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the statements from here; - is stdin.")
    ] = None,
    repair: Repair = False,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Run SQL on a master with capture, and show the result."""
    import wlc

    text = _sql_text(statements, file)
    # If a background thread cannot publish, closing the connection reports it.
    logging.getLogger("wlc").addHandler(logging.NullHandler())
    connection = wlc.connect(source, repair=repair, storage_options=storage_options(storage_option))
    try:
        with working("running SQL"):
            answer = _answer(connection.execute(text))
    except BaseException:
        # Only the error of the SQL is shown.
        with suppress(FarmError):
            connection.close()
        raise
    if answer is not None:
        yield answer
    try:
        connection.close()
    except FarmError as error:
        # Without this sentence the user might repeat the statements.
        cause = error.__cause__ if isinstance(error.__cause__, type(error)) else error
        message = f"the statements are committed and wait to be published, since {cause.message}"
        again = f"wlc flush {shlex.quote(source)}"
        hint = again
        if error.hint and isinstance(error, InvalidError | FencedError):
            hint = error.hint.replace("SOURCE", shlex.quote(source))
            if isinstance(error, InvalidError):
                hint = f"{hint.rstrip('.')}. Then: {again}"
        raise type(error)(message, hint=hint) from error


def _answer(result: Any) -> Listing | None:
    if not result.description:
        return None
    columns = [column[0] for column in result.description]
    rows = result.fetchall()
    # DuckDB returns one of these column names and no rows for a statement without a result.
    return None if columns in (["Success"], ["Count"]) and not rows else Listing(columns, rows, null="NULL")


def _sql_text(statements: str | None, file: str | None) -> str:
    if (statements is None) == (file is None):
        raise InvalidError("give the statements either as an argument or with -f", hint="wlc sql --help")
    if statements is not None:
        return statements
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(str(file)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"cannot read {file}: {error}", hint="wlc sql SOURCE -f FILE", path=file) from error


@command(app, "exec", example="sales.duckdb -- dbt run")
def execute(
    context: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE... -- COMMAND", help="The masters, and behind -- the command to run.")
    ],
    repair: Repair = False,
    storage_option: StorageOptions = None,
) -> None:
    """Run a program, and capture what it writes to masters.

    The program needs no change: each connection to these files that its Python processes open for writing is captured.
    The exit code is that of the program.
    """
    from wlc.masters.execution import execute as run

    line: CommandLine = context.obj
    if not (line.words and line.is_marked):
        again = f"wlc exec {shlex.join(sources)} -- {shlex.join(line.words) or 'COMMAND'}"
        raise InvalidError("the command to run is missing: it stands behind --", hint=again)
    options = storage_options(storage_option)
    code, results = run(line.words, sources, repair=repair, storage_options=options)
    for source, result in results.items():
        if isinstance(result, FarmError):
            reason = explain(result)
            code = code or reason
        elif sys.stderr.isatty():
            print(f"{source}: published up to tick {result}", file=sys.stderr)
    raise typer.Exit(code)


@command(app, "flush", example="sales.duckdb")
def flush(source: Source, repair: Repair = False, storage_option: StorageOptions = None) -> Report:
    """Publish committed transactions now."""
    import wlc

    options = storage_options(storage_option)
    with working("publishing"):
        done = wlc.flush(source, repair=repair, storage_options=options)
    said = f"Nothing to publish; the last tick is {done.tick}."
    if done.batches:
        said = (
            f"Published {counted(done.transactions, 'transaction')}, {counted(done.rows, 'row')}, in"
            f" {counted(done.batches, 'batch')}; the last tick is {done.tick}."
        )
    return Sentence(said, record(done).values)


@command(app, "snapshot", example="sales --farm s3://bucket/farm --from-log")
def snapshot(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The master database itself; with --from-log, a DB.")],
    from_log: Annotated[bool, typer.Option("--from-log", help="Make it from the newest snapshot and the log.")] = False,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="With --from-log: engine for large work: local, spark or auto.")
    ] = "auto",
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Take a new snapshot, from which new replicas start."""
    options = storage_options(storage_option)
    with working("taking a snapshot") as progress:
        if from_log:
            import wlr

            manifest = wlr.snapshot_from_log(
                source, farm=farm, engine=engine, storage_options=options, progress=progress
            )
        else:
            import wlc

            manifest = wlc.snapshot(source, storage_options=options, progress=progress)
    rows = sum(file.rows for table in manifest.tables for file in table.files)
    return Fields(
        {"tick": manifest.position.tick, "clock": manifest.clock, "tables": len(manifest.tables), "rows": rows}
    )


@command(app, "stop", example="sales.duckdb")
def stop(
    source: Source,
    rest_to: Annotated[
        str | None,
        typer.Option(metavar="FARM", help="Of a master that was fenced off: publish the rest into a farm of its own."),
    ] = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Publish pending transactions and end the history.

    Later writes are not captured; wlc master makes the database a master again, with a new snapshot.
    """
    import wlc

    options = storage_options(storage_option)
    with working("publishing pending transactions"):
        return record(wlc.stop(source, rest_to=rest_to, storage_options=options))


@command(app, "farm repair", example="sales.duckdb")
def farm_repair(source: Source, storage_option: StorageOptions = None) -> Report:
    """Publish what was written to a master without capture.

    It is found by comparing the database with the published state.
    """
    import wlc
    import wlr
    from wlc.masters.operations import check_repair

    check_repair(source)
    options = storage_options(storage_option)
    with tempfile.TemporaryDirectory(prefix="wlc-repair-") as folder, working("comparing with the published state"):
        published: str | None = str(Path(folder) / "published.duckdb")
        with warnings.catch_warnings(action="ignore"):
            # Pending transactions are no difference. The warning is about the writes that this command repairs.
            wlc.flush(source, storage_options=options)
        try:
            wlr.replicate(source, into=str(published), storage_options=options, register=False)
        except ReplayError:
            # Captured transactions changed rows that had bypassed capture: replicas stop there.
            published = None
        return record(wlc.repair(source, published=published, storage_options=options))


TABLE_COLUMNS = ("table", "outcome", "rows", "expected")


@command(app, "farm verify", example="sales --farm s3://bucket/farm --full")
def verify(
    db: Database,
    full: Annotated[
        bool, typer.Option("--full", help="Also read files that an earlier run on this machine verified.")
    ] = False,
    source: Annotated[
        bool, typer.Option("--source", help="Compare the master itself, SOURCE, with its captured changes.")
    ] = False,
    window: Annotated[
        str | None, typer.Option(metavar="AGE", help="Also check that every state of this period can be restored: 30d.")
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Iterator[Report]:
    """Check that every file of a database is as it was written.

    It also checks that no file is missing, and that the files fit each other.
    """
    options = storage_options(storage_option)
    if source:
        if window is not None:
            raise InvalidError("--source reads the master, --window the farm", hint="run the two one after the other")
        yield from _verify_source(db, options)
        return
    import wlr
    from wlr.care.findings import check_audit

    with working("verifying {}", db) as progress:
        audit = wlr.verify_farm(db, farm=farm, full=full, window=window, storage_options=options, progress=progress)
    found = record(audit)
    yield Fields(found.values, on_terminal=lambda: _in_words(found, audit))
    check_audit(audit, db, window)


def _in_words(found: Fields, audit: FarmAudit) -> Fields:
    """Show problems as lines of text, for a person."""
    problems = [f"{each.path}: {each.problem}" for each in audit.problems]
    return with_units(Fields({**found.values, "problems": problems}))


def _verify_source(source: str, options: dict[str, object] | None) -> Iterator[Report]:
    import wlc

    with working("reading the master"):
        checks = wlc.verify_source(source, storage_options=options)
    yield Listing(TABLE_COLUMNS, [(c.table, c.outcome, c.rows, c.expected) for c in checks], null="-")
    if differing := [check for check in checks if check.hint is not None]:
        tables = ", ".join(check.table for check in differing)
        raise CorruptError(f"{tables} changed without being captured", hint=differing[0].hint)


@command(app, "beat", example="sales 60")
def beat(
    db: Database,
    seconds: Annotated[
        str | None, typer.Argument(metavar="S", help="New beat in seconds, or as in 5m; 0 publishes each commit.")
    ] = None,
    expect_every: Annotated[
        str | None, typer.Option(metavar="AGE", help="Longest expected time between two commits; 0s: no limit.")
    ] = None,
    sign_every: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="How often a publisher reports that it runs, without commits; 0s: never."),
    ] = None,
    farm: Farm = None,
    storage_option: StorageOptions = None,
) -> Report:
    """Show or set the longest time until a commit is published.

    It also sets the limits that distinguish a quiet master from a dead one.
    """
    import wlc
    from wlc.farm.health import SIGN_EVERY, read_health

    where: dict[str, Any] = {"farm": farm, "storage_options": storage_options(storage_option)}
    beat_s = wlc.beat(db, beat_of(seconds), expect_every=expect_every, sign_every=sign_every, **where)
    health = read_health(wlc.resolve(db, **where))
    when = f"after {format_age(timedelta(seconds=beat_s))} at the latest" if beat_s else "at once"
    said = [f"Each commit is published {when}."]
    if health.expect_every:
        said.append(f"A commit is expected every {format_age(health.expect_every)}.")
    if health.sign_every != SIGN_EVERY:
        often = f"every {format_age(health.sign_every)}" if health.sign_every else "never"
        said.append(f"The publisher reports that it runs {often}.")
    values = {"expect_every_s": health.expect_every, "sign_every_s": health.sign_every}
    return Sentence(" ".join(said), {"beat_s": beat_s} | {name: age.total_seconds() for name, age in values.items()})


@command(app, "status", example="sales --farm /srv/farm --json")
def status(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """Show a master: last tick, unpublished transactions, log."""
    import wlc

    found = wlc.status(db, farm=farm, storage_options=storage_options(storage_option))
    # A slot that is reserved is as it should be.
    wrong = ("fenced", "fenced_since", "remedy", "bypassed", *(("slot",) if found.slot != "reserved" else ()))
    return for_person(found, wrong)


@command(app, "tick", example="sales")
def tick(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """Show the last published tick."""
    import wlc

    return Value("tick", wlc.tick(db, farm=farm, storage_options=storage_options(storage_option)))


@command(app, "clock", example="sales")
def clock(db: Database, farm: Farm = None, storage_option: StorageOptions = None) -> Report:
    """Show the commit time of the last published transaction.

    It is empty if there is no such transaction.
    """
    import wlc

    return Value("clock", wlc.clock(db, farm=farm, storage_options=storage_options(storage_option)))


@command(app, "farm key", example="encryption farm.key")
def key(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="encryption or signing.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Key file; the new key becomes its first.")],
) -> Report:
    """Create a key for a farm, and show its id.

    Masters write with the first key of the file; all its keys can read. FILE.pub gets the public half of a signing key,
    with which replicas verify.
    """
    from wlc.farm.seal import keys

    made = keys.add_key(file, kind)
    fields = {"id": made.id, "file": str(file)}
    return Fields({**fields, "public": f"{file}.pub"} if kind == keys.SIGNING else fields)


command(app, "log", example="sales --since yesterday --what DROP")(log)
command(app, "list", example="s3://bucket/farm")(list_databases)
_MORE = (
    *LOOKING_COMMANDS,
    *KEEPING_COMMANDS,
    *TIER_COMMANDS,
    *SITE_COMMANDS,
)
for _function, _path, _example in _MORE:
    command(app, _path, example=_example)(_function)


if __name__ == "__main__":
    main()

"""`wlc exec` and `wlc.patched`: programs that call `duckdb.connect` are captured without a change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.environments import environment
from wlc.capture.duckdb import home
from wlc.capture.duckdb.interception import attaching, hook
from wlc.dialect.duckdb.engine import BELOW, LEAST
from wlc.farm.errors import InvalidError, UnavailableError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0
PROGRAMS = Path(sys.executable).parent
WLC = PROGRAMS / "wlc"
# A program that writes one row.
WRITES = "import duckdb; duckdb.connect('sales.duckdb').execute('INSERT INTO t VALUES (1)')"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("WLC_FARM", raising=False)
    wlc.master("sales.duckdb", create=True)
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    return tmp_path


def execute(*command: str, files: tuple[str, ...] = ("sales.duckdb",), **variables: str) -> Any:
    return subprocess.run(
        [WLC, "exec", *files, "--", *command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def rows(database: str = "sales.duckdb") -> list[tuple[int]]:
    """The rows of a replica, which must be those of the master."""
    found = wlr.read(database, "t").order("a").fetchall()
    with duckdb.connect(database, read_only=True) as connection:
        assert found == connection.execute("SELECT a FROM t ORDER BY a").fetchall()
    return found


# Ways to a connection -------------------------------------------------------------------------------------------------

WORKER = """
import multiprocessing, sys
def work():
    import duckdb
    duckdb.connect("sales.duckdb").execute("INSERT INTO t VALUES (1)")
if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
WAYS: dict[str, tuple[str, ...]] = {
    "a module": ("python", "-c", WRITES),
    "a name": (
        "python",
        "-c",
        "from duckdb import connect; connect('sales.duckdb').execute('INSERT INTO t VALUES (1)')",
    ),
    "a keyword and a path": (
        "python",
        "-c",
        "import duckdb, pathlib; c = duckdb.connect(database=pathlib.Path('sales.duckdb'), config={'threads': 1});"
        "c.execute('INSERT INTO t VALUES (1)')",
    ),
    "another folder": (
        "python",
        "-c",
        "import os, duckdb; os.mkdir('sub'); os.chdir('sub'); c = duckdb.connect('../sales.duckdb');"
        "c.sql('INSERT INTO t VALUES (1)')",
    ),
    "a link": ("sh", "-c", f'ln -s sales.duckdb other.duckdb; python -c "{WRITES.replace("sales", "other")}"'),
    "a thread": (
        "python",
        "-c",
        f"import threading; t = threading.Thread(target=lambda: exec({WRITES!r})); t.start(); t.join()",
    ),
    "a child": ("python", "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WRITES!r}])"),
    "a shell": ("sh", "-c", f'python -c "{WRITES}"'),
    "safe paths": ("python", "-P", "-c", WRITES),
    "safe paths by a variable": ("env", "PYTHONSAFEPATH=1", "python", "-c", WRITES),
    "no user's packages": ("python", "-s", "-c", WRITES),
    "a script": ("./program.py",),
    "forked": ("python", "worker.py", "fork"),
    "spawned": ("python", "worker.py", "spawn"),
    "a fork server": ("python", "worker.py", "forkserver"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_program_is_captured(folder: Path, way: str) -> None:
    (folder / "worker.py").write_text(WORKER)
    (folder / "program.py").write_text(f"#!{sys.executable}\n{WRITES}\n")
    (folder / "program.py").chmod(0o755)
    done = execute(*WAYS[way])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert rows() == [(1,)]


# Ways past the capture ------------------------------------------------------------------------------------------------

ESCAPES: dict[str, tuple[str, ...]] = {
    "isolated": ("python", "-I", "-c", WRITES),
    "no variables": ("python", "-E", "-c", WRITES),
    "an emptied path": ("env", "-u", "PYTHONPATH", "python", "-c", WRITES),
    "the engine itself": ("python", "-c", WRITES.replace("import duckdb", "import _duckdb as duckdb")),
    "a computed path": (
        "python",
        "-c",
        "import duckdb; c = duckdb.connect(); c.execute(\"SET VARIABLE p = 'sales.duckdb'\");"
        "c.execute(\"ATTACH getvariable('p') AS s\"); c.execute('INSERT INTO s.t VALUES (1)')",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", ESCAPES)
def test_what_escapes_is_named_in_the_end(folder: Path, way: str) -> None:
    done = execute(*ESCAPES[way])
    assert done.returncode == UnsupportedError.exit_code
    assert "error: sales.duckdb was written to without capture: main.t has 1 rows instead of 0\n" in done.stderr
    assert "hint: wlc farm repair sales.duckdb\n" in done.stderr


# What stays as it is --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_several_files_are_captured_and_others_are_not(folder: Path) -> None:
    wlc.master("stock.duckdb", create=True)
    (folder / "program.py").write_text(
        "import duckdb\n"
        "with duckdb.connect('sales.duckdb') as a, duckdb.connect('stock.duckdb') as b, duckdb.connect('x.duckdb') as c:\n"
        "    for each in (a, b, c, duckdb):\n"
        "        each.execute('CREATE OR REPLACE TABLE t (a INTEGER); INSERT INTO t VALUES (5)')\n"
        "    print(type(a) is type(b), type(a) is type(c))\n"
        "with duckdb.connect('sales.duckdb', read_only=True) as a:\n"
        "    print(type(a) is type(c), a.execute('FROM t').fetchall())\n"
    )
    done = execute(sys.executable, "program.py", files=("sales.duckdb", "stock.duckdb"))
    assert (done.stdout, done.stderr, done.returncode) == ("True False\nTrue [(5,)]\n", "", 0)
    assert rows("sales.duckdb") == rows("stock.duckdb") == [(5,)]


@pytest.mark.slow
def test_the_environment_keeps_its_own_start(folder: Path) -> None:
    (folder / "start").mkdir()
    (folder / "start" / "sitecustomize.py").write_text("import builtins; builtins.started = __name__\n")
    (folder / "start" / "extra.py").write_text("value = 7\n")
    program = f"import extra, sitecustomize; print(started, extra.value, sitecustomize.__file__); {WRITES}"
    done = execute(sys.executable, "-c", program, PYTHONPATH=str(folder / "start"))
    assert done.stdout == f"sitecustomize 7 {folder}/start/sitecustomize.py\n"
    assert rows() == [(1,)]


@pytest.mark.slow
def test_one_exec_runs_in_another(folder: Path) -> None:
    wlc.master("stock.duckdb", create=True)
    (folder / "program.py").write_text(
        "import duckdb\n"
        "for name in ('sales', 'stock'):\n"
        "    duckdb.connect(f'{name}.duckdb').execute('CREATE OR REPLACE TABLE t (a INTEGER); INSERT INTO t VALUES (5)')\n"
    )
    inner = (str(WLC), "exec", "stock.duckdb", "--", sys.executable, "program.py")
    assert execute(*inner).returncode == 0
    assert rows("sales.duckdb") == rows("stock.duckdb") == [(5,)]


@pytest.mark.slow
def test_another_environment_borrows_dbfarm_and_finds_no_other_package_of_it(folder: Path) -> None:
    python = environment("duckdb", f"duckdb=={duckdb.__version__}")
    (folder / "program.py").write_text(
        f"{WRITES}\n"
        "import importlib.util\n"
        "print([importlib.util.find_spec(name) for name in ('typer', 'fsspec', 'pyarrow', 'wlr')])\n"
    )
    done = execute(str(python), "program.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[None, None, None, None]\n", "")
    assert rows() == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["itself", "a script", "env", "a shell"])
def test_an_environment_with_another_duckdb_is_refused_before_it_writes(folder: Path, by: str) -> None:
    python = environment("duckdb-before", "duckdb==1.5.*")
    first = {"a script": f"#!{python}", "env": "#!/usr/bin/env python"}
    (folder / "program").write_text(f"{first.get(by, '')}\nopen('started', 'w')\n{WRITES}\n")
    (folder / "program").chmod(0o755)
    command = {"itself": (str(python), "program"), "a shell": ("sh", "-c", f"{python} program")}.get(by, ("./program",))
    done = execute(*command, PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode != 0
    assert "/python has DuckDB 1.5" in done.stderr or f"{python} has DuckDB 1.5" in done.stderr
    assert f"capture needs DuckDB {LEAST} or later, before {BELOW}" in done.stderr
    assert (folder / "started").exists() == (by == "a shell")
    assert rows() == []


def test_a_program_does_not_run_if_its_capture_fails() -> None:
    startup = Path(hook.__file__).parent / "startup"
    environment = {**os.environ, "PYTHONPATH": str(startup), hook.VARIABLE: '{"files": []}'}
    done = subprocess.run([sys.executable, "-c", "print(1)"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: wlc exec cannot capture in {sys.executable}: TypeError" in done.stderr


def test_another_python_is_refused_unless_it_has_dbfarm(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = hook.Wanted({}, [3, 99], [LEAST, BELOW], [])
    assert wanted.problem(duckdb.__version__) is None
    monkeypatch.setattr(hook, "_OURS", "dbfarm_is_not_here")
    assert "without dbfarm, and wlc exec can lend dbfarm to Python 3.99 only" in str(wanted.problem(duckdb.__version__))


# ATTACH ---------------------------------------------------------------------------------------------------------------

WRITING = (
    "ATTACH 'sales.duckdb'",
    'attach if not exists "sales.duckdb" as s',
    "ATTACH sales.duckdb AS s (TYPE duckdb)",
    "SELECT 1; ATTACH OR REPLACE './sales.duckdb' AS s (READ_ONLY false)",
    "ATTACH 'sales.duckdb' AS s (READ_ONLY 0)",
    "ATTACH 'sales.duckdb' AS s (READ_WRITE)",
)
READING = (
    "ATTACH 'sales.duckdb' AS s (READ_ONLY)",
    "ATTACH 'sales.duckdb' AS s (TYPE duckdb, READ_ONLY true)",
    "ATTACH 'other.duckdb' AS s",
    "SELECT 'attach' AS attach",
)


@pytest.mark.parametrize("text", WRITING)
def test_attaching_for_writing_is_refused(folder: Path, text: str) -> None:
    calls: list[Callable[[Any], object]] = [
        lambda connection: connection.execute(text),
        lambda connection: connection.sql(text),
        lambda connection: connection.cursor().query(text),
        lambda connection: [connection.execute(each) for each in connection.extract_statements(text)],
        lambda _: duckdb.execute(text),
    ]
    with wlc.patched("sales.duckdb"), duckdb.connect() as connection:
        for call in calls:
            with pytest.raises(InvalidError, match="sales.duckdb is captured, and nothing") as refused:
                call(connection)
            assert "(READ_ONLY)" in str(refused.value.hint)
        assert "s" not in connection.execute("SELECT list(database_name) FROM duckdb_databases()").fetchall()[0][0]


@pytest.mark.parametrize("text", READING)
def test_attaching_for_reading_passes(folder: Path, text: str) -> None:
    with wlc.patched("sales.duckdb"), duckdb.connect() as connection:
        connection.execute(text)


def test_a_hint_for_attaching_works(folder: Path) -> None:
    with pytest.raises(InvalidError) as refused:
        attaching.refuse_attaching("ATTACH 'sales.duckdb'", lambda _: True)
    read, write = (part.partition(": ")[2] for part in str(refused.value.hint).split("; "))
    with duckdb.connect() as connection:
        connection.execute(read)
    assert eval(write, {"duckdb": duckdb}).execute("FROM t").fetchall() == []


# In process -----------------------------------------------------------------------------------------------------------


def test_patched_captures_and_puts_everything_back(folder: Path) -> None:
    before = {**os.environ}, duckdb.connect, duckdb.execute, vars(duckdb.DuckDBPyConnection)["execute"]
    from duckdb import connect

    globals()["connect_by_name"] = connect
    with wlc.patched("sales.duckdb"):
        with globals()["connect_by_name"]("sales.duckdb") as connection:
            connection.execute("INSERT INTO t VALUES (1)")
        subprocess.run([sys.executable, "-c", WRITES], check=True)
    assert before == ({**os.environ}, duckdb.connect, duckdb.execute, vars(duckdb.DuckDBPyConnection)["execute"])
    assert globals().pop("connect_by_name") is connect
    assert rows() == [(1,), (1,)]


def test_patched_names_what_bypassed_it(folder: Path) -> None:
    with (
        pytest.raises(UnsupportedError, match="sales.duckdb was written to without capture: main.t has 1 rows"),
        wlc.patched("sales.duckdb"),
    ):
        subprocess.run([sys.executable, "-I", "-c", WRITES], check=True)


def test_variables_of_the_caller_are_found(folder: Path) -> None:
    frame = duckdb.sql("SELECT 9 AS a").df()
    with wlc.patched("sales.duckdb"), duckdb.connect("sales.duckdb") as connection, duckdb.connect() as other:
        for each in (connection, other, duckdb):
            assert each.sql("FROM frame").fetchall() == each.execute("FROM frame").fetchall() == [(9,)]
    assert len(frame) == 1


@pytest.mark.parametrize("wrong", ["nothing.duckdb", "plain.duckdb", "stopped.duckdb", "postgresql://host/sales"])
def test_what_cannot_be_captured_is_refused_before_anything_runs(folder: Path, wrong: str) -> None:
    duckdb.connect("plain.duckdb").close()
    wlc.master("stopped.duckdb", create=True)
    wlc.stop("stopped.duckdb")
    with pytest.raises(InvalidError) as refused, wlc.patched("sales.duckdb", wrong):
        pytest.fail("it ran")
    assert wrong in str(refused.value)
    assert refused.value.hint


# The process ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_exit_code_output_and_input_are_those_of_the_command(folder: Path) -> None:
    done = execute(
        sys.executable, "-c", f"{WRITES}; import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert rows() == [(1,)]
    assert execute("sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
    missing = execute("no-such-program")
    assert (missing.returncode, missing.stderr.splitlines()[0]) == (
        InvalidError.exit_code,
        "error: cannot start no-such-program: No such file or directory",
    )
    without = subprocess.run([WLC, "exec", "sales.duckdb"], capture_output=True, text=True, cwd=folder)
    assert without.returncode == InvalidError.exit_code


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ([], "wlc exec sales.duckdb -- COMMAND"),
        (["--"], "wlc exec sales.duckdb -- COMMAND"),
        (["dbt", "build", "--full-refresh"], "wlc exec sales.duckdb -- dbt build --full-refresh"),
    ],
)
def test_a_command_line_without_its_mark_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], typed: list[str], hint: str
) -> None:
    assert run_app(app, "wlc", ["exec", "sales.duckdb", *typed]) == InvalidError.exit_code
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: {hint}"


@pytest.mark.slow
def test_what_a_killed_program_committed_is_published(folder: Path) -> None:
    wlc.beat("sales", 3600, farm="dbfarm")
    done = execute(sys.executable, "-c", f"{WRITES}; import os; os.kill(os.getpid(), 9)")
    assert done.returncode == 128 + signal.SIGKILL
    assert rows() == [(1,)]


@pytest.mark.slow
def test_signals_are_passed_on(folder: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(5)); print('on', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [WLC, "exec", folder / "sales.duckdb", "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 5


def test_a_file_in_use_is_the_error_of_duckdb(folder: Path) -> None:
    """Programs wait and try again for this error."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import duckdb, sys; c = duckdb.connect('sales.duckdb'); print(1, flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(duckdb.IOException, match=f"open in process {holder.pid}") as refused:
        wlc.connect("sales.duckdb")
    assert isinstance(refused.value, UnavailableError)
    holder.communicate()


# Whether a file must be opened ----------------------------------------------------------------------------------------

CHANGES: dict[str, str] = {
    "a row": "INSERT INTO t VALUES (1)",
    "a table": "CREATE TABLE u (a INTEGER)",
    "a view": "CREATE VIEW v AS SELECT 1 AS a",
}


def test_a_file_that_is_settled_is_not_opened(folder: Path) -> None:
    assert home.settled_tick("sales.duckdb") == 1
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        assert home.settled_tick("sales.duckdb") is None
    assert home.settled_tick("sales.duckdb") == 2
    with duckdb.connect("sales.duckdb") as plain, duckdb.connect("sales.duckdb") as other:
        assert plain.execute("FROM t").fetchall() == other.execute("FROM t").fetchall()
    assert home.settled_tick("sales.duckdb") == 2


@pytest.mark.parametrize("ends", ["", "; import os; os._exit(9)"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_plain_write_ends_that(folder: Path, change: str, ends: str) -> None:
    program = f"import duckdb; c = duckdb.connect('sales.duckdb'); c.execute('{CHANGES[change]}'){ends}"
    subprocess.run([sys.executable, "-c", program], check=False)
    assert home.settled_tick("sales.duckdb") is None
    with pytest.raises(UnsupportedError, match="written to without capture"), wlc.patched("sales.duckdb"):
        pytest.fail("it ran")
    with pytest.warns(UserWarning, match="this is repaired"), wlc.patched("sales.duckdb", repair=True):
        pass
    assert home.settled_tick("sales.duckdb") == 2


@pytest.mark.parametrize("how", ["copied", "moved", "stopped", "not published"])
def test_other_files_are_not_settled(folder: Path, how: str) -> None:
    match how:
        case "copied":
            subprocess.run(["cp", "-a", "sales.duckdb", "other.duckdb"], check=True)
        case "moved":
            (folder / "sales.duckdb").rename(folder / "other.duckdb")
        case "stopped":
            wlc.stop("sales.duckdb")
        case "not published":
            (folder / "dbfarm").rename(folder / "away")
            with pytest.raises(wlc.FarmError), wlc.connect("sales.duckdb") as connection:
                connection.execute("INSERT INTO t VALUES (1)")
    other = folder / "other.duckdb"
    assert home.settled_tick(str(other if other.exists() else folder / "sales.duckdb")) is None

"""The folder tree is the architecture diagram; here is what makes that true."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("wlc", "wlr", "cli")
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# The half of wlc that describes the farm; the other half is the master, which a replica never touches.
FORMAT = {"errors", "model", "clock", "paths", "store", "config", "log", "manifest", "farm", "fields", "registry"} | {
    "digest",
    "cipher",
    "datafiles",
    "keys",
    "signing",
    "address",
    "garbage",
    "postgres_text",
    "types",
    "catalog",
    "opening",
    "plain",
    "schema",
}

# An outside library has one home, or is listed here with every place that may know it.
HOMES = {
    "fsspec": ("wlc/store/",),
    "s3fs": ("wlc/store/",),
    "botocore": ("wlc/store/",),
    "pyspark": ("wlr/bulk/", "wlr/spark.py"),
    # A data file is read with DuckDB for the DBA and for Spark; a schema is tried on a database in memory; a snapshot is
    # counted; the files of a farm are read once more.
    "duckdb": (
        "wlc/capture/",
        "wlr/engine/",
        "wlr/bulk/",
        "wlc/history.py",
        "wlc/schema.py",
        "wlc/snapshot.py",
        "wlr/audit.py",
    ),
    "psycopg": ("wlc/capture/postgres/", "wlr/engine/postgres/"),
    "adbc_driver_postgresql": ("wlc/capture/postgres/", "wlr/engine/postgres/"),
    "cryptography": ("wlc/cipher.py",),
    "typer": ("cli/",),
    "rich": ("cli/",),
}


@dataclass(frozen=True)
class Import:
    """One imported module, and whether the program imports it or only the type checker does."""

    module: str
    at_runtime: bool


def sources() -> list[Path]:
    return sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> list[Import]:
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from wlc import history` imports a module as much as `from wlc.history import rows` does.
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found += [Import(module, node not in typing_only) for module in modules]
    return found


def imports_of(file: Path) -> list[Import]:
    return imports(ast.parse(file.read_text(encoding="utf-8")))


def is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_there_is_something_to_check() -> None:
    assert len(sources()) > 20


def test_imports_are_found_wherever_they_stand() -> None:
    text = "if TYPE_CHECKING:\n    import a.b\ndef f():\n    from c import d\n"
    assert [(i.module, i.at_runtime) for i in imports(ast.parse(text))] == [("a.b", False), ("c", True), ("c.d", True)]


@pytest.mark.parametrize("below, above", [("wlc", "wlr"), ("wlc", "cli"), ("wlr", "cli")])
def test_imports_go_down_only(below: str, above: str) -> None:
    offenders = [
        relative(file)
        for file in (ROOT / below).rglob("*.py")
        for found in imports_of(file)
        if found.module.split(".")[0] == above
    ]
    assert offenders == []


def test_replicas_know_the_format_and_not_the_master() -> None:
    offenders = [
        f"{relative(file)}: {found.module}"
        for file in (ROOT / "wlr").rglob("*.py")
        for found in imports_of(file)
        if found.module.startswith("wlc.") and is_module(found.module) and found.module.split(".")[1] not in FORMAT
    ]
    assert offenders == []


def test_format_does_not_know_the_master() -> None:
    offenders = [
        f"{relative(file)}: {found.module}"
        for file in sources()
        if (parts := file.relative_to(ROOT).with_suffix("").parts)[0] == "wlc" and parts[1] in FORMAT
        for found in imports_of(file)
        if found.module.startswith("wlc.") and is_module(found.module) and found.module.split(".")[1] not in FORMAT
    ]
    assert offenders == []


@pytest.mark.parametrize("library", HOMES)
def test_outside_libraries_stay_at_home(library: str) -> None:
    offenders = [
        relative(file)
        for file in sources()
        for found in imports_of(file)
        if found.at_runtime and found.module.split(".")[0] == library and not relative(file).startswith(HOMES[library])
    ]
    assert offenders == []


def loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('LOADED', *sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("package", ["wlc", "wlr"])
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    loaded = loaded_after(f"import {package}")
    assert package in loaded
    assert not loaded & {"pyspark", "s3fs", "botocore", "pyarrow", "pandas", "rich", "typer", "cryptography"}


def test_functions_are_not_replaced_by_modules_of_their_names() -> None:
    modules = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in sources())
    code = "import wlc, wlr, types\n" + "".join(f"import {module.removesuffix('.__init__')}\n" for module in modules)
    code += "assert not [n for p in (wlc, wlr) for n in p.__all__ if isinstance(getattr(p, n), types.ModuleType)]"
    assert "wlc" in loaded_after(code)


@pytest.mark.parametrize("program", ["cli.wlc", "cli.wlr"])
def test_help_loads_nothing_heavy(program: str) -> None:
    code = f"from {program} import app\nfrom cli.command import run_app\nrun_app(app, 'x', ['--help'])"
    assert not loaded_after(code) & {"pyspark", "s3fs", "botocore", "pyarrow", "pandas", "duckdb", "rich", "sqlglot"}


@pytest.mark.parametrize("file", sources(), ids=relative)
def test_file_tells_one_story(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("file", sources(), ids=relative)
def test_functions_do_one_thing(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    lengths = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX} == {}

"""The folder tree is the architecture diagram. These checks make that true."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parent.parent
PACKAGES = ("wlc", "wlr", "cli")
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70


# Folders and files from the lowest layer to the highest. A module belongs to the entry with the longest matching name, and
# imports only from its own layer and from lower ones.
LAYERS = (
    ("wlc.farm",),
    # What several masters and tiers are, by pure rules: sources and readers of the log know them.
    (
        "wlc.multi_master.circle",
        "wlc.multi_master.membership",
        "wlc.multi_master.anchors",
        "wlc.tiers.upstreams",
        "wlc.tiers.attachment",
        "wlc.tiers.same_past",
        "wlc.tiers.tier_settings",
    ),
    ("wlc.dialect", "wlc.multi_master.rule_columns"),
    # The contract of sources and the one way to publish are below the sources, which use them.
    (
        "wlc.masters",
        "wlc.multi_master.circle_place",
        "wlc.multi_master.site_life",
        "wlc.multi_master.handover",
        "wlc.multi_master.restored",
        "wlc.multi_master.site_step",
        "wlc.multi_master.unjudged",
    ),
    ("wlc.capture", "wlc.multi_master.duckdb"),
    ("wlc.masters.adapters",),
    (
        "wlc.masters.execution",
        "wlc.masters.retention_policy",
        "wlc.masters.operations",
        "wlc.masters.lookup",
        "wlc.masters.promotion",
        "wlc.masters.prune",
        "wlc.masters.running",
        "wlc.masters.status",
    ),
    ("wlc.tiers",),
    ("wlc.multi_master",),
    ("wlc",),
    ("wlr.replay.plan",),
    ("wlr.replay.log_reader", "wlr.replay.fold", "wlr.replay.ddl"),
    ("wlr.engine",),
    ("wlr.engine.duckdb", "wlr.engine.parquet", "wlr.engine.postgres"),
    ("wlr.engine.adapters",),
    ("wlr.reading",),
    ("wlr.spark",),
    ("wlr", "wlr.reading.feeds", "wlr.reading.change_output"),
    ("cli",),
)
# Engines of one kind do not know each other.
SOURCES = ("wlc.capture.duckdb", "wlc.capture.postgres")
TARGETS = ("wlr.engine.duckdb", "wlr.engine.parquet", "wlr.engine.postgres")

# An outside library has one home, or is listed here with every place that may know it.
HOMES = {
    "fsspec": ("wlc/farm/store/",),
    "s3fs": ("wlc/farm/store/",),
    "botocore": ("wlc/farm/store/",),
    "google": ("wlc/farm/store/google.py",),
    "requests": ("wlc/farm/store/google.py",),
    "azure": ("wlc/farm/store/azure.py",),
    "asyncssh": ("wlc/farm/store/sftp.py",),
    "pyspark": ("wlr/spark/",),
    # A data file is read with DuckDB for the DBA and for Spark; a schema is tried on a database in memory; a snapshot is
    # counted; the files of a farm are read once more.
    "duckdb": (
        "wlc/capture/",
        "wlc/multi_master/duckdb/",
        "wlr/replay/ddl/",
        "wlr/engine/",
        "wlr/spark/",
        "wlc/dialect/duckdb/",
        "wlr/care/farm_audit.py",
    ),
    # `duckdb.connect` may be replaced by a program; `engine.connect` stays.
    "_duckdb": ("wlc/dialect/duckdb/engine.py",),
    "psycopg": ("wlc/dialect/postgres/", "wlc/capture/postgres/", "wlr/engine/postgres/"),
    "adbc_driver_postgresql": ("wlc/capture/postgres/",),
    "confluent_kafka": ("wlr/reading/feeds/kafka.py",),
    "cryptography": ("wlc/farm/seal/cipher.py",),
    "sqlalchemy": ("wlc/sqlalchemy_dialect.py",),
    "duckdb_engine": ("wlc/sqlalchemy_dialect.py",),
    "prometheus_client": ("wlr/service/metrics.py",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "plotly": ("wlr/care/report_page.py",),
    "jinja2": ("wlr/care/report_page.py",),
}
SQL_ENGINES = {"duckdb", "psycopg", "adbc_driver_postgresql", "pyspark", "sqlglot"}


@dataclass(frozen=True)
class Import:
    """One imported module, and whether the program imports it or only the type checker does."""

    module: str
    at_runtime: bool


@functools.cache
def sources() -> tuple[Path, ...]:
    return tuple(sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")))


@pytest.fixture(scope="session", autouse=True)
def _parsed() -> None:
    """Parse the product once, whichever test comes first."""
    for file in sources():
        imports_of(file)


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(file)))


@functools.cache
def imports_in(file: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    return tuple(node for node in nodes_of(file) if isinstance(node, ast.Import | ast.ImportFrom))


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def modules() -> dict[str, Path]:
    return {module_of(file): file for file in sources()}


def imports(nodes: Sequence[ast.AST]) -> list[Import]:
    typing_only = {
        inner
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # cli/ imports its own modules relatively. `from wlc import history` imports a module as much as
            # `from wlc.farm.history import entries` does.
            base = f"cli.{node.module}" if node.level else str(node.module)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        found += [Import(name, node not in typing_only) for name in names]
    return found


@functools.cache
def imports_of(file: Path) -> tuple[Import, ...]:
    return tuple(imports(nodes_of(file)))


@functools.cache
def arrows() -> dict[str, set[str]]:
    """Our modules with our modules that they import, wherever the import stands."""
    graph = {}
    for module, file in modules().items():
        named = {found.module for found in imports_of(file)} & set(modules()) - {module}
        # `from a.b import c` names a.b as well as the module a.b.c; only the latter is meant.
        graph[module] = {name for name in named if not (is_package(name) and only_leads_on(file, name))}
    return graph


def is_package(module: str) -> bool:
    return modules()[module].name == "__init__.py"


def only_leads_on(file: Path, package: str) -> bool:
    """Say whether everything that `file` takes from a package is one of its modules."""
    taken = [
        f"{package}.{alias.name}"
        for node in imports_in(file)
        if isinstance(node, ast.ImportFrom) and node.module == package
        for alias in node.names
    ]
    is_imported_itself = any(
        alias.name == package for node in imports_in(file) if isinstance(node, ast.Import) for alias in node.names
    )
    return not is_imported_itself and all(name in modules() for name in taken)


def is_below(module: str, folder: str) -> bool:
    return f"{module}.".startswith(f"{folder}.")


def nodes_in(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def test_there_is_something_to_check() -> None:
    assert len(sources()) > 100


def test_imports_are_found_wherever_they_stand() -> None:
    text = "if TYPE_CHECKING:\n    import a.b\ndef f():\n    from c import d\n"
    assert [(i.module, i.at_runtime) for i in imports(nodes_in(text))] == [("a.b", False), ("c", True), ("c.d", True)]


def test_every_folder_is_a_package() -> None:
    assert {relative(file.parent) for file in sources()} == {
        relative(file.parent) for file in sources() if file.name == "__init__.py"
    }


# Rule 1: what may be known of `wlc`.


@functools.cache
def public_names(package: str) -> set[str]:
    """Names that a package lists in `__all__`, each a name that exists."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import {package}; [getattr({package}, name) for name in {package}.__all__]; print(*{package}.__all__)",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


# What commands and replicas may take of `wlc` beside its public face: the format, and the layers that act on a master from
# outside. What a master is inside (its contract, its life, its capture) stays unknown to them at run time.
BEHIND_THE_FACE = (
    "wlc.farm",
    "wlc.dialect",
    *next(layer for layer in LAYERS if "wlc.masters.operations" in layer),
    # `wlr undo` says with it what a master shall change.
    "wlc.masters.compensation",
    "wlc.tiers",
    "wlc.multi_master",
)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["wlr", "cli"])
def test_replicas_and_commands_do_not_know_what_a_master_is_inside(package: str) -> None:
    face = {"wlc", *(f"wlc.{name}" for name in public_names("wlc"))}
    offenders = [
        f"{relative(file)}: {found.module}"
        for file in sources()
        if is_below(module_of(file), package)
        for found in imports_of(file)
        if found.at_runtime
        and is_below(found.module, "wlc")
        and found.module not in face
        and not any(is_below(found.module, allowed) for allowed in BEHIND_THE_FACE)
    ]
    assert offenders == []


@pytest.mark.slow
def test_format_knows_no_sql_engine() -> None:
    offenders = [
        f"{relative(file)}: {found.module}"
        for file in sources()
        if is_below(module_of(file), "wlc.farm")
        for found in imports_of(file)
        if found.module.partition(".")[0] in SQL_ENGINES
    ]
    assert offenders == []


@pytest.mark.slow
def test_outside_libraries_stay_at_home() -> None:
    offenders = [
        f"{relative(file)}: {found.module}"
        for file in sources()
        for found in imports_of(file)
        if found.at_runtime
        and (homes := HOMES.get(found.module.partition(".")[0]))
        and not relative(file).startswith(homes)
    ]
    assert offenders == []


def test_every_home_exists() -> None:
    assert [home for homes in HOMES.values() for home in homes if not (ROOT / home).exists()] == []


# Rule 2: arrows go down, and never round.


def layer_of(module: str) -> int:
    matching = [(len(name), index) for index, layer in enumerate(LAYERS) for name in layer if is_below(module, name)]
    return max(matching)[1]


def test_every_layer_exists() -> None:
    assert [name for layer in LAYERS for name in layer if name not in modules()] == []


@pytest.mark.slow
def test_arrows_lead_down() -> None:
    offenders = [
        f"{module} -> {imported}"
        for module, targets in arrows().items()
        for imported in sorted(targets)
        if layer_of(imported) > layer_of(module)
    ]
    assert offenders == []


@pytest.mark.parametrize("engines", [SOURCES, TARGETS], ids=["sources", "targets"])
def test_engines_do_not_know_each_other(engines: tuple[str, ...]) -> None:
    offenders = [
        f"{module} -> {imported}"
        for module, targets in arrows().items()
        for engine in engines
        if is_below(module, engine)
        for imported in sorted(targets)
        if any(is_below(imported, other) for other in engines if other != engine)
    ]
    assert offenders == []


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that need each other.

    Source: Tarjan, "Depth-First Search and Linear Graph Algorithms" (1972).
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in index:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], index[imported])
        if lowest[module] == index[module]:
            at = stack.index(module)
            groups.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in index:
            visit(module)
    return [group for group in groups if len(group) > 1]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g"}, "g": {"f"}}
    assert sorted(circles(graph)) == [["a", "b", "c"], ["f", "g"]]


def test_no_import_goes_round() -> None:
    assert circles(arrows()) == []


# Rule 3: an engine is named in an adapters.py and in its own folder.

ENGINE_FOLDERS = (
    "wlc/capture/",
    "wlc/multi_master/duckdb/",
    "wlc/dialect/",
    "wlr/engine/duckdb/",
    "wlr/engine/parquet/",
    "wlr/engine/postgres/",
)
# Other files that may name an engine, with the reason.
NAMES_AN_ENGINE = {
    "cli/command.py": "errors that have DuckDB's class stem from the user's SQL",
    "wlc/farm/model.py": "DuckDB's SQL is the dialect of a log that names no other",
    "wlr/reading/change_output.py": "Parquet is a format of files that changes are written to",
    "wlr/replay/ddl/left_out.py": "a statement of the log names its dialect",
    "wlr/replay/ddl/running.py": "a statement of the log names its dialect",
}
ENGINE_IMPORT = re.compile(r"(wlc\.capture|wlr\.engine)\.(duckdb|parquet|postgres)\b")
ENGINE_NAME = re.compile(r"(is_|as_)?(postgres|parquet)(_\w+)?|is_duckdb|\w+_(postgres|parquet)", re.IGNORECASE)
ENGINE_TEXT = re.compile(r"(postgres|postgresql|duckdb|parquet)(://)?")


def engines_named(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Imports, identifiers and texts that choose by engine. Comments, messages, SQL and private names may name one."""
    yield from (found.module for found in imports(nodes) if ENGINE_IMPORT.match(found.module))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ENGINE_TEXT.fullmatch(node.value):
            yield repr(node.value)
        named = [getattr(node, field, None) for field in ("id", "attr", "arg", "name")]
        yield from (
            name
            for name in named
            if isinstance(name, str) and not isinstance(node, ast.alias) and ENGINE_NAME.fullmatch(name)
        )


def test_engines_named_are_found() -> None:
    text = "from wlr.engine.postgres import x\nif place.is_parquet or kind == 'duckdb': run('COPY TO PARQUET')\n"
    assert {"'duckdb'", "is_parquet", "wlr.engine.postgres"} <= set(engines_named(nodes_in(text)))


@pytest.mark.slow
def test_engines_are_named_in_one_place() -> None:
    offenders = {
        relative(file): sorted(named)
        for file in sources()
        if file.name != "adapters.py"
        and not relative(file).startswith(ENGINE_FOLDERS)
        and relative(file) not in NAMES_AN_ENGINE
        and (named := set(engines_named(nodes_of(file))))
    }
    assert offenders == {}


def test_files_that_may_name_an_engine_do() -> None:
    assert [name for name in NAMES_AN_ENGINE if not any(engines_named(nodes_of(ROOT / name)))] == []


# What a schema statement did is in its effects. Its text is for engines to run, and for people to read.


TOUCHES_STATEMENTS = {
    # They make statements, and keep them.
    "wlc/capture/postgres/alterations.py": "the capture writes it",
    "wlc/capture/postgres/effects.py": "the capture writes it",
    "wlc/capture/postgres/digests.py": "the capture wrote it, and looks for the default of a column that it adds",
    "wlr/replay/skipped_transactions.py": "a quarantined statement is kept",
    "wlr/engine/quarantine_tables.py": "a quarantined statement is kept",
    "wlr/replay/moved_tables.py": "a statement is written again for a table that leaves",
    # They check statements, and run them.
    "wlc/capture/duckdb/acceptance.py": "it is checked and run",
    "wlc/multi_master/duckdb/take_step.py": "it is checked and run",
    "wlr/replay/ddl/running.py": "it is checked and run within limits of time and memory; the guard of the table that it names is off",
    "wlr/engine/duckdb/storage_version.py": "it is checked for a type that older readers cannot read",
    "wlr/engine/alteration.py": "it is run on the rows of one file",
    # They translate statements from one dialect to another, or for another place.
    "wlc/dialect/duckdb/schema.py": "a view of a snapshot is tried, and bound later if need be",
    "wlr/engine/postgres/ddl.py": "it is checked, translated and run",
    "wlr/engine/postgres/translate.py": "it is translated",
    "wlr/replay/ddl/left_out.py": "an empty one is not for PostgreSQL",
    "wlr/care/log_snapshot.py": "whether it has a dialect of its own says what the master is",
    "wlr/replay/derivation/publishing.py": "equal statements are published once",
    # They show statements.
    "cli/overview.py": "it is listed",
    "wlc/multi_master/duckdb/stepping_down.py": "a message names it",
    "wlc/farm/history.py": "it is listed",
    "wlr/replay/ddl/claims.py": "a message names it",
    "wlr/engine/duckdb/replica.py": "a message names it",
    "wlr/engine/postgres/replica.py": "a message names it",
    "wlr/reading/feeds/formats.py": "a feed has it",
}


# Dependencies that no file of ours imports, with the library that needs them and does not declare them.
UNDECLARED = {"pandas": "pyspark", "pytz": "duckdb"}


def test_each_dependency_is_imported_and_the_decision_says_what_it_takes() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.split(r"[^\w-]", line)[0] for line in listed}
    imported = {each.module.partition(".")[0] for file in sources() for each in imports_of(file) if each.at_runtime}
    assert names - imported == UNDECLARED.keys()
    assert set(UNDECLARED.values()) <= names & imported
    decision = (ROOT / "docs/decisions/0004-dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\d+) \|", decision, re.M)
    assert sorted(name for name, _ in rows) == sorted(names)
    assert [int(size) for _, size in rows] == sorted((int(size) for _, size in rows), reverse=True)


# What changes with the next version of DuckDB stands in one file.
VERSIONED = "wlc/dialect/duckdb/engine.py"
NAMED_VERSION = re.compile(r"\bduckdb\W*\d+\.\d+|\bv[0-9]+\.[0-9]+\.[0-9]+\b", re.IGNORECASE)


def names_version(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "__version__" and ast.unparse(node.value) == "duckdb"
    return isinstance(node, ast.Constant) and NAMED_VERSION.search(str(node.value)) is not None


def test_one_file_names_versions_of_duckdb() -> None:
    naming = set()
    for file in sources():
        # A docstring may name the version in which a behaviour was seen.
        docstrings = {id(node.value) for node in nodes_of(file) if isinstance(node, ast.Expr)}
        if any(names_version(node) for node in nodes_of(file) if id(node) not in docstrings):
            naming.add(relative(file))
    assert naming == {VERSIONED}


def test_only_these_touch_the_text_of_a_statement() -> None:
    touching = {
        relative(file)
        for file in sources()
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and node.attr in ("statement", "original")
    }
    assert touching == TOUCHES_STATEMENTS.keys()


# Rule 4: one name, one thing.


def test_public_class_names_are_unique() -> None:
    homes = defaultdict(list)
    for file in sources():
        for node in tree_of(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(relative(file))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


@pytest.mark.parametrize("package", ["wlc", "wlr"])
def test_no_module_has_the_name_of_a_public_function(package: str) -> None:
    children = {module.removeprefix(f"{package}.") for module in modules() if module.startswith(f"{package}.")}
    assert public_names(package) & children == set()


# Rule 5: what is remembered has types.

UNTYPED = re.compile(r"\b(dict|Mapping|MutableMapping)\[str, Any\]")
# Settings go to a library as they came.
PASSED_ON = {"storage_options", "target_options", "storage", "options", "config"}
# Files in which values of that type are at home, with the reason.
UNTYPED_FILES = {
    "wlc/capture/postgres/described.py": "the JSON of event triggers is read here",
    "wlc/dialect/duckdb/expressions.py": "the JSON of DuckDB's expressions is read here",
    "wlc/farm/documents.py": "the JSON of a document is read and written here",
    "wlc/farm/json_fields.py": "JSON becomes values here, and values JSON",
    "wlc/farm/json_records.py": "JSON becomes instances of dataclasses here, and they JSON",
    "wlc/farm/seal/keys.py": "keys are storage options",
    "wlc/farm/store/options.py": "storage options are of any kind",
    "wlr/engine/replica_state.py": "the JSON of a replica's state is read and written here",
    "wlr/spark/read/source.py": "Spark keeps offsets as dictionaries",
}


def untyped(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Public functions, methods and fields whose types say no more than `dict[str, Any]`.

    A pair of functions `as_thing(content)` and `thing_json` reads and writes the JSON of a thing.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            typed = {a.arg: a.annotation for a in arguments if a.arg not in PASSED_ON} | {"return": node.returns}
            known = {"return"} if node.name.endswith("_json") else {"content"} if node.name.startswith("as_") else set()
            yield from (
                f"{node.name}({name})"
                for name, annotation in typed.items()
                if annotation and name not in known and UNTYPED.search(ast.unparse(annotation))
            )
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (f"{node.name}.{found}" for found in untyped(node))
        elif isinstance(node, ast.AnnAssign) and isinstance(tree, ast.ClassDef):
            name = ast.unparse(node.target)
            if name not in PASSED_ON and UNTYPED.search(ast.unparse(node.annotation)):
                yield name
        elif isinstance(node, ast.Assign) and UNTYPED.fullmatch(ast.unparse(node.value)):
            yield ast.unparse(node.targets[0])


def test_untyped_is_found() -> None:
    text = "def f(a: dict[str, Any], options: dict[str, Any]) -> None: ...\nclass C:\n    b: list[Mapping[str, Any]]\n"
    assert sorted(untyped(ast.parse(text))) == ["C.b", "f(a)"]


def test_what_crosses_files_has_types() -> None:
    offenders = {
        relative(file): found
        for file in sources()
        if relative(file) not in UNTYPED_FILES and (found := sorted(untyped(tree_of(file))))
    }
    assert offenders == {}


@pytest.mark.slow
def test_state_has_fields() -> None:
    offenders = [
        f"{relative(file)}: {ast.unparse(node)}"
        for file in sources()
        for node in nodes_of(file)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
        and re.search(r"(^|[._])(state|entry)(\(\))?$", ast.unparse(node.value))
    ]
    assert offenders == []


# Rule 7: compare-and-swap is written once.


@pytest.mark.slow
def test_compare_and_swap_is_written_once() -> None:
    homes = {
        relative(file)
        for file in sources()
        if not relative(file).startswith("wlc/farm/store/")
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and re.search(r"(^|[._])store(\(\))?\.replace$", ast.unparse(node.func))
    }
    assert homes == {"wlc/farm/versioned.py"}


# What programs load, and how long things are.


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('LOADED', *sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED")[2].split())


def loaded_after(code: str) -> set[str]:
    return {name.partition(".")[0] for name in modules_after(code)}


@pytest.mark.parametrize("package", ["wlc", "wlr"])
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    loaded = loaded_after(f"import {package}")
    assert package in loaded
    assert not loaded & {"pyspark", "s3fs", "botocore", "pyarrow", "pandas", "rich", "typer", "cryptography"}


@pytest.mark.slow
def test_functions_are_not_replaced_by_modules_of_their_names() -> None:
    code = "import wlc, wlr, types\n" + "".join(f"import {module}\n" for module in modules())
    code += "assert not [n for p in (wlc, wlr) for n in p.__all__ if isinstance(getattr(p, n), types.ModuleType)]"
    assert "wlc" in loaded_after(code)


def test_commands_import_each_other_relatively() -> None:
    """Tests know the package as `cli`; installed, it is `dbfarm_cli`."""
    absolute = re.compile(r"^\s*(from|import) cli\b", re.MULTILINE)
    assert [file.name for file in (ROOT / "cli").glob("*.py") if absolute.search(file.read_text("utf-8"))] == []


# What a round without news, or a question, imports; each may load duckdb, pyarrow and such once there is work for them.
LIGHT = {
    "wlr.reading.feeds.rounds": {"duckdb", "pyarrow", "numpy"},
    "wlr.reading.feeds.adapters": {"duckdb", "pyarrow"},
    "wlr.reading.place": {"duckdb", "pyarrow"},
    "wlr.replay.request": {"duckdb", "pyarrow", "numpy"},
    "wlr.service.settings_file": {"duckdb", "pyarrow"},
    "wlr.spark.replay.executor": {"pyspark", "pyarrow"},
    "wlr.spark.replay.folding": {"pyspark", "pyarrow"},
    "wlr.engine.parquet.delta": {"duckdb", "pyarrow"},
}


@pytest.mark.slow
def test_what_rounds_without_news_import_loads_nothing_heavy() -> None:
    assert {name: found for name, heavy in LIGHT.items() if (found := heavy & loaded_after(f"import {name}"))} == {}


@pytest.mark.parametrize("program", ["cli.wlc", "cli.wlr"])
def test_help_loads_nothing_heavy(program: str) -> None:
    code = f"from {program} import app\nfrom cli.command import run_app\nrun_app(app, 'x', ['--help'])"
    assert not loaded_after(code) & {"pyspark", "s3fs", "botocore", "pyarrow", "pandas", "duckdb", "rich", "sqlglot"}


def test_asking_where_a_replica_stands_loads_nothing_that_writes_one() -> None:
    code = "from cli.wlr import app\nfrom cli.command import run_app\nrun_app(app, 'wlr', ['tick', 'no.duckdb'])"
    loaded = modules_after(code)
    assert "wlr.engine.duckdb.target" in loaded
    assert not loaded & {
        "wlr.engine.duckdb.build",
        "wlr.replay.fold.net_changes",
        "wlc.farm.registry",
        "wlc.farm.database",
    }


# All that only several sites need is below this folder.
SITES_ONLY = "wlc.multi_master"


@pytest.mark.slow
@pytest.mark.parametrize("site", [None, "oslo"])
def test_a_plain_master_loads_nothing_of_sites(tmp_path: Path, site: str | None) -> None:
    """One that is alone begins, captures statements of every kind, commits, publishes, is repaired and shown."""
    code = f"""
import wlc
from wlc.masters import operations
file = {str(tmp_path / "shop.duckdb")!r}
wlc.master(file, create=True, site={site!r})
with wlc.connect(file) as shop:
    shop.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER)")
    for statement in ("INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET v = 3 WHERE k = 1", "DELETE FROM t"):
        shop.execute(statement)
    shop.execute("BEGIN; INSERT INTO t SELECT range, 0 FROM range(9); MERGE INTO t USING (SELECT 1 AS k) AS s"
                 " USING (k) WHEN MATCHED THEN UPDATE SET v = 5; ALTER TABLE t ADD COLUMN w INTEGER; COMMIT")
    wlc.flush(file)
operations.repair(file, published=None)
assert operations.compensate(file, ()).tick is None
assert wlc.flush(file).tick == wlc.status(file).tick
wlc.snapshot(file)
wlc.stop(file)
"""
    loaded = {name for name in modules_after(code) if is_below(name, SITES_ONLY)}
    assert ("wlc.multi_master.site_life" in loaded) if site else (loaded == set())


def test_every_file_tells_one_story() -> None:
    lengths = {relative(file): len(file.read_text(encoding="utf-8").splitlines()) for file in sources()}
    assert {name: length for name, length in lengths.items() if length > FILE_LINES_MAX} == {}


def test_every_function_does_one_thing() -> None:
    lengths = {
        f"{relative(file)}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for file in sources()
        for node in nodes_of(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES_MAX} == {}


def test_duckdb_is_connected_to_in_one_way() -> None:
    """A program may set `duckdb.connect = wlc.connect`; then a call of it in the product would call itself for ever."""
    found = {
        relative(file)
        for file in sources()
        for node in nodes_of(file)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) == "duckdb.connect")
        or (isinstance(node, ast.ImportFrom) and node.module == "duckdb" and "connect" in [n.name for n in node.names])
    }
    assert found == set()


def test_sql_reads_parquet_files_in_one_way() -> None:
    """What each file needs, so that a folder such as `id=7` on the way to it is no column, is said once."""
    found = [relative(file) for file in sources() if re.search(r"read_parquet\(|parquet_scan", file.read_text("utf-8"))]
    assert found == ["wlc/dialect/duckdb/parquet_sql.py"]

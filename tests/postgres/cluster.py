"""A PostgreSQL server of our own for tests: made from nothing, on a free port of the loopback, gone afterwards."""

from __future__ import annotations

import functools
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.ports import free_port
from tests.postgres.programs import program

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTINGS = {
    # It would go round hundreds of databases, a worker process for each.
    "autovacuum": "off",
    "wal_level": "logical",
    "fsync": "off",
    "full_page_writes": "off",
    "max_replication_slots": "40",
    "max_wal_senders": "40",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "listen_addresses": "'127.0.0.1'",
}


class Cluster:
    """A running server; databases in it are cheap, and every test has its own.

    Args:
        folder: Empty; the server's data goes there.
        programs: Folder of another server's programs than the installed one's.
    """

    def __init__(self, folder: Path, programs: Path | None = None) -> None:
        self.folder = folder
        self._programs = programs
        self.port = free_port()
        self._user = user_that_may_run_it()
        self._numbers = itertools.count(1)

    def start(self) -> None:
        """Make the server and start it."""
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C.UTF-8", "-N")
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": f"'{self.folder}'"}
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self._run("pg_ctl", "-D", data, "-l", str(self.folder / "log"), "-w", "start")

    def stop(self) -> None:
        """Stop the server and wait for its end."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        """URL of a database."""
        secret = f":{password}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    @functools.cached_property
    def major(self) -> int:
        """Its version, such as 15."""
        return int(self.execute("SHOW server_version_num")[0][0]) // 10_000

    def create_database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"db{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as superuser and return its rows."""
        return execute(self.url(database), statement)

    def _run(self, name: str, *arguments: str) -> None:
        user: dict[str, Any] = {}
        if self._user is not None:
            user = {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        # A server that goes on after its starter must not hold the starter's output open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self._programs / name) if self._programs else program(name), *arguments],
                stdout=output,
                stderr=output,
                cwd=self.folder,
                check=False,
                **user,
            )
            output.seek(0)
            log = self.folder / "log"
            said = output.read().decode(errors="replace") + (log.read_text()[-2000:] if log.is_file() else "")
            assert done.returncode == 0, f"{name} failed: {said}"


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements in a database as its user would, and return the rows of the last one."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def running(folder: Path, programs: Path | None = None) -> Iterator[Cluster]:
    """Start a server in a folder, and stop it in the end; arguments as for `Cluster`."""
    cluster = Cluster(folder, programs)
    try:
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_folder() -> Path:
    """A folder that another user can reach, in memory if there is such a place."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="dbfarm-postgres-", dir=memory if memory.is_dir() else None))


def user_that_may_run_it() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; another user does then."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("PostgreSQL does not run as root, and there is neither postgres nor nobody")

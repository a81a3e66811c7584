"""What users of several sites do wrong: the class of the error, its exit code, and a hint that works when it is typed.

Logs that contradict themselves (exit code 6) are in `test_sites_hostile`, keys that default to a sequence in
`test_sites_watching`, and what the process died in between in `tests/fault`.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = """
    CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR);
    CREATE TABLE bag (k INTEGER, v VARCHAR);
    INSERT INTO t VALUES (1, 'a');
    INSERT INTO bag VALUES (1, 'a');
"""


def nothing(_: Sites) -> None:
    pass


def oslo_is_halted(sites: Sites) -> None:
    """It has not published what only a primary may write when another site becomes the primary."""
    connection = wlc.connect(sites.file("oslo"))
    connection.execute("INSERT INTO bag VALUES (2, 'oslo')")
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=sites.farm)
    with suppress(wlc.FencedError):
        connection.close()
    sites.take("rome")


def oslo_prunes(sites: Sites) -> None:
    """It keeps nothing that rome lacks: rome was silent for too long."""
    for number in range(2):
        sites.write("oslo", f"INSERT INTO t VALUES ({10 + number}, 'oslo')")
    wlc.snapshot(sites.file("oslo"))
    wlc.prune(sites.file("oslo"), keep_for="0s", deadline=timedelta(0))


def rome_has_read_another_past(sites: Sites) -> None:
    """What rome has read of oslo's log is not what is there, as after a backup of oslo was restored elsewhere."""
    with duckdb.connect(sites.file("rome")) as plain:
        (text,) = plain.execute("SELECT value FROM wlc.state WHERE key = 'site'").fetchall()[0]
        site = json.loads(text)
        site["proofs"] = [{**proof, "chain": "0" * 64} for proof in site["proofs"]]
        plain.execute("UPDATE wlc.state SET value = ? WHERE key = 'site'", [json.dumps(site)])


def another_database(sites: Sites) -> None:
    with duckdb.connect(sites.file("other")) as plain:
        plain.execute("CREATE TABLE elsewhere (k INTEGER PRIMARY KEY)")


def a_replica_of_another_database(sites: Sites) -> None:
    another_database(sites)
    sites.file("other").rename(sites.file("alone"))
    wlc.master(sites.file("alone"), farm=sites.farm, name="alone")
    wlr.replicate(f"{sites.farm}/alone", into=sites.file("other"), register=False)


@dataclass(frozen=True)
class Row:
    """One thing that is wrong.

    Attributes:
        command: What is typed, code: its exit code, message: a part of what it says then.
        hinted: Commands in the hint, which are typed with these words replaced.
        after: Whether the command itself succeeds after them.
    """

    command: str
    code: int
    message: str
    hinted: tuple[str, ...]
    prepare: Callable[[Sites], None] = nothing
    replaced: dict[str, str] = field(default_factory=dict)
    after: bool = True

    def filled(self, command: str) -> str:
        for word, by in self.replaced.items():
            command = command.replace(word, by)
        return command


AGAIN = "wlc join {rome} --name {url} --site rome --again"
ROWS = {
    "a handover stands where a primary would publish": Row(
        "flush {oslo}",
        4,
        "changes rows of main.bag, which has no primary key",
        ("wlc join {oslo} --name {url} --site oslo --again",),
        oslo_is_halted,
        {"--again": "--again --yes"},
    ),
    "FOR UPDATE on what is not tracked": Row(
        "sql {rome} 'SELECT * FROM t WHERE k = 1 FOR UPDATE'",
        2,
        "the rule of main.t does not track reads",
        ("wlc rule {url} main.t epoch_trans --reads exclusive", "wlc take FILE"),
        replaced={"FILE": "{rome}"},
    ),
    "rule epoch on a table without a key": Row(
        "rule {url} bag epoch",
        2,
        "main.bag has no primary key",
        ("wlc sql FILE 'ALTER TABLE main.bag ADD PRIMARY KEY (COLUMN)'", "wlc flush FILE"),
        replaced={"FILE": "{oslo}", "COLUMN": "k"},
    ),
    "a schema change at a site that may not": Row(
        "sql {rome} 'CREATE TABLE made (k INTEGER PRIMARY KEY)'",
        2,
        "site rome cannot change the schema: only site oslo",
        ("wlc take FILE",),
        replaced={"FILE": "{rome}"},
        after=False,
    ),
    "joining with a file of another schema": Row(
        "join {other} --name {url} --site york",
        2,
        "other.duckdb is a DuckDB database, but not a replica",
        ("wlc join FILE --name {url} --site york",),
        another_database,
        {"FILE": "{york}"},
        after=False,
    ),
    "joining with a replica of another database": Row(
        "join {other} --name {url} --site york",
        2,
        "replica",
        ("wlc join FILE --name {url} --site york",),
        a_replica_of_another_database,
        {"FILE": "{york}"},
        after=False,
    ),
    "a site silent beyond the deadline": Row(
        "take {rome}", 7, "what is missing of site oslo was pruned", (AGAIN,), oslo_prunes, {"--again": "--again --yes"}
    ),
    "a proof that the log does not know": Row(
        "take {rome}",
        4,
        "the log of site oslo belongs to another past",
        (AGAIN,),
        rome_has_read_another_past,
        {"--again": "--again --yes"},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_says_what_to_type(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row, sites = ROWS[name], Sites(tmp_path)
    sites.found(SCHEMA)
    sites.join("rome")
    sites.write("oslo", "INSERT INTO t VALUES (2, 'oslo')")
    sites.exchange()
    words = {"url": f"{sites.farm}/sales"} | {each: str(sites.file(each)) for each in ("oslo", "rome", "york", "other")}

    def typed(command: str) -> tuple[int, str]:
        code = run_app(app, "wlc", shlex.split(command.format(**words))[1:])
        return code, " ".join(capsys.readouterr().err.split())

    row.prepare(sites)
    code, shown = typed(f"wlc {row.command}")
    assert (code, row.message in shown) == (row.code, True), shown
    hint = shown.partition("hint: ")[2]
    for command in row.hinted:
        assert command.format(**words) in hint
        assert typed(row.filled(command))[0] == 0, command
    if row.after:
        code, shown = typed(f"wlc {row.command}")
        assert code == 0, shown

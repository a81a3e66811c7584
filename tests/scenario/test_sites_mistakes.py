"""What users of several sites mistype: nothing happens, and the hint says what they may have meant.

What goes wrong between sites is in `test_sites_bad_input`.
"""

from __future__ import annotations

import shlex

import pytest

from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites
from wlc.multi_master.circle import read_circle

SCHEMA = "CREATE TABLE orders (k INTEGER PRIMARY KEY); CREATE TABLE prices (k INTEGER PRIMARY KEY)"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("mistakes"))
    sites.found(SCHEMA)
    sites.join("rome")
    return sites


@pytest.fixture(autouse=True)
def folder(two: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two.folder)
    monkeypatch.setenv("WLC_FARM", two.farm)


def typed(line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run_app(app, "wlc", shlex.split(line)[1:])
    shown = capsys.readouterr()
    return code, " ".join((shown.err or shown.out).split())


# What is typed, a part of the message, and a part of the hint.
MISTAKES = {
    "no such database": ("wlc sites sale", "no database 'sale' in the farm", "holds sales"),
    "a rule of no such database": ("wlc rule sale orders epoch", "no database 'sale'", "holds sales"),
    "joining no such database": ("wlc join new.duckdb --name sale --site york", "no database 'sale'", "holds sales"),
    "a database where a file is wanted": (
        "wlc take sales",
        "no database sales",
        "the master's file, such as sales.duckdb",
    ),
    "a rule of no such table": ("wlc rule sales order epoch", "has no table 'order'", "Did you mean main.orders?"),
    "the rule of no such table": ("wlc rule sales order", "has no table 'order'", "Did you mean main.orders?"),
    "exceptions of no such table": (
        "wlc exceptions oslo.duckdb --table order",
        "has no table 'order'",
        "Did you mean main.orders?",
    ),
    "a site with a rule that names none": (
        "wlc rule sales orders epoch --site rome",
        "the rule owner, and no other one, names a site",
        "wlc rule FARM/sales orders epoch; or wlc rule FARM/sales orders owner --site rome",
    ),
    "options without a rule": ("wlc rule sales orders --site rome", "none is given", "wlc rule sales orders RULE"),
    "the primary leaves": ("wlc leave sales oslo", "oslo is the primary", "wlc role FILE rome primary"),
    "the primary begins anew": (
        "wlc join oslo.duckdb --name sales --site oslo --again",
        "it cannot begin anew",
        "/farm/sales rome primary --lost oslo",
    ),
    "a site joins as another one": (
        "wlc join rome.duckdb --name sales --site york",
        "rome.duckdb is a master, rome, and no replica of sales",
        "name a file that is not there: wlc join FILE",
    ),
    "a rejected transaction is looked for at its author": (
        "wlc exceptions rome.duckdb --resubmit rome:1",
        "nothing that could be written was rejected here as rome:1",
        "it is the primary that rejects",
    ),
    "a site of no file": (
        "wlc master york.duckdb --name sales --site york --mesh",
        "there is no database york.duckdb",
        "wlc master york.duckdb --create --name sales --site york --mesh makes it",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_changes_nothing_and_says_what_to_type(
    two: Sites, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, message, hint = MISTAKES[what]
    hint = hint.replace("FARM", two.farm)
    before = read_circle(two.log("oslo"))
    code, shown = typed(line, capsys)
    error, _, told = shown.partition("hint: ")
    assert (code, message in error, hint in told) == (2, True, True), shown
    assert read_circle(two.log("oslo")) == before


def test_rules_are_shown(two: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("wlc rule sales --json", capsys) == (0, "[]")
    for line in ("wlc rule sales orders epoch", "wlc rule sales prices owner --site oslo"):
        assert typed(line, capsys)[0] == 0
    assert '"table": "main.orders", "rule": "epoch"' in typed("wlc rule sales --json", capsys)[1]
    code, shown = typed("wlc rule rome.duckdb", capsys)
    assert (code, [word for word in ("main.orders", "epoch", "main.prices", "owner") if word in shown]) == (
        0, ["main.orders", "epoch", "main.prices", "owner"],
    )  # fmt: skip
    code, shown = typed("wlc rule sales prices", capsys)
    assert (code, "main.prices owner oslo" in shown, "main.orders" in shown) == (0, True, False)
    # Whoever may not write a table gets a command that lets him.
    assert typed("wlc take rome.duckdb", capsys)[0] == 0
    code, shown = typed("wlc sql rome.duckdb 'INSERT INTO prices VALUES (1)'", capsys)
    assert (code, "or let this site own it from its next wlc take: " in shown) == (2, True)
    assert typed(shown.rpartition("next wlc take: ")[2], capsys)[0] == 0
    assert typed("wlc take rome.duckdb", capsys)[0] == 0
    assert typed("wlc sql rome.duckdb 'INSERT INTO prices VALUES (1)'", capsys)[0] == 0

"""A site that lacks what was pruned is told who still has it: another site, or the snapshot to begin anew with.

Docs: docs/sites-operation.md.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites, prune_unread
from wlc.farm.errors import ExpiredError
from wlc.multi_master import take_round

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SCHEMA = "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)"


def pruned(folder: Path, *, mesh: bool) -> Sites:
    """Oslo prunes what rome, which was silent for too long, has not read; paris has taken it."""
    sites = Sites(folder)
    sites.found(SCHEMA, mesh=mesh)
    wlc.set_rule("sales", "t", "newest" if mesh else "epoch", farm=sites.farm)
    sites.join("rome")
    sites.join("paris")
    prune_unread(sites)
    return sites


def test_in_a_star_it_is_a_snapshot_of_the_primary(tmp_path: Path) -> None:
    sites = pruned(tmp_path, mesh=False)
    tick = sites.log("oslo").snapshot_ticks()[-1]
    told = f"; the newest snapshot of site oslo is of tick {tick}, [0-9.]+s old$"
    with pytest.raises(ExpiredError, match="its log begins with batch 2" + told) as caught:
        sites.take("rome")
    hint = f"wlc join {sites.file('rome')} --name {sites.log('oslo').url} --site rome --again"
    assert caught.value.hint == hint
    # The primary says so of what it cannot judge, too.
    sites.write("rome", "INSERT INTO t VALUES (9, 'rome')")
    with pytest.raises(ExpiredError, match="which changes are concurrent cannot be said.*" + told):
        sites.take("oslo")
    assert run_app(app, "wlc", [*shlex.split(hint)[1:], "--yes"]) == 0
    assert sites.rows("rome", "t") == sites.rows("oslo", "t") == [(0, "oslo"), (1, "oslo")]


def test_in_a_mesh_it_is_another_site_that_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = pruned(tmp_path, mesh=True)
    assert run_app(app, "wlc", ["take", str(sites.file("rome")), "--from", "oslo"]) == 7
    shown = " ".join(capsys.readouterr().err.split())
    assert "; site paris has it" in shown
    command = shown.partition("hint: ")[2]
    assert command == f"wlc take {sites.file('rome')} --from paris"
    assert run_app(app, "wlc", shlex.split(command)[1:]) == 0
    assert sites.rows("rome", "t") == [(0, "oslo"), (1, "oslo")]
    assert run_app(app, "wlc", ["take", str(sites.file("rome"))]) == 0, capsys.readouterr().err


def test_in_a_mesh_a_log_that_was_read_before_is_read_on_behind_what_came_through_another_site(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.found(SCHEMA, mesh=True)
    wlc.set_rule("sales", "t", "newest", farm=sites.farm)
    sites.join("rome")
    sites.join("paris")
    sites.write("oslo", "INSERT INTO t VALUES (9, 'oslo')")
    sites.exchange()
    prune_unread(sites, 4)
    with pytest.raises(ExpiredError, match="; site paris has it"):
        wlc.take(sites.file("rome"), site="oslo")
    assert sites.take("rome") == 4
    sites.write("oslo", "INSERT INTO t VALUES (5, 'oslo')")
    wlc.flush(sites.file("oslo"))
    assert sum(each.transactions for each in wlc.take(sites.file("rome"), site="oslo")) == 1
    assert sites.rows("rome", "t") == sites.rows("oslo", "t")


def test_nothing_is_named_that_does_not_help(tmp_path: Path) -> None:
    """Paris has no log that rome could read, and then the farm cannot be read at all."""
    sites = pruned(tmp_path, mesh=True)
    paris = sites.log("paris")
    for number in paris.batch_numbers():
        paris.delete_batch(number)
    with pytest.raises(ExpiredError, match="; the newest snapshot of site oslo is of tick"):
        wlc.take(sites.file("rome"), site="oslo")
    for tick in sites.log("oslo").snapshot_ticks():
        sites.log("oslo").delete_snapshot(tick)
    with pytest.raises(ExpiredError, match="its log begins with batch 2$") as without:
        wlc.take(sites.file("rome"), site="oslo")
    assert str(without.value.hint).endswith(" --site rome --again")
    with (
        patch.object(take_round, "snapshot_that_covers", side_effect=wlc.UnavailableError("away")),
        pytest.raises(ExpiredError, match="its log begins with batch 2$"),
    ):
        wlc.take(sites.file("rome"), site="oslo")

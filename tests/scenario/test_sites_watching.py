"""What `wlc sites` and `wlc conflicts` show while sites differ, and what users do about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    sites = Sites(tmp_path_factory.mktemp("watching"))
    sites.found()
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "a", "epoch")
    sites.exchange()
    return sites


def shown(capsys: Capture, *arguments: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run_app(app, "wlc", [*map(str, arguments), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def counters(capsys: Capture, sites: Sites) -> dict[str, int]:
    found = shown(capsys, "conflicts", sites.file("oslo"))
    return {each["name"]: each["value"] for each in found if each["site"] == "rome"}


def test_e14_the_last_conflict_is_contained_once_its_refresh_has_come_back(two: Sites, capsys: Capture) -> None:
    two.write("oslo", "UPDATE a SET v = 'oslo' WHERE id = 1")
    wlc.flush(two.file("oslo"))
    oslo, rome = shown(capsys, "sites", "sales", "--farm", two.farm)
    assert (rome["window_rows"], rome["window_age_s"] > 0, rome["is_stable"]) == (2, True, True)
    assert (oslo["behind"], oslo["delay_s"]["rome"] > 0, oslo["contained_by"]["rome"] < oslo["tick"]) == (
        ["rome"], True, True,
    )  # fmt: skip
    two.write("rome", "UPDATE a SET v = 'rome' WHERE id = 1", "INSERT INTO a VALUES (7, 'seven', 0)")
    two.take("oslo")
    found = counters(capsys, two)
    assert found["last_conflict_tick"] > found["contained_tick"]
    assert "last_stable_tick" not in found
    oslo, rome = shown(capsys, "sites", two.file("oslo"))
    assert not oslo["is_stable"]
    assert not rome["is_stable"]
    two.take("rome")
    assert counters(capsys, two) == found
    two.take("oslo")
    found = counters(capsys, two)
    assert found["contained_tick"] == found["last_conflict_tick"] == found["last_stable_tick"]
    oslo, rome = shown(capsys, "sites", two.file("rome"))
    for site in (oslo, rome):
        assert (site["is_stable"], site["behind"], site["window_rows"], site["window_age_s"]) == (True, [], 0, 0)
        assert list(site["delay_s"].values()) == [0]
    assert oslo["contained_by"] == {"rome": oslo["tick"]}

"""Commands on sites as people type them: following others, letting a site leave, and what was rejected since when.

Docs: docs/sites-operation.md.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

import wlc
from cli.command import run_app
from cli.wlc import app
from tests.fault.processes import program
from tests.sites import Sites
from wlc.farm.clock import format_time, utc_now

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
SCHEMA = "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'first')"


def two_sites(folder: Path) -> Sites:
    sites = Sites(folder)
    sites.found(SCHEMA)
    sites.join("rome")
    return sites


def typed(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    """What a command ends with, and what it shows."""
    capsys.readouterr()
    code = run_app(app, "wlc", [str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, " ".join(shown.err.split())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_take_follows_until_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    sites = two_sites(tmp_path)
    wlc.beat(sites.file("rome"), 0.1)
    with program("cli.wlc", "take", sites.file("rome"), "--follow", "--json") as follower:
        (first,) = json.loads(follower.next_line())
        assert (first["site"], first["transactions"]) == ("oslo", 0)
        for key in (2, 3):
            sites.write("oslo", f"INSERT INTO t VALUES ({key}, 'oslo')")
            wlc.flush(sites.file("oslo"))
            (news,) = json.loads(follower.next_line())
            # Rounds that find nothing say nothing.
            assert (news["site"], news["transactions"], news["rows"]) == ("oslo", 1, 1)
        follower.process.send_signal(number)
        assert follower.end() == 0
        assert (follower.errors, len(follower.lines)) == ("", 3)
    assert sites.rows("rome", "t") == [(1, "first"), (2, "oslo"), (3, "oslo")]


def test_a_site_leaves_when_others_have_what_it_published(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)
    sites.write("rome", "INSERT INTO t VALUES (2, 'rome')")
    wlc.flush(sites.file("rome"))
    url = sites.log("oslo").url
    code, out, err = typed(capsys, "leave", url, "rome")
    assert (code, out) == (2, "")
    assert "rome" in err
    assert [site.site for site in wlc.sites(url)] == ["oslo", "rome"]
    sites.take("oslo")
    code, out, err = typed(capsys, "leave", "sales", "rome", "--farm", sites.farm, "--json")
    assert (code, err) == (0, "")
    oslo = wlc.status(sites.file("oslo")).history
    assert json.loads(out) == [{"site": "oslo", "role": "primary", "history": oslo}]
    assert [site.site for site in wlc.sites(url)] == ["oslo"]
    assert sites.rows("oslo", "t") == [(1, "first"), (2, "rome")]
    # It is none of them any more.
    assert typed(capsys, "take", sites.file("rome"))[0] == 4
    assert typed(capsys, "leave", url, "rome")[0] == 2


@pytest.mark.slow
def test_a_site_is_made_to_leave_although_others_lack_something(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)
    sites.write("rome", "INSERT INTO t VALUES (2, 'lost')")
    wlc.flush(sites.file("rome"))
    # The file of any site names the database, too.
    assert typed(capsys, "leave", sites.file("oslo"), "rome")[0] == 2
    code, out, err = typed(capsys, "leave", sites.file("oslo"), "rome", "--force")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [["site", "role"], ["oslo", "primary"]]
    assert typed(capsys, "take", sites.file("oslo"))[0] == 0
    assert sites.rows("oslo", "t") == [(1, "first")]


def test_the_primary_does_not_leave(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)
    for force in ((), ("--force",)):
        code, _, err = typed(capsys, "leave", sites.log("oslo").url, "oslo", *force)
        assert (code, "oslo is the primary" in err) == (2, True)


def keys_since(capsys: Capture, sites: Sites, *since: str) -> list[Any]:
    code, out, _ = typed(capsys, "exceptions", sites.file("oslo"), *since, "--json")
    assert code == 0
    return [row["key"]["k"] for row in json.loads(out)]


@pytest.mark.slow
def test_what_was_rejected_since_a_time(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)
    wlc.set_rule(sites.file("oslo"), "t", "epoch")
    for key in (2, 3):
        sites.write("oslo", f"INSERT INTO t VALUES ({key}, 'oslo')")
        sites.write("rome", f"INSERT INTO t VALUES ({key}, 'rome')")
        wlc.flush(sites.file("rome"))
        sites.take("oslo")
        sites.take("rome")
    first, second = wlc.exceptions(sites.file("oslo"))
    assert first.detected < second.detected
    assert keys_since(capsys, sites) == [2, 3]
    # The moment itself counts.
    assert keys_since(capsys, sites, "--since", format_time(first.detected)) == [2, 3]
    assert keys_since(capsys, sites, "--since", format_time(second.detected)) == [3]
    assert keys_since(capsys, sites, "--since", "-1h") == [2, 3]
    assert keys_since(capsys, sites, "--since", "-1h", "--table", "t") == [2, 3]
    assert keys_since(capsys, sites, "--since", "now") == []
    code, out, _ = typed(capsys, "exceptions", sites.file("oslo"), "--since", format_time(second.detected), "--count")
    assert (code, out.strip()) == (0, "1")
    code, _, err = typed(capsys, "exceptions", sites.file("oslo"), "--since", "once")
    assert (code, "'once'" in err) == (2, True)


@pytest.mark.slow
def test_sites_show_since_when_a_site_is_silent(tmp_path: Path, capsys: Capture) -> None:
    sites = two_sites(tmp_path)

    def seen() -> dict[str, Any]:
        code, out, _ = typed(capsys, "sites", "sales", "--farm", sites.farm, "--json")
        assert code == 0
        return {each["site"]: each["seen"] for each in json.loads(out)}

    assert seen() == {"oslo": None, "rome": None}
    sites.write("oslo", "INSERT INTO t VALUES (9, 'oslo')")
    before = format_time(utc_now())
    sites.take("rome")
    took, after = seen(), format_time(utc_now())
    assert before <= took["rome"] <= after
    # What others do is no sign of life, nor that it publishes.
    sites.write("rome", "INSERT INTO t VALUES (2, 'rome')")
    sites.take("oslo")
    found = seen()
    assert found["rome"] == took["rome"]
    assert after <= found["oslo"] <= format_time(utc_now())
    # Looking is one, although nothing is there to take.
    assert sites.take("rome") == 0
    assert found["rome"] < seen()["rome"]
    code, out, _ = typed(capsys, "sites", sites.file("rome"))
    assert code == 0
    assert "seen" in out.splitlines()[0].split()

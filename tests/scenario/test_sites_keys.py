"""Sites that sign with keys of their own, encrypt with a common one, and verify each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.sites import Sites
from wlc.farm.errors import CorruptError, InvalidError

if TYPE_CHECKING:
    from pathlib import Path

    Options = dict[str, str]

pytestmark = pytest.mark.slow


def options(sites: Sites, site: str) -> Options:
    folder = sites.folder
    return {
        "encryption_key_file": str(folder / "farm.key"),
        "signing_key_file": str(folder / f"{site}.key"),
        "verify_key_file": str(folder / "sites.pub"),
    }


@pytest.fixture
def two(tmp_path: Path) -> Sites:
    """What docs/sites.md shows."""
    sites = Sites(tmp_path)
    for kind, name in (("encryption", "farm"), ("signing", "oslo"), ("signing", "rome")):
        assert run_app(app, "wlc", ["key", kind, str(tmp_path / f"{name}.key")]) == 0
    public = "".join((tmp_path / f"{site}.key.pub").read_text() for site in ("oslo", "rome"))
    (tmp_path / "sites.pub").write_text(public)
    with duckdb.connect(sites.file("oslo")) as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'both')")
    wlc.master(sites.file("oslo"), farm=sites.farm, name="sales", site="oslo", storage_options=options(sites, "oslo"))
    found = wlc.joined_from(
        sites.file("rome"), name="sales", farm=sites.farm, site="rome", storage_options=options(sites, "rome")
    )
    assert found is not None
    wlr.replicate(found.url, into=sites.file("rome"), register=False, storage_options=options(sites, "rome"))
    wlc.join(sites.file("rome"), name="sales", farm=sites.farm, site="rome", storage_options=options(sites, "rome"))
    sites.names += ["oslo", "rome"]
    return sites


@pytest.mark.slow
def test_a_lost_primary_believes_the_signed_handover_of_its_successor(two: Sites) -> None:
    two.write("oslo", "INSERT INTO t VALUES (2, 'oslo')")
    two.write("rome", "INSERT INTO t VALUES (3, 'rome')")
    two.exchange()
    wlc.set_role("sales", "rome", "primary", lost="oslo", farm=two.farm, storage_options=options(two, "rome"))
    two.take("rome")
    # Oslo comes back.
    two.write("oslo", "INSERT INTO t VALUES (4, 'oslo')")
    two.exchange()
    two.refuse_differences("t")
    assert len(two.rows("rome", "t")) == 4
    # Whoever verifies with other keys believes nothing of it.
    with pytest.raises(CorruptError, match="it must be signed with"):
        wlc.take(two.file("rome"), storage_options={"verify_key_file": str(two.folder / "rome.key.pub")})


def test_nobody_changes_signed_sites_without_a_key(two: Sites) -> None:
    """It would be refused by all of them, and a handover stays for ever."""
    unsigned = {name: file for name, file in options(two, "rome").items() if name != "signing_key_file"}
    before = two.folder.joinpath("farm", "sales", "circle.json").read_bytes()
    batches = two.log("oslo").batch_numbers()
    for change in (
        lambda: wlc.set_rule("sales", "t", "epoch", farm=two.farm, storage_options=unsigned),
        lambda: wlc.set_role("sales", "rome", "none", farm=two.farm, storage_options=unsigned),
        lambda: wlc.set_role("sales", "rome", "primary", lost="oslo", farm=two.farm, storage_options=unsigned),
        lambda: wlc.leave("sales", "rome", farm=two.farm, force=True, storage_options=unsigned),
        lambda: wlc.joined_from(two.file("york"), name="sales", farm=two.farm, site="york", storage_options=unsigned),
    ):
        with pytest.raises(InvalidError, match="circle.json is signed, and no signing key is given") as caught:
            change()
        assert "signing_key_file=FILE" in str(caught.value.hint)
    assert two.folder.joinpath("farm", "sales", "circle.json").read_bytes() == before
    assert two.log("oslo").batch_numbers() == batches
    # As the hint says: a site's file knows its key.
    wlc.set_rule(two.file("oslo"), "t", "epoch")
    two.write("rome", "INSERT INTO t VALUES (5, 'rome')")
    two.exchange()
    two.refuse_differences("t")

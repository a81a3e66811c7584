"""The circle of sites: one object, changed by compare-and-swap, and which changes are legal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from wlc.farm.config import first_config
from wlc.farm.database import FarmDatabase, open_database
from wlc.farm.errors import CorruptError, ExpiredError, FarmError, InvalidError
from wlc.farm.model import Name, Origin, Taken
from wlc.farm.paths import log_path
from wlc.farm.store.memory import MemoryStore
from wlc.farm.vectors import Heir, Lineage, expanded, normal
from wlc.masters.fence import outdated
from wlc.masters.master_state import MasterState
from wlc.multi_master import unjudged
from wlc.multi_master.circle import (
    Circle,
    Rule,
    SiteHistory,
    circle_object,
    decode_circle,
    encode_circle,
    read_circle,
    with_rule,
)
from wlc.multi_master.circle_place import SiteState
from wlc.multi_master.membership import founded, with_role, with_site, with_site_anew, without_site
from wlc.multi_master.missing_steps import SiteLog

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
FOUNDED = founded("sales", "oslo", "aa", NOW)
TWO = with_site(FOUNDED, "rome", SiteHistory("bb"), NOW)
THREE = with_site(TWO, "paris", SiteHistory("cc"), NOW)


def test_the_founder_is_the_primary_and_alone() -> None:
    assert (FOUNDED.primary, FOUNDED.ddl, FOUNDED.is_shared) == ("oslo", "oslo", False)
    assert FOUNDED.sources_of("oslo") == ()


def test_in_a_star_the_primary_reads_all_and_the_others_read_the_primary() -> None:
    assert [site.name for site in THREE.sources_of("oslo")] == ["paris", "rome"]
    assert [site.name for site in THREE.sources_of("rome")] == ["oslo"]
    assert with_role(THREE, "rome", "none").sources_of("rome") == ()
    assert [site.name for site in with_role(THREE, "rome", "none").sources_of("oslo")] == ["paris"]


def test_a_circle_is_read_as_it_was_written() -> None:
    rule = Rule(Name("main", "t"), "owner", "rome")
    circle = with_rule(with_site(THREE, "rome", SiteHistory("dd", Origin("bb", 7)), NOW), rule)
    assert decode_circle(encode_circle(circle), "circle.json") == circle
    assert circle.lineage().parents == {"dd": Origin("bb", 7)}
    assert circle.rule_of(Name("main", "T")) == rule


def test_a_circle_that_contradicts_itself_is_refused() -> None:
    for wrong in (
        replace(TWO, primary="rome"),
        replace(TWO, ddl="york"),
        replace(TWO, sites=(*TWO.sites, TWO.sites[1])),
        replace(TWO, rules=(Rule(Name("main", "t"), "owner", "york"),)),
    ):
        with pytest.raises(CorruptError, match="circle"):
            decode_circle(encode_circle(wrong), "circle.json")


def test_a_name_is_taken_once_but_for_the_history_that_grew_from_it() -> None:
    with pytest.raises(InvalidError, match="a site rome already"):
        with_site(TWO, "Rome", SiteHistory("ee"), NOW)
    assert with_site(TWO, "rome", SiteHistory("bb"), NOW) == TWO
    grown = with_site(TWO, "rome", SiteHistory("ee", Origin("bb", 3)), NOW)
    assert grown.site("rome").history == "ee"
    with pytest.raises(InvalidError, match="cannot name a site"):
        with_site(TWO, "../rome", SiteHistory("ee"), NOW)


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("secondary", "none", None),
        ("none", "secondary", None),
        ("none", "pass", None),
        ("pass", "none", None),
        ("secondary", "pass", InvalidError),
        ("pass", "secondary", InvalidError),
        ("secondary", "primary", InvalidError),
        ("none", "primary", InvalidError),
        ("secondary", "king", InvalidError),
    ],
)
def test_roles_follow_each_other(before: str, after: str, error: type[FarmError] | None) -> None:
    circle: Circle = TWO if before == "secondary" else with_role(TWO, "rome", "none")
    circle = with_role(circle, "rome", before)
    if error is None:
        assert with_role(circle, "rome", after).site("rome").role == after
        return
    with pytest.raises(error):
        with_role(circle, "rome", after)


def test_the_primary_stays() -> None:
    with pytest.raises(InvalidError, match="oslo is the primary"):
        with_role(TWO, "oslo", "secondary")
    with pytest.raises(InvalidError, match="oslo is the primary"):
        without_site(TWO, "oslo")


def test_histories_of_a_site_that_left_stay_known() -> None:
    left = without_site(with_site(TWO, "rome", SiteHistory("dd", Origin("bb", 7)), NOW), "rome")
    assert not left.is_shared
    assert left.lineage().parents == {"dd": Origin("bb", 7)}


def test_the_circle_is_one_object_of_the_farm() -> None:
    database = FarmDatabase("sales", MemoryStore("memory://circle/sales"))
    with pytest.raises(InvalidError, match="no database 'sales'"):
        read_circle(database)
    database.create_config(first_config("sales"))
    with pytest.raises(InvalidError, match="one master"):
        read_circle(database)
    circle_object(database).change(lambda present: present or FOUNDED)
    assert read_circle(database) == FOUNDED


def test_the_history_of_a_site_that_left_leaves_the_vectors_of_all_that_contain_it() -> None:
    left = without_site(TWO, "rome", {"bb": Heir(Origin("aa", 9), 7)})
    assert decode_circle(encode_circle(left), "circle.json") == left
    lineage = left.lineage()
    assert normal({"aa": 9, "bb": 7}, lineage) == {"aa": 9}
    assert expanded({"aa": 9}, lineage) == {"aa": 9, "bb": 7}
    # Who has not got as far keeps it, and so does who has more than was known.
    assert normal({"aa": 8, "bb": 7}, lineage) == {"aa": 8, "bb": 7}
    assert normal({"aa": 9, "bb": 8}, lineage) == {"aa": 9, "bb": 8}


def test_a_site_begins_anew_under_its_name_with_what_it_owns() -> None:
    rule = Rule(Name("main", "t"), "owner", "rome")
    owner, heirs = with_rule(TWO, rule), {"bb": Heir(Origin("aa", 9), 7)}
    anew = with_site_anew(owner, "rome", SiteHistory("ee"), NOW, "sites/rome-2", heirs)
    assert decode_circle(encode_circle(anew), "circle.json") == anew
    assert (anew.site("rome").folder, anew.site("rome").history) == ("sites/rome-2", "ee")
    assert anew.rules == (rule,)
    assert anew.lineage().heirs == heirs
    assert with_site_anew(anew, "rome", SiteHistory("ee"), NOW, "sites/rome-2", {}) == anew
    with pytest.raises(InvalidError, match="oslo is the primary"):
        with_site_anew(anew, "oslo", SiteHistory("ff"), NOW, "sites/oslo-2", {})


@pytest.mark.parametrize("reader", ["oslo", "rome"])
def test_what_was_pruned_says_what_to_type(reader: str) -> None:
    log = FarmDatabase("sales", MemoryStore(f"memory://read by {reader}/sales"))
    log.logs.create(log_path("sales", 5), b"")
    other = next(each for each in TWO.sites if each.name != reader)
    proof = Taken(other.name, other.history, 2, 2, "c")
    is_primary = other.name == TWO.primary
    reading = SiteLog(
        log, other, "dd", 0, {}, proof, Lineage({}), is_primary, may_change_schema=is_primary, anew="wlc site join"
    )
    with pytest.raises(ExpiredError) as caught:
        list(reading.steps())
    assert caught.value.hint == "wlc site join"


def test_a_restored_site_is_told_what_it_can_do() -> None:
    log = FarmDatabase("sales", MemoryStore("memory://restored/sales"))
    alone = MasterState("memory://restored", "sales", "aa", 0, 0, "", None, {}, None, 300.0, "wlc_logs")
    hints = {"": outdated(log, alone, 1).hint}
    for name in ("oslo", "rome"):
        hints[name] = outdated(log, replace(alone, site=SiteState(name, ".", circle=TWO)), 1).hint
    assert "wlc stop SOURCE, then wlc master SOURCE" in str(hints[""])
    assert "let the other sites leave" in str(hints["oslo"])
    assert f"wlc site join SOURCE --name {log.url} --site rome --again" in str(hints["rome"])


@pytest.mark.parametrize("farm", ["memory://bucket", "memory://sites"])
def test_a_bucket_may_be_called_sites(farm: str) -> None:
    """What tells a site's folder from its founder's is not the name of the farm."""
    for folder in ("sales", "sales/sites/rome"):
        assert unjudged._founder(open_database(f"{farm}/{folder}")).url == f"{farm}/sales"

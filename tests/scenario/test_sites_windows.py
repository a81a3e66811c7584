"""When two changes of a row are in conflict, under a virtual clock: sites that publish and take at beats of their own.

MySQL NDB Cluster states it as two inequalities: a change at A is in conflict with a later one at B if it comes before it
by less than the delay from A to B, and the same with A and B exchanged. Here the delay follows from the beats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import wlc
from tests.sites import Sites

if TYPE_CHECKING:
    from pathlib import Path

HOURS = 13


def arrives(written: int, beat: int, taken_every: int, *, is_first: bool) -> int:
    """When a change that is written between an hour and the next is contained elsewhere.

    Args:
        written: The hour.
        beat: Hours between two publications at its site.
        taken_every: Hours between two takes at the other site.
        is_first: Where both do so in one hour, its site is the first.
    """
    published = (written // beat + 1) * beat
    return -(-published // taken_every) * taken_every if is_first else (published // taken_every + 1) * taken_every


@pytest.mark.parametrize(("beat_of_oslo", "beat_of_rome"), [(2, 5), (5, 2)])
def test_changes_closer_than_the_delay_are_in_conflict_and_no_others(
    tmp_path: Path, beat_of_oslo: int, beat_of_rome: int
) -> None:
    """Each row is written by oslo in one hour and by rome in another one: all pairs of hours are rows."""
    sites = Sites(tmp_path)
    sites.found(
        "CREATE TABLE t (at_oslo INTEGER, at_rome INTEGER, v VARCHAR, PRIMARY KEY (at_oslo, at_rome));"
        f"INSERT INTO t SELECT a.range, b.range, '' FROM range({HOURS}) AS a, range({HOURS}) AS b"
    )
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "t", "epoch")
    sites.exchange()
    # A program that ends publishes what waits.
    programs = {site: wlc.connect(sites.file(site)) for site in sites.names}
    for hour in range(HOURS):
        if hour % beat_of_oslo == 0:
            sites.take("oslo")
        if hour % beat_of_rome == 0:
            sites.take("rome")
        for site, program in programs.items():
            program.execute(f"UPDATE t SET v = v || '{site}' WHERE at_{site} = {hour}")
    for program in programs.values():
        program.close()
    wlc.flush(sites.file("rome"))
    sites.exchange()
    sites.refuse_differences("t")
    rejected = {(row.key["at_oslo"], row.key["at_rome"]) for row in wlc.exceptions(sites.file("oslo"))}
    expected = {
        (oslo, rome)
        for oslo in range(HOURS)
        for rome in range(HOURS)
        if rome < arrives(oslo, beat_of_oslo, beat_of_rome, is_first=True)
        and oslo < arrives(rome, beat_of_rome, beat_of_oslo, is_first=False)
    }
    assert rejected == expected
    # Just inside and just outside: oslo takes in its hour 6 what rome wrote in 0, and rome in 10 what oslo wrote in 5.
    if beat_of_rome == 5:
        assert [(oslo, 0) in rejected for oslo in (5, 6)] == [True, False]
        assert [(5, rome) in rejected for rome in (9, 10)] == [True, False]
    both = {(oslo, rome): v for oslo, rome, v in sites.rows("oslo", "t")}
    assert {key for key, v in both.items() if v == "oslo"} == rejected
    assert set(both.values()) == {"oslo", "oslorome", "romeoslo"}


def test_e15_the_second_of_two_changes_is_not_contained(tmp_path: Path) -> None:
    """Rome has taken the first change of a row, and not the second one."""
    sites = Sites(tmp_path)
    sites.found("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, ''), (2, '')")
    sites.join("rome")
    wlc.set_rule(sites.file("oslo"), "t", "epoch")
    sites.exchange()
    sites.write("oslo", "UPDATE t SET v = 'first'")
    wlc.flush(sites.file("oslo"))
    sites.take("rome")
    sites.write("oslo", "UPDATE t SET v = 'second' WHERE k = 1")
    sites.write("rome", "UPDATE t SET v = 'rome'")
    wlc.flush(sites.file("rome"))
    sites.exchange()
    (row,) = wlc.exceptions(sites.file("oslo"))
    assert (row.key, row.old, row.local) == ({"k": 1}, {"k": 1, "v": "first"}, {"k": 1, "v": "second"})
    assert sites.rows("rome", "t") == sites.rows("oslo", "t") == [(1, "second"), (2, "rome")]

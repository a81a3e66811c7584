"""When two changes of a row are in conflict, under a virtual clock: sites that publish and take at beats of their own.

MySQL NDB Cluster states it as two inequalities: a change at A is in conflict with a later one at B if it comes before it
by less than the delay from A to B, and the same with A and B exchanged. Here the delay follows from the beats.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import pytest

import wlc
from tests.sites import Sites

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

HOURS = 13


class Clock(NamedTuple):
    """Every how many hours a site publishes and takes; who takes has published what waits."""

    publish: int
    take: int

    def next_published(self, written: int) -> int:
        """When a change that is written between an hour and the next is in the farm."""
        return next(hour for hour in count(written + 1) if 0 in (hour % self.publish, hour % self.take))


def arrives(written: int, writer: Clock, reader: Clock, *, is_writer_first: bool) -> int:
    """When a change that is written between an hour and the next is contained elsewhere; in one hour, one is first."""
    published = writer.next_published(written)
    return next(hour for hour in count(published + (not is_writer_first)) if hour % reader.take == 0)


@pytest.mark.parametrize(
    ("oslo", "rome", "inside", "outside"),
    [
        # Oslo takes in its hour 6 what rome wrote in 0, and rome in 10 what oslo wrote in 5.
        (Clock(2, 2), Clock(5, 5), {(5, 0), (5, 9)}, {(6, 0), (5, 10)}),
        # Oslo takes in 5 what rome wrote in 0, and rome in 6 what oslo wrote in 3.
        (Clock(5, 5), Clock(2, 2), {(4, 0), (3, 5)}, {(5, 0), (3, 6)}),
        # Oslo takes in 6 what rome published in 3, and rome in 8 what oslo published in that hour.
        (Clock(1, 6), Clock(3, 4), {(5, 0), (7, 7)}, {(6, 0), (7, 8)}),
        # Who takes has published: both take in 3, oslo what rome wrote in 1, and rome what oslo wrote in 2.
        (Clock(4, 3), Clock(6, 1), {(2, 1), (2, 2)}, {(3, 1), (2, 3)}),
    ],
)
def test_changes_closer_than_the_delay_are_in_conflict_and_no_others(
    tmp_path: Path, oslo: Clock, rome: Clock, inside: set[tuple[int, int]], outside: set[tuple[int, int]]
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
        for site, clock in {"oslo": oslo, "rome": rome}.items():
            if hour % clock.publish == 0:
                wlc.flush(sites.file(site))
            if hour % clock.take == 0:
                sites.take(site)
        for site, program in programs.items():
            program.execute(f"UPDATE t SET v = v || '{site}' WHERE at_{site} = {hour}")
    for program in programs.values():
        program.close()
    wlc.flush(sites.file("rome"))
    sites.exchange()
    sites.refuse_differences("t")
    rejected = {(row.key["at_oslo"], row.key["at_rome"]) for row in wlc.exceptions(sites.file("oslo"))}
    expected = {
        (at_oslo, at_rome)
        for at_oslo in range(HOURS)
        for at_rome in range(HOURS)
        if at_rome < arrives(at_oslo, oslo, rome, is_writer_first=True)
        and at_oslo < arrives(at_rome, rome, oslo, is_writer_first=False)
    }
    assert rejected == expected
    assert inside <= rejected
    assert not outside & rejected
    both = {(at_oslo, at_rome): v for at_oslo, at_rome, v in sites.rows("oslo", "t")}
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

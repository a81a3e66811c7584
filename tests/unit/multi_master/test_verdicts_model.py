"""The primary's verdicts beside those of a model that knows the causal past of every transaction (P1, P3 of the design).

The model decides one transaction after the other, and looks through the whole log of the primary for each. The product
decides steps by SQL over a window of vectors.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.handmade_step import HandmadePrimary
from tests.sites_model import PRIMARY, ModelSite, SitesModel
from wlc.multi_master.duckdb import verdicts

if TYPE_CHECKING:
    from tests.handmade_step import Row
    from tests.sites_model import Key, LoggedEntry, TransactionName

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("DBFARM_EXAMPLES", "500" if os.environ.get("DBFARM_DEEP") else "25"))
RULES = {"t": "epoch_trans", "e": "epoch", "n": ""}
HISTORIES = ["p" * 32, "r" * 32, "s" * 32]

changed = st.dictionaries(st.tuples(st.sampled_from("tten"), st.integers(1, 2)), st.booleans(), min_size=1, max_size=3)
write = st.tuples(st.just("write"), st.sampled_from([0, 1, 1, 2]), changed)
# Before a site's next transaction begins; of the rows that it reads, whether that does as much as a change.
begin = st.tuples(st.just("begin"), st.sampled_from([1, 1, 2]), st.none())
read = st.tuples(
    st.just("read"),
    st.sampled_from([0, 1, 1, 2]),
    st.dictionaries(st.tuples(st.sampled_from("tte"), st.integers(1, 2)), st.booleans(), min_size=1, max_size=2),
)
take = st.tuples(st.just("take"), st.integers(1, 2), st.integers(1, 6))
judge = st.tuples(st.just("judge"), st.integers(1, 2), st.none())


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.one_of(write, write, begin, read, take, judge), min_size=8, max_size=30))
def test_verdicts_are_those_of_the_causal_past(steps: list[tuple[str, int, object]]) -> None:
    model = SitesModel([ModelSite(number) for number in range(3)], RULES)
    primary = HandmadePrimary(names=tuple(RULES), rules=RULES)
    began: dict[int, frozenset[TransactionName]] = {}
    wanted: dict[int, dict[Key, bool]] = {}
    for number, (kind, site, detail) in enumerate([*steps, ("judge", 1, None), ("judge", 2, None)]):
        if kind == "write":
            assert isinstance(detail, dict)
            rows = model.sites[site].rows
            # A row that is not there is inserted; one that is there is changed or removed.
            after = {key: f"{site}.{number}" if stays or key not in rows else None for key, stays in detail.items()}
            reads = {key: is_exclusive for key, is_exclusive in wanted.pop(site, {}).items() if key in rows}
            model.sites[site].write(after, reads=reads, began=began.pop(site, None))
        elif kind == "begin":
            began[site] = frozenset(model.sites[site].contained)
        elif kind == "read":
            assert isinstance(detail, dict)
            wanted[site] = detail
        elif kind == "take":
            assert isinstance(detail, int)
            model.take_at(site, detail)
        else:
            missing = model.missing(site)
            found = judged(primary, model, missing) if missing else []
            assert found == model.take_at_primary(site)
    model.settle()
    # Tables without a rule may differ where several sites have written a row.
    held = [{key: value for key, value in site.rows.items() if key[0] != "n"} for site in model.sites]
    assert held == [held[PRIMARY]] * len(held)


def judged(primary: HandmadePrimary, model: SitesModel, entries: list[LoggedEntry]) -> list[set[Key]]:
    """Let the product judge what the model's primary misses; returns the rejected keys of each transaction."""
    site = model.sites[PRIMARY]
    primary.reset(
        {name: {key: value for (table, key), value in site.rows.items() if table == name} for name in RULES},
        [(table, key, HISTORIES[line.name[0]], line.name[1]) for line in site.log for table, key in line.lines],
    )
    transactions: list[list[Row]] = [
        [(table, key, entry.before[table, key], after) for (table, key), after in entry.after.items()]
        for entry in entries
    ]
    pasts = [{HISTORIES[number]: tick for number, tick in site.vector(entry.past).items()} for entry in entries]
    primary.judge(
        *transactions,
        past=pasts,
        reads=[(n, *key, of) for n, entry in enumerate(entries, start=1) for key, of in entry.reads.items()],
        reads_past=[{HISTORIES[number]: tick for number, tick in site.vector(entry.seen).items()} for entry in entries],
        history=HISTORIES[entries[0].name[0]],
        ticks=[entry.name[1] for entry in entries],
    )
    found: list[set[Key]] = [set() for _ in entries]
    if not primary.found.is_empty:
        names = tuple(primary.tables)
        keys = {primary.number(table, key): (table, key) for table in names for key in range(1, 3)}
        rejected = primary.connection.execute(f"SELECT line, key FROM {verdicts.REJECTED}").fetchall()
        for line, key in rejected:
            found[line - 1].add(keys[key])
    return found

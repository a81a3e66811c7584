"""Whatever stands in another site's log, the primary believes only what that site may say (P12).

A log is refused with nothing applied, or it changes rows of the tables that it names; what the primary contains never
falls, and nothing of the primary's own is touched.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wlc
from tests.fault.breaker import abandon_masters
from tests.sites import Sites
from wlc.capture.duckdb.home import Home
from wlc.farm.errors import CorruptError, FarmError, UnavailableError
from wlc.farm.seal.checksum import CHECKSUM_LINE_BYTES, LINES_END, with_checksum
from wlc.farm.store import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Lines = list[dict[str, Any]]
EXAMPLES = int(os.environ.get("DBFARM_EXAMPLES", "0"))
TABLES = ("t", "n", "untouched", "o", "bag")
# Whatever rome writes: rows of oslo's own table, without a key in a star, without a rule in a mesh.
NEVER_IN_STAR, NEVER_IN_MESH = ("o", "bag"), ("o", "untouched")


class HostileSites(Sites):
    """Sites in a farm in memory."""

    @property
    def farm(self) -> str:
        return f"memory://{self.folder.name}"


@dataclass
class Scene:
    """Oslo's file before it takes, and the log file of rome's that it is about to read."""

    sites: HostileSites
    path: str
    lines: Lines
    histories: dict[str, str]
    farm: dict[str, bytes]
    is_mesh: bool = False
    before: Any = None

    def take(self, lines: Lines) -> FarmError | None:
        """Let oslo read other lines; it is as before afterwards, and returned is why it refused."""
        memory._objects[self.path] = encoded(lines)
        if self.before is None:
            self.before = self.held()
        found = None
        try:
            wlc.take(self.sites.file("oslo"), site="rome")
        except FarmError as error:
            found = error
            if not self.is_mesh:
                assert self.held() == self.before, f"{error} was too late"
                return error
            # What comes before it in the log may have been taken.
        try:
            self._check_taken(lines if found is None else self.lines)
        finally:
            self.restore()
        return found

    def _check_taken(self, lines: Lines) -> None:
        held, before = self.held(), self.before
        named = {tuple(change["table"]) for change in kinds(lines, "change")}
        for table in TABLES:
            if ("main", table) not in named or table in (NEVER_IN_MESH if self.is_mesh else NEVER_IN_STAR):
                assert held[0][table] == before[0][table], f"{table} was changed"
        for history, tick in before[1].items():
            assert held[1].get(history, 0) >= tick
        assert all(check.outcome == "same" for check in wlc.verify_source(self.sites.file("oslo")))

    def held(self) -> Any:
        with wlc.connect(self.sites.file("oslo")) as connection:
            rows = {table: connection.execute(f"FROM {table} ORDER BY ALL").fetchall() for table in TABLES}
            site = connection._shared.require_state().site
            assert site is not None
            return rows, dict(site.contained), site.proofs, len(wlc.exceptions(self.sites.file("oslo")))

    def restore(self) -> None:
        abandon_masters()
        shutil.copy(self.sites.folder / "oslo.before", self.sites.file("oslo"))
        for key in [key for key in memory._objects if key.startswith(self.sites.farm)]:
            del memory._objects[key]
        memory._objects.update(self.farm)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield from _scene(HostileSites(tmp_path_factory.mktemp("star")), {"t": "epoch_trans"}, is_mesh=False)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The same, where rome and paris may write t, n and bag, and paris has written what rome hands on."""
    rules = {"t": "newest", "n": "newest", "bag": "add"}
    yield from _scene(HostileSites(tmp_path_factory.mktemp("mesh")), rules, is_mesh=True)


def _scene(sites: HostileSites, rules: dict[str, str], *, is_mesh: bool) -> Iterator[Scene]:
    with _one_home():
        sites.found(
            "; ".join(f"CREATE TABLE {table} (k INTEGER PRIMARY KEY, v VARCHAR)" for table in TABLES[:-1])
            + "; CREATE TABLE bag (k INTEGER, v VARCHAR)"
            + "".join(f"; INSERT INTO {table} VALUES (1, 'x'), (2, 'x'), (3, 'x')" for table in TABLES),
            mesh=is_mesh,
        )
        sites.join("rome")
        for table, rule in rules.items():
            wlc.set_rule("sales", table, rule, farm=sites.farm)
        wlc.set_rule("sales", "o", "owner", site="oslo", farm=sites.farm)
        sites.exchange()
        if is_mesh:
            sites.join("paris")
        sites.write("oslo", "UPDATE untouched SET v = 'oslo' WHERE k = 1")
        sites.exchange()
        if is_mesh:
            sites.write("paris", "UPDATE t SET v = 'paris' WHERE k = 3")
            wlc.flush(sites.file("paris"))
        # The program goes on, so that what is committed is one batch.
        with wlc.connect(sites.file("rome")) as rome:
            rome.execute("UPDATE t SET v = 'rome' WHERE k = 1")
            rome.execute("BEGIN; INSERT INTO t VALUES (9, 'new'); DELETE FROM n WHERE k = 2; COMMIT")
            rome.execute("UPDATE t SET v = 'again' WHERE k = 1")
            if is_mesh:
                with patch("wlc.multi_master.take_round.publish"):
                    rome.wlc.take()
        log = sites.log("rome")
        path = f"{log.url}/wlc_logs/rome_{log.batch_numbers()[-1]:012}"
        lines = lines_of(path)
        histories = {site.site: site.history for site in wlc.sites("sales", farm=sites.farm)}
        abandon_masters()
        shutil.copy(sites.file("oslo"), sites.folder / "oslo.before")
        farm = {key: data for key, data in memory._objects.items() if key.startswith(sites.farm)}
        yield Scene(sites, path, lines, histories, farm, is_mesh)
        abandon_masters()


@contextmanager
def _one_home() -> Iterator[None]:
    """Let copies of a file stand for one place: a copy of a master would publish nothing."""
    with patch("wlc.capture.duckdb.shared.home_at", lambda _: Home("host", "boot", "/world", 1, 1)):
        yield


def lines_of(path: str) -> Lines:
    data = memory._objects[path]
    return [json.loads(line) for line in data[: -len(LINES_END) - CHECKSUM_LINE_BYTES].splitlines()]


def encoded(lines: Lines) -> bytes:
    body = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    return with_checksum(body, LINES_END)


def kinds(lines: Lines, kind: str) -> list[dict[str, Any]]:
    return [line[kind] for line in lines if kind in line]


@pytest.mark.slow
def test_the_log_itself_is_taken(scene: Scene) -> None:
    assert scene.take(scene.lines) is None


def _schema_change(scene: Scene, lines: Lines) -> None:
    place = next(number for number, line in enumerate(lines) if "begin" in line) + 1
    lines.insert(
        place,
        {
            "ddl": {
                "kind": "DROP TABLE",
                "object": ["main", "untouched"],
                "statement": "DROP TABLE untouched",
                "dialect": "duckdb",
                "search_path": ["main"],
                "layout": None,
                "does": [{"dropped": ["TABLE", "main", "untouched"]}],
            }
        },
    )


def _clear(scene: Scene, lines: Lines) -> None:
    place = next(number for number, line in enumerate(lines) if "begin" in line) + 1
    lines.insert(place, {"clear": {"table": ["main", "untouched"], "removed": 3}})


def _refresh(scene: Scene, lines: Lines) -> None:
    """What it removed, as if the primary had told it."""
    place = next(n for n, line in enumerate(lines) if line.get("change", {}).get("table") == ["main", "n"])
    change = lines[place]["change"]
    lines[place] = {"refresh": {"table": change["table"], "path": change["path"], "rows": 1, "absent": True}}


def _own_tick_again(scene: Scene, lines: Lines) -> None:
    kinds(lines, "begin")[1]["origin"] = {"history": scene.histories["rome"], "tick": 1}


def _unknown_origin(scene: Scene, lines: Lines) -> None:
    kinds(lines, "begin")[1]["origin"] = {"history": "f" * 32, "tick": 5}
    kinds(lines, "end")[0]["vector"]["f" * 32] = 5


def _vector_falls(scene: Scene, lines: Lines) -> None:
    kinds(lines, "end")[0]["vector"].pop(scene.histories["oslo"])


def _term_is_missing(scene: Scene, lines: Lines) -> None:
    del kinds(lines, "batch")[0]["term"]


def _vector_rises(scene: Scene, lines: Lines) -> None:
    kinds(lines, "end")[0]["vector"][scene.histories["rome"]] += 50


def _more_rows(scene: Scene, lines: Lines) -> None:
    kinds(lines, "change")[0]["added"] += 1


def _move_rows(lines: Lines, *table: str) -> None:
    """Let rows of n be rows of another table."""
    for holder in (*kinds(lines, "change"), *kinds(lines, "end")[0]["files"]):
        if holder["table"] == ["main", "n"]:
            holder["table"] = list(table)


def _internal_table(scene: Scene, lines: Lines) -> None:
    _move_rows(lines, "wlc", "state")


def _keyless_table(scene: Scene, lines: Lines) -> None:
    _move_rows(lines, "main", "bag")


def _path_elsewhere(scene: Scene, lines: Lines) -> None:
    path = "../../../wlc_logs/sales_000000000001.d/0.parquet"
    for holder in (*kinds(lines, "change"), *kinds(lines, "end")[0]["files"]):
        holder["path"] = path


# Each with what the message says about it.
LIES: dict[Callable[[Scene, Lines], None], str] = {
    _schema_change: "site rome changes the schema or empties a table in tick 3, which it may not",
    _clear: "site rome changes the schema or empties a table in tick 3, which it may not",
    _refresh: "site rome has published a refresh, and is not the primary",
    _own_tick_again: "batch 2 of site rome holds tick 1 of history [0-9a-f]{16}, which came before or out of order",
    _unknown_origin: "batch 2 of site rome contains ticks that only the primary could have given it, but has not",
    _vector_falls: "batch 2 of site rome contains less than the one before it",
    _term_is_missing: "batch 2 of site rome is in term 0, and the one before it in term 1",
    _vector_rises: "sites/rome/wlc_logs/rome_000000000002: .* vector .* does not fit tick 5$",
    _more_rows: "rome_000000000002: .*/1.parquet has 5 rows, its transactions have 6$",
    _internal_table: "^site rome publishes rows of wlc.state, which is no table here",
    _keyless_table: "^site rome has published rows of main.bag, which has no primary key: only the primary may write it",
    _path_elsewhere: r"rome_000000000002, line \d+: files: path: '../../../wlc_logs/.*' is not a path inside the farm",
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__[1:])
def test_a_lie_is_refused_and_names_the_site(scene: Scene, lie: Callable[[Scene, Lines], None]) -> None:
    lines = deepcopy(scene.lines)
    lie(scene, lines)
    error = scene.take(lines)
    assert isinstance(error, FarmError)
    if lie is not _internal_table:
        assert isinstance(error, CorruptError), repr(error)
    assert re.search(LIES[lie], str(error)), str(error)
    if lie in IN_STAR:
        assert error.exit_code == 6
        assert str(error.hint).startswith("to go on without this site: wlc site leave ")


# What contradicts the log itself or the rules of a star.
IN_STAR = (_schema_change, _clear, _refresh, _unknown_origin, _vector_falls, _term_is_missing)


@pytest.mark.parametrize("lie", IN_STAR[2:], ids=lambda lie: lie.__name__[1:])
def test_the_others_go_on_without_a_site_that_lies(scene: Scene, lie: Callable[[Scene, Lines], None]) -> None:
    """As the hint says."""
    lines = deepcopy(scene.lines)
    lie(scene, lines)
    error = scene.take(lines)
    assert error is not None
    # A command would not see this farm, which is in memory.
    *command, url, site, force = shlex.split(str(error.hint).partition(": ")[2])
    assert (command, force) == (["wlc", "site", "leave"], "--force")
    try:
        wlc.leave(url, site, force=True)
        assert wlc.take(scene.sites.file("oslo")) == []
    finally:
        scene.restore()


@pytest.mark.slow
def test_a_term_that_falls_is_refused(tmp_path: Path) -> None:
    """Oslo has stepped down in term 2, and writes as if it were still in term 1."""
    sites = HostileSites(tmp_path)
    sites.found("CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR)")
    sites.join("rome")
    wlc.set_role(sites.file("oslo"), "rome", "primary")
    sites.take("rome")
    for key in (1, 2):
        sites.exchange()
        sites.write("oslo", f"INSERT INTO t VALUES ({key}, 'oslo')")
        wlc.flush(sites.file("oslo"))
    log = sites.log("oslo")
    path = f"{log.url}/wlc_logs/sales_{log.batch_numbers()[-1]:012}"
    truth, lines = memory._objects[path], lines_of(path)
    (header,) = kinds(lines, "batch")
    assert header["term"] == 2
    header["term"] = 1
    memory._objects[path] = encoded(lines)
    with pytest.raises(
        CorruptError, match=r"batch \d+ of site oslo is in term 1, and the one before it in term 2(\n|$)"
    ):
        sites.take("rome")
    assert sites.rows("rome", "t") == [(1, "oslo")]
    memory._objects[path] = truth
    sites.exchange()
    assert sites.rows("rome", "t") == [(1, "oslo"), (2, "oslo")]


def test_rows_of_a_table_of_another_owner_are_rejected(scene: Scene) -> None:
    lines = deepcopy(scene.lines)
    _move_rows(lines, "main", "o")
    before = scene.held()
    memory._objects[scene.path] = encoded(lines)
    wlc.take(scene.sites.file("oslo"))
    rows = {(row.table.name, row.cause) for row in wlc.exceptions(scene.sites.file("oslo"))}
    assert rows == {("o", "owner"), ("t", "owner")}
    assert scene.held()[0]["o"] == before[0]["o"]
    scene.restore()


# In a mesh -----------------------------------------------------------------------------------------------------------


def _vector_of_another_rises(scene: Scene, lines: Lines) -> None:
    kinds(lines, "end")[0]["vector"][scene.histories["paris"]] += 1


def _tick_that_its_author_has_not(scene: Scene, lines: Lines) -> None:
    origin = next(each["origin"] for each in kinds(lines, "begin") if each.get("origin"))
    origin["tick"] += 5
    kinds(lines, "end")[0]["vector"][scene.histories["paris"]] = origin["tick"]


def _rows_of_the_owner(scene: Scene, lines: Lines) -> None:
    _move_rows(lines, "main", "o")


def _rows_of_the_primary(scene: Scene, lines: Lines) -> None:
    _move_rows(lines, "main", "untouched")


def _clock_of_2099(scene: Scene, lines: Lines) -> None:
    kinds(lines, "commit")[0]["committed"] = "2099-01-01T00:00:00.000000Z"


def _clock_of_another_in_2099(scene: Scene, lines: Lines) -> None:
    origin = next(each["origin"] for each in kinds(lines, "begin") if each.get("origin"))
    origin["committed"] = "2099-01-01T00:00:00.000000Z"


IN_MESH: dict[Callable[[Scene, Lines], None], str] = {
    **{lie: LIES[lie] for lie in (_schema_change, _clear, _own_tick_again, _vector_falls, _path_elsewhere)},
    _unknown_origin: "tick 4 of site rome holds tick 5 of history f{32}, which no site has",
    _vector_rises: "sites/rome/wlc_logs/rome_000000000002: .* vector .* does not fit tick 7$",
    _more_rows: "rome_000000000002: .*/1.parquet has 7 rows, its transactions have 8$",
    _internal_table: "tick 4 of site rome holds rows of wlc.state that site rome wrote without permission",
    # It may only add rows to this one.
    _keyless_table: "^site rome has published that it removed rows of main.bag, to which it may only add some",
    _vector_of_another_rises: "batch 2 of site rome claims to contain ticks that its log does not hold",
    _tick_that_its_author_has_not: "tick 7 of site rome holds tick 8 of history .*, which site paris has not published",
    _rows_of_the_owner: "tick 4 of site rome holds rows of main.o that site rome wrote without permission",
    _rows_of_the_primary: "tick 4 of site rome holds rows of main.untouched that site rome wrote without permission",
    _clock_of_2099: "^site rome committed tick 3 at 2099-.* the rest of the log of site rome waits",
    _clock_of_another_in_2099: "^site paris committed tick 3 at 2099-.* the rest of the log of site rome waits",
}


@pytest.mark.slow
def test_in_a_mesh_the_log_itself_is_taken(mesh: Scene) -> None:
    assert mesh.take(mesh.lines) is None


@pytest.mark.slow
@pytest.mark.parametrize("lie", IN_MESH, ids=lambda lie: lie.__name__[1:])
def test_in_a_mesh_a_lie_is_refused(mesh: Scene, lie: Callable[[Scene, Lines], None]) -> None:
    lines = deepcopy(mesh.lines)
    lie(mesh, lines)
    assert lines != mesh.lines
    error = mesh.take(lines)
    assert isinstance(error, UnavailableError if "clock" in lie.__name__ else FarmError), repr(error)
    assert re.search(IN_MESH[lie], str(error)), str(error)


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES or (1000 if os.environ.get("DBFARM_DEEP") else 10),
    deadline=None,
    database=None,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["scene", "mesh"])
def test_random_lines_change_nothing_that_is_not_theirs(
    request: pytest.FixtureRequest, kind: str, data: st.DataObject
) -> None:
    scene: Scene = request.getfixturevalue(kind)
    lines = deepcopy(scene.lines)
    texts = ["main", "wlc", "state", "t", "untouched", "bag", "o", "rome", "", "f" * 32, *scene.histories.values()]
    value = st.one_of(st.integers(-1, 12), st.sampled_from(texts), st.none(), st.booleans())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(_places(lines)))
        holder: Any = lines
        for step in place[:-1]:
            holder = holder[step]
        how = data.draw(st.sampled_from(["change", "change", "change", "remove", "copy"]))
        if how == "change":
            holder[place[-1]] = data.draw(value)
        elif how == "remove":
            del holder[place[-1]]
        elif isinstance(holder, list):
            holder.append(deepcopy(holder[place[-1]]))
        if not lines:
            break
    scene.take(lines)


def _places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in inside for place in ((*before, key), *_places(each, (*before, key)))]

"""Places of a lower tier are filled from above: the upper tier dials, and nobody dials it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from cli.command import run_app
from cli.wlc import app
from tests.requests import counted_requests
from wlc.farm.database import open_database
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.registry import replicas
from wlc.farm.store import MissingError
from wlc.tiers.upstreams import Push, decode_push

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hq")
    wlc.master(folder / "shop.duckdb", farm=str(folder / "farm"), beat_s=0, create=True)
    with wlc.connect(folder / "shop.duckdb") as connection:
        connection.execute("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    return folder


def write(source: Path) -> int:
    with wlc.connect(source / "shop.duckdb") as connection:
        connection.execute("INSERT INTO t SELECT coalesce(max(i), 0) + 1 FROM t")
    return wlc.tick(str(source / "farm" / "shop"))


@pytest.fixture
def pusher(source: Path, tmp_path: Path) -> Iterator[wlc.Pusher]:
    with wlc.Pusher(str(source / "farm" / "shop"), str(tmp_path / "edge" / "shop"), class_name="uat") as made:
        yield made


def url(folder: Path, name: str) -> str:
    return str(folder / name / "shop")


def wait_for(pusher: wlc.Pusher, places: int) -> wlc.Pushed:
    """Push until the list was read anew, which takes 5 s unless it is set."""
    pusher._listed = None
    done = pusher.push()
    assert len(done.shipped) == places
    return done


@pytest.mark.slow
def test_one_line_serves_a_class_and_a_bad_entry_nobody(source: Path, tmp_path: Path, pusher: wlc.Pusher) -> None:
    edge = url(tmp_path, "edge")
    wlc.push_list(edge, add=Push("edge", to=edge))
    wait_for(pusher, 1)
    for name, class_name in (("a", "uat"), ("b", "uat"), ("c", "test"), ("d", "prod")):
        for _ in range(2):
            with pytest.raises(MissingError):
                wlr.replicate(
                    edge,
                    into=tmp_path / f"{name}.duckdb",
                    upstream=url(tmp_path, f"place-{name}"),
                    class_name=class_name,
                )
    # Somebody who tries again is the same.
    assert len(replicas(open_database(edge))) == 4
    wlc.push_list(edge, add=Push("uats", class_name="uat"))
    wlc.push_list(edge, add=Push("prods", class_name="prod", host="*"))
    wlc.push_list(edge, add=Push("nowhere", to="/proc/nope/shop"))
    (tmp_path / "edge/shop/pushes/torn.json").write_bytes(b"torn")
    (tmp_path / "edge/shop/replicas/torn.json").write_bytes(b"torn")
    pusher._listed = None
    done = pusher.push()
    # The pusher's class is uat: prod is above it.
    assert {each.url for each in done.shipped} == {edge, url(tmp_path, "place-a"), url(tmp_path, "place-b")}
    assert sorted(path.split("/")[-2] for path in done.failed) == ["nope", "pushes", "replicas"]
    assert wlr.replicate(edge, into=tmp_path / "a.duckdb", upstream=url(tmp_path, "place-a")).tick > 0
    (tmp_path / "edge/shop/pushes/torn.json").unlink()
    (tmp_path / "edge/shop/replicas/torn.json").unlink()
    wlc.push_list(edge, remove="nowhere")
    assert [entry.id for entry in wlc.push_list(edge, remove="prods")] == ["edge", "uats"]


def test_one_pusher_at_a_time_writes_to_a_place(source: Path, tmp_path: Path, pusher: wlc.Pusher) -> None:
    edge = url(tmp_path, "edge")
    wlc.push_list(edge, add=Push("edge", to=edge))
    wait_for(pusher, 1)
    with wlc.Pusher(str(source / "farm" / "shop"), edge) as other:
        done = other.push()
        assert done.shipped == ()
        assert f"in use by process {os.getpid()}" in done.failed[edge]
    assert (tmp_path / "edge/shop/push.lease").exists()
    # Who is not on the list any more is let go.
    wlc.push_list(edge, remove="edge")
    wait_for(pusher, 0)
    assert not (tmp_path / "edge/shop/push.lease").exists()


def test_a_farm_that_was_taken_out_pushes_to_nobody(source: Path, pusher: wlc.Pusher) -> None:
    farm = str(source / "farm" / "shop")
    wlc.set_upstream(farm, "origin", is_active=False)
    try:
        with pytest.raises(InvalidError, match="is inactive, so it pushes nothing"):
            pusher.push()
    finally:
        wlc.set_upstream(farm, "origin", is_active=True)
    assert pusher.push() == wlc.Pushed((), {})


def test_the_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edge, farm = url(tmp_path, "edge"), str(source / "farm" / "shop")

    def told(*arguments: str) -> tuple[int, str, str]:
        code = run_app(app, "wlc", arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    assert "names no place to fill: wlc tier push" in told("tier", "ship", farm, "--pushes", edge)[2]
    assert f"add f --to place/{Path(edge).name}" in told("tier", "push", edge, "add", "f", "--to", "place")[2]
    assert told("tier", "push", edge, "add", "e", "--to", edge)[1].splitlines()[1].split() == ["e", edge, "-", "-", "-"]
    told("tier", "push", edge, "add", "oslo", "--site", "os*", "--class", "uat")
    assert told("tier", "push", edge)[1].splitlines()[2].split() == ["oslo", "-", "-", "uat", "os*"]
    told("tier", "push", edge, "remove", "oslo")
    assert "has an entry 'e' already" in told("tier", "push", edge, "add", "e", "--to", edge)[2]
    assert "names either a place or a pattern" in told("tier", "push", edge, "add", "f")[2]
    assert "is a place of database other" in told("tier", "push", edge, "add", "f", "--to", str(tmp_path / "other"))[2]
    assert told("tier", "ship", farm, "--pushes", edge)[:1] == (0,)
    assert "--pushes goes with" in told("tier", "ship", farm, "--pushes", edge, "--to", "x")[2]
    assert "a relay needs a place" in told("tier", "ship", farm)[2]
    told("tier", "push", edge, "add", "nowhere", "--to", "/proc/nope/shop")
    code, out, err = told("tier", "ship", farm, "--pushes", edge)
    assert (code, "1 of 2 places could not be filled" in err, edge in out) == (75, True, True)
    assert told("tier", "push", edge, "remove", "nowhere")[0] == told("tier", "push", edge)[0] == 0
    assert "has no entry 'nowhere'" in told("tier", "push", edge, "remove", "nowhere")[2]
    with pytest.raises(CorruptError, match="it is push 'e'"):
        decode_push((tmp_path / "edge/shop/pushes/e.json").read_bytes(), "pushes/f.json")


@pytest.mark.slow
def test_a_list_is_read_and_places_are_dialled_as_often_as_is_set(source: Path, s3_url: str) -> None:
    edge = f"{s3_url}/shop"
    wlc.push_list(edge, add=Push("edge", to=edge))
    with wlc.Pusher(str(source / "farm" / "shop"), edge) as pusher:
        assert len(pusher.push().shipped) == 1
        assert pusher.settings.push_dial_s == 5
        with counted_requests() as made:
            pusher.push()
        # The settings, and the place's configuration: the lease is held, and the list was read a short time ago.
        assert sum(made.values()) <= 4, made
        wlc.set_tiers(edge, ["push_list_s=0.01", "push_dial_s=0.5"])
        assert pusher.settings.push_dial_s == 0.5
        time.sleep(0.02)
        with counted_requests() as made:
            pusher.push()
        assert [asked for asked in made if asked.startswith("ListObjectsV2") and asked.endswith("pushes/")]

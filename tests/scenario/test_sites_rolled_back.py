"""A site's file, its folder, or both are rolled back or lost: no hint leads to loss, and all sites end equal."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import wlc
import wlr
from tests.scratch import attached
from tests.sites import Sites
from wlc.farm.errors import CorruptError, FarmError, FencedError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*(restored from a backup|lost or rolled back):UserWarning"),
]
SCHEMA = "CREATE TABLE t (k INTEGER PRIMARY KEY, v VARCHAR); INSERT INTO t VALUES (1, 'first')"


@dataclass
class Accident:
    """Three sites, one of which has lost what it published last.

    Attributes:
        site: That one; `reader` has taken what was lost, and the third site has not.
    """

    sites: Sites
    site: str
    reader: str

    @property
    def file(self) -> Path:
        return self.sites.file(self.site)

    @property
    def folder(self) -> Path:
        log = self.sites.folder / "farm" / "sales"
        return log if self.site == "oslo" else log / "sites" / self.site

    def _parts(self, folder: Path) -> list[Path]:
        """The site's own part of a folder: the founder's holds those of all others, too."""
        return [path for path in folder.iterdir() if path.name not in ("sites", "circle.json")]

    def keep(self) -> None:
        shutil.copy(self.file, self.sites.folder / "kept.duckdb")
        for path in self._parts(self.folder):
            kept = self.sites.folder / "kept" / path.name
            kept.parent.mkdir(exist_ok=True)
            shutil.copytree(path, kept) if path.is_dir() else shutil.copy(path, kept)

    def restore_file(self) -> None:
        self.file.write_bytes((self.sites.folder / "kept.duckdb").read_bytes())

    def restore_folder(self, *, is_lost: bool = False) -> None:
        for path in self._parts(self.folder):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in [] if is_lost else self._parts(self.sites.folder / "kept"):
            place = self.folder / path.name
            shutil.copytree(path, place) if path.is_dir() else shutil.copy(path, place)

    def refuse_loss(self) -> None:
        """Others may be refused; the first command of each hint is one for the site itself."""
        for name in self.sites.names:
            if name != self.site:
                try:
                    self.sites.take(name)
                except (CorruptError, FencedError) as error:
                    assert f"at site {self.site}: wlc flush FILE" in str(error.hint).partition("; if ")[0]

    def end_equal(self) -> None:
        """Let all sites take, and compare."""
        self.sites.write(self.site, "INSERT INTO t VALUES (20, 'after')")
        for _ in range(2):
            for name in self.sites.names:
                # Those that come before the site itself wait for its new history.
                try:
                    self.sites.take(name)
                except FarmError:
                    wlc.flush(self.file)
        self.sites.exchange()
        self.sites.refuse_differences("t")
        assert dict(self.sites.rows(self.site, "t")) == {1: "first", 10: "lost", 11: "seen", 20: "after"}
        url = self.sites.log(self.site).url
        wlr.replicate(url, into=self.sites.folder / "replica.duckdb", register=False)
        assert wlr.verify_farm(url, full=True).problems == ()


def accident(folder: Path, site: str, *, mesh: bool, is_taken: bool = True) -> Accident:
    sites = Sites(folder)
    sites.found(SCHEMA, mesh=mesh)
    wlc.set_rule("sales", "t", "newest" if mesh else "epoch", farm=sites.farm)
    for name in ("rome", "paris"):
        sites.join(name)
    sites.write(site, "INSERT INTO t VALUES (10, 'before')")
    sites.exchange()
    found = Accident(sites, site, "oslo" if site == "rome" else "rome")
    found.keep()
    sites.write(site, "INSERT INTO t VALUES (11, 'lost')")
    sites.write(site, "UPDATE t SET v = 'lost' WHERE k = 10")
    wlc.flush(sites.file(site))
    if is_taken:
        sites.take(found.reader)
        sites.write(found.reader, "UPDATE t SET v = 'seen' WHERE k = 11")
        wlc.flush(sites.file(found.reader))
    return found


@pytest.mark.parametrize(
    "site, mesh, has_file, is_lost",
    [
        ("oslo", True, False, False),
        ("oslo", True, True, True),
        ("rome", True, False, True),
        ("rome", True, True, False),
        ("rome", False, False, False),
        ("rome", False, False, True),
        ("rome", False, True, False),
    ],
)
def test_others_give_back_what_they_took(
    tmp_path: Path, site: str, *, mesh: bool, has_file: bool, is_lost: bool
) -> None:
    """File and folder were rolled back together or the folder was lost: the file alone would look fine."""
    found = accident(tmp_path, site, mesh=mesh)
    if not has_file:
        found.restore_file()
    found.restore_folder(is_lost=is_lost)
    found.refuse_loss()
    found.end_equal()


@pytest.mark.parametrize("mesh, is_taken", [(True, False), (False, True)], ids=["mesh", "star"])
def test_a_primary_whose_folder_lacks_what_another_site_needs(tmp_path: Path, *, mesh: bool, is_taken: bool) -> None:
    """Nobody can publish that again under its ticks; a file that is no newer than the folder leads on."""
    found = accident(tmp_path, "oslo", mesh=mesh, is_taken=is_taken)
    found.restore_folder()
    with pytest.raises(FencedError, match="was lost or rolled back: it lacks ticks up to") as refused:
        wlc.flush(found.file)
    assert "restore a backup that is no newer than the folder" in str(refused.value.hint)
    found.restore_file()
    found.refuse_loss()
    if not is_taken:
        found.sites.write("oslo", "INSERT INTO t VALUES (11, 'seen')", "UPDATE t SET v = 'lost' WHERE k = 10")
    found.end_equal()


def test_a_secondary_whose_folder_lacks_what_nobody_took(tmp_path: Path) -> None:
    found = accident(tmp_path, "rome", mesh=True, is_taken=False)
    found.restore_folder()
    with pytest.raises(FencedError, match="was lost or rolled back") as refused:
        found.sites.take("rome")
    assert "--site rome --again, after which only the former file has" in str(refused.value.hint)
    found.sites.join("rome", again=True)
    with attached(found.file.with_name("rome.duckdb.1")) as former:
        assert (11, "lost") in former.execute("FROM t").fetchall()
    found.sites.write("rome", "INSERT INTO t VALUES (11, 'seen')", "UPDATE t SET v = 'lost' WHERE k = 10")
    found.end_equal()

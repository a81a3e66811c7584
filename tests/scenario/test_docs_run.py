"""What README and docs/ tell to type is typed here, page by page, as it stands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
import s3fs

import wlc
import wlr
from tests.commands import commands, named
from tests.docs_blocks import ROOT, TYPED, Shell, blocks, pages, resembles

if TYPE_CHECKING:
    from collections.abc import Callable

NO_RUN_MAX = 10


def test_every_block_is_run_or_says_why_not() -> None:
    everything = [block for page in pages() for block in blocks(page)]
    assert len(everything) > 50
    for block in everything:
        hidden = block.language not in TYPED | {"text"} and re.search(
            r"^(\$ )?(wl[cr]|pip|pytest) [a-z]", block.text, re.MULTILINE
        )
        assert not hidden, f"{block.page}: a command in a block without the language sh:\n{block.text}"
        if block.mark == "run-by":
            test = ROOT / str(block.says)
            assert test.is_file(), f"{block.page}: there is no {block.says}"
            assert Path(block.page).name in test.read_text(encoding="utf-8"), (
                f"{block.says} says nothing of {block.page}"
            )
        elif block.language in {"sql", "console"}:
            assert block.mark, f"{block.page}: nobody runs\n{block.text}"
    reasons = [f"{block.page}: {block.says}" for block in everything if block.mark == "no-run"]
    assert len(reasons) <= NO_RUN_MAX, reasons


def test_commands_in_sentences_have_options_that_exist() -> None:
    for page in pages():
        for span in re.findall(r"`(wl[cr] [^`]+)`", page.read_text(encoding="utf-8")):
            command = commands().get(named(span.split()) or "")
            of_program = {"--version", "--install-completion", "--show-completion"}
            known = {option for param in command.params for option in param.opts} if command else of_program
            known |= {"--help"}
            assert set(re.findall(r"(?<= )--[a-z][\w-]*", span)) <= known, (page.name, span)


GUIDES = "docs/howto/index.md"


def orders(shell: Shell) -> None:
    """A master with three transactions, and a replica of them: what most pages begin with, as the guides say it."""
    for block in blocks(ROOT / GUIDES):
        shell.run(block)


def nothing(shell: Shell) -> None:
    pass


def stopped(shell: Shell) -> None:
    """A replica that lacks a row which the master deletes."""
    orders(shell)
    stop()


def stop() -> None:
    wlr.unlock("copy.duckdb")
    with duckdb.connect("copy.duckdb") as connection:
        connection.execute("DELETE FROM orders WHERE id = 7")
    wlr.lock("copy.duckdb")
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("DELETE FROM orders WHERE id = 7")
    with pytest.raises(wlr.ReplayError):
        wlr.replicate(into="copy.duckdb")


def folders(shell: Shell) -> None:
    """A master, a replica, and folders for more of them."""
    orders(shell)
    for folder in ("srv/copies", "var/lib/copies"):
        Path(folder).mkdir(parents=True)


def a_file(shell: Shell) -> None:
    """A database that is no master yet."""
    with duckdb.connect("sales.duckdb") as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")


def a_file_in_oslo(shell: Shell) -> None:
    shell.export("WLC_FARM", "stores/bucket/farm")
    with duckdb.connect("oslo.duckdb") as connection:
        for table in ("orders", "customers", "accounts", "limits"):
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, amount INTEGER)")


def sites(shell: Shell) -> None:
    """Oslo, Rome and Paris, as the guide makes them."""
    a_file_in_oslo(shell)
    shell.run(blocks(ROOT / "docs/sites.md")[0])


def anew(shell: Shell) -> None:
    for path in (*Path().glob("*.duckdb"), *Path().glob("*.key")):
        path.unlink()
    shutil.rmtree("stores")


def anew_in_oslo(shell: Shell) -> None:
    anew(shell)
    a_file_in_oslo(shell)


def other_sites(shell: Shell) -> None:
    anew(shell)
    sites(shell)


def replica_of_rome(shell: Shell) -> None:
    other_sites(shell)
    wlr.replicate("stores/bucket/farm/sales/sites/rome", into="copy.duckdb")


def anew_from_a_file(shell: Shell) -> None:
    anew(shell)
    a_file(shell)


def stopped_again(shell: Shell) -> None:
    with wlc.connect("sales.duckdb") as connection:
        connection.execute("INSERT INTO orders VALUES (7, 'tea', 1, 'US')")
    wlr.replicate(into="copy.duckdb")
    stop()


# What happens between two blocks of a page, by the second one's first line: they are alternatives.
BETWEEN = {
    ("docs/howto/mend.md", "wlr replica unlock copy.duckdb"): stopped_again,
    ("docs/howto/mend.md", "wlr accept copy.duckdb"): stopped_again,
    ("docs/security.md", "wlc farm key signing master.key"): anew_from_a_file,
    ("docs/sites.md", "wlc farm key encryption farm.key"): anew_in_oslo,
    ("docs/sites-operation.md", "wlc site role sales rome primary --lost oslo"): other_sites,
    ("docs/sites-operation.md", "wlr replica switch copy.duckdb s3://bucket/farm/sales --dry-run"): replica_of_rome,
}


def headquarters(shell: Shell) -> None:
    """The master publishes there; replicas and relays are elsewhere."""
    orders(shell)
    wlc.ship("sales", to=str(Path("stores/hq/farm").absolute()), farm="farm")
    wlc.ship("sales", to=str(Path("srv/hq").absolute()), farm="farm")


# The examples' ticks stand for some that the story has.
TICKS = {"1040": "2", "1041": "3", "1050": "3"}
# Buckets are folders here; tests of stores show that nothing else differs.
LOCAL = {"s3://": "stores/"}

# Page: what it begins with, and what its words stand for.
STORIES: dict[str, tuple[Callable[[Shell], None], dict[str, str]]] = {
    "README.md": (nothing, {}),
    "docs/exactness.md": (nothing, {}),
    "docs/feeds.md": (orders, {"s3://bucket/farm": "farm"}),
    "docs/filters.md": (orders, {}),
    "docs/howto/bucket.md": (
        nothing,
        {"https://s3.example.com": "$AWS_ENDPOINT_URL", "ID=KEY": "ID=testing", "KEY=SECRET": "KEY=topsecretvalue"},
    ),
    "docs/howto/cron.md": (folders, {"/srv/farm": "farm"}),
    "docs/howto/encryption.md": (nothing, LOCAL),
    GUIDES: (nothing, {}),
    "docs/howto/keep.md": (orders, {}),
    "docs/howto/mend.md": (stopped, {}),
    "docs/howto/move.md": (orders, {"/srv/farm": "farm"}),
    "docs/howto/offices.md": (nothing, LOCAL),
    "docs/howto/restore.md": (orders, {}),
    "docs/howto/systemd.md": (folders, {"s3://bucket/farm": "farm", "/srv/farm": "farm"}),
    "docs/howto/upgrade.md": (orders, {}),
    "docs/parquet.md": (orders, {"version=7": "version=0", "s3://bucket/farm": "farm"}),
    "docs/reading.md": (orders, TICKS | {"s3://bucket/farm": "farm", "/srv/farm": "farm", "yesterday 17:00": "now"}),
    "docs/security.md": (a_file, LOCAL),
    "docs/sites.md": (a_file_in_oslo, LOCAL),
    "docs/sites-operation.md": (sites, LOCAL),
    "docs/sites-rules.md": (sites, LOCAL),
    "docs/testing.md": (nothing, {}),
    "docs/tiers.md": (headquarters, LOCAL),
    "docs/tutorial.md": (nothing, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page.relative_to(ROOT).as_posix() for page in pages()])
def test_a_page_can_be_typed(
    page: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = [block for block in blocks(ROOT / page) if block.is_run_here]
    begin, instead = STORIES.get(page, (None, {}))
    assert (begin is not None) == bool(typed), page
    if begin is None:
        return
    if page == "docs/howto/bucket.md":
        store = s3fs.S3FileSystem(endpoint_url=request.getfixturevalue("s3_environment"), use_listings_cache=False)
        # All servers of a process have the same buckets, and other tests call theirs so, too.
        if store.exists("bucket"):
            store.rm("bucket", recursive=True)
        store.mkdir("bucket")
        request.addfinalizer(lambda: store.rm("bucket", recursive=True))
    monkeypatch.setattr("cli.progress.PATIENCE_S", 3600.0)
    monkeypatch.setenv("WLC_FARM", str(tmp_path / "farm"))
    shell = Shell(tmp_path, monkeypatch, instead)
    begin(shell)
    for block in typed:
        between = BETWEEN.get((page, block.text.partition("\n")[0].partition("  ")[0]))
        if between:
            between(shell)
        printed = shell.run(block)
        if block.shown is not None:
            assert resembles(block.shown, printed), f"{block.text}\nprinted\n{printed}"

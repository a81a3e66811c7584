"""The table of sources: every engine offers every verb, and nothing else knows which engines there are."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

import wlc
from wlc.farm.errors import InvalidError
from wlc.masters import adapters
from wlc.masters.contract import Source
from wlc.masters.operations import check_repair

if TYPE_CHECKING:
    from pathlib import Path

VERBS = [name for name, verb in vars(adapters.SourceModule).items() if inspect.isfunction(verb) and name[0] != "_"]
URLS = ["sales.duckdb", "postgresql://localhost/shop", "postgres://localhost/shop"]


@pytest.mark.parametrize("url", URLS)
def test_every_engine_offers_every_verb(url: str) -> None:
    module = adapters.module_of(url)
    assert len(VERBS) > 5
    for verb in VERBS:
        wanted = list(inspect.signature(getattr(adapters.SourceModule, verb)).parameters)[1:]
        offered = inspect.signature(getattr(module, verb)).parameters
        takes_any = any(found.kind is inspect.Parameter.VAR_KEYWORD for found in offered.values())
        assert takes_any or list(offered) == wanted, verb


@pytest.mark.parametrize("url", URLS)
def test_every_engine_has_one_source(url: str) -> None:
    found = vars(adapters.module_of(url)).values()
    sources = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Source) and kind is not Source]
    assert len(sources) == 1
    assert not inspect.isabstract(sources[0])


def test_urls_and_files_are_sources_and_names_are_none(tmp_path: Path) -> None:
    (tmp_path / "sales.duckdb").touch()
    assert adapters.is_source(tmp_path / "sales.duckdb")
    assert all(map(adapters.is_source, URLS[1:]))
    for other in ("sales", "s3://bucket/farm/sales", tmp_path, tmp_path / "gone.duckdb"):
        assert not adapters.is_source(other)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InvalidError, match="a mysql:// URL cannot be a master"):
        wlc.master("mysql://localhost/shop")


def test_verbs_that_only_one_engine_has_get_a_plain_answer_of_the_other(tmp_path: Path) -> None:
    file = tmp_path / "sales.duckdb"
    file.touch()
    assert wlc.tables_to_change(file) == []
    with pytest.raises(InvalidError, match="the process that writes it publishes it") as caught:
        adapters.module_of(file).check_run(str(file))
    assert caught.value.hint == f"wlc flush {file}"
    url = "postgresql://ann:secret@localhost/shop"
    for refused in (lambda: check_repair(url), lambda: wlc.connect(url)):
        with pytest.raises(InvalidError) as caught:
            refused()
        assert "postgresql://ann@localhost/shop" in str(caught.value.hint)
        assert "secret" not in f"{caught.value.hint} {caught.value}"

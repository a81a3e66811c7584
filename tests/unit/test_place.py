"""Where a replica is, told from what the user typed; a password in it is never told again."""

from __future__ import annotations

import pytest

from wlc.farm.errors import InvalidError
from wlc.farm.store import open_store
from wlr.engine.adapters import locate, target_at


def test_password_is_in_no_text_of_it() -> None:
    typed = "postgresql://ann:s3/cret@host:5432/db?schema=s"
    place = locate(typed)
    assert (place.engine, target_at(typed).noun) == ("postgres", "a PostgreSQL database")
    assert str(place) == "postgresql://ann@host:5432/db?schema=s"
    assert "s3" not in repr([place])
    assert "cret" not in repr([place])
    assert place.url == typed


@pytest.mark.parametrize("typed", ["copy.duckdb", "s3://bucket/lake", "parquet://postgresql"])
def test_other_places_are_none(typed: str) -> None:
    assert locate(typed).engine != "postgres"


@pytest.mark.parametrize("typed", ["s3:/bucket/lake", "s3:bucket/lake", "S3:/bucket/lake"])
def test_a_url_that_lacks_a_slash_is_no_folder(typed: str) -> None:
    for look in (locate, open_store):
        with pytest.raises(InvalidError, match="two slashes belong behind") as caught:
            look(typed)
        assert caught.value.hint == f"s3://bucket/lake, or ./{typed} for a folder here of that name"
    assert locate(f"./{typed}").engine == "parquet"

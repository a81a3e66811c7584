"""Where a replica is, told from what the user typed; a password in it is never told again."""

from __future__ import annotations

import pytest

from wlr.engine.place import locate

SHOWN = {
    "postgresql://ann:s3cret@host:5432/db": "postgresql://ann@host:5432/db",
    "postgres://ann:s3cret@one,two:1/db?schema=s": "postgres://ann@one,two:1/db?schema=s",
    "postgresql://ann:s3@cret@host/db": "postgresql://ann@host/db",
    "postgresql://host/db?password=s3cret": "postgresql://host/db",
    "postgresql://host/db?user=ann&Password=s3cret&sslmode=require": "postgresql://host/db?user=ann&sslmode=require",
    "postgresql://host/db?schema=s&sslpassword=s3cret": "postgresql://host/db?schema=s",
    "postgresql:///db": "postgresql:///db",
    "postgresql://": "postgresql://",
}


@pytest.mark.parametrize("typed, shown", SHOWN.items())
def test_password_is_in_no_text_of_it(typed: str, shown: str) -> None:
    place = locate(typed)
    assert (place.is_postgres, place.is_parquet, place.kind) == (True, False, "a PostgreSQL database")
    assert str(place) == shown
    for text in (repr(place), f"{place}", repr([place])):
        assert "s3" not in text.replace("schema=s", "")
    assert place.url == typed


@pytest.mark.parametrize("typed", ["copy.duckdb", "s3://bucket/lake", "parquet://postgresql"])
def test_other_places_are_none(typed: str) -> None:
    assert not locate(typed).is_postgres

"""Where a replica is, told from what the user typed; a password in it is never told again."""

from __future__ import annotations

import pytest

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

"""A PostgreSQL database's URL as it may be shown: never with a password, whatever is malformed."""

from __future__ import annotations

import pytest

from wlc.dialect.postgres.url import without_password, without_secrets

WELL_FORMED = {
    "postgresql://ann:s3cret@host:5432/db": "postgresql://ann@host:5432/db",
    "postgresql://:s3cret@host/db": "postgresql://@host/db",
    "postgresql://ann:s3%2F%40cret@host/db": "postgresql://ann@host/db",
    "postgresql://ann:s3?cret@host/db": "postgresql://ann@host/db",
    "postgres://ann:s3cret@one:1,two:2/db?schema=s": "postgres://ann@one:1,two:2/db?schema=s",
    "postgresql://ann:s3cret@[::1]:5432/db": "postgresql://ann@[::1]:5432/db",
    "postgresql://ann@%2Ftmp:5432/db": "postgresql://ann@%2Ftmp:5432/db",
    "postgresql:///db?host=/tmp": "postgresql:///db?host=/tmp",
    "postgresql://host/db?password=s3cret": "postgresql://host/db",
    "postgresql://host/db?password=s3@cret&host=/tmp": "postgresql://host/db?host=/tmp",
    "postgresql://host/db?user=ann&Password=s3cret&sslmode=require": "postgresql://host/db?user=ann&sslmode=require",
    "postgresql://host/db?schema=s&sslpassword=s3cret": "postgresql://host/db?schema=s",
    # What stands after an @ in a parameter is no host.
    "postgresql://ann:s3cret@host:1/db?application_name=me@work": "postgresql://ann@host:1/db?application_name=me@work",
    "postgresql://host:1/db?application_name=me@work": "postgresql://host:1/db?application_name=me@work",
    "postgresql://": "postgresql://",
    "postgresql:///": "postgresql:///",
}
MALFORMED = {
    "postgresql://ann:s3@cret@host/db": "postgresql://ann@host/db",
    "postgresql://ann:s3/cret@host:5432/db": "postgresql://ann@host:5432/db",
    "postgresql://ann:12/s3cret@host/db?sslmode=require": "postgresql://ann@host/db?sslmode=require",
    "postgresql://ann:x@y/s3?cret@host/db": "postgresql://ann@host/db",
    "postgresql://ann:s3/cret@host/db?password=s3@cret": "postgresql://ann@host/db",
    "postgresql://ann:s3/cret": "postgresql://ann…",
    "postgresql://ann:s3cret": "postgresql://ann…",
    "postgresql://ann:s3cret/db": "postgresql://ann…",
    "postgresql://host/db?password=s3&cret": "postgresql://host…",
    "postgresql://host/db?password=a&s3cret=1": "postgresql://host…",
    "postgresql://ann:x@host/y?s3cret=1@host/db": "postgresql://ann…",
    "postgresql://host/db?pass%77ord=s3cret": "postgresql://host/db?pass%77ord=…",
    "postgresql://host/db?pasword=s3cret": "postgresql://host/db?pasword=…",
    "postgresql:ann:s3cret@host/db": "…",
}


@pytest.mark.parametrize("url, shown", [*WELL_FORMED.items(), *MALFORMED.items()])
def test_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown
    assert "s3" not in shown
    assert "cret" not in shown


def test_what_is_shown_shows_the_same_again() -> None:
    for shown in WELL_FORMED.values():
        assert without_password(shown) == shown


@pytest.mark.parametrize(
    "url, said, told",
    [
        ("postgresql://ann:s3@cret@host/db", 'no host "cret@host" for ann', 'no host "…@host" for ann'),
        ("postgresql://ann:s3/cret@host/db", 'invalid port number: "s3"', 'invalid port number: "…"'),
        ("postgresql://h/db?password=a&s3%20x=1", 'parameter "s3 x" of h', 'parameter "…" of h'),
        ("postgresql://ann:hush@h/db?password=s3cret", "password s3cret or hush failed", "password … or … failed"),
    ],
)
def test_drivers_tell_no_part_of_it(url: str, said: str, told: str) -> None:
    assert without_secrets(said, url) == told

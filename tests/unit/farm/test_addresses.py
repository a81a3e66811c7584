"""A place as it may be shown: never with a password, whatever is malformed."""

from __future__ import annotations

import pytest

from wlc.farm.addresses import refuse_connection_string, without_password, without_secrets
from wlc.farm.errors import InvalidError
from wlc.farm.paths import check_database_name
from wlc.farm.store import local_path
from wlc.masters.adapters import is_source
from wlr.engine.adapters import locate

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


OTHER_PLACES = {
    place: place
    for place in (
        "/data/my farm",
        "lake/user=ann/service=x",
        "gs://bucket/folder/a:b",
        "sftp://ann@host:22/data/farm",
        "kafka://one:9092,two:9092/topic",
        "az://box/farm@home/a:b",
        "file:///data/a:b@c",
        "file:///data/a%20b",
        "",
    )
} | {
    "sftp://ann:s3cret@host/data/farm": "sftp://ann…",
    "kafka://ann:s3cret@host:9092/topic": "kafka://ann@host:9092/topic",
    "gs://key:s3cret@bucket/folder": "gs://key@bucket/folder",
    "gs://key:s3cret/x@bucket": "gs://key@bucket",
    "gs://bucket/farm?token=s3cret": "gs://bucket/farm?token=…",
    "ann:s3cret@host/data": "…",
    "s3:/key:s3cret@bucket": "…",
}
CONNECTION_STRINGS = (
    "host=db password=s3cret",
    " dbname = shop user=ann",
    "DBNAME=shop",
    "hots=db password = 's3 cret'",
    "/data/shop sslpassword=s3cret",
    "ann:s3cret@host/data",
)


@pytest.mark.parametrize("text", CONNECTION_STRINGS)
def test_connection_strings_are_refused_without_being_repeated(text: str) -> None:
    assert without_password(text) == "…"
    for refuse in (refuse_connection_string, local_path, check_database_name, is_source, locate):
        with pytest.raises(InvalidError, match="a path or a URL is needed") as caught:
            refuse(text)
        assert "cret" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("place", [place for place, shown in OTHER_PLACES.items() if place == shown])
def test_paths_and_urls_are_no_connection_strings(place: str) -> None:
    refuse_connection_string(place)


@pytest.mark.parametrize("url, shown", [*WELL_FORMED.items(), *MALFORMED.items(), *OTHER_PLACES.items()])
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

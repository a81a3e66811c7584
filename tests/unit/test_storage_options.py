"""What is remembered of storage options, and what lies over it."""

from __future__ import annotations

import json

import pytest

from wlc.farm.store.options import lay_over, recalled, remembered


@pytest.mark.parametrize(
    "name",
    ["key", "secret", "token", "username", "password", "Secret", "aws_access_key_id", "aws_secret_access_key"]
    + ["aws_session_token", "SSECustomerKey", "CopySourceSSECustomerKey", "credentials", "Authorization"],
)
def test_secrets_are_not_remembered_at_any_depth(name: str) -> None:
    options = {name: "hush", "client_kwargs": {name: "hush", "inner": {name: "hush"}}, "profile": "p"}
    assert json.loads(remembered(options)) == {"profile": "p"}


def test_urls_with_a_login_are_not_remembered() -> None:
    options = {"config_kwargs": {"proxies": {"http": "http://ann:hush@proxy:3128"}}, "endpoint_url": "http://[hush"}
    assert remembered(options) == "{}"


def test_everything_else_is_remembered_as_it_was() -> None:
    options = {
        "endpoint_url": "http://localhost:9000",
        "anon": False,
        "client_kwargs": {"region_name": "eu"},
        "s3_additional_kwargs": {"SSEKMSKeyId": "arn:aws:kms:eu:1:key/2"},
        "config_kwargs": {"retries": {"max_attempts": 3}, "read_timeout": 1.5},
    }
    assert json.loads(remembered(options)) == options


def test_objects_of_a_program_are_not_remembered() -> None:
    assert json.loads(remembered({"session": object(), "anon": True})) == {"anon": True}


@pytest.mark.parametrize("nothing", [None, "", "{}"])
def test_nothing_known(nothing: str | None) -> None:
    assert recalled(nothing) == {}
    assert lay_over(recalled(nothing), {"key": "k"}) == {"key": "k"}


def test_what_is_given_lies_over_what_is_known() -> None:
    known = remembered({"endpoint_url": "old", "client_kwargs": {"region_name": "eu", "verify": False}, "anon": True})
    assert lay_over(
        recalled(known), {"endpoint_url": "new", "client_kwargs": {"region_name": "us"}, "secret": "s"}
    ) == {
        "endpoint_url": "new",
        "client_kwargs": {"region_name": "us", "verify": False},
        "anon": True,
        "secret": "s",
    }


def test_laying_over_changes_neither() -> None:
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert lay_over(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}})

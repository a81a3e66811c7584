"""What is remembered of storage options, and what lies over it."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING

import pytest

from wlc.farm.errors import InvalidError
from wlc.farm.store import open_store
from wlc.farm.store.options import KNOWN, lay_over, recalled, remembered, with_paths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "name",
    ["key", "secret", "token", "username", "password", "Secret", "aws_access_key_id", "aws_secret_access_key"]
    + ["aws_session_token", "SSECustomerKey", "CopySourceSSECustomerKey", "credentials", "Authorization"],
)
def test_secrets_are_not_remembered_at_any_depth(name: str) -> None:
    options = {name: "hush", "client_kwargs": {name: "hush", "inner": {name: "hush"}}, "profile": "p"}
    assert json.loads(remembered(options)) == {"profile": "p"}


def test_neither_urls_with_a_login_nor_objects_of_a_program_are_remembered() -> None:
    options = {"config_kwargs": {"proxies": {"http": "http://ann:hush@proxy:3128"}}, "endpoint_url": "http://[hush"}
    assert remembered(options) == "{}"
    assert json.loads(remembered({"session": object(), "anon": True})) == {"anon": True}


def test_everything_else_is_remembered_as_it_was() -> None:
    options = {
        "endpoint_url": "http://localhost:9000",
        "anon": False,
        "client_kwargs": {"region_name": "eu"},
        "s3_additional_kwargs": {"SSEKMSKeyId": "arn:aws:kms:eu:1:key/2"},
        "config_kwargs": {"retries": {"max_attempts": 3}, "read_timeout": 1.5},
    }
    assert json.loads(remembered(options)) == options


def test_files_with_credentials_are_remembered_by_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    options = {"credentials_file": "sa.json", "client_keys": "~/.ssh/farm", "known_hosts": "/etc/hosts"}
    whole = {
        "credentials_file": f"{tmp_path}/sa.json",
        "client_keys": "/home/ann/.ssh/farm",
        "known_hosts": "/etc/hosts",
    }
    assert json.loads(remembered(options)) == whole
    assert with_paths(options | {"anon": True}) == whole | {"anon": True}


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
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert lay_over(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}}), "neither changes"
    for nothing in (None, "", "{}"):
        assert lay_over(recalled(nothing), {"key": "k"}) == {"key": "k"}


def test_an_unknown_option_is_refused_wherever_the_store_is(tmp_path) -> None:
    for url in (str(tmp_path), "memory://farm", "s3://bucket/farm"):
        with pytest.raises(InvalidError, match="there is no storage option 'endpoint'") as caught:
            open_store(url, {"endpoint": "http://hush"})
        assert caught.value.hint == "did you mean endpoint_url?"
        open_store(url, {"endpoint_url": "http://localhost:1", "verify_key_file": "k", "profile": "p"})


def test_every_option_of_s3fs_is_known() -> None:
    from s3fs import S3FileSystem

    named = set(inspect.signature(S3FileSystem.__init__).parameters) - {"self", "kwargs"}
    assert named - KNOWN == set()

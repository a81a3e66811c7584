from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wlc.farm import paths
from wlc.farm.errors import CorruptError, InvalidError

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,40}[A-Za-z0-9_]", fullmatch=True)
numbers = st.integers(1, 10**12 - 1)
stamps = st.one_of(st.just(""), st.from_regex(r"[0-9a-f]{16}", fullmatch=True))
tokens = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(names, numbers, st.integers(0, 10**9 - 1), stamps)
def test_formatting_and_parsing_are_inverses(name: str, number: int, file: int, stamp: str) -> None:
    assert paths.check_database_name(name) == name
    assert paths.parse_log_path(name, paths.log_path(name, number)) == number
    assert paths.parse_data_path(name, paths.data_path(name, number, file, stamp)) == (number, file, stamp)
    assert paths.parse_snapshot_data_path(paths.snapshot_data_path(file, stamp)) == (file, stamp)
    assert paths.parse_snapshot_folder(paths.snapshot_folder(number)) == number
    assert paths.parse_manifest_path(paths.manifest_path(number)) == number
    assert paths.parse_derived_path(paths.derived_path(name, number)) == (name, number)
    assert paths.check_relative(paths.data_path(name, number, file, stamp), "x")
    plain = paths.data_path(name, number, file)
    assert paths.with_stamp(plain, stamp) == paths.data_path(name, number, file, stamp)
    assert paths.with_stamp(paths.with_stamp(plain, stamp), "") == plain


@given(tokens)
def test_replica_paths_are_inverses(token: str) -> None:
    assert paths.parse_replica_path(paths.replica_path(token)) == token


@given(names.filter(lambda name: len(name) <= 40), st.integers(1, 20))
def test_a_site_has_a_folder_of_its_name(site: str, number: int) -> None:
    assert paths.is_folder_of(paths.site_folder(site, number), site)
    assert not paths.is_folder_of(paths.site_folder(site, number), f"x{site}")


@pytest.mark.parametrize("site", ["", ".oslo", "oslo.", "a/b", "o" * 41, "øslo", "a b"])
def test_what_cannot_name_a_site_is_refused(site: str) -> None:
    assert not paths.is_site_name(site)
    assert not paths.is_folder_of(f"sites/{site}", site)
    with pytest.raises(InvalidError):
        paths.site_folder(site)


@pytest.mark.parametrize(
    "path", ["snapshots/oslo", "sites/rome", "sites/oslo-1", "sites/oslo-02", "sites/oslo-x", "sites/oslo/x", "oslo-2"]
)
def test_other_places_are_not_the_folder_of_a_site(path: str) -> None:
    assert not paths.is_folder_of(path, "oslo")
    assert (paths.site_folder("oslo"), paths.site_folder("oslo", 2)) == ("sites/oslo", "sites/oslo-2")


@given(
    names,
    st.text(max_size=60)
    | st.sampled_from(
        ["sales_000000000001", "replicas/a.json", "replicas/../a.json", "snapshots/000000000001/other.json"]
    ),
)
def test_what_is_parsed_is_formatted_back(name: str, text: str) -> None:
    for path in (text, f"{name}_{text}", f"{name}_000000000001.d/{text}", f"snapshots/{text}"):
        if (number := paths.parse_log_path(name, path)) is not None:
            assert paths.log_path(name, number) == path
        if (parsed := paths.parse_data_path(name, path)) is not None:
            assert paths.data_path(name, *parsed) == path
        if (tick := paths.parse_snapshot_folder(path)) is not None:
            assert paths.snapshot_folder(tick) == path
    if (tick := paths.parse_manifest_path(text)) is not None:
        assert paths.manifest_path(tick) == text
    if (replica := paths.parse_replica_path(text)) is not None:
        assert paths.replica_path(replica) == text


def test_paths_look_as_the_format_says() -> None:
    assert paths.log_path("sales", 42) == "sales_000000000042"
    assert paths.data_path("sales", 42, 0) == "sales_000000000042.d/0.parquet"
    assert paths.manifest_path(1040) == "snapshots/000000001040/manifest.json"
    assert paths.replica_path("ab12") == "replicas/ab12.json"


@pytest.mark.parametrize(
    "path",
    ["sales_42", "sales_0000000000042", "sales_000000000000", "other_000000000042", "sales_000000000042.d", "x"]
    + ["sales_00000000004٢", "sales_000000000042\n"],
)
def test_what_is_no_log_file_is_none(path: str) -> None:
    assert paths.parse_log_path("sales", path) is None


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "a b", "a..", "ä", "x" * 101, "a\n", "..", "a\0"])
def test_bad_database_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="cannot name a database") as caught:
        paths.check_database_name(name)
    assert "--name" in str(caught.value.hint)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "a/", "", "a\\b", "s3://x", "a\0"]
)
def test_paths_that_lead_outside_are_corrupt(path: str) -> None:
    with pytest.raises(CorruptError, match=r"log 7: .* is not a path inside the farm"):
        paths.check_relative(path, "log 7")


def test_numbers_that_do_not_fit_are_refused() -> None:
    for number in (-1, 10**12):
        with pytest.raises(InvalidError, match="12 digits"):
            paths.log_path("sales", number)
    with pytest.raises(InvalidError, match="id of a replica"):
        paths.replica_path("../x")

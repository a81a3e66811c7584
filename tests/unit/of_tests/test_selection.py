"""One process runs what shares fixtures."""

from __future__ import annotations

import pytest

from tests.selection import WHOLE, group_of


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/spark/test_bulk.py::test_x[1]", WHOLE),
        ("tests/scenario/test_mesh.py::test_x[a::b]", "tests/scenario/test_mesh.py"),
        ("tests/scenario/test_keys.py::test_x[a::b[0]]", "tests/scenario/test_keys.py::test_x"),
        ("tests/postgres/test_schema_changes.py::test_x[2]", "tests/postgres/test_schema_changes.py[2]"),
        ("tests/postgres/test_schema_changes.py::test_y", "tests/postgres/test_schema_changes.py"),
    ],
)
def test_slow_tests_go_by_function_unless_they_share_fixtures(nodeid: str, group: str) -> None:
    assert group_of(nodeid, is_quick=False) == group
    assert group_of(nodeid, is_quick=True) == (WHOLE if group == WHOLE else nodeid.partition("::")[0])

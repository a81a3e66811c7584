"""Messages of PostgreSQL's logical replication that no server sends: refused, never misread and never a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.profile import broken, fuzzed
from tests.unit.capture.postgres.test_pgoutput import Change, begin, commit, message, relation
from wlc.capture.postgres.pgoutput import Decoder, Rows
from wlc.farm.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

VALID = [
    relation(1, 3),
    begin(5),
    message(Change(1, None, ("a", None, "x" * 40))),
    message(Change(1, ("a", None, "x" * 40), ("b", "c", "x" * 40))),
    message(Change(1, ("b", "c", "x" * 40), None)),
    commit(8),
]


def read(messages: Sequence[bytes]) -> list[list[bytes | None]] | None:
    """Values of all rows, None if they are refused."""
    try:
        found = list(Decoder().read(pa.array(messages, pa.binary())))
    except (CorruptError, UnsupportedError) as error:
        assert str(error)
        return None
    values = []
    for item in found:
        if isinstance(item, Rows):
            for column in item.columns:
                column.validate()
                values.append(column.view(pa.binary_view()).to_pylist())
            assert len(item.weights) == len(item.transactions)
    return values


@pytest.mark.slow
@fuzzed
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes(messages: list[bytes]) -> None:
    values = read([*VALID[:2], *messages])
    assert values is None or all(len(value or b"") <= 60 for column in values for value in column)


@fuzzed
@given(st.data())
def test_messages_like_those_that_are_sent(data: Any) -> None:
    messages = list(VALID)
    assert read(messages) is not None
    at = data.draw(st.integers(0, len(messages) - 1))
    messages[at] = data.draw(broken(messages[at]))
    values = read(messages)
    # Nothing is read from beyond the message that holds it.
    assert values is None or all(len(value or b"") <= max(map(len, messages)) for column in values for value in column)

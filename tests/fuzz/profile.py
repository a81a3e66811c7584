"""What all fuzzing has in common: how long it goes on, and how documents are mutated."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXAMPLES = int(os.environ.get("DBFARM_EXAMPLES", "0"))
# DBFARM_EXAMPLES=20000 looks further, and at other examples each time.
fuzzed = settings(
    max_examples=EXAMPLES or 100,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
)

numbers = st.integers() | st.sampled_from([0, -1, 1, 2**31, 2**63 - 1, 2**63, 10**12, 10**400])
scalars = (
    st.none()
    | st.booleans()
    | numbers
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "main", "../x", "a/../b", "\ud800", "\0", "0" * 64, "2026-01-01T00:00:00.000000Z", "x" * 5000]
    )
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def broken(draw: Callable[..., Any], valid: bytes) -> bytes:
    """Bytes near to valid ones: changed, cut, doubled, moved."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                del data[at:]
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = data[draw(st.integers(0, len(data))) :][:length]
            case 4:
                data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


@st.composite
def mutated(draw: Callable[..., Any], document: Any) -> Any:
    """A JSON document like another one, with values in it replaced, removed, repeated or swapped."""
    root = [copy.deepcopy(document)]
    for _ in range(draw(st.integers(1, 2))):
        holder, key = draw(st.sampled_from(list(_places(root))))
        match draw(st.integers(0, 4)):
            case 0 | 1:
                holder[key] = draw(documents)
            case 2 if holder is not root:
                del holder[key]
            case 3:
                other, its = draw(st.sampled_from(list(_places(root))))
                if holder is not root and other is not root:
                    holder[key] = copy.deepcopy(other[its])
            case 4 if isinstance(holder, list) and holder is not root:
                holder.insert(key, copy.deepcopy(holder[key]))
        if not isinstance(root[0], dict | list):
            break
    return root[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside, as what holds it and the key or index."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def sealed(body: bytes, start: bytes) -> bytes:
    """Close a file with the checksum of what it says now, as a hostile writer would."""
    return body + start + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def text_of(document: Any) -> bytes:
    """JSON of a document, in which not everything need be Unicode."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")

"""Compare-and-swap: nothing is lost between two writers, a fenced one writes nothing, lost answers are settled."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from wlc.farm.errors import CorruptError, FencedError, UnavailableError, UnsupportedError
from wlc.farm.store import ConflictError, open_store
from wlc.farm.store.memory import MemoryStore
from wlc.farm.versioned import VersionedObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.store import Store


def decode(data: bytes) -> int:
    if not data.isdigit():
        raise CorruptError(f"{data!r} is not a number")
    return int(data)


def counter(store: Store, *, is_stamped: bool = False) -> VersionedObject[int]:
    return VersionedObject(store, "counter", lambda value: b"%d" % value, decode, is_stamped)


def plus_one(value: int | None) -> int:
    return (value or 0) + 1


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    return open_store(f"memory://{request.node.name}")


def test_an_object_is_made_read_and_replaced(store: Store) -> None:
    number = counter(store)
    assert number.load() is None
    version = number.replace(1, None)
    assert number.load() == (1, version)
    assert number.load() == (1, version)
    newer = number.replace(2, version)
    assert number.load() == (2, newer)
    assert number.change(plus_one) == 3


def test_who_comes_late_conflicts_and_changes_nothing(store: Store) -> None:
    number = counter(store)
    version = number.replace(1, None)
    newer = number.replace(2, version)
    for late in (version, None):
        with pytest.raises(ConflictError):
            number.replace(9, late)
    assert number.load() == (2, newer)


def test_a_change_is_decided_again_on_what_another_wrote(store: Store) -> None:
    number = counter(store)
    seen: list[int | None] = []

    def slowly(value: int | None) -> int:
        seen.append(value)
        if len(seen) < 3:
            counter(store).change(plus_one)
        return plus_one(value)

    assert number.change(slowly) == 3
    assert seen == [None, 1, 2]


def test_nothing_is_written_where_nothing_changes(store: Store) -> None:
    number = counter(store)
    version = number.replace(7, None)
    assert number.change(lambda value: value or 0) == 7
    assert number.load() == (7, version)


def test_a_fence_is_checked_on_the_value_that_is_replaced(store: Store) -> None:
    number = counter(store)
    number.replace(1, None)
    calls: list[int | None] = []

    def fenced(value: int | None) -> int:
        calls.append(value)
        if value != 1:
            raise FencedError("another master")
        counter(store).change(lambda _: 50)
        return 2

    with pytest.raises(FencedError):
        number.change(fenced)
    assert calls == [1, 50]
    assert counter(store).change(lambda value: value or 0) == 50


class Overwriting(MemoryStore):
    """A store that ignores one precondition, or both."""

    ignored: frozenset[str] = frozenset()

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        if ("if-none-match" if version is None else "if-match") in self.ignored:
            self._objects[self._key(path)] = data
            return hashlib.sha256(data).hexdigest()
        return super().replace(path, data, version)


@pytest.mark.parametrize(
    "ignored, said",
    [
        ({"if-none-match"}, "must be created exclusively"),
        ({"if-match"}, "has another version"),
        ({"if-none-match", "if-match"}, "must be created exclusively"),
        (set(), ""),
    ],
)
def test_a_store_that_ignores_preconditions_is_found_out_by_the_object_itself(ignored: set[str], said: str) -> None:
    store = Overwriting("memory://x", {})
    store.ignored = frozenset(ignored)
    number = counter(store, is_stamped=True)
    version = number.replace(7, None)
    with pytest.raises(UnsupportedError, match=said) if said else nullcontext():
        number.prove(7)
    assert number.load() == (7, version), "the value and its version stay"


def test_others_that_keep_writing_are_named(store: Store) -> None:
    def never(value: int | None) -> int:
        return counter(store).change(plus_one) + 1

    with pytest.raises(UnavailableError, match="counter keeps changing"):
        counter(store).change(never)


def test_damage_is_not_overwritten(store: Store) -> None:
    store.create("counter", b"nonsense")
    with pytest.raises(CorruptError):
        counter(store).change(plus_one)
    assert store.read("counter") == b"nonsense"


class LostAnswer(MemoryStore):
    """Writes, and then reports a conflict, as a request does that was sent again because its answer was lost."""

    before: Callable[[], object] | None = None

    def replace(self, path: str, data: bytes, version: str | None) -> str:
        super().replace(path, data, version)
        if self.before:
            self.before()
        raise self.conflict(path)


def test_a_lost_answer_is_settled_by_reading_back() -> None:
    lost = counter(LostAnswer("memory://lost"), is_stamped=True)
    version = lost.replace(1, None)
    assert lost.load() == (1, version)
    assert lost.change(plus_one) == 2


def test_bytes_without_a_stamp_may_be_another_writers() -> None:
    lost = counter(LostAnswer("memory://not stamped"))
    with pytest.raises(ConflictError):
        lost.replace(1, None)


def test_a_lost_answer_to_a_write_that_was_replaced_since_is_a_conflict() -> None:
    store = LostAnswer("memory://lost and replaced")
    lost = counter(store, is_stamped=True)
    store.before = lambda: open_store(store.url).delete("counter")
    with pytest.raises(ConflictError):
        lost.replace(1, None)
    store.before = lambda: open_store(store.url).replace("counter", b"9", hashlib.sha256(b"1").hexdigest())
    with pytest.raises(ConflictError):
        lost.replace(1, None)
    assert lost.load() is not None

"""One mutable object of a store, replaced as a whole by compare-and-swap.

`wlc.config`, registrations of replicas, and a Parquet replica's pointer and lease are such objects. A writer whose
right can expire is fenced inside the write itself: `change` decides about the value that the write replaces, and
refuses by raising. No other process can write between the decision and the write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from wlc.farm.errors import UnavailableError
from wlc.farm.retry import CHANGE_ATTEMPTS
from wlc.farm.store import AlreadyExistsError, ConflictError, MissingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wlc.farm.store import Store

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class VersionedObject(Generic[Value]):
    """An object of a store, as a value.

    Attributes:
        store: The store that it is in.
        path: Its path there.
        encode: Writes a value as the object's bytes.
        decode: Reads the object's bytes; raises CorruptError if they are damaged.
        is_stamped: No two writers write the same bytes, because values name their writer. Then finding the new bytes
            after a conflict proves that the write succeeded and its answer was lost.
    """

    store: Store
    path: str
    encode: Callable[[Value], bytes]
    decode: Callable[[bytes], Value]
    is_stamped: bool = False

    def load(self) -> tuple[Value, str] | None:
        """Return the present value and its version, None if there is no object.

        Raises:
            CorruptError: The object is damaged.
        """
        try:
            data, version = self.store.read_versioned(self.path)
        except MissingError:
            return None
        return self.decode(data), version

    def replace(self, value: Value, version: str | None) -> str:
        """Write a value if the object still has `version` (None: if there is none), and return the new version.

        A request whose answer was lost is sent again and then conflicts with itself. Stores on S3 detect this by a
        stamp on the object; stamped values are read back in every store.

        Raises:
            ConflictError: Another process wrote meanwhile.
        """
        data = self.encode(value)
        try:
            return self.store.replace(self.path, data, version)
        except (ConflictError, AlreadyExistsError) as error:
            present, at = self._present() if self.is_stamped else (None, "")
            if present == data:
                return at
            raise self.store.conflict(self.path) from error

    def prove(self, value: Value) -> None:
        """Check that the store honours preconditions, by writing the present value once more.

        A suspended process may execute an old write later. Only the store can refuse it.

        Args:
            value: The value that this writer has just written.

        Raises:
            UnsupportedError: The store ignores preconditions. Nothing was changed, because the value is the present
                one.
        """
        data = self.encode(value)
        for version, defect in (
            (None, "overwrites an object that must be created exclusively"),
            (self.store.unused_version, "replaces an object that has another version"),
        ):
            try:
                self.store.replace(self.path, data, version)
            except (ConflictError, AlreadyExistsError):
                continue
            raise self.store.refusal(defect)

    def _present(self) -> tuple[bytes | None, str]:
        try:
            return self.store.read_versioned(self.path)
        except MissingError:
            return None, ""

    def change(self, change: Callable[[Value | None], Value]) -> Value:
        """Do the same as `change_versioned`, and return only the value."""
        return self.change_versioned(change)[0]

    def change_versioned(self, change: Callable[[Value | None], Value]) -> tuple[Value, str | None]:
        """Replace the value with the result of a function; retry if another process writes in between.

        Args:
            change: Pure function from the present value, None if there is no object, to the new one; called once per
                attempt. It returns its argument to write nothing, and raises to refuse: nothing is written then.

        Returns:
            The value in the store after the call, and its version; None if there is no object and none was requested.

        Raises:
            UnavailableError: Other processes keep writing: try again.
        """
        for _ in range(CHANGE_ATTEMPTS):
            value, version = self.load() or (None, None)
            changed = change(value)
            if changed == value:
                return changed, version
            try:
                return changed, self.replace(changed, version)
            except ConflictError:
                continue
        where = f"{self.store.url}/{self.path}"
        raise UnavailableError(f"{where} keeps changing", hint="Try again.", path=where)

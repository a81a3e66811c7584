"""One object of a store that changes: replaced as a whole, by compare-and-swap, whoever uses it.

`wlc.config`, registrations of replicas, and a Parquet replica's pointer and lease are such objects. A writer whose
right to write can end is fenced inside the write itself: `change` decides about the value that the write replaces, and
refuses by raising. Between its decision and the write nobody else can have written.
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
        decode: Reads the object's bytes; raises CorruptError where they are damaged.
        is_stamped: No two writers write the same bytes, because values name their writer. Then bytes that were to be
            written, found after a conflict, were written: the answer to that request was lost.
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

        A request whose answer was lost is sent again, and then conflicts with itself. Stores on S3 find that out by a
        stamp on the object; where values are stamped, the object is read back whatever the store is.

        Raises:
            ConflictError: Somebody else wrote meanwhile.
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
        """Check that the store refuses what it must refuse, by writing the present value once more.

        A program that died or was halted may write later what it had decided before. Only the store can refuse that.

        Args:
            value: What this writer has just written.

        Raises:
            UnsupportedError: The store ignores preconditions. Nothing was changed, for the value is the present one.
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
        """Do what `change_versioned` does, and return the value alone."""
        return self.change_versioned(change)[0]

    def change_versioned(self, change: Callable[[Value | None], Value]) -> tuple[Value, str | None]:
        """Replace the value by what a function makes of it, again if somebody else writes in between.

        Args:
            change: Pure function from the present value, None if there is no object, to the new one; called once per
                attempt. It returns its argument to write nothing, and raises to refuse: nothing is written then.

        Returns:
            The value that is in the store now, and its version; None if there is no object, and none was wanted.

        Raises:
            UnavailableError: Others keep writing: try again.
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

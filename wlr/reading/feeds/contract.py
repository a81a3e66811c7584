"""The contract of outputs: where a feed writes its records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from wlc.farm.errors import InvalidError

if TYPE_CHECKING:
    from typing import Self

    from wlc.farm.database import FarmDatabase
    from wlc.farm.versioned import VersionedObject
    from wlr.reading.feeds.feed_state import FeedState
    from wlr.reading.feeds.formats import Format
    from wlr.reading.feeds.rendering import FeedPiece


class Output(ABC):
    """A place that feeds write to.

    Attributes:
        shown: The place as messages and the registry name it, without credentials.
        label: What the feed is called after, unless its user gives a name.
        formats: Names of the formats that it can hold, the usual one first.
    """

    shown: str
    label: str
    formats: ClassVar[tuple[str, ...]]

    @abstractmethod
    def memory(self, database: FarmDatabase, name: str) -> VersionedObject[FeedState]:
        """Return the object in which the feed remembers its state."""

    @abstractmethod
    def open(self, state: FeedState, form: Format, bytes_max: int) -> OpenOutput:
        """Open the place for writing, and remove what a run that died has left behind the position.

        Args:
            state: Where the feed stands.
            form: Its format.
            bytes_max: Bytes that may wait in memory until they are written; 0 for any number.

        Raises:
            InvalidError: Something else is there.
            CorruptError: Something of what was written is missing.
            UnavailableError: The place cannot be reached.
        """

    def check_new(self) -> None:  # noqa: B027 - not every place can hold something else
        """Refuse a place that holds something else, before a new feed writes to it.

        Raises:
            InvalidError: It does.
        """

    def check_place(self, state: FeedState) -> None:  # noqa: B027 - a file may be moved together with its position
        """Refuse the state of a feed that writes to another place.

        Raises:
            InvalidError: It does.
        """

    def check_written(self, state: FeedState) -> None:  # noqa: B027 - not every place can be asked for it
        """Refuse a place that lacks some of what was written, in a round without news.

        Raises:
            CorruptError: It does.
        """

    def check_format(self, name: str | None) -> None:
        """Refuse a format that the place cannot hold; None is the one that it chooses.

        Raises:
            InvalidError: It cannot.
        """
        if name is not None and name not in self.formats:
            message = f"{self.shown} takes no {name}"
            raise InvalidError(message, hint=f"--format {' or '.join(self.formats)}")

    def choose_format(self, asked: str | None) -> str:
        """Return the format of a new feed: what is asked for, or what fits the place.

        Raises:
            InvalidError: The place says that it holds another one.
        """
        return asked or self.formats[0]


class OpenOutput(ABC):
    """A place that is open for writing."""

    @abstractmethod
    def write(self, piece: FeedPiece) -> None:
        """Write records behind those before.

        Raises:
            UnavailableError: The place cannot be written to.
        """

    @abstractmethod
    def flush(self, state: FeedState) -> FeedState:
        """Make what was written durable, and return the state with the place that it ends at.

        Raises:
            UnavailableError: It cannot be made durable now.
        """

    def resume_at(self, state: FeedState) -> FeedState:
        """Return the state with the last record that the place itself says it has, if it says more than the state."""
        return state

    @abstractmethod
    def close(self) -> None:
        """Give the place up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

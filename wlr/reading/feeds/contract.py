"""The contract of outputs of feeds."""

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
    """An output of feeds.

    Attributes:
        shown: Its name in messages and the registry, without credentials.
        label: Default name of its feed.
        formats: Names of the formats that it accepts, the usual one first.
    """

    shown: str
    label: str
    formats: ClassVar[tuple[str, ...]]

    @abstractmethod
    def memory(self, database: FarmDatabase, name: str) -> VersionedObject[FeedState]:
        """Return the object that stores the feed's state."""

    @abstractmethod
    def open(self, state: FeedState, form: Format, bytes_max: int) -> OpenOutput:
        """Open the output for writing, and remove the records of a dead run after the position.

        Args:
            state: The feed's state.
            form: Its format.
            bytes_max: Maximal bytes buffered in memory; 0 for no limit.

        Raises:
            InvalidError: The output belongs to something else.
            CorruptError: Written records are missing.
            UnavailableError: The output cannot be reached.
        """

    def check_new(self) -> None:  # noqa: B027 - not every output can belong to something else
        """Refuse an output with other content, before a new feed writes to it.

        Raises:
            InvalidError: It has other content.
        """

    def check_place(self, state: FeedState) -> None:  # noqa: B027 - a file may be moved together with its position
        """Refuse the state of a feed that writes to another output.

        Raises:
            InvalidError: The feed writes to another output.
        """

    def check_written(self, state: FeedState) -> None:  # noqa: B027 - not every output can be checked
        """Refuse an output that lacks written records, in a round without new ones.

        Raises:
            CorruptError: Records are missing.
        """

    def check_format(self, name: str | None) -> None:
        """Refuse a format that the output does not accept; None is its own choice.

        Raises:
            InvalidError: It does not accept the format.
        """
        if name is not None and name not in self.formats:
            message = f"{self.shown} does not accept {name}"
            raise InvalidError(message, hint=f"--format {' or '.join(self.formats)}")

    def choose_format(self, asked: str | None) -> str:
        """Return the format of a new feed: the user's, or one that fits the output.

        Raises:
            InvalidError: The format contradicts the output.
        """
        return asked or self.formats[0]


class OpenOutput(ABC):
    """An output that is open for writing."""

    @abstractmethod
    def write(self, piece: FeedPiece) -> None:
        """Append records.

        Raises:
            UnavailableError: The output cannot be written to.
        """

    @abstractmethod
    def flush(self, state: FeedState) -> FeedState:
        """Make the written records durable, and return the state with their end.

        Raises:
            UnavailableError: They cannot be made durable now.
        """

    def resume_at(self, state: FeedState) -> FeedState:
        """Return the state with the last record that the output itself has, if it is later than the state's."""
        return state

    @abstractmethod
    def close(self) -> None:
        """Close the output."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The table of outputs: no other module chooses one. An adapter is imported on first use."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wlc.farm.addresses import without_password
from wlc.farm.errors import InvalidError
from wlr.engine.place import is_remote, path_of
from wlr.reading.feeds.file import FileOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wlr.reading.feeds.contract import Output


_KAFKA = "kafka://"


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """The user's options of an output.

    Attributes:
        rotate_bytes: Size at which a file is complete; None for one file.
        is_transactional: Records become visible together.
        options: Options of the output's client.
    """

    rotate_bytes: int | None = None
    is_transactional: bool = False
    options: Mapping[str, object] = field(default_factory=dict)


def output_at(to: str, settings: OutputSettings) -> Output:
    """Return the output of a path or URL, without opening it.

    Raises:
        InvalidError: The text names no output, an option is for another kind of output, or packages are not installed.
    """
    if not to.strip():
        raise InvalidError("a feed needs an output", hint="wlr feed DB --to changes.jsonl")
    scheme = next((scheme for scheme in _SCHEMES if to.startswith(scheme)), None)
    if scheme is None and is_remote(to):
        message = f"{without_password(to)} is neither a file nor a topic of Kafka"
        raise InvalidError(message, hint="--to changes.jsonl, or --to kafka://host:9092/topic")
    return _SCHEMES[scheme](to, settings) if scheme else _file(to, settings)


def _file(to: str, settings: OutputSettings) -> Output:
    path = path_of(to)
    if path.is_dir() or to.endswith("/"):
        raise InvalidError(f"{path} is a folder", hint=f"--to {str(path).rstrip('/')}/changes.jsonl")
    if settings.is_transactional or settings.options:
        name = "--transactional" if settings.is_transactional else "--output-option"
        raise InvalidError(f"{name} is for topics of Kafka, and {to} is a file", hint=f"Leave {name} out.")
    return FileOutput(path, settings.rotate_bytes)


def _kafka(to: str, settings: OutputSettings) -> Output:
    if settings.rotate_bytes is not None:
        raise InvalidError(f"--rotate is for files, and {to} is a topic of Kafka", hint="Leave --rotate out.")
    if find_spec("confluent_kafka") is None:
        message = "Kafka needs a package that is not installed"
        raise InvalidError(message, hint="pip install 'dbfarm[kafka]'")
    from wlr.reading.feeds.kafka import KafkaOutput

    return KafkaOutput(to, settings.options, is_transactional=settings.is_transactional)


_SCHEMES: dict[str, Callable[[str, OutputSettings], Output]] = {_KAFKA: _kafka}

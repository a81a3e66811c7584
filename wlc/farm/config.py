"""`wlc.config`: a database's state in a dozen lines, a cache of the log.

The beat: longest time from a transaction's commit to its publication, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from wlc.farm.clock import format_time, parse_age, read_time
from wlc.farm.errors import CorruptError, InvalidError
from wlc.farm.json_fields import TICK_MAX
from wlc.farm.model import FORMAT_VERSION, Config, Origin
from wlc.farm.paths import LOGS, check_database_name, check_relative, is_token, parse_snapshot_folder, snapshot_folder
from wlc.farm.seal.checksum import checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from wlc.farm.model import Batch, Manifest


# The default.
BEAT_S = 300.0
BEAT_MOST_S = 10**12 - 1


def format_beat(beat_s: float) -> str:
    """Write a beat in seconds without a needless fraction."""
    return str(int(beat_s)) if float(beat_s).is_integer() else repr(float(beat_s))


def parse_beat(text: str) -> float:
    """Read a beat in seconds.

    Raises:
        InvalidError: It is not a number of seconds, 0 or more.
    """
    try:
        beat_s = float(text)
    except ValueError as error:
        raise InvalidError(f"{text!r} is not a beat", hint="Give seconds, 0 for one batch per transaction.") from error
    if not (math.isfinite(beat_s) and 0 <= beat_s <= BEAT_MOST_S):
        raise InvalidError(f"{text!r} is not a beat", hint="Give seconds, 0 for one batch per transaction.")
    return beat_s


def typed_beat(text: str) -> float:
    """Read a beat as people type it: seconds, or a length of time such as `5m`; returns seconds.

    Raises:
        InvalidError: It is neither.
    """
    try:
        return parse_beat(text if _is_number(text) else str(parse_age(text).total_seconds()))
    except InvalidError as error:
        hint = "Write seconds, such as 60, or a length of time, such as 90s or 5m."
        raise InvalidError(f"{text!r} is not a beat", hint=hint) from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


STARTED = 1
STOPPED = 2

T = TypeVar("T")

_KEYS = ("snapshot", "logs", "state", "batches", "beat", "write", "name", "history", "tick", "parent", "format")
_CHECKSUM = "sha256"


def first_config(name: str) -> Config:
    """Return the configuration of a new database."""
    return Config("", LOGS, STARTED, 1, BEAT_S, None, name, "unknown", 0)


def encode_config(config: Config) -> bytes:
    """Write a configuration as `key=value` lines.

    Raises:
        InvalidError: A value cannot be read back; the message names it.
    """
    parent = f"{config.parent.history}:{config.parent.tick}" if config.parent else ""
    values = {
        "snapshot": config.snapshot,
        "logs": config.logs,
        "state": str(config.state),
        "batches": str(config.batches),
        "beat": format_beat(config.beat_s),
        "write": format_time(config.write) if config.write else "",
        "name": config.name,
        "history": config.history,
        "tick": str(config.tick),
        "parent": parent,
        "format": str(config.format),
    }
    lines = "".join(f"{key}={values[key]}\n" for key in _KEYS)
    try:
        data = f"{lines}{_CHECKSUM}={_checksum(lines)}\n".encode()
        decode_config(data, "wlc.config")
    except (CorruptError, UnicodeEncodeError) as error:
        raise InvalidError(f"cannot write this configuration: {error}") from error
    return data


def decode_config(data: bytes, path: str) -> Config:
    """Read a configuration.

    Args:
        data: The file's bytes.
        path: Where it is, for messages.

    Raises:
        CorruptError: It is damaged or of an unknown version. `FarmDatabase.rebuild_config` makes a new one.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _corrupt(path, "not UTF-8") from error
    values = _lines(text, path)

    def read(key: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(values[key])
        except (ValueError, OverflowError, CorruptError) as error:
            raise _corrupt(path, f"{key}={values[key]!r}") from error

    if values["format"] != str(FORMAT_VERSION):
        raise _corrupt(path, f"format {values['format']!r} is unknown, this version reads {FORMAT_VERSION}")
    config = Config(
        snapshot=read("snapshot", lambda text: check_relative(text, path) if text else ""),
        logs=read("logs", _logs),
        state=read("state", _state),
        batches=read("batches", lambda text: _number(text, 1)),
        beat_s=read("beat", parse_beat),
        write=read("write", _time),
        name=read("name", check_database_name),
        history=read("history", _history),
        tick=read("tick", lambda text: _number(text, 0)),
        parent=read("parent", _parent),
    )
    # Checked last, so that the message names an invalid value. The checksum finds a wrong value that is valid.
    if not text.endswith(f"\n{_CHECKSUM}={_checksum(text[: text.rindex(_CHECKSUM)])}\n"):
        raise _corrupt(path, "its checksum does not match its content")
    return config


def with_batch(config: Config, batch: Batch) -> Config:
    """Return the configuration after a batch was published."""
    parent = batch.parent or (config.parent if config.history == batch.history else None)
    write = batch.clock or config.write
    config = replace(config, history=batch.history, tick=batch.last, write=write, parent=parent)
    return replace(config, batches=batch.number + 1)


def naming_snapshot(config: Config, tick: int) -> Config:
    """Return a configuration that names a snapshot, unless it names a newer one."""
    named = parse_snapshot_folder(config.snapshot)
    return config if named is not None and named >= tick else replace(config, snapshot=snapshot_folder(tick))


def is_behind(config: Config, batches: Sequence[int], snapshots: Sequence[int]) -> bool:
    """Say whether a configuration is behind the farm, so that `FarmDatabase.rebuild_config` would change it.

    Args:
        config: Read before the numbers and ticks.
        batches: Numbers of all batches, rising.
        snapshots: Ticks of all snapshots, rising.
    """
    named = parse_snapshot_folder(config.snapshot)
    return (bool(batches) and config.batches <= batches[-1]) or (
        bool(snapshots) and (named is None or named < snapshots[-1])
    )


def with_snapshot(config: Config, manifest: Manifest) -> Config:
    """Return the configuration after a snapshot was published."""
    position = manifest.position
    config = naming_snapshot(config, position.tick)
    if position.batch + 1 < config.batches or (position.tick <= config.tick and position.history == config.history):
        return config
    # No batch follows the snapshot yet: it is the newest position and may have begun a new history.
    write = manifest.clock if position.tick else None
    parent = config.parent if position.history == config.history else None
    config = replace(config, history=position.history, tick=position.tick, write=write, parent=parent)
    return replace(config, batches=position.batch + 1)


def _checksum(lines: str) -> str:
    return checksum(lines.encode())


def _lines(text: str, path: str) -> dict[str, str]:
    values: dict[str, str] = {}
    if not text.endswith("\n"):
        raise _corrupt(path, "its last line is cut off")
    for number, line in enumerate(text[:-1].split("\n"), 1):
        key, found, value = line.partition("=")
        if not found or key not in (*_KEYS, _CHECKSUM) or key in values:
            raise _corrupt(path, f"line {number}: {line!r}")
        values[key] = value
    if missing := [key for key in (*_KEYS, _CHECKSUM) if key not in values]:
        raise _corrupt(path, f"no {', '.join(missing)}")
    return values


def _corrupt(path: str, problem: str) -> CorruptError:
    hint = "The next flush rebuilds it from the log."
    return CorruptError(f"{path} is damaged: {problem}", hint=hint, path=path)


def _number(text: str, smallest: int) -> int:
    if not (text.isascii() and text.isdigit() and smallest <= int(text) <= TICK_MAX):
        raise ValueError(text)
    return int(text)


def _state(text: str) -> int:
    if text not in (str(STARTED), str(STOPPED)):
        raise ValueError(text)
    return int(text)


def _logs(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(text)
    return text


def _time(text: str) -> datetime | None:
    return read_time(text) if text else None


def _history(text: str) -> str:
    if not is_token(text):
        raise ValueError(text)
    return text


def _parent(text: str) -> Origin | None:
    if not text:
        return None
    history, _, tick = text.partition(":")
    return Origin(_history(history), _number(tick, 0))

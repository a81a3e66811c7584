"""Net changes that a master makes as a new transaction: what takes transactions back that it has committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.human_form import ForPeople

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.model import Layout, Name


@dataclass(frozen=True, slots=True)
class WantedChange:
    """What shall be changed in a table.

    Attributes:
        layout: What the columns of the images are; the table must still have them.
        file: Parquet file of images as data files have them, with the weight but no tick; a weight counts copies. Of
            a table with a primary key, each key has at most one image that is removed and one that is added.
    """

    table: Name
    layout: Layout
    file: Path


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """How many rows of a table a transaction changed; `changed` counts those whose primary key stayed."""

    table: str
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, slots=True)
class Compensated(ForPeople):
    """What was written.

    Attributes:
        tick: The last new transaction; None if there was nothing to write, or nothing was to be written.
        tables: The tables that were changed, by name.
        transactions: How many new transactions it takes, one behind the other.
    """

    tick: int | None
    tables: tuple[ChangedRows, ...]
    transactions: int = 0

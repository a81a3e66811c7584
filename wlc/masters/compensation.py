"""Compensating transactions: net changes that undo committed transactions of a master."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.farm.human_form import ForPeople

if TYPE_CHECKING:
    from pathlib import Path

    from wlc.farm.model import Layout, Name


@dataclass(frozen=True, slots=True)
class WantedChange:
    """The wanted change of one table.

    Attributes:
        layout: Layout of the images; the table must still have it.
        file: Parquet file of images as in data files, with the weight but no tick; a weight counts copies. In a table
            with a primary key, each key has at most one removed and one added image.
    """

    table: Name
    layout: Layout
    file: Path


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Numbers of rows of a table that a transaction changed; `changed` counts rows that kept their primary key."""

    table: str
    added: int
    removed: int
    changed: int


@dataclass(frozen=True, slots=True)
class Compensated(ForPeople):
    """The result of a compensation.

    Attributes:
        tick: The last new transaction; None if there was nothing to write, or for a dry run.
        tables: The changed tables, by name.
        transactions: Number of new consecutive transactions.
    """

    tick: int | None
    tables: tuple[ChangedRows, ...]
    transactions: int = 0

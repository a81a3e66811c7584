"""Options that choose rows, columns and values."""

from __future__ import annotations

from typing import Annotated

import typer

Where = Annotated[
    list[str] | None,
    typer.Option(metavar="TABLE: CONDITION", help="Only rows like \"orders: region = 'EU'\"; may be repeated."),
]
Columns = Annotated[
    list[str] | None, typer.Option(metavar="TABLE: NAMES", help="Only columns like 'users: id, name'; may be repeated.")
]
Masks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE: COLUMN = MASK", help="Hide values: hash, null, constant:VALUE, truncate:N; may be repeated."
    ),
]
MaskKey = Annotated[
    str | None, typer.Option(metavar="FILE", help="File with the key of hashes; only its path is remembered.")
]
ChangeFilters = Annotated[
    bool, typer.Option("--change-filters", help="Tables that these options name get them instead of their filters.")
]

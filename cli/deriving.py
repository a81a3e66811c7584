"""The command `wlc farm derive`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

import wlc

from .following import in_rounds
from .options import Columns, Database, Farm, Follow, MaskKey, Masks, StorageOptions, Where, storage_options
from .output import Report, record
from .progress import working

if TYPE_CHECKING:
    from wlr import Derived


def derive(
    db: Database,
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Name in the same farm, or URL of its folder.")],
    where: Where = None,
    columns: Columns = None,
    mask: Masks = None,
    mask_key: MaskKey = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="All of these tables, like main.sales_*; may be repeated."),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Begin a new history from the newest snapshot, also with other filters.")
    ] = False,
    follow: Follow = False,
    farm: Farm = None,
    storage_option: StorageOptions = None,
    target_option: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="Option, or key, of the derived database's place; may be repeated."),
    ] = None,
) -> Iterator[Report]:
    """Publish chosen tables, rows and columns as another database.

    It has a log of its own, and other values where they are masked.

    Only named tables are published. The first round needs the choice, later ones remember it.
    """
    import wlr

    options, target_options = storage_options(storage_option), storage_options(target_option)
    filters = wlr.row_filters(where, columns, mask, mask_key)

    has_begun = False

    def derive_round() -> Derived:
        nonlocal has_begun
        with working("deriving {}", name) as progress:
            done = wlr.derive(
                db,
                name,
                farm=farm,
                filters=filters,
                tables=tables or None,
                anew=anew and not has_begun,
                storage_options=options,
                target_options=target_options,
                progress=progress,
            )
        has_begun = True
        return done

    yield from in_rounds(
        derive_round,
        record,
        follow=follow,
        has_news=lambda done: done.batches,
        beat_s=lambda _: wlc.beat(db, farm=farm, storage_options=options),
        reads=lambda _: wlc.resolve(db, farm, storage_options=options).url,
    )


COMMANDS = (
    (derive, "farm derive", "sales --as sales_eu --where \"orders: region = 'EU'\" --columns 'users: id, name'"),
)

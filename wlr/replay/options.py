"""Options of a replica, declared for `wlr.replicate`, its command and `dbfarm.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from wlc.farm.parameters import Option, declared
from wlc.tiers.options import UpstreamOptions
from wlr.engine.contract import DatabaseFile, Lake, Roles, Target
from wlr.replay.workers import check_engine

if TYPE_CHECKING:
    from wlr.engine.replica_state import ReplicaState

_NEVER_BLOCKED = "Leave --swap out: readers of such a replica are never blocked."


def _keeps(target: Target, name: str, keep: str) -> None:
    Lake.required(target, name).check_keep(keep)


def _opens(target: Target, name: str, open_tables: str) -> None:
    Lake.required(target, name).check_open_tables(open_tables)


def _gives_access(target: Target, name: str, access: bool) -> None:
    if access:
        Roles.required(target, name)


def _adopts(target: Target, name: str, adopt: bool) -> None:
    if adopt:
        DatabaseFile.required(target, name)


def _swaps(target: Target, name: str, swap: bool) -> None:
    if swap:
        DatabaseFile.required(target, name, _NEVER_BLOCKED)


def _stores(target: Target, name: str, version: str) -> None:
    DatabaseFile.required(target, name).check_storage_version(version)


def _works(_: Target, __: str, engine: str) -> None:
    check_engine(engine)


class ReplicaOptions(UpstreamOptions, total=False):
    """The tables of a replica, their storage, and the way of updating them."""

    tables: Annotated[
        Sequence[str] | None, Option("Only tables like main.sales_*; may be repeated. For a new replica.", "PATTERN")
    ]
    ignore: Annotated[
        Sequence[str] | None, Option("Leave these tables out; may be repeated. For a new replica.", "PATTERN")
    ]
    delay: Annotated[timedelta | str | None, Option("Stay this far behind: 1h, '2 days'. Give it every time.", "AGE")]
    keep: Annotated[
        str | None,
        Option(
            "Parquet: old ticks that stay readable, as 10 or '3 days'; remembered.",
            "N|AGE",
            refuse_unfit=_keeps,
            is_remembered=True,
        ),
    ]
    open_tables: Annotated[
        str | None,
        Option(
            "Parquet: keep a Delta log over each table's files; remembered.",
            "delta|none",
            flag="--open",
            refuse_unfit=_opens,
            is_remembered=True,
        ),
    ]
    access: Annotated[
        bool | None,
        Option(
            "PostgreSQL: grant roles the privileges of the farm; remembered; default: if signed.",
            refuse_unfit=_gives_access,
            is_remembered=True,
        ),
    ]
    adopt: Annotated[
        bool,
        Option(
            "DuckDB: make it inside an existing file, beside the owner's tables.",
            default=False,
            refuse_unfit=_adopts,
        ),
    ]
    swap: Annotated[
        bool | None,
        Option("DuckDB: write to a second file, then swap the two; remembered.", refuse_unfit=_swaps),
    ]
    storage_version: Annotated[
        str | None,
        Option(
            "DuckDB: storage version for readers with an older DuckDB. For a new replica; it has no lock.",
            "VERSION",
            refuse_unfit=_stores,
            is_remembered=True,
        ),
    ]
    engine: Annotated[
        str,
        Option(
            "Parquet: engine for large work: local, spark, or auto by its size.",
            "ENGINE",
            default="auto",
            refuse_unfit=_works,
        ),
    ]
    spark_master: Annotated[
        str | None,
        Option("Spark master, if no session or defaults name one.", "URL", flag="--master", is_in_file=False),
    ]


# Fields of a replica's state that options set.
REMEMBERED = tuple(option.name for option in declared(ReplicaOptions) if option.is_remembered)


def remembered(state: ReplicaState, options: Mapping[str, object]) -> ReplicaState:
    """Return the state with the given options that it keeps."""
    given = {name: options[name] for name in REMEMBERED if options.get(name) is not None}
    if given.get("open_tables") == "none":
        given["open_tables"] = ""
    return replace(state, **given)  # type: ignore[arg-type]

"""The replica's names for objects of the master, and the description of its tables for folding."""

from __future__ import annotations

from dataclasses import dataclass

from wlc.dialect.duckdb.fold import TargetTable
from wlc.farm.errors import InvalidError
from wlc.farm.model import Ddl, Layout, Name

MAIN = "main"
_OWN = frozenset({"wlc", "wlr", "information_schema"})


@dataclass(frozen=True, slots=True)
class Names:
    """Maps names of the master to names of the replica.

    Attributes:
        main: Schema that stands for DuckDB's `main`; `main` itself if the master is PostgreSQL. Other schemas keep
            their names.
    """

    main: str = "public"

    def place(self, name: Name) -> Name:
        """Return the replica's name for an object of the master."""
        return Name(self.schema(name.schema), name.name)

    def schema(self, schema: str) -> str:
        """Return the replica's schema for one of the master."""
        return self.main if schema.lower() == MAIN else schema

    def describe(self, name: Name, layout: Layout) -> TargetTable:
        """Describe a table whose rows have a layout."""
        # Foreign keys are off while a step is applied, so no other table refers to it.
        return TargetTable(name, self.place(name).sql, layout)


def is_own(schema: str) -> bool:
    """Say whether a schema is dbfarm's or PostgreSQL's."""
    return schema.lower() in _OWN or schema.lower().startswith("pg_")


def refuse_own(schema: str, shown: str) -> None:
    """Refuse to put tables into a schema that is dbfarm's or PostgreSQL's.

    Raises:
        InvalidError: The schema is one of these.
    """
    if is_own(schema):
        raise InvalidError(f"schema {schema} takes no tables", hint="Give another ?schema=.", path=shown)


def refuse_schema(ddl: Ddl, shown: str) -> None:
    """Refuse `?schema=` for a master that is PostgreSQL: its statements name their schemas.

    Raises:
        InvalidError: Always.
    """
    message = f"{shown}: the master is PostgreSQL, whose tables keep their schemas ({ddl.object})"
    raise InvalidError(message, hint="Leave ?schema= out.", path=shown)

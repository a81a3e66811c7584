"""Where objects of the master are in the replica, and how its tables are described to the fold."""

from __future__ import annotations

from dataclasses import dataclass

from wlc.errors import InvalidError
from wlc.model import Layout, Name
from wlr.fold import TargetTable

MAIN = "main"
_OWN = frozenset({"wlc", "wlr", "information_schema"})


@dataclass(frozen=True, slots=True)
class Names:
    """How names of the master become names of the replica.

    Attributes:
        main: Schema that stands for DuckDB's `main`; `main` itself where the master is PostgreSQL. All others keep
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
        # Foreign keys are off while a step is applied, so none refers to it.
        return TargetTable(name, self.place(name).sql, layout)


def is_own(schema: str) -> bool:
    """Say whether a schema is dbfarm's or PostgreSQL's."""
    return schema.lower() in _OWN or schema.lower().startswith("pg_")


def refuse_own(schema: str, shown: str) -> None:
    """Refuse to put tables into a schema that is dbfarm's or PostgreSQL's.

    Raises:
        InvalidError: It is.
    """
    if is_own(schema):
        raise InvalidError(f"schema {schema} takes no tables", hint="Give another ?schema=.", path=shown)

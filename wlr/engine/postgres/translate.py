"""Schema changes of a DuckDB master as PostgreSQL's statements.

The layout in the record says what columns a table has; of the statement's text only what it does to them is read, and
constraints. What holds no rows (views, macros, indexes, defaults, checks, comments) may be left out if PostgreSQL has
no counterpart; the rest may not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.errors import UnsupportedError
from wlc.model import Name, literal, quote
from wlr.engine.postgres import types
from wlr.engine.postgres.constraints import constraints
from wlr.engine.postgres.expressions import expression_sql, view_sql
from wlr.engine.postgres.names import is_own
from wlr.engine.postgres.text import Reader

if TYPE_CHECKING:
    from wlc.model import Column, Ddl
    from wlr.engine.postgres.catalog import Catalog
    from wlr.engine.postgres.names import Names

_SEQUENCE_WORDS = frozenset("INCREMENT BY MINVALUE MAXVALUE START WITH NO CYCLE -".split())
_COMMENTED = {"TABLE": "rpv", "VIEW": "v", "SEQUENCE": "S", "INDEX": "i", "COLUMN": "rpv"}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement for PostgreSQL.

    Attributes:
        sql: The statement, "" if what is wanted has no counterpart.
        what: What a warning calls it; None if the statement must not be left out.
        is_late: It is cheaper once rows are loaded.
    """

    sql: str
    what: str | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a schema change comes to.

    Attributes:
        touches: Table of the replica that it changes or drops, which has to be a replicated one; None for others.
        replaces: Relation whose dependent views are to be made again behind it.
        left_out: Warning for what has no counterpart, None if all has.
        fields_of: The table whose nested values get other fields: it must have no rows.
    """

    statements: tuple[Statement, ...] = ()
    touches: Name | None = None
    replaces: Name | None = None
    left_out: str | None = None
    fields_of: Name | None = None


class Translator:
    """Translates one schema change.

    Args:
        ddl: The change.
        catalog: What the replica contains.
        names: How names are mapped.
        master: Name that the statement gives the database.
        is_rewritten: All rows of the table follow, and it has been emptied.
    """

    def __init__(self, ddl: Ddl, catalog: Catalog, names: Names, master: str, *, is_rewritten: bool) -> None:
        self.ddl = ddl
        self.catalog = catalog
        self.names = names
        self.master = master
        self.is_rewritten = is_rewritten
        self.reader = Reader(ddl.statement)

    def plan(self) -> Plan:
        """Translate it.

        Raises:
            UnsupportedError: It has no counterpart, and rows depend on it.
        """
        reader = self.reader
        try:
            if reader.take("CREATE"):
                return self._create()
            if reader.take("ALTER"):
                return self._alter()
            if reader.take("DROP"):
                return self._drop()
            if reader.take("COMMENT", "ON"):
                return self._comment()
        except ValueError as error:
            raise UnsupportedError(f"the statement cannot be understood: {error}") from error
        raise UnsupportedError("the statement is of no kind that changes a schema")

    # Names -----------------------------------------------------------------------------------------------------------

    def resolve(self, path: tuple[str, ...]) -> Name:
        """Find the relation that a name in the statement means: in the search path, then in `main`."""
        if len(path) > 2 or (len(path) == 2 and path[0].lower() == self.master.lower() and not self._is_schema(path)):
            path = path[1:]
        own = self.names.place(self.ddl.object)
        schema = self._allowed(path[0] if len(path) == 2 else self.ddl.search_path)
        if (self.names.schema(schema).lower(), path[-1].lower()) == (own.schema.lower(), own.name.lower()):
            return self.catalog.find(own) or own
        if len(path) == 2:
            made = Name(self.names.schema(path[0]), path[1])
            return self.catalog.find(made) or made
        made = Name(self.names.schema(self.ddl.search_path), path[0])
        in_main = Name(self.names.main, path[0])
        return self.catalog.find(made) or self.catalog.find(in_main) or made

    def _made(self, path: tuple[str, ...]) -> Name:
        """The name that the statement gives a new relation."""
        schema = path[-2] if len(path) > 1 and path[-2].lower() != self.master.lower() else self.ddl.search_path
        return Name(self.names.schema(self._allowed(schema)), path[-1])

    def _allowed(self, schema: str) -> str:
        """Return a schema that is the farm's to change."""
        if is_own(self.names.schema(schema)):
            raise UnsupportedError(f"schema {schema} is not the farm's to change")
        return schema

    def _is_schema(self, path: tuple[str, ...]) -> bool:
        return self.catalog.find(Name(self.names.schema(path[0]), path[1])) is not None

    def expression(self, text: str, spelling: dict[str, str]) -> str:
        """Translate an expression over columns; see `expression_sql`."""
        return expression_sql(text, spelling, self.resolve)

    # CREATE ----------------------------------------------------------------------------------------------------------

    def _create(self) -> Plan:
        reader = self.reader
        replaces = reader.take("OR", "REPLACE")
        reader.take("PERSISTENT")
        for kind in (
            "SCHEMA",
            "TABLE",
            "SEQUENCE",
            "VIEW",
            "RECURSIVE",
            "INDEX",
            "UNIQUE",
            "TYPE",
            "MACRO",
            "FUNCTION",
        ):
            if reader.take(kind):
                break
        else:
            raise UnsupportedError(f"CREATE {reader.peek()} is of no kind that changes a schema")
        is_unique = kind == "UNIQUE" and reader.take("INDEX")
        exists = reader.take("IF", "NOT", "EXISTS")
        match kind:
            case "SCHEMA":
                schema = self.names.schema(self._allowed(reader.path()[-1]))
                return Plan((Statement(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}"),))
            case "TABLE":
                return self._create_table(replaces, exists)
            case "SEQUENCE":
                return self._create_sequence(replaces, exists)
            case "VIEW" | "RECURSIVE":
                return self._create_view(replaces)
            case "INDEX" | "UNIQUE":
                return self._create_index(is_unique)
            case "TYPE":
                # Columns have the type behind the name, see `types`.
                return Plan()
            case _:
                return Plan(left_out=f"macro {self.ddl.object} is left out: PostgreSQL has no macros")

    def _create_table(self, replaces: bool, exists: bool) -> Plan:
        name, layout = self.names.place(self.ddl.object), self.ddl.layout
        if layout is None:
            raise UnsupportedError("the record does not say what columns the table has")
        present = self.catalog.find(name) if replaces else None
        before = [Statement(f"DROP TABLE {present.sql}")] if present else []
        spelling = {column.name.lower(): column.name for column in layout.columns}
        columns = [self._column(column, spelling) for column in layout.columns]
        made = f"CREATE TABLE {'IF NOT EXISTS ' if exists else ''}{name.sql} ({', '.join(columns)})"
        key = ", ".join(map(quote, layout.primary_key))
        keys = [Statement(f"ALTER TABLE {name.sql} ADD PRIMARY KEY ({key})", is_late=True)] if key else []
        others = [
            Statement(_altered(name, action), what, is_late=True)
            for action, what in self._extras(layout.columns, spelling)
        ]
        return Plan((*before, Statement(made), *keys, *others), touches=present, replaces=present)

    def _column(self, column: Column, spelling: dict[str, str]) -> str:
        text = f"{quote(column.name)} {self._type(column)}"
        if column.generated is not None:
            text += f" GENERATED ALWAYS AS ({self.expression(column.generated, spelling)}) STORED"
        return text if column.nullable else f"{text} NOT NULL"

    def _type(self, column: Column) -> str:
        try:
            return types.column_type(column.type)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"column {column.name} has type {column.type}, which PostgreSQL cannot hold"
            ) from error

    def _extras(self, columns: tuple[Column, ...], spelling: dict[str, str]) -> list[tuple[str, str]]:
        """Defaults and constraints: what to do to the table, and how a warning calls it."""
        found = []
        for column in columns:
            if column.default is not None:
                what = f"default of column {column.name} of table {self.ddl.object}"
                found.append((self._set_default(column, spelling), what))
        others = constraints(self.ddl.statement, spelling, self.resolve, self._spelt)
        return [*found, *((other.sql, f"{other.what} of table {self.ddl.object}") for other in others)]

    def _spelt(self, table: Name, column: str) -> str:
        """How a column of a table is written; the statement's own table is not in the catalog yet."""
        is_own = table == self.names.place(self.ddl.object)
        return self._spelling().get(column.lower(), column) if is_own else self.catalog.column(table, column)

    def _set_default(self, column: Column, spelling: dict[str, str]) -> str:
        """What sets a default, "" if there is no counterpart."""
        try:
            return f"ALTER {quote(column.name)} SET DEFAULT {self.expression(column.default or 'NULL', spelling)}"
        except UnsupportedError:
            return ""

    def _create_sequence(self, replaces: bool, exists: bool) -> Plan:
        name = self._made(self.reader.path())
        options = self.reader.rest()
        words = Reader(options).tokens
        if any(token.kind != "number" and token.upper not in _SEQUENCE_WORDS for token in words):
            raise UnsupportedError(f"options {options} have no counterpart")
        before = [Statement(f"DROP SEQUENCE IF EXISTS {name.sql}")] if replaces else []
        made = f"CREATE SEQUENCE {'IF NOT EXISTS ' if exists else ''}{name.sql} {options}"
        return Plan((*before, Statement(made)))

    def _create_view(self, replaces: bool) -> Plan:
        made = self._made(self.reader.path())
        what = f"view {self.ddl.object}"
        present = made if replaces and self.catalog.kinds.get(made) == "v" else None
        before = [Statement(f"DROP VIEW {made.sql}")] if present else []
        try:
            statement = view_sql(self.ddl.statement, self.catalog.columns, self.resolve, made)
        except UnsupportedError as error:
            return Plan(tuple(before), replaces=present, left_out=f"{what} is left out: {error.message}")
        return Plan((*before, Statement(statement, what, is_late=True)), replaces=present)

    def _create_index(self, is_unique: bool) -> Plan:
        index = self.reader.name()
        what = f"index {self.ddl.object}"
        if not self.reader.take("ON"):
            raise ValueError("an index is ON a table")
        table = self.resolve(self.reader.path())
        if self.reader.take("USING"):
            self.reader.name()
        spelling = {name.lower(): name for name in self.catalog.columns.get(table, [])}
        try:
            parts = ", ".join(f"({self.expression(item, spelling)})" for item in self.reader.items())
        except UnsupportedError as error:
            return Plan(left_out=f"{what} is left out: {error.message}")
        unique = "UNIQUE " if is_unique else ""
        return Plan((Statement(f"CREATE {unique}INDEX {quote(index)} ON {table.sql} ({parts})", what, is_late=True),))

    # DROP ------------------------------------------------------------------------------------------------------------

    def _drop(self) -> Plan:
        reader = self.reader
        kind = reader.peek()
        reader.at += 1
        if kind in ("TYPE", "MACRO", "FUNCTION"):
            return Plan()
        reader.take("IF", "EXISTS")
        path = reader.path()
        cascade = " CASCADE" if reader.take("CASCADE") else ""
        match kind:
            case "SCHEMA":
                schema = self.names.schema(self._allowed(path[-1]))
                return Plan((Statement(f"DROP SCHEMA IF EXISTS {quote(schema)}{cascade}"),))
            case "TABLE":
                table = self.resolve(path)
                return Plan((Statement(f"DROP TABLE {table.sql}{cascade}"),), touches=table, replaces=table)
            case "VIEW":
                view = self.resolve(path)
                return Plan((Statement(f"DROP VIEW IF EXISTS {view.sql}"),), replaces=view)
            case "SEQUENCE":
                return Plan((Statement(f"DROP SEQUENCE IF EXISTS {self.resolve(path).sql}{cascade}"),))
            case "INDEX":
                return Plan((Statement(f"DROP INDEX IF EXISTS {self.resolve(path).sql}"),))
            case _:
                raise UnsupportedError(f"DROP {kind} is of no kind that changes a schema")

    # COMMENT ---------------------------------------------------------------------------------------------------------

    def _comment(self) -> Plan:
        reader = self.reader
        kind = reader.peek()
        reader.at += 1
        if kind not in _COMMENTED:
            return Plan()
        path = reader.path()
        column = path[-1] if kind == "COLUMN" else None
        found = self.catalog.find(self.resolve(path[:-1] if column else path))
        # Of what was left out there is nothing to say.
        if found is None or self.catalog.kinds[found] not in _COMMENTED[kind] or not reader.take("IS"):
            return Plan()
        name = found.sql if column is None else f"{found.sql}.{quote(self.catalog.column(found, column))}"
        text = "NULL" if reader.peek() == "NULL" else literal(_string(reader.rest()))
        return Plan((Statement(f"COMMENT ON {kind} {name} IS {text}", f"comment on {self.ddl.object}", is_late=True),))

    # ALTER -----------------------------------------------------------------------------------------------------------

    def _alter(self) -> Plan:
        reader = self.reader
        kind = reader.peek()
        reader.at += 1
        if kind not in ("TABLE", "VIEW", "SEQUENCE"):
            raise UnsupportedError(f"ALTER {kind} has no counterpart")
        reader.take("IF", "EXISTS")
        name = self.resolve(reader.path())
        if kind == "VIEW":
            # A view that was left out cannot be renamed either.
            return self._rename(kind, name) if name in self.catalog.kinds else Plan()
        if kind == "SEQUENCE":
            return self._rename(kind, name)
        if reader.peek() == "RENAME" and reader.peek(1) == "TO":
            return self._rename(kind, name)
        actions = self._alter_table(name)
        if actions is None:
            return Plan(touches=name, fields_of=name)
        statements = tuple(Statement(_altered(name, action), what) for action, what in actions)
        # Views are in the way of no other change, and making them again forgets who may read them.
        in_the_way = any(action.startswith("DROP COLUMN") or " TYPE " in action for action, _ in actions)
        return Plan(statements, touches=name, replaces=name if in_the_way else None)

    def _rename(self, kind: str, name: Name) -> Plan:
        if not self.reader.take("RENAME", "TO"):
            raise UnsupportedError(f"ALTER {kind} {self.reader.rest()} has no counterpart")
        statement = Statement(f"ALTER {kind} {name.sql} RENAME TO {quote(self.reader.name())}")
        return Plan((statement,), touches=name if kind == "TABLE" else None)

    def _alter_table(self, table: Name) -> list[tuple[str, str | None]] | None:
        """What to do to a table, and how a warning calls what may be left out; None if fields of values change."""
        reader = self.reader
        if reader.take("ADD", "PRIMARY", "KEY"):
            key = [self.catalog.column(table, column) for column in reader.names_in_brackets()]
            return [(f"ADD PRIMARY KEY ({', '.join(map(quote, key))})", None)]
        verb = reader.peek()
        reader.at += 1
        reader.take("COLUMN")
        reader.take("IF", "NOT", "EXISTS")
        reader.take("IF", "EXISTS")
        path = reader.path()
        column = self.catalog.column(table, path[0])
        if len(path) > 1 and verb in ("ADD", "DROP", "RENAME", "ALTER"):
            return None
        match verb:
            case "ADD":
                return self._add_column(path[0])
            case "DROP":
                return [(f"DROP COLUMN {quote(column)}", None)]
            case "RENAME" if reader.take("TO"):
                return [(f"RENAME COLUMN {quote(column)} TO {quote(reader.name())}", None)]
            case "ALTER":
                return self._alter_column(column)
            case _:
                raise UnsupportedError(f"ALTER TABLE {verb} has no counterpart")

    def _add_column(self, name: str) -> list[tuple[str, str | None]]:
        column, spelling = self._described(name), self._spelling()
        text = f"ADD COLUMN {self._column(column, spelling)}"
        if column.default is None:
            return [(text, None)]
        what = f"default of column {column.name} of table {self.ddl.object}"
        if self.is_rewritten:
            return [(text, None), (self._set_default(column, spelling), what)]
        return [(f"{text} DEFAULT {self.expression(column.default, spelling)}", None)]

    def _alter_column(self, name: str) -> list[tuple[str, str | None]]:
        reader, column = self.reader, self._described(name)
        head = f"ALTER COLUMN {quote(name)}"
        what = f"default of column {name} of table {self.ddl.object}"
        default = [(self._set_default(column, self._spelling()), what)] if column.default is not None else []
        if reader.take("SET", "DEFAULT"):
            # If the new one has no counterpart, the old one must not stay.
            return [(f"{head} DROP DEFAULT", None), *default]
        if reader.take("DROP", "DEFAULT"):
            return [(f"{head} DROP DEFAULT", None)]
        if reader.take("SET", "NOT", "NULL"):
            return [(f"{head} SET NOT NULL", None)]
        if reader.take("DROP", "NOT", "NULL"):
            return [(f"{head} DROP NOT NULL", None)]
        # The rows follow with their new values, so there is nothing to compute.
        using = f"USING CAST(NULL AS {types.postgres_type(column.type)})"
        return [(f"{head} DROP DEFAULT", None), (f"{head} TYPE {self._type(column)} {using}", None), *default]

    def _described(self, name: str) -> Column:
        columns = self.ddl.layout.columns if self.ddl.layout else ()
        found = next((column for column in columns if column.name.lower() == name.lower()), None)
        if found is None:
            raise UnsupportedError(f"the record does not describe column {name}")
        return found

    def _spelling(self) -> dict[str, str]:
        return {column.name.lower(): column.name for column in self.ddl.layout.columns} if self.ddl.layout else {}


def _altered(table: Name, action: str) -> str:
    return f"ALTER TABLE {table.sql} {action}" if action else ""


def _string(text: str) -> str:
    """The text of a string literal.

    Raises:
        ValueError: It is none.
    """
    if not text.startswith("'") or not text.endswith("'"):
        raise ValueError(f"no text at {text[:40]!r}")
    return text[1:-1].replace("''", "'")

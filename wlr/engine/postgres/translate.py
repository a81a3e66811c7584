"""Schema changes of a DuckDB master as PostgreSQL's statements.

The record's layout lists the columns and the key of a table after the change. Only the action itself is read from the
statement's text. An object without rows (view, macro, index, default, check, comment) may be left out if it has no
counterpart in PostgreSQL; other objects must not.

A parser of DuckDB's schema changes.

Constraints of a DuckDB master's tables, for PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.duckdb.lexer import tokens
from wlc.dialect.sql import literal, quote
from wlc.farm.errors import UnsupportedError
from wlc.farm.model import AlteredObject, Check, CreatedObject, DbObject, Layout, Name, Reference, Unique
from wlr.engine.postgres import expressions
from wlr.engine.postgres.catalog import is_own
from wlr.engine.postgres.expressions import expression_sql, view_sql
from wlr.replay.ddl.left_out import listed_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from wlc.farm.model import Column, Ddl, TableConstraint
    from wlr.engine.postgres.catalog import Names, PostgresCatalog


@dataclass
class StatementReader:
    """Reads a statement token by token; every reading method advances."""

    text: str

    def __post_init__(self) -> None:
        self.tokens = tokens(self.text)
        while self.tokens and self.tokens[-1].text == ";":
            self.tokens.pop()
        self.at = 0

    @property
    def is_done(self) -> bool:
        """Whether the statement is read to its end."""
        return self.at >= len(self.tokens)

    def peek(self, ahead: int = 0) -> str:
        """Peek at the next word in capitals, or sign; "" at the end, for strings and quoted names."""
        at = self.at + ahead
        if at >= len(self.tokens):
            return ""
        token = self.tokens[at]
        return token.word or (token.text if token.kind in ("operator", "numeric_const") else "")

    def word(self) -> str:
        """Read the next word in capitals; "" if it is no word."""
        found = self.peek()
        self.at += 1
        return found

    def take(self, *words: str) -> bool:
        """Read these words if they come next, and return whether they do."""
        if any(self.peek(number) != word for number, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def path(self) -> tuple[str, ...]:
        """Read a name of one or more parts.

        Raises:
            ValueError: The next token is no name.
        """
        parts = [self.name()]
        while self.take("."):
            parts.append(self.name())
        return tuple(parts)

    def name(self) -> str:
        """Read one identifier.

        Raises:
            ValueError: The next token is no name.
        """
        if self.is_done or self.tokens[self.at].kind not in ("identifier", "keyword"):
            raise ValueError(f"no name at {self.rest()[:40]!r}")
        self.at += 1
        return self.tokens[self.at - 1].name

    def items(self) -> list[str]:
        """Read a list in brackets, and return the texts between the commas.

        Raises:
            ValueError: The next token is no opening bracket, or it is not closed.
        """
        if not self.take("("):
            raise ValueError(f"no list at {self.rest()[:40]!r}")
        depth, start, found = 1, self.tokens[self.at - 1].end, []
        while not self.is_done:
            token = self.tokens[self.at]
            self.at += 1
            if token.kind == "operator":
                depth += (token.text in "([{") - (token.text in ")]}")
                if depth == 0 or (depth == 1 and token.text == ","):
                    found.append(self.text[start : token.start].strip())
                    start = token.end
                if depth == 0:
                    return [item for item in found if item]
        raise ValueError("a bracket is not closed")

    def rest(self) -> str:
        """Peek at the rest of the text."""
        if self.is_done:
            return ""
        return self.text[self.tokens[self.at].start : self.tokens[-1].end]


@dataclass(frozen=True, slots=True)
class ConstraintTranslator:
    """Translates constraints of one table.

    Attributes:
        spelling: Spelling of the table's columns, by their names in lower case.
        resolve: Finds a table or sequence that an expression names.
        place: Finds the replica's table for one of the master's.
        spelt: Returns a column of another table in its spelling.
    """

    spelling: Mapping[str, str]
    resolve: Callable[[tuple[str, ...]], Name]
    place: Callable[[Name], Name]
    spelt: Callable[[Name, str], str]

    def action(self, constraint: TableConstraint) -> tuple[str, str]:
        """Return the action that adds a constraint, "" without a counterpart, and its name in a warning."""
        match constraint:
            case Unique(columns):
                return f"ADD UNIQUE ({self._listed(columns)})", "a UNIQUE constraint"
            case Check(_, sql):
                return self._check(sql), "a CHECK constraint"
            case Reference(columns, to, keys):
                table = self.place(to)
                referred = ", ".join(quote(self.spelt(table, key)) for key in keys)
                # The master has checked the rows.
                added = f"ADD FOREIGN KEY ({self._listed(columns)}) REFERENCES {table.sql} ({referred}) NOT VALID"
                return added, "a foreign key"

    def _check(self, sql: str) -> str:
        try:
            return f"ADD CHECK ({expression_sql(sql, self.spelling, self.resolve)})"
        except UnsupportedError:
            return ""

    def _listed(self, columns: Iterable[str]) -> str:
        return ", ".join(quote(self.spelling.get(column.lower(), column)) for column in columns)


_CREATED = "SCHEMA TABLE SEQUENCE VIEW RECURSIVE INDEX UNIQUE TYPE MACRO FUNCTION".split()
_SEQUENCE_WORDS = frozenset("INCREMENT BY MINVALUE MAXVALUE START WITH NO CYCLE -".split())
# Settings of a DuckDB session that change computed values, but not the parsing of a statement.
_SAME_MEANING = frozenset({"Calendar", "TimeZone"})
_COMMENTED = {"TABLE": "rpv", "VIEW": "v", "SEQUENCE": "S", "INDEX": "i", "COLUMN": "rpv"}


@dataclass(frozen=True, slots=True)
class PostgresStatement:
    """One statement for PostgreSQL.

    Attributes:
        sql: The statement; "" without a counterpart.
        what: Its name in a warning; None if the statement must not be left out.
        is_late: It runs faster after rows are loaded.
    """

    sql: str
    what: str | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Translation:
    """A schema change in PostgreSQL's terms.

    Attributes:
        touches: Table of the replica that it changes or drops, which must be replicated; None for other changes.
        replaces: Relation whose dependent views must be dropped before and created again after the statements.
        left_out: Warning for parts without a counterpart; None without such parts.
        fields_of: Table whose nested values get other fields. It must be empty.
    """

    statements: tuple[PostgresStatement, ...] = ()
    touches: Name | None = None
    replaces: Name | None = None
    left_out: str | None = None
    fields_of: Name | None = None


class Translator:
    """Translates one schema change.

    Args:
        ddl: The change.
        catalog: Catalog of the replica.
        names: Maps the master's names to the replica's.
        master: Name that the statement gives the database.
        is_rewritten: All rows of the table follow, and it has been emptied.
    """

    def __init__(self, ddl: Ddl, catalog: PostgresCatalog, names: Names, master: str, *, is_rewritten: bool) -> None:
        self.ddl = ddl
        self.catalog = catalog
        self.names = names
        self.master = master
        self.is_rewritten = is_rewritten
        self.reader = StatementReader(ddl.statement)
        # Spelling of the changed table's columns, by their names in lower case.
        self.spelling = {column.name.lower(): column.name for column in ddl.layout.columns} if ddl.layout else {}

    def translate(self) -> Translation:
        """Translate the change.

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
        """Resolve a name in the statement: in the search path, then in `main`."""
        if len(path) > 2 or (len(path) == 2 and path[0].lower() == self.master.lower() and not self._is_schema(path)):
            path = path[1:]
        own = self.names.place(self.ddl.object)
        schemas = path[:1] if len(path) == 2 else self.ddl.search_path
        meant = [Name(self.names.schema(self._allowed(schema)), path[-1]) for schema in schemas]
        first = meant[0]
        if len(path) == 1:
            meant.append(Name(self.names.main, path[0]))
        for name in meant:
            if (name.schema.lower(), name.name.lower()) == (own.schema.lower(), own.name.lower()):
                return self.catalog.find(own) or own
            if found := self.catalog.find(name):
                return found
        return first

    def _made(self, path: tuple[str, ...]) -> Name:
        """Return the name that the statement gives a new relation."""
        is_named = len(path) > 1 and path[-2].lower() != self.master.lower()
        schema = path[-2] if is_named else self.ddl.search_path[0]
        return Name(self.names.schema(self._allowed(schema)), path[-1])

    def _allowed(self, schema: str) -> str:
        """Return a schema that the farm may change."""
        if is_own(self.names.schema(schema)):
            raise UnsupportedError(f"the farm must not change schema {schema}")
        return schema

    def _is_schema(self, path: tuple[str, ...]) -> bool:
        return self.catalog.find(Name(self.names.schema(path[0]), path[1])) is not None

    def _spelt(self, table: Name, column: str) -> str:
        """Return a column of a table in its spelling; the statement's own table is not in the catalog yet."""
        is_own_table = table == self.names.place(self.ddl.object)
        return self.spelling.get(column.lower(), column) if is_own_table else self.catalog.column(table, column)

    # CREATE ----------------------------------------------------------------------------------------------------------

    def _create(self) -> Translation:
        reader = self.reader
        replaces = reader.take("OR", "REPLACE")
        reader.take("PERSISTENT")
        kind = next((word for word in _CREATED if reader.take(word)), None)
        is_unique = kind == "UNIQUE" and reader.take("INDEX")
        exists = reader.take("IF", "NOT", "EXISTS")
        match kind:
            case "SCHEMA":
                schema = self.names.schema(self._allowed(reader.path()[-1]))
                return Translation((PostgresStatement(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}"),))
            case "TABLE":
                return self._create_table(replaces, exists)
            case "SEQUENCE":
                return self._create_sequence(replaces, exists)
            case "VIEW" | "RECURSIVE":
                return self._create_view(replaces)
            case "INDEX" | "UNIQUE":
                return self._create_index(is_unique)
            case "TYPE":
                # Columns have the underlying type, see `types`.
                return Translation()
            case "MACRO" | "FUNCTION":
                return Translation(left_out=f"macro {self.ddl.object} is left out: PostgreSQL has no macros")
            case _:
                raise UnsupportedError(f"CREATE {reader.peek()} is of no kind that changes a schema")

    def _create_table(self, replaces: bool, exists: bool) -> Translation:
        name, layout = self.names.place(self.ddl.object), self._layout()
        present = self.catalog.find(name) if replaces else None
        before = [PostgresStatement(f"DROP TABLE {present.sql}")] if present else []
        columns = ", ".join(map(self._column, layout.columns))
        made = PostgresStatement(f"CREATE TABLE {'IF NOT EXISTS ' if exists else ''}{name.sql} ({columns})")
        late: list[tuple[str, str | None]] = [(_primary_key(layout), None)] if layout.primary_key else []
        late += [self._default(column) for column in layout.columns if column.default is not None]
        late += map(self._constraint, self._constraints())
        statements = (PostgresStatement(_altered(name, action), what, is_late=True) for action, what in late)
        return Translation((*before, made, *statements), touches=present, replaces=present)

    def _constraints(self) -> tuple[TableConstraint, ...]:
        """Return the statement's constraints of its table, besides the primary key and NOT NULL."""
        table = DbObject("TABLE", self.ddl.object)
        did = (each for each in self.ddl.does if each.object == table)
        return next((e.constraints or () for e in did if isinstance(e, CreatedObject | AlteredObject)), ())

    def _constraint(self, constraint: TableConstraint) -> tuple[str, str]:
        """Return the action that adds a constraint, "" without a counterpart, and its name in a warning."""
        translator = ConstraintTranslator(self.spelling, self.resolve, self._placed, self._spelt)
        action, what = translator.action(constraint)
        return action, f"{what} of table {self.ddl.object}"

    def _placed(self, table: Name) -> Name:
        """Return the replica's table for one of the master's; the statement's own table is not in the catalog yet."""
        name = Name(self.names.schema(self._allowed(table.schema)), table.name)
        return self.catalog.find(name) or name

    def _layout(self) -> Layout:
        if self.ddl.layout is None:
            raise UnsupportedError("the record does not list the columns of the table")
        return self.ddl.layout

    def _column(self, column: Column) -> str:
        text = f"{quote(column.name)} {self._type(column)}"
        if column.generated is not None:
            text += f" GENERATED ALWAYS AS ({self._expression(column.generated)}) STORED"
        return text if column.nullable else f"{text} NOT NULL"

    def _type(self, column: Column) -> str:
        try:
            return expressions.column_type(column.type)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"column {column.name} has type {column.type}, which PostgreSQL cannot hold"
            ) from error

    def _default(self, column: Column) -> tuple[str, str]:
        """Return the action that sets a default, "" without a counterpart, and its name in a warning."""
        what = f"default of column {column.name} of table {self.ddl.object}"
        try:
            return f"ALTER {quote(column.name)} SET DEFAULT {self._expression(column.default or 'NULL')}", what
        except UnsupportedError:
            return "", what

    def _expression(self, text: str) -> str:
        """Translate an expression over the columns of the changed table."""
        self._refuse_settings()
        return expression_sql(text, self.spelling, self.resolve)

    def _refuse_settings(self) -> None:
        """Refuse an expression that a setting of DuckDB changes."""
        changed = [name for name, _ in self.ddl.settings if name not in _SAME_MEANING]
        if changed:
            raise UnsupportedError(f"setting {changed[0]} changes its meaning")

    def _create_sequence(self, replaces: bool, exists: bool) -> Translation:
        name = self._made(self.reader.path())
        rest = self.reader.tokens[self.reader.at :]
        options = " ".join(token.text for token in rest)
        if any(token.kind != "numeric_const" and token.text.upper() not in _SEQUENCE_WORDS for token in rest):
            raise UnsupportedError(f"options {options} have no counterpart")
        before = [PostgresStatement(f"DROP SEQUENCE IF EXISTS {name.sql}")] if replaces else []
        made = f"CREATE SEQUENCE {'IF NOT EXISTS ' if exists else ''}{name.sql} {options}"
        return Translation((*before, PostgresStatement(made)))

    def _create_view(self, replaces: bool) -> Translation:
        made = self._made(self.reader.path())
        what = f"view {self.ddl.object}"
        present = made if replaces and self.catalog.kinds.get(made) == "v" else None
        before = [PostgresStatement(f"DROP VIEW {made.sql}")] if present else []
        try:
            self._refuse_settings()
            statement = view_sql(self.ddl.statement, self.catalog.columns, self.resolve, made)
        except UnsupportedError as error:
            return Translation(tuple(before), replaces=present, left_out=f"{what} is left out: {error.message}")
        return Translation((*before, PostgresStatement(statement, what, is_late=True)), replaces=present)

    def _create_index(self, is_unique: bool) -> Translation:
        index = self.reader.name()
        what = listed_object(self.ddl)
        if not self.reader.take("ON"):
            raise ValueError("an index is ON a table")
        table = self.resolve(self.reader.path())
        if self.reader.take("USING"):
            self.reader.name()
        spelling = {name.lower(): name for name in self.catalog.columns.get(table, [])}
        try:
            self._refuse_settings()
            parts = ", ".join(f"({expression_sql(item, spelling, self.resolve)})" for item in self.reader.items())
        except UnsupportedError as error:
            return Translation(left_out=f"{what} is left out: {error.message}")
        made = f"CREATE {'UNIQUE ' if is_unique else ''}INDEX {quote(index)} ON {table.sql} ({parts})"
        return Translation((PostgresStatement(made, what, is_late=True),))

    # DROP ------------------------------------------------------------------------------------------------------------

    def _drop(self) -> Translation:
        reader = self.reader
        kind = reader.word()
        if kind in ("TYPE", "MACRO", "FUNCTION"):
            return Translation()
        reader.take("IF", "EXISTS")
        path = reader.path()
        cascade = " CASCADE" if reader.take("CASCADE") else ""
        match kind:
            case "SCHEMA":
                schema = self.names.schema(self._allowed(path[-1]))
                return Translation((PostgresStatement(f"DROP SCHEMA IF EXISTS {quote(schema)}{cascade}"),))
            case "TABLE":
                table = self.resolve(path)
                dropped = PostgresStatement(f"DROP TABLE {table.sql}{cascade}")
                return Translation((dropped,), touches=table, replaces=table)
            case "VIEW":
                view = self.resolve(path)
                return Translation((PostgresStatement(f"DROP VIEW IF EXISTS {view.sql}"),), replaces=view)
            case "SEQUENCE":
                name = self.resolve(path)
                return Translation((PostgresStatement(f"DROP SEQUENCE IF EXISTS {name.sql}{cascade}"),))
            case "INDEX":
                return Translation((PostgresStatement(f"DROP INDEX IF EXISTS {self.resolve(path).sql}"),))
            case _:
                raise UnsupportedError(f"DROP {kind} is of no kind that changes a schema")

    # COMMENT ---------------------------------------------------------------------------------------------------------

    def _comment(self) -> Translation:
        reader = self.reader
        kind = reader.word()
        if kind not in _COMMENTED:
            return Translation()
        path = reader.path()
        column = path[-1] if kind == "COLUMN" else None
        found = self.catalog.find(self.resolve(path[:-1] if column else path))
        # A left-out object has no comment.
        if found is None or self.catalog.kinds[found] not in _COMMENTED[kind] or not reader.take("IS"):
            return Translation()
        name = found.sql if column is None else f"{found.sql}.{quote(self.catalog.column(found, column))}"
        text = "NULL" if reader.peek() == "NULL" else literal(_string(reader.rest()))
        made = f"COMMENT ON {kind} {name} IS {text}"
        return Translation((PostgresStatement(made, f"comment on {self.ddl.object}", is_late=True),))

    # ALTER -----------------------------------------------------------------------------------------------------------

    def _alter(self) -> Translation:
        reader = self.reader
        kind = reader.word()
        if kind not in ("TABLE", "VIEW", "SEQUENCE"):
            raise UnsupportedError(f"ALTER {kind} has no counterpart")
        reader.take("IF", "EXISTS")
        name = self.resolve(reader.path())
        if kind == "VIEW" and name not in self.catalog.kinds:
            # A view that was left out cannot be renamed either.
            return Translation()
        if kind != "TABLE" or (reader.peek() == "RENAME" and reader.peek(1) == "TO"):
            return self._rename(kind, name)
        actions = self._alter_table(name)
        if actions is None:
            return Translation(touches=name, fields_of=name)
        statements = tuple(PostgresStatement(_altered(name, action), what) for action, what in actions)
        # Views block no other change, and creating them again loses their privileges.
        in_the_way = any(action.startswith("DROP COLUMN") or " TYPE " in action for action, _ in actions)
        return Translation(statements, touches=name, replaces=name if in_the_way else None)

    def _rename(self, kind: str, name: Name) -> Translation:
        if not self.reader.take("RENAME", "TO"):
            raise UnsupportedError(f"ALTER {kind} {self.reader.rest()} has no counterpart")
        statement = PostgresStatement(f"ALTER {kind} {name.sql} RENAME TO {quote(self.reader.name())}")
        return Translation((statement,), touches=name if kind == "TABLE" else None)

    def _alter_table(self, table: Name) -> list[tuple[str, str | None]] | None:
        """Return the actions on a table, each with its name in a warning if it may be left out.

        None is a change of the fields of nested values.
        """
        reader = self.reader
        verb = reader.word()
        if verb == "ADD" and (reader.take("CONSTRAINT") or reader.peek() in ("PRIMARY", "UNIQUE")):
            return self._add_constraint(table)
        reader.take("COLUMN")
        reader.take("IF", "NOT", "EXISTS")
        reader.take("IF", "EXISTS")
        path = reader.path()
        if len(path) > 1 and verb in ("ADD", "DROP", "RENAME", "ALTER"):
            return None
        column = self.catalog.column(table, path[0])
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

    def _add_constraint(self, table: Name) -> list[tuple[str, str | None]]:
        """Return the action for a key, or a UNIQUE constraint; DuckDB adds no others to an existing table."""
        if "PRIMARY" in (self.reader.peek(), self.reader.peek(1)):
            return [(_primary_key(self._layout()), None)]
        present = self.catalog.unique_keys(table)
        listed = (found for found in self._constraints() if isinstance(found, Unique))
        return [self._constraint(found) for found in listed if found.columns not in present]

    def _add_column(self, name: str) -> list[tuple[str, str | None]]:
        column = self._described(name)
        text = f"ADD COLUMN {self._column(column)}"
        constraints = [self._constraint(each) for each in self._constraints() if column.name in each.columns]
        if column.default is None:
            return [(text, None), *constraints]
        if self.is_rewritten:
            return [(text, None), self._default(column), *constraints]
        return [(f"{text} DEFAULT {self._expression(column.default)}", None), *constraints]

    def _alter_column(self, name: str) -> list[tuple[str, str | None]]:
        """Return the actions that make a column equal to its layout."""
        reader, column = self.reader, self._described(name)
        head = f"ALTER COLUMN {quote(name)}"
        if reader.take("SET", "NOT", "NULL") or reader.take("DROP", "NOT", "NULL"):
            return [(f"{head} {'DROP' if column.nullable else 'SET'} NOT NULL", None)]
        # If the new default has no counterpart, the old one must not stay.
        actions: list[tuple[str, str | None]] = [(f"{head} DROP DEFAULT", self._default(column)[1])]
        if reader.take("SET", "DATA", "TYPE") or reader.take("SET", "TYPE") or reader.take("TYPE"):
            # The rows follow with their new values, so nothing is computed here.
            using = f"USING CAST(NULL AS {expressions.postgres_type(column.type)})"
            actions.append((f"{head} TYPE {self._type(column)} {using}", None))
        elif not reader.take("SET", "DEFAULT") and not reader.take("DROP", "DEFAULT"):
            raise UnsupportedError(f"ALTER COLUMN {reader.rest()} has no counterpart")
        return actions if column.default is None else [*actions, self._default(column)]

    def _described(self, name: str) -> Column:
        columns = self.ddl.layout.columns if self.ddl.layout else ()
        found = next((column for column in columns if column.name.lower() == name.lower()), None)
        if found is None:
            raise UnsupportedError(f"the record does not describe column {name}")
        return found


def _altered(table: Name, action: str) -> str:
    return f"ALTER TABLE {table.sql} {action}" if action else ""


def _primary_key(layout: Layout) -> str:
    return f"ADD PRIMARY KEY ({', '.join(map(quote, layout.primary_key))})"


def _string(text: str) -> str:
    """Return the text of a string literal.

    Raises:
        ValueError: It is no string literal.
    """
    if not text.startswith("'") or not text.endswith("'"):
        raise ValueError(f"no text at {text[:40]!r}")
    return text[1:-1].replace("''", "'")

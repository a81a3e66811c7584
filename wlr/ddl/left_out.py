"""What a replica does not have, by name: the list follows names that change, and forgets what is dropped.

What is listed ends with the name of its object, and a routine's with the types of its arguments. The causes hold
statements to type, in which names are quoted.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from wlc.dialect.duckdb.lexer import path_at, tokens
from wlc.dialect.sql import quote
from wlc.farm.model import Name
from wlr.ddl.relevance import is_run
from wlr.plan.patterns import matches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from wlc.dialect.duckdb.lexer import Token
    from wlc.farm.model import Ddl

# Between the cause and the statement to type: replicas try the first kind again by themselves.
THEN_RUN = "; once it is there, run "
OR_RUN = "; to have it, run "
_RUN = re.compile(f"({THEN_RUN}|{OR_RUN})")
# Routines have names of their own beside those of tables, views, indexes and sequences.
_ROUTINES = ("FUNCTION", "PROCEDURE", "AGGREGATE")
_AROUND_NAME = frozenset({"MATERIALIZED", "IF", "EXISTS", "ONLY"})
# What a PostgreSQL master has and a replica of another kind does not need for its rows.
_WITHOUT_COUNTERPART = "only PostgreSQL replicas have it"
_OF_NO_TABLE = (*_ROUTINES, "VIEW", "MATERIALIZED VIEW")
# What comes before the word CONSTRAINT where a statement declares one, and not where it drops or renames one.
_BEFORE = {"CREATE": ("",), "ALTER": ("ADD",)}


class _Altered(NamedTuple):
    """An ALTER statement: the kind of its object, the object's name before it, and what follows the name."""

    kind: str
    object: Name
    rest: list[Token]


def without_counterparts(
    left_out: Mapping[str, str], changes: Iterable[Ddl], patterns: Collection[str] = ()
) -> Mapping[str, str]:
    """Return what a replica that is no PostgreSQL lacks of its PostgreSQL master, after schema changes.

    Args:
        left_out: What it lacked before, with the causes.
        changes: Of the master, in their order; those of a DuckDB master change nothing.
        patterns: Of the tables that it replicates; what belongs to others is not missed.
    """
    lacking = dict(left_out)
    for ddl in changes:
        # A DuckDB file and a lake have no users: policies are about nobody there.
        if (ddl.original is None and is_run(ddl, ())) or ddl.kind.endswith("POLICY"):
            continue
        text = ddl.statement if ddl.original is None else ddl.original
        follow(lacking, ddl, text)
        forget(lacking, ddl, text)
        lacking |= dict.fromkeys(_created(ddl, text, patterns), _WITHOUT_COUNTERPART)
    return lacking


def _created(ddl: Ddl, text: str, patterns: Collection[str]) -> Iterator[str]:
    """Give the names of what only PostgreSQL has among all that a statement of a PostgreSQL master creates."""
    verb, _, kind = ddl.kind.partition(" ")
    if verb == "CREATE" and (kind in _OF_NO_TABLE or (kind == "INDEX" and matches(_indexed(ddl), patterns))):
        yield f"{kind.lower()} {ddl.object}"
    if kind != "TABLE" or not matches(ddl.object, patterns):
        return
    listed = [token for token in tokens(text) if token.depth == (1 if verb == "CREATE" else 0)]
    for before, word, name, what in zip(listed, listed[1:], listed[2:], listed[3:], strict=False):
        # Of a key, all replicas have the columns.
        if word.word == "CONSTRAINT" and before.word in _BEFORE.get(verb, ()) and what.word not in ("PRIMARY", "NOT"):
            yield f"constraint {name.name} of table {ddl.object}"


def _indexed(ddl: Ddl) -> Name:
    """Return the table of an index."""
    listed = [token for token in tokens(ddl.statement) if token.depth == 0]
    at = next((at for at, token in enumerate(listed) if token.word == "ON"), len(listed)) + 1
    path, _ = path_at(listed, at + (listed[at : at + 1] != [] and listed[at].word in _AROUND_NAME))
    return Name(path[0], path[-1]) if path else ddl.object


def to_retry(left_out: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what may be there after other changes, with the statement that makes it, in the order of its listing."""
    for what, listed in left_out.items():
        _, then, statement = _parted(listed)
        if then == THEN_RUN:
            yield what, statement


def without_statement(listed: str) -> str:
    """Return a cause without the statement to type."""
    return _parted(listed)[0]


def _parted(listed: str) -> tuple[str, str, str]:
    cause, *rest = _RUN.split(listed, maxsplit=1)
    return (cause, rest[0], rest[1]) if rest else (cause, "", "")


def follow(left_out: dict[str, str], ddl: Ddl, text: str | None) -> None:
    """Give what is listed the names that an ALTER statement gives to objects and columns.

    Args:
        left_out: What is listed, with the causes; it is changed.
        ddl: The record.
        text: Its statement in PostgreSQL's own words, in which names are qualified; None for that of a DuckDB master.
    """
    if (altered := _read(ddl, text)) is None:
        return
    kind, old, rest = altered
    named = [token.name for token in rest if token.word not in ("COLUMN", "IF", "EXISTS")]
    words = [token.word for token in rest[:2]]
    if words[:1] == ["RENAME"] or words == ["SET", "SCHEMA"]:
        _outdate(left_out, {old.name, *named[1:3]})
    match words, named:
        case ["RENAME", "TO"], [_, _, new, *_] if kind == "SCHEMA":
            _move_all(left_out, old.name, new)
        case ["RENAME", "TO"], [_, _, new, *_]:
            _move(left_out, kind, old, Name(old.schema, new))
        case ["SET", "SCHEMA"], [_, _, new, *_]:
            _move(left_out, kind, old, Name(new, old.name))
        case _:
            _follow_parts(left_out, f"{'domain' if kind == 'DOMAIN' else 'table'} {old}", old, rest, named)


def _outdate(left_out: dict[str, str], named: Collection[str]) -> None:
    """Give up statements that create objects, and name what has another name from now on."""
    for what, listed in left_out.items():
        _, _, statement = _parted(listed)
        if statement.startswith("CREATE ") and any(t.name in named for t in tokens(statement) if not t.is_string):
            left_out[what] = without_statement(listed)


def _follow_parts(left_out: dict[str, str], whole: str, table: Name, rest: list[Token], named: list[str]) -> None:
    """Follow what a statement does with a column or a constraint of a table, or with a part of a domain."""
    match [token.word for token in rest[:2]], named:
        case ["RENAME", "CONSTRAINT"], [_, _, before, _, after, *_]:
            _rename_constraint(left_out, whole, before, after)
        case ["DROP", "CONSTRAINT"], [_, _, name, *_]:
            left_out.pop(f"constraint {name} of {whole}", None)
        case ["SET" | "DROP", "DEFAULT"], _:
            left_out.pop(f"default of {whole}", None)
        case ["ALTER", _], [_, column, "SET" | "DROP", "DEFAULT", *_]:
            left_out.pop(f"default of column {column} of table {table}", None)
        case ["ALTER", _], [_, column, "TYPE", *_]:
            left_out.pop(f"collation of column {column} of table {table}", None)
        # Of a field inside of values nothing is listed.
        case ["RENAME", _], [_, before, to, after, *_] if to.upper() == "TO":
            _rename_column(left_out, table, before, after)
            _rename_in_constraints(left_out, table, before, after)
        case ["DROP", _], [_, column, *behind] if behind[:1] != ["."]:
            for listed in _of_column(left_out, table, column):
                del left_out[listed]


def forget(left_out: dict[str, str], ddl: Ddl, text: str | None) -> None:
    """Forget what is listed of an object that a statement drops, and the object itself; arguments as of `follow`."""
    # An empty text is for replicas of other kinds: what they drop was renamed.
    if ddl.kind.startswith("DROP ") and text != "":
        ends = re.compile(rf".* {re.escape(str(ddl.object))}(?:\(.*\))?", re.DOTALL)
        for what in [what for what in left_out if ends.fullmatch(what)]:
            del left_out[what]


def _read(ddl: Ddl, text: str | None) -> _Altered | None:
    statement = ddl.statement if text is None else text
    if not re.match(r"\s*ALTER\b", statement, re.IGNORECASE):
        return None
    listed = [token for token in tokens(statement) if token.depth == 0]
    words = [token.word for token in listed]
    at = 1
    while at < len(listed) and words[at] in _AROUND_NAME:
        at += 1
    if len(listed) < at + 2:
        return None
    kind, at = words[at], at + 1
    while at < len(listed) and words[at] in _AROUND_NAME:
        at += 1
    path, at = path_at(listed, at)
    if not path:
        return None
    # Behind the name of a routine are its arguments.
    while at < len(listed) and listed[at].text in ("(", ")"):
        at += 1
    is_qualified = text is not None and len(path) > 1
    return _Altered(kind, Name(path[0] if is_qualified else ddl.object.schema, path[-1]), listed[at:])


def _move(left_out: dict[str, str], kind: str, old: Name, new: Name) -> None:
    form, is_routine = re.compile(rf"(.* ){re.escape(str(old))}(\(.*\))?", re.DOTALL), kind in _ROUTINES
    for what in list(left_out):
        found = form.fullmatch(what)
        if found and (found[1].split()[-1].upper() in _ROUTINES) == is_routine:
            left_out[f"{found[1]}{new}{found[2] or ''}"] = left_out.pop(what)
    _replace(left_out, rf"{re.escape(old.sql)}{'(?=' if is_routine else '(?!'}\()", new.sql)


def _move_all(left_out: dict[str, str], old: str, new: str) -> None:
    """Give the schema of what is listed another name."""
    form = re.compile(rf"(.* ){re.escape(old)}(\..*)", re.DOTALL)
    for what in list(left_out):
        if found := form.fullmatch(what):
            left_out[f"{found[1]}{new}{found[2]}"] = left_out.pop(what)
    _replace(left_out, rf"{re.escape(quote(old))}(?=\.)", quote(new))


def _rename_column(left_out: dict[str, str], table: Name, old: str, new: str) -> None:
    for what in _of_column(left_out, table, old):
        cause = left_out.pop(what).replace(f"({quote(old)})", f"({quote(new)})")
        if what.startswith(("default of column ", "collation of column ")):
            cause = cause.replace(f"ALTER COLUMN {quote(old)}", f"ALTER COLUMN {quote(new)}")
            left_out[f"{what.partition(' ')[0]} of column {new} of table {table}"] = cause
        else:
            left_out[what.replace(f"({quote(old)})", f"({quote(new)})", 1)] = cause


def _rename_in_constraints(left_out: dict[str, str], table: Name, old: str, new: str) -> None:
    """Give a column its new name in the statements that add constraints of its table."""
    form = re.compile(rf"constraint .* of table {re.escape(str(table))}", re.DOTALL)
    for what in filter(form.fullmatch, left_out):
        cause, then, statement = _parted(left_out[what])
        listed = tokens(statement)
        # A name before a bracket is a function's, one before a point a schema's, and one behind CONSTRAINT its own.
        for (before, token), (_, after) in reversed([*pairwise(pairwise(listed))]):
            is_name = not token.is_string and token.name == old
            if is_name and after.text not in ("(", ".") and before.word != "CONSTRAINT":
                statement = f"{statement[: token.start]}{quote(new)}{statement[token.end :]}"
        left_out[what] = f"{cause}{then}{statement}"


def _rename_constraint(left_out: dict[str, str], whole: str, old: str, new: str) -> None:
    cause = left_out.pop(f"constraint {old} of {whole}", None)
    if cause is not None:
        changed = cause.replace(f"ADD CONSTRAINT {quote(old)}", f"ADD CONSTRAINT {quote(new)}")
        left_out[f"constraint {new} of {whole}"] = changed


def _of_column(left_out: dict[str, str], table: Name, column: str) -> list[str]:
    """Return what is listed of a column: privileges, a default, and a collation."""
    given, of = re.escape(f"({quote(column)})"), re.escape(f" table {table}")
    form = re.compile(
        rf"[A-Z]+ {given} for .* on{of}|(default|collation) of column {re.escape(column)} of{of}", re.DOTALL
    )
    return [what for what in left_out if form.fullmatch(what)]


def _replace(left_out: dict[str, str], pattern: str, name: str) -> None:
    """Replace a name in the causes."""
    for what, cause in left_out.items():
        left_out[what] = re.sub(pattern, lambda _: name, cause)

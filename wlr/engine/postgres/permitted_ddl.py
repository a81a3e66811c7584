"""Checks schema changes in PostgreSQL's dialect: texts from the farm are untrusted, so only known kinds are run.

Checks the functions and tables that a statement of a PostgreSQL master names.

Statements from the farm run with the privileges of the replica's role, which may be a superuser. The objects that they
create call functions later: for every written row, or when a view is read. So a statement is refused if it names a
function that is not public, or that changes or runs anything. A routine is created only if its body only computes and
reads.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from wlc.farm.model import Name
from wlr.engine.postgres.catalog import is_own
from wlr.engine.postgres.replica_connection import fetch
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wlc.dialect.postgres.server_connection import Connection


_PIECE = re.compile(
    r"""(?P<string>\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)"""
    r"""|(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<name>"(?:[^"]|"")*")|(?P<word>[^\W\d][\w$]*)|(?P<number>\d[\w.]*)"""
    r"""|(?P<sign>\S)""",
    re.DOTALL,
)
# After these, PostgreSQL tokenizes differently than `_PIECE`: escapes in names, a quote next to a number.
_ESCAPED = re.compile(r"""&['"]""")
# Volatile functions that return a value and change at most a sequence, and the methods of TABLESAMPLE.
_HARMLESS = (
    "bernoulli system"
    " nextval currval lastval random random_normal gen_random_uuid uuidv4 uuidv7 clock_timestamp timeofday"
    " statement_timestamp uuid_generate_v1 uuid_generate_v1mc uuid_generate_v4"
).split()
# These functions read tables or run queries named in a text.
_BY_TEXT = re.compile(r"_to_xml|^(?:crosstab|connectby|dblink|ts_stat|ts_rewrite)")
_FUNCTIONS = """
    SELECT DISTINCT p.proname FROM pg_proc AS p WHERE p.proname = ANY(%s) AND p.proname <> ALL(%s) AND (
        (p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY(%s)
            AND (p.provolatile = 'v' OR NOT has_function_privilege('public', p.oid, 'EXECUTE')))
        OR (p.provolatile <> 'i' AND EXISTS (SELECT FROM pg_depend AS d
            WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')))
"""
# Routines of the database. The server prevents changes by non-volatile routines in SQL and PL/pgSQL.
_ROUTINES = """
    SELECT n.nspname, p.proname, CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END,
        p.provolatile <> 'v' AND NOT p.prosecdef AND has_function_privilege('public', p.oid, 'EXECUTE')
            AND NOT EXISTS (SELECT FROM pg_aggregate AS g JOIN pg_proc AS f
                ON f.oid IN (aggtransfn, aggfinalfn, aggcombinefn, aggmtransfn, aggminvtransfn, aggmfinalfn)
                WHERE g.aggfnoid = p.oid AND (f.provolatile = 'v' OR f.prosecdef))
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE p.proname = ANY(%s) AND p.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
        AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND NOT EXISTS (SELECT FROM pg_depend AS d
            WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e')
"""
_TABLES = """
    SELECT c.relname FROM pg_class AS c WHERE c.relname = ANY(%s) AND c.relnamespace = 'pg_catalog'::regnamespace
        AND c.relkind IN ('r', 'v') AND NOT has_table_privilege('public', c.oid, 'SELECT')
"""
# Keywords of bodies that do more than compute and read.
_DOES = frozenset(
    "ALTER CALL COMMIT COPY CREATE DELETE DISCARD DO DROP EXECUTE GRANT IMPORT INSERT LISTEN LOAD MERGE NOTIFY PREPARE"
    " REFRESH REINDEX RESET REVOKE ROLLBACK SECURITY SET TRUNCATE UPDATE VACUUM".split()
)


class ReachingError(StepError):
    """A statement calls or reads an object that the farm must not use."""


def pieces(statement: str) -> list[re.Match[str]]:
    """Split a statement into pieces; comments are left out.

    Raises:
        StepError: PostgreSQL could split the statement differently.
    """
    found = list(_PIECE.finditer(statement))
    for match in found:
        text = match.group(0)
        # PostgreSQL's comments can be nested.
        is_nested = match.lastgroup == "comment" and text.startswith("/*") and "/*" in text[2:]
        is_escaped = text in ("u", "U") and _ESCAPED.match(statement, match.end())
        is_joined = match.lastgroup == "number" and statement[match.end() : match.end() + 1] in ("'", '"')
        if is_nested or is_escaped or is_joined:
            raise StepError(f"text that can be read in two ways: {short(statement)}")
    return [match for match in found if match.lastgroup != "comment"]


def plain(piece: re.Match[str]) -> str:
    """Return a piece, unquoted if it is a name."""
    return piece.group(0)[1:-1].replace('""', '"') if piece.lastgroup == "name" else piece.group(0)


def depths(listed: list[re.Match[str]]) -> list[int]:
    """Count the open brackets at each piece. A closing bracket lies outside of its pair."""
    depth, found = 0, []
    for piece in listed:
        depth += (piece.group(0) == "(") - (piece.group(0) == ")")
        found.append(depth)
    return found


def short(statement: str) -> str:
    """Return a statement in one line that fits into a message."""
    text = " ".join(statement.split())
    return text if len(text) <= 100 else text[:97] + "..."


def refuse_reaching(connection: Connection, statement: str, table: str) -> None:
    """Refuse a statement that names a forbidden function or table, also in the body of a routine.

    Args:
        connection: Connection to the replica, whose catalog describes functions.
        statement: One statement in PostgreSQL's dialect.
        table: The object of the statement, for errors.

    Raises:
        ReachingError: The statement names one; the message names it, too.
    """
    groups = _groups(pieces(statement))
    called = _called(groups)
    # A name in another schema, perhaps a table's, is not one of the server's own functions.
    built_in = {name for name, schema in called if schema in (None, "pg_catalog")}
    named = {_folded(p) for group in groups for p in group if p.lastgroup in ("name", "word")}
    names = sorted({name for name, _ in called})
    reached = [row[0] for row in fetch(connection, _FUNCTIONS, [names, _HARMLESS, sorted(built_in)])]
    reached += [name for name in names if _BY_TEXT.search(name)]
    if reached:
        message = f"the farm must not call function {sorted(reached)[0]}: {short(statement)}"
        raise ReachingError(message, table=table)
    if hidden := fetch(connection, _TABLES, [sorted(named)]):
        message = f"the farm must not read table pg_catalog.{hidden[0][0]}: {short(statement)}"
        raise ReachingError(message, table=table)


def routines(connection: Connection, statement: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the routines of the database that a statement may call, also in the body of a routine.

    Args:
        connection: Connection to the replica.
        statement: One statement in PostgreSQL's dialect.

    Yields:
        Name and definition ("" for an aggregate) of each, and whether it is harmless: PUBLIC may call it, and it
        changes nothing.
    """
    called = _called(_groups(pieces(statement)))
    for schema, name, definition, is_quiet in fetch(connection, _ROUTINES, [sorted({name for name, _ in called})]):
        if {(name, schema), (name, None)} & called:
            yield f"{schema}.{name}", definition or "", is_quiet


def does(statement: str) -> str | None:
    """Return the forbidden action of a routine's body, or that it cannot be parsed; None if it is harmless."""
    listed = pieces(statement)
    words = [piece.group(0).upper() if piece.lastgroup == "word" else "" for piece in listed]
    bodies = [piece for piece in listed if piece.lastgroup == "string"]
    starts = [at for at, word in enumerate(words) if word == "AS"]
    following = [listed[at + 1] for at in starts if at + 1 < len(listed)]
    inside: list[re.Match[str]] = []
    if "ATOMIC" in words:
        inside = listed[words.index("ATOMIC") :]
    elif "RETURN" in words:
        inside = listed[words.index("RETURN") :]
    for piece in bodies:
        if piece not in following:
            continue
        # Adjacent texts are one text to PostgreSQL; E'' has escapes.
        place = listed.index(piece) + 1
        is_joined = place < len(listed) and listed[place].lastgroup == "string"
        text = _content(piece)
        if text is None or is_joined:
            return "cannot be read"
        inside += pieces(text)
    found = [p.group(0).upper() for p in inside if p.lastgroup == "word" and p.group(0).upper() in _DOES]
    return f"does {found[0]}" if found else None


def _is_routine(listed: list[re.Match[str]]) -> bool:
    return any(piece.group(0).upper() in ("FUNCTION", "PROCEDURE", "ROUTINE") for piece in listed[:4])


def _groups(listed: list[re.Match[str]]) -> list[list[re.Match[str]]]:
    """Return a statement's pieces, and those of its texts that may be bodies: other texts are data."""
    texts = [_content(piece) for piece in listed if piece.lastgroup == "string"] if _is_routine(listed) else []
    return [listed, *(_quietly(text) for text in texts if text is not None)]


def _called(groups: Iterable[list[re.Match[str]]]) -> set[tuple[str, str | None]]:
    """Return the names before an opening bracket, with their schemas if given."""
    found = set()
    for group in groups:
        for at, (one, after) in enumerate(pairwise(group)):
            if after.group(0) == "(" and one.lastgroup in ("name", "word"):
                is_qualified = at >= 2 and group[at - 1].group(0) == "."
                found.add((_folded(one), _folded(group[at - 2]) if is_qualified else None))
    return found


def _folded(piece: re.Match[str]) -> str:
    return plain(piece) if piece.lastgroup == "name" else piece.group(0).lower()


def _content(piece: re.Match[str]) -> str | None:
    """Return the text of a string; None if it has escapes."""
    text = piece.group(0)
    if text[0] == "$":
        length = len(piece.group("tag") or "") + 2
        return text[length:-length]
    return text[1:-1].replace("''", "'") if text[0] == "'" else None


def _quietly(text: str) -> list[re.Match[str]]:
    """Split a text that may be a body; an ambiguous text has no pieces."""
    try:
        return pieces(text)
    except StepError:
        return []


_VERBS = r"(?:CREATE (?:OR REPLACE )?|ALTER |DROP |COMMENT ON |REFRESH )"
_HOLD_ROWS = r"(?:(?:UNLOGGED )?TABLE|SCHEMA|SEQUENCE|TYPE|DOMAIN)"
_HOLD_NONE = r"(?:(?:UNIQUE )?INDEX|(?:RECURSIVE )?VIEW|MATERIALIZED VIEW|FUNCTION|PROCEDURE|ROUTINE|COLUMN|CONSTRAINT)"
_ALLOWED = re.compile(rf"{_VERBS}(?:{_HOLD_ROWS}|{_HOLD_NONE})\b(?: (?:IF|NOT|EXISTS|ONLY|CONCURRENTLY)\b)*")
_MAY_BE_LEFT_OUT = re.compile(rf"(?:COMMENT ON \w+|{_VERBS}{_HOLD_NONE})\b")
_ROUTINE = re.compile(rf"{_VERBS}(?:FUNCTION|PROCEDURE|ROUTINE)\b")
_OURS = frozenset({"wlc", "wlr"})
# Actions after the name of an altered table. Masters record no other changes of tables.
_ALTERED = (
    "RENAME",
    "SET SCHEMA",
    "ADD",
    "DROP",
    "ALTER",
    "ATTACH PARTITION",
    "DETACH PARTITION",
    "INHERIT",
    "NO INHERIT",
)


def check(connection: Connection, statement: str, table: str) -> None:
    """Refuse a statement that is no ordinary schema change.

    Args:
        connection: Connection to the replica.
        statement: A text in PostgreSQL's dialect. The protocol ensures that it is a single statement.
        table: The object of the statement, for errors.

    Raises:
        StepError: The statement is of another kind, or changes an object of dbfarm or PostgreSQL.
    """
    listed, words = pieces(statement), _words(statement)
    found = _ALLOWED.match(words)
    if not found or _does_more(found.group(0), listed, words.split()):
        raise StepError(f"not a change of the database's schema: {short(statement)}", table=table)
    refuse_own(statement, table)
    names = [plain(piece) for piece in listed]
    following = [*names[1:], ""]
    first = len(found.group(0).split())
    schemas = set()
    if first < len(names) and (following[first] == "." or " SCHEMA" in found.group(0)):
        schemas.add(names[first])
    schemas |= {after for name, after in zip(names, following, strict=True) if name.upper() == "SCHEMA"}
    _refuse(filter(is_own, schemas), statement, table)
    refuse_reaching(connection, statement, table)


def refuse_own(statement: str, table: str) -> None:
    """Refuse a statement that names an object in the schemas of dbfarm; arguments and errors as of `check`."""
    names = [plain(piece) for piece in pieces(statement)]
    _refuse((name for name, after in pairwise(names) if after == "." and name.lower() in _OURS), statement, table)


def _refuse(schemas: Iterable[str], statement: str, table: str) -> None:
    if own := sorted(schemas):
        raise StepError(f"the farm must not change schema {own[0]}: {short(statement)}", table=table)


def _does_more(kind: str, listed: list[re.Match[str]], words: list[str]) -> bool:
    """Return whether a statement of an allowed kind has an action that masters never record."""
    at = len(kind.split()) + 1
    while at + 1 < len(listed) and listed[at].group(0) == ".":
        at += 2
    rest = words[at:]
    if kind.startswith("CREATE SCHEMA"):
        return bool(rest)
    levels = depths(listed[at:])
    if re.match(r"CREATE.* TABLE\b", kind):
        # Only columns in brackets and PARTITION BY may follow: no query, and no other table's columns.
        outside = [word for word, depth in zip(rest, levels, strict=True) if depth == 0][1:]
        return not listed[at:] or listed[at].group(0) != "(" or outside[:2] not in ([], ["PARTITION", "BY"])
    if kind.startswith("ALTER TABLE"):
        starts = [0, *(n + 1 for n, p in enumerate(listed[at:]) if p.group(0) == "," and levels[n] == 0)]
        actions = (" ".join(rest[start : start + 2]) for start in starts)
        return not all(action.startswith(_ALTERED) for action in actions)
    return False


def cause_to_leave_out(connection: Connection, statement: str, table: str) -> str | None:
    """Check a statement; arguments as of `check`.

    Returns:
        Why a statement about an object without rows is not run; None if the statement is run.

    Raises:
        StepError: The statement is not run, and rows may depend on it.
    """
    try:
        check(connection, statement, table)
        if (cause := left_out(statement)) or _words(statement).startswith("DROP "):
            return cause
        refuse_owners(connection, statement, table)
    except StepError as error:
        if not may_be_left_out(statement):
            raise
        return error.cause
    return None


def left_out(statement: str) -> str | None:
    """Return why a checked statement is not run: its routine could exceed the caller's rights. None if it is run."""
    words = _words(statement)
    if words.startswith("ALTER") and " OWNER TO " in words:
        return "each server decides on the owners of objects"
    if not _ROUTINE.match(words):
        return None
    languages = set(re.findall(r"\bLANGUAGE (\w+|\?)", words))
    if not words.startswith(("DROP", "COMMENT", "ALTER")) and not (languages and languages <= {"SQL", "PLPGSQL"}):
        return "a replica has only routines in SQL and PL/pgSQL"
    if "SECURITY DEFINER" in words:
        return "it would run with the privileges of its owner"
    cause = does(statement) if words.startswith("CREATE") else None
    return f"its body {cause}, and it could be called for every row" if cause else None


def refuse_owners(connection: Connection, statement: str, table: str) -> None:
    """Refuse a checked statement that calls a routine which the farm could not have created.

    Raises:
        ReachingError: It calls such a routine.
    """
    open_, seen = [statement], set[str]()
    while open_:
        for name, definition, is_quiet in routines(connection, open_.pop()):
            if is_quiet or definition in seen:
                continue
            if not definition or left_out(definition):
                cause = f"routine {name} belongs to the replica's owner, and the farm must not call it"
                raise ReachingError(f"{cause}: {short(statement)}", table=table)
            seen.add(definition)
            open_.append(definition)


def view_of(statement: str) -> Name | None:
    """Return the view, materialized or not, that a checked statement creates or replaces; None without one."""
    found = _ALLOWED.match(_words(statement))
    if not found or not re.match(r"CREATE .*\bVIEW\b", found.group(0)):
        return None
    listed = pieces(statement)[len(found.group(0).split()) :]
    parts = [piece for piece in listed[:3] if piece.group(0) != "."] if listed[1].group(0) == "." else listed[:1]
    names = [plain(piece) if piece.lastgroup == "name" else piece.group(0).lower() for piece in parts]
    # The search path of statements from the farm.
    return Name(names[0] if len(names) == 2 else "public", names[-1])


def may_be_left_out(statement: str) -> bool:
    """Return whether the statement is about an object without rows, which a replica does not need."""
    return _MAY_BE_LEFT_OUT.match(_words(statement)) is not None


def _words(statement: str) -> str:
    """Return the statement's words in capitals, with `?` for all other pieces."""
    return " ".join(m.group(0).upper() if m.lastgroup == "word" else "?" for m in pieces(statement))

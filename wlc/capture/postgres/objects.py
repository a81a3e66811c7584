"""Changes of what is no table (schemas, types, sequences, functions, indexes, views) as statements.

The event triggers describe such an object before and after, as they do with tables; what happened is the difference.
How the change was typed does not matter: alone, in a script, or inside a function.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wlc.capture.postgres.ddl import POSTGRES, sequence_options
from wlc.dialect.sql import literal, quote
from wlc.farm.model import Ddl, Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wlc.capture.postgres.described import DescribedObject

EXTENSION = "CREATE EXTENSION"
# Those that a PostgreSQL replica ought to have.
KINDS = {"index", "view", "materialized view", "sequence", "type", "domain", "function", "procedure", "aggregate"}
_REPLACED = ("view", "function", "procedure")


def changed(old: DescribedObject | None, new: DescribedObject | None) -> Iterator[Ddl]:
    """Bring an object from one description to the next.

    Args:
        old: As it was; None if it is new.
        new: As it is; None if it was dropped.
    """
    if old is None and new is not None:
        yield from create(new)
    elif new is None and old is not None:
        yield from _dropped(old)
    elif old is not None and new is not None:
        yield from _altered(old, new)


def is_left_out(new: DescribedObject) -> bool:
    """Say whether an object was made that a PostgreSQL replica cannot have."""
    return new.kind in KINDS and new.definition is None and not _is_part(new)


def qualified(found: DescribedObject) -> Name:
    """Return its name, that of a function without arguments."""
    return Name(found.schema, found.name)


def schema(name: str) -> Ddl:
    """Create a schema."""
    statement = f"CREATE SCHEMA IF NOT EXISTS {quote(name)}"
    return Ddl("CREATE SCHEMA", Name(name, name), statement, original=statement)


def extension(name: str) -> Ddl:
    """Say that tables, indexes, views or types need an extension; only a superuser of a replica creates it."""
    statement = f"{EXTENSION} IF NOT EXISTS {quote(name)}"
    return Ddl(EXTENSION, Name(name, name), statement, dialect=POSTGRES)


def create(new: DescribedObject) -> Iterator[Ddl]:
    """Make an object."""
    if new.kind == "schema":
        yield schema(new.schema)
    elif new.kind == "sequence":
        statement = _duckdb_sequence(new, "CREATE SEQUENCE IF NOT EXISTS")
        yield Ddl("CREATE SEQUENCE", qualified(new), statement, original=_own(new, str(new.definition)))
    elif new.definition is not None and not _is_part(new):
        yield _postgres(f"CREATE {new.kind.upper()}", new, new.definition)


def refresh(view: DescribedObject) -> Ddl:
    """Fill a materialized view that was created before the rows that it reads."""
    return _postgres("REFRESH MATERIALIZED VIEW", view, f"REFRESH MATERIALIZED VIEW {view.identity}")


def _dropped(old: DescribedObject) -> Iterator[Ddl]:
    kind = old.kind.upper()
    # The index of a partition goes with the one above it.
    if old.definition is None or _is_part(old):
        return
    text = f"DROP {kind} IF EXISTS {old.identity} CASCADE"
    if old.kind in ("schema", "sequence"):
        # The sequence of an identity column goes with the identity.
        original = _own(old, text) if old.kind == "sequence" else text
        yield Ddl(f"DROP {kind}", qualified(old), text, original=original)
    else:
        yield _postgres(f"DROP {kind}", old, text)


def _altered(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    if new.kind in ("sequence", "schema"):
        yield from _altered_sequence(old, new) if new.kind == "sequence" else _renamed_schema(old, new)
        return
    if _is_part(old) or _is_part(new):
        return
    if old.definition is None or new.definition is None:
        yield from (*_dropped(old), *create(new))
        return
    yield from _moved(old, new)
    yield from _altered_parts(old, new)
    if new.kind in _REPLACED and old.definition != new.definition:
        yield _postgres(f"CREATE {new.kind.upper()}", new, new.definition)


def _altered_parts(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    match new.kind:
        case "type" if " AS ENUM (" in str(new.definition):
            yield from _altered_enum(old, new)
        case "type" if new.parts is not None:
            yield from _altered_composite(old, new)
        case "domain":
            yield from _altered_domain(old, new)
        case "view" | "materialized view":
            for before, after in zip(old.parts, new.parts, strict=False):
                if before != after:
                    yield _alter(new, f"RENAME COLUMN {quote(before)} TO {quote(after)}")


def _moved(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    """Rename an object, and move it to another schema. Indexes move with their tables."""
    arguments = _arguments(old)
    schema_name, name = old.schema, old.name
    if new.schema != schema_name and new.kind != "index":
        where = f"{quote(schema_name)}.{quote(name)}{arguments}"
        yield _postgres(
            f"ALTER {new.kind.upper()}", new, f"ALTER {new.kind.upper()} {where} SET SCHEMA {quote(new.schema)}"
        )
    if new.name != name:
        where = f"{quote(new.schema)}.{quote(name)}{arguments}"
        renamed = f"ALTER {new.kind.upper()} {where} RENAME TO {quote(new.name)}"
        yield _postgres(f"ALTER {new.kind.upper()}", new, renamed)


def _renamed_schema(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    """Rename a schema without tables and sequences. DuckDB has no statement for that."""
    if old.name != new.name:
        renamed = f"ALTER SCHEMA {quote(old.name)} RENAME TO {quote(new.name)}"
        yield Ddl("DROP SCHEMA", qualified(old), f"DROP SCHEMA IF EXISTS {quote(old.name)}", original="")
        yield replace(schema(new.name), original=renamed)


def _altered_enum(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    labels = dict(old.parts)
    for oid, label in new.parts:
        if oid in labels and labels[oid] != label:
            yield _alter(new, f"RENAME VALUE {literal(labels[oid])} TO {literal(label)}")
    before: str | None = None
    for oid, label in new.parts:
        if oid not in labels:
            first = next((text for number, text in new.parts if number in labels), None)
            place = f" AFTER {literal(before)}" if before is not None else f" BEFORE {literal(first)}" if first else ""
            yield _alter(new, f"ADD VALUE {literal(label)}{place}")
        before = label


def _altered_composite(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    before = {number: rest for number, *rest in old.parts}
    after = {number for number, *_ in new.parts}
    for number, (name, *_) in before.items():
        if number not in after:
            yield _alter(new, f"DROP ATTRIBUTE IF EXISTS {quote(name)} CASCADE")
    for number, name, kind, declared in new.parts:
        if number not in before:
            yield _alter(new, f"ADD ATTRIBUTE {quote(name)} {kind}")
            continue
        name_before, _, declared_before = before[number]
        if name_before != name:
            yield _alter(new, f"RENAME ATTRIBUTE {quote(name_before)} TO {quote(name)}")
        if declared_before != declared:
            yield _alter(new, f"ALTER ATTRIBUTE {quote(name)} TYPE {kind}")


def _altered_domain(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    before, after = old.parts["constraints"], new.parts["constraints"]
    for oid, (name, _) in before.items():
        if oid not in after:
            yield _alter(new, f"DROP CONSTRAINT IF EXISTS {quote(name)}")
    if old.parts["default"] != new.parts["default"]:
        default = new.parts["default"]
        yield _alter(new, "DROP DEFAULT" if default is None else f"SET DEFAULT {default}")
    if old.parts["is_required"] != new.parts["is_required"]:
        yield _alter(new, "SET NOT NULL" if new.parts["is_required"] else "DROP NOT NULL")
    for oid, (name, definition) in after.items():
        if oid not in before:
            yield _alter(new, f"ADD CONSTRAINT {quote(name)} {definition}")
        elif before[oid][0] != name:
            yield _alter(new, f"RENAME CONSTRAINT {quote(before[oid][0])} TO {quote(name)}")


def _altered_sequence(old: DescribedObject, new: DescribedObject) -> Iterator[Ddl]:
    """Alter a sequence. DuckDB can neither rename nor alter one; its value follows at the end of the batch."""
    was, now = (found.parts["is_identity"] for found in (old, new))
    if old.identity != new.identity:
        yield Ddl("DROP SEQUENCE", qualified(old), f"DROP SEQUENCE IF EXISTS {old.identity}", original="")
        if not now:
            yield from _moved(old, new)
    # The sequence of an identity column is made, and dropped, with the identity.
    if was == now:
        text = str(new.definition).replace("CREATE SEQUENCE", "ALTER SEQUENCE", 1)
        text = f"{text} RESTART WITH {new.parts['start']}"
        is_same = (old.parts["type"], old.parts["options"]) == (new.parts["type"], new.parts["options"])
        replaced = _duckdb_sequence(new, "CREATE OR REPLACE SEQUENCE")
        yield Ddl("CREATE SEQUENCE", qualified(new), replaced, original="" if is_same else _own(new, text))


def _duckdb_sequence(new: DescribedObject, verb: str) -> str:
    options = (option for option in sequence_options(new.parts["options"]) if not option.startswith("CACHE"))
    return f"{verb} {qualified(new).sql} {' '.join(options).replace('START WITH', 'START')}"


def _own(new: DescribedObject, text: str) -> str:
    return "" if new.parts["is_identity"] else text


def _is_part(found: DescribedObject) -> bool:
    """Say whether it is the index of a partition, which comes and goes with the index of the table above."""
    return found.kind == "index" and bool(found.parts["is_part"])


def _arguments(found: DescribedObject) -> str:
    if found.kind not in ("function", "procedure", "aggregate"):
        return ""
    return found.identity[len(found.identity.partition("(")[0]) :]


def _alter(new: DescribedObject, what: str) -> Ddl:
    kind = f"ALTER {new.kind.upper()}"
    return _postgres(kind, new, f"{kind} {new.identity} {what}")


def _postgres(kind: str, found: DescribedObject, statement: str) -> Ddl:
    return Ddl(kind, qualified(found), statement, dialect=POSTGRES)

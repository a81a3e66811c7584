"""Privileges and row security of a PostgreSQL master as statements for replicas.

The event triggers describe privileges and row security of an object before and after a command, like tables: see
`wlc.describe_access` in access.sql. An owner's rights are not included.

Messages of the event triggers of a PostgreSQL master in its log, see functions.sql.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from wlc.capture.postgres.described import DescribedObject, DescribedTable
from wlc.capture.postgres.effects import POSTGRES
from wlc.dialect.sql import quote
from wlc.farm.model import AlteredObject, CreatedObject, DbObject, Ddl, DroppedObject, Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wlc.farm.model import DdlEffect


class Grant(NamedTuple):
    """A privilege of a role.

    Attributes:
        role: None for PUBLIC.
        column: Number of the column, 0 for the whole object.
        is_grantable: The role may grant it to others.
    """

    role: str | None
    privilege: str
    column: int
    is_grantable: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """A row security policy: rows that roles see, or may write.

    Attributes:
        roles: None among them is PUBLIC.
        command: Such as "SELECT", or "ALL".
    """

    name: str
    is_permissive: bool
    roles: tuple[str | None, ...]
    command: str
    using: str | None
    check: str | None


@dataclass(frozen=True, slots=True)
class DescribedAccess:
    """Access to a table, view, sequence, routine or schema.

    Attributes:
        identity: Qualified name as the server writes it, with the arguments of a routine.
        arguments: Types of the arguments of a routine; None for everything else.
        owner: Number of the role.
        is_hidden: A view that would show more in a replica than in the master: no role may read it there.
        columns: Names of all columns of a table or view, by number.
        is_secured: Row security is on.
        is_forced: It is on for the owner, too.
        policies: By number.
    """

    kind: str
    schema: str
    name: str
    identity: str
    owner: int
    grants: tuple[Grant, ...]
    is_hidden: bool
    columns: Mapping[int, str]
    is_secured: bool
    is_forced: bool
    policies: Mapping[str, Policy]
    arguments: tuple[str, ...] | None

    @classmethod
    def read(cls, content: Mapping[str, object]) -> DescribedAccess:
        """Read what an event trigger wrote."""
        found: dict[str, object] = {"columns": {}, "is_secured": False, "is_forced": False, "policies": {}}
        found |= {"arguments": None, **content}
        found["grants"] = tuple(Grant(*grant) for grant in found["grants"])  # type: ignore[attr-defined]
        found["columns"] = {int(number): name for number, name in found["columns"].items()}  # type: ignore[attr-defined]
        found["policies"] = {
            oid: Policy(**{**policy, "roles": tuple(policy["roles"])})
            for oid, policy in found["policies"].items()  # type: ignore[attr-defined]
        }
        found["arguments"] = None if found["arguments"] is None else tuple(found["arguments"])  # type: ignore[arg-type]
        return cls(**found)  # type: ignore[arg-type]

    @property
    def object(self) -> DbObject:
        """The object."""
        return DbObject(self.kind, self.qualified, self.arguments)

    @property
    def qualified(self) -> Name:
        """Its qualified name, that of a routine without arguments."""
        return Name(self.schema, self.name)

    @property
    def sql(self) -> str:
        """The object as GRANT names it."""
        if self.kind in ("FUNCTION", "PROCEDURE"):
            return f"{self.kind} {self.qualified.sql}{self.identity[len(self.identity.partition('(')[0]) :]}"
        if self.kind == "SCHEMA":
            return f"SCHEMA {quote(self.name)}"
        return f"{'TABLE' if self.kind.endswith('VIEW') else self.kind} {self.qualified.sql}"

    @property
    def granted(self) -> set[Grant]:
        """The privileges that replicas grant, too."""
        return {grant for grant in self.grants if not self.is_hidden and _is_carried(self.kind, grant.privilege)}


def changed(old: DescribedAccess | None, new: DescribedAccess) -> Iterator[Ddl]:
    """Yield the statements from one description of an object's access to the next.

    Revocations come first.

    Args:
        old: As it was; None if the object is new.
        new: As it is.
    """
    if new.is_secured and not (old and old.is_secured):
        yield _security(new, "ENABLE")
    before = old.granted if old else _of_new(new)
    yield from _grants(new, before - new.granted, "REVOKE")
    yield from _changed_policies(old, new)
    if (old.is_forced if old else False) != new.is_forced:
        yield _security(new, "FORCE" if new.is_forced else "NO FORCE")
    if old and old.is_secured and not new.is_secured:
        yield _security(new, "DISABLE")
    yield from _grants(new, new.granted - before, "GRANT")


def _is_carried(kind: str, privilege: str) -> bool:
    # A role that creates objects in a replica's schemas could create ones that conflict with the replica.
    return privilege == "USAGE" if kind == "SCHEMA" else True


def _of_new(new: DescribedAccess) -> set[Grant]:
    """Return the privileges that PUBLIC has on an object that was just created."""
    if new.kind in ("FUNCTION", "PROCEDURE"):
        return {Grant(None, "EXECUTE", 0, False)}
    # Every database has this schema.
    is_public = new.kind == "SCHEMA" and new.name == "public"
    return {Grant(None, "USAGE", 0, False)} if is_public else set()


def _grants(new: DescribedAccess, grants: Iterable[Grant], verb: str) -> Iterator[Ddl]:
    """Yield a statement for each role. Privileges on dropped columns no longer exist."""
    found: dict[tuple[str | None, bool], list[str]] = defaultdict(list)
    for role, privilege, column, is_grantable in sorted(grants, key=lambda grant: (grant.role or "", *grant[1:])):
        if column and column not in new.columns:
            continue
        found[role, is_grantable].append(f"{privilege} ({quote(new.columns[column])})" if column else privilege)
    for (role, is_grantable), privileges in found.items():
        to = "PUBLIC" if role is None else quote(role)
        end = f"TO {to}{' WITH GRANT OPTION' if is_grantable else ''}" if verb == "GRANT" else f"FROM {to} CASCADE"
        yield _altered(new, verb, f"{verb} {', '.join(privileges)} ON {new.sql} {end}")


def _changed_policies(old: DescribedAccess | None, new: DescribedAccess) -> Iterator[Ddl]:
    before = old.policies if old else {}
    for oid, policy in before.items():
        if new.policies.get(oid) != policy:
            statement = f"DROP POLICY IF EXISTS {quote(policy.name)} ON {new.qualified.sql}"
            yield _only(new, "DROP POLICY", statement, DroppedObject(_policy(new, policy), new.qualified))
    for oid, policy in new.policies.items():
        if before.get(oid) != policy:
            does = CreatedObject(_policy(new, policy), of=new.qualified)
            yield _only(new, "CREATE POLICY", _policy_sql(new, policy), does)


def _policy(new: DescribedAccess, policy: Policy) -> DbObject:
    return DbObject("POLICY", Name(new.schema, policy.name))


def _policy_sql(new: DescribedAccess, policy: Policy) -> str:
    kind = "PERMISSIVE" if policy.is_permissive else "RESTRICTIVE"
    roles = ", ".join("PUBLIC" if role is None else quote(role) for role in policy.roles)
    text = f"CREATE POLICY {quote(policy.name)} ON {new.qualified.sql} AS {kind} FOR {policy.command} TO {roles}"
    using = f" USING ({policy.using})" if policy.using is not None else ""
    return text + using + (f" WITH CHECK ({policy.check})" if policy.check is not None else "")


def _security(new: DescribedAccess, verb: str) -> Ddl:
    return _altered(new, "ALTER TABLE", f"ALTER TABLE {new.qualified.sql} {verb} ROW LEVEL SECURITY")


def _altered(new: DescribedAccess, kind: str, statement: str) -> Ddl:
    return _only(new, kind, statement, AlteredObject(new.object))


def _only(new: DescribedAccess, kind: str, statement: str, does: DdlEffect) -> Ddl:
    return Ddl(kind, new.qualified, statement, dialect=POSTGRES, does=(does,))


@dataclass(frozen=True, slots=True)
class TableChanged:
    """A table was altered, created (there is no old description) or dropped (there is no new one)."""

    table: int
    old: DescribedTable | None
    new: DescribedTable | None


@dataclass(frozen=True, slots=True)
class ResendBegun:
    """All rows of a table follow once more."""

    resend: int


@dataclass(frozen=True, slots=True)
class ResendEnded:
    """All rows of a table have followed."""

    resent: int


@dataclass(frozen=True, slots=True)
class ObjectChanged:
    """An object that is no table was altered, created (there is no old description) or dropped (there is no new one).

    Attributes:
        object: Its number.
        tag: Of the command, such as "CREATE VIEW".
        user: Who sent it.
    """

    object: int
    tag: str
    old: DescribedObject | None
    new: DescribedObject | None
    user: str


@dataclass(frozen=True, slots=True)
class AccessChanged:
    """Privileges or row security of an object changed; a new object has no old description.

    Attributes:
        access: Number of the table or object.
        user: Who sent the command.
    """

    access: int
    old: DescribedAccess | None
    new: DescribedAccess
    user: str


TriggerMessage = TableChanged | ResendBegun | ResendEnded | ObjectChanged | AccessChanged


def read_message(text: str | bytes) -> TriggerMessage:
    """Read a message."""
    content = json.loads(text)
    if "table" in content:
        old, new = (DescribedTable.read(content[name]) if content[name] else None for name in ("old", "new"))
        return TableChanged(content["table"], old, new)
    for kind, key in ((ResendBegun, "resend"), (ResendEnded, "resent")):
        if key in content:
            return kind(**content)
    if "access" in content:
        found = DescribedAccess.read(content["old"]) if content["old"] else None
        return AccessChanged(content["access"], found, DescribedAccess.read(content["new"]), content["user"])
    described = {name: DescribedObject(**content[name]) if content[name] else None for name in ("old", "new")}
    return ObjectChanged(**{**content, **described})


def shown(text: str | bytes) -> str:
    """Return a message, shortened for an error."""
    found = text.decode(errors="replace") if isinstance(text, bytes) else text
    return found if len(found) <= 300 else f"{found[:300]} …"

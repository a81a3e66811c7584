"""Privileges and row security from a PostgreSQL master, for the roles of the replica's server.

A text from the farm is parsed, and the statement to run is composed of its parts. It may concern replicated tables, and
views that show only their rows; the farm cannot grant privileges on objects of the replica's owner.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wlc.dialect.sql import quote
from wlc.farm.model import Name
from wlr.engine.postgres import permitted_ddl
from wlr.engine.postgres.catalog import is_own, views_over
from wlr.engine.postgres.permitted_ddl import ReachingError, refuse_reaching, short
from wlr.engine.postgres.replica_connection import applying, fetch, run, run_foreign
from wlr.replay.ddl import left_out
from wlr.replay.plan.failure import StepError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from wlc.dialect.postgres.server_connection import Connection
    from wlr.engine.postgres.replica_connection import Address

_NAME = r'"(?:[^"]|"")+"'
_PRIVILEGE = rf"(?:SELECT|INSERT|UPDATE|DELETE|TRUNCATE|REFERENCES|USAGE|EXECUTE)(?: \({_NAME}\))?"
_GRANTED = re.compile(
    rf"(?P<verb>GRANT|REVOKE) (?P<privileges>{_PRIVILEGE}(?:, {_PRIVILEGE})*)"
    rf" ON (?:(?P<kind>TABLE|SEQUENCE) (?P<object>{_NAME}\.{_NAME})|SCHEMA (?P<schema>{_NAME})"
    rf"|(?P<called>FUNCTION|PROCEDURE) (?P<routine>{_NAME}\.{_NAME})(?P<arguments>\(.*\)))"
    rf" (?:TO|FROM) (?P<role>PUBLIC|{_NAME})(?P<option> WITH GRANT OPTION| CASCADE)?",
    re.DOTALL,
)
_SECURED = re.compile(
    rf"ALTER TABLE (?P<table>{_NAME}\.{_NAME}) (?P<verb>ENABLE|DISABLE|FORCE|NO FORCE) ROW LEVEL SECURITY"
)
_POLICY = re.compile(
    rf"CREATE POLICY (?P<policy>{_NAME}) ON (?P<table>{_NAME}\.{_NAME}) AS (?P<mode>PERMISSIVE|RESTRICTIVE)"
    rf" FOR (?P<command>ALL|SELECT|INSERT|UPDATE|DELETE) TO (?P<roles>(?:PUBLIC|{_NAME})(?:, (?:PUBLIC|{_NAME}))*)"
    r"(?P<conditions>(?: USING \(.*\))?(?: WITH CHECK \(.*\))?)",
    re.DOTALL,
)
_DROPPED = re.compile(rf"DROP POLICY IF EXISTS (?P<policy>{_NAME}) ON (?P<table>{_NAME}\.{_NAME})")
_WITHHELD = "this replica takes none from its farm: give it --access if the farm's writers may grant rights"
# All tables that a view reads, directly or not, except the server's catalog, which all roles read as far as allowed.
_READS = """
    WITH RECURSIVE found AS (
        SELECT to_regclass(%s)::oid AS oid
        UNION SELECT d.refobjid FROM found f JOIN pg_rewrite w ON w.ev_class = f.oid
        JOIN pg_depend d ON d.objid = w.oid
        WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass)
    SELECT n.nspname, c.relname FROM found JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""
# Roles other than the owner with privileges on a table or view, or its columns.
_USERS = """
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
    FROM pg_class c,
        LATERAL (SELECT c.relacl AS acl UNION ALL SELECT attacl FROM pg_attribute WHERE attrelid = c.oid) l,
        aclexplode(l.acl) a WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner ORDER BY 1
"""
# The tables that own a sequence, or use it in defaults.
_SEQUENCE_OF = """
    SELECT n.nspname, c.relname FROM pg_depend d LEFT JOIN pg_attrdef f ON f.oid = d.objid
    JOIN pg_class c ON c.oid = CASE d.classid WHEN 'pg_attrdef'::regclass THEN f.adrelid ELSE d.refobjid END
    JOIN pg_namespace n ON n.oid = c.relnamespace, (SELECT to_regclass(%s)::oid AS oid) q
    WHERE d.refclassid = 'pg_class'::regclass AND (d.classid = 'pg_attrdef'::regclass AND d.refobjid = q.oid
        OR d.classid = 'pg_class'::regclass AND d.objid = q.oid AND d.deptype IN ('a', 'i'))
"""
_ROUTINE = """
    SELECT p.prosecdef OR l.lanname NOT IN ('sql', 'plpgsql'), p.oid::regprocedure::text
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.oid = to_regprocedure(%s)
"""
_TABLES_IN = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'f')
"""
_OWNER = {
    "SCHEMA": "SELECT nspowner = current_user::regrole FROM pg_namespace WHERE nspname = %s",
    "ROUTINE": "SELECT proowner = current_user::regrole FROM pg_proc WHERE oid = to_regprocedure(%s)",
    "TABLE": "SELECT relowner = current_user::regrole FROM pg_class WHERE oid = to_regclass(%s)",
}
# Owner and privileges of an object, and of columns with their names.
_HELD = {
    "SCHEMA": "SELECT nspowner AS owner, nspacl AS acl, NULL::name AS name FROM pg_namespace WHERE nspname = %(what)s",
    "ROUTINE": "SELECT proowner AS owner, proacl AS acl, NULL::name AS name FROM pg_proc"
    " WHERE oid = to_regprocedure(%(what)s)",
    "TABLE": """
        SELECT relowner AS owner, relacl AS acl, NULL::name AS name FROM pg_class WHERE oid = to_regclass(%(what)s)
        UNION ALL SELECT relowner, attacl, attname FROM pg_class c JOIN pg_attribute ON attrelid = c.oid
        WHERE c.oid = to_regclass(%(what)s) AND attacl IS NOT NULL
    """,
}
# Roles that have a grant option from the owner and through which, perhaps over other roles, a role got a privilege.
_GIVERS = """
    WITH RECURSIVE held AS (
        SELECT o.owner, o.name, a.* FROM ({held}) o, aclexplode(o.acl) a
        WHERE a.privilege_type = %(privilege)s AND (o.name = %(column)s OR o.name IS NULL OR %(column)s::name IS NULL)),
    givers AS (
        SELECT grantor FROM held WHERE grantor <> owner AND (%(column)s::name IS NULL OR name = %(column)s)
            AND grantee = coalesce((SELECT oid FROM pg_roles WHERE rolname = %(role)s), 0)
        UNION SELECT h.grantor FROM held h JOIN givers g ON h.grantee = g.grantor
        WHERE h.is_grantable AND h.grantor <> h.owner)
    SELECT DISTINCT quote_ident(pg_get_userbyid(h.grantee)), coalesce(' (' || quote_ident(h.name) || ')', '')
    FROM held h JOIN givers g ON g.grantor = h.grantee WHERE h.is_grantable AND h.grantor = h.owner ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class _Object:
    """The object of a privilege: as GRANT writes it, and as messages do."""

    kind: str
    sql: str
    shown: Name

    @property
    def looked_up(self) -> tuple[str, str]:
        """The server's catalog of the object, and the key there."""
        match self.kind:
            case "TABLE" | "SEQUENCE":
                return "TABLE", self.sql
            case "SCHEMA":
                return "SCHEMA", self.shown.schema
            case _:
                return "ROUTINE", self.sql


def unknown_access(table: Name) -> str:
    """Return the entry for unknown privileges and policies of a table."""
    return f"privileges and row security of table {table}"


def is_access(statement: str) -> bool:
    """Return whether a statement is about privileges or row security, in the form that masters record."""
    return any(form.fullmatch(statement) for form in (_GRANTED, _SECURED, _POLICY, _DROPPED))


class Access:
    """Changes privileges and row security in an open transaction.

    Args:
        connection: Connection in a transaction with the role of a replica.
        address: Address of the database.
        replicated: Replicated tables.
        lacking: Objects that the replica lacks, with the causes; kept up to date.
        gives: Whether to grant roles the privileges of the farm; privileges that the farm revokes are always revoked.
    """

    def __init__(
        self,
        connection: Connection,
        address: Address,
        replicated: Collection[Name],
        lacking: dict[str, str],
        *,
        gives: bool,
    ) -> None:
        self._connection = connection
        self._address = address
        self._replicated = replicated
        self._left_out = lacking
        self._gives = gives

    def run(self, statement: str) -> None:
        """Run a statement that `is_access`, leaving out grants to roles that do not exist.

        Raises:
            StepError: It is about an object of the replica's owner, or fails.
        """
        if found := _GRANTED.fullmatch(statement):
            self._grant(found, statement)
        elif found := _SECURED.fullmatch(statement):
            self._secure(self._table(found), found["verb"])
        elif found := _POLICY.fullmatch(statement):
            self._create_policy(found, statement)
        elif found := _DROPPED.fullmatch(statement):
            table = self._table(found)
            self._forget_policy(_plain(found["policy"]), table)
            run(self._connection, f"DROP POLICY IF EXISTS {found['policy']} ON {table.sql}")

    # Privileges ------------------------------------------------------------------------------------------------------

    def _grant(self, found: re.Match[str], statement: str) -> None:
        what = self._what(found, statement)
        role = None if found["role"] == "PUBLIC" else _plain(found["role"])
        is_grant, to = found["verb"] == "GRANT", role or "PUBLIC"
        # The replica's role owns the object and needs no grant.
        if role is not None and self._is_self(role):
            return
        keys = [
            f"{one} for {to} on {what.kind.lower()} {what.shown}{found['arguments'] or ''}"
            for one in re.findall(_PRIVILEGE, found["privileges"])
        ]
        is_known = any(f" for {to} on " in known for known in self._left_out)
        for key in keys:
            self._left_out.pop(key, None)
        cause = self._cause(what, statement, is_grant=is_grant)
        if cause == "" or (is_grant and cause is not None and self._may_use(what, to)):
            # The object itself was left out for good, or nothing is missing.
            return
        if is_grant and not self._gives:
            self._withhold(keys, statement)
            return
        if role is not None and not self._exists(role):
            cause = f"role {quote(role)} does not exist here; once it does, run {statement}"
            if not is_grant:
                return
        if cause is None:
            cause = self._change(what, found, role, is_grant=is_grant)
        if cause is not None:
            if not is_known:
                warnings.warn(f"privileges of {to} are left out: {cause}", stacklevel=2)
            self._left_out.update(dict.fromkeys(keys, cause))

    def _until_there(self, what: _Object, statement: str) -> str:
        """Return the entry for privileges on a missing object that may be created later; "" without one."""
        form = re.compile(rf"(?!.* for ).* {re.escape(str(what.shown))}(?:\(.*\))?", re.DOTALL)
        is_listed = any(left_out.THEN_RUN in self._left_out[known] for known in filter(form.fullmatch, self._left_out))
        return f"{what.shown} is left out{left_out.THEN_RUN}{statement}" if is_listed else ""

    def _what(self, found: re.Match[str], statement: str) -> _Object:
        written, kind = found["object"] or found["routine"] or found["schema"], found["kind"] or found["called"]
        parts = tuple(map(_plain, re.findall(_NAME, written)))
        shown = Name(parts[0], parts[-1])
        if is_own(shown.schema):
            raise StepError(f"the farm must not change schema {shown.schema}: {short(statement)}", table=str(shown))
        return _Object(kind or "SCHEMA", written + (found["arguments"] or ""), shown)

    def _change(self, what: _Object, found: re.Match[str], role: str | None, *, is_grant: bool) -> str | None:
        """Run GRANT or REVOKE; return the cause of a failure, None on success."""
        made = f"{found['verb']} {found['privileges']} ON {what.kind} {self._resolved(what)}"
        end = f"{'TO' if is_grant else 'FROM'} {found['role']}{found['option'] or ''}"
        cause = self._tried(f"{made} {end}", is_required=not is_grant)
        if not is_grant:
            self._take_back(what, found["privileges"], role)
        return cause

    def _take_back(self, what: _Object, privileges: str, role: str | None) -> None:
        """Revoke from a role what other roles granted to it: the owner can only revoke its grants to those roles."""
        kind, asked = what.looked_up
        on = f"ON {what.kind} {self._resolved(what)}"
        for privilege, column in re.findall(rf"([A-Z]+)(?: \(({_NAME})\))?", privileges):
            named = {"what": asked, "privilege": privilege, "column": _plain(column) if column else None, "role": role}
            for giver, columns in fetch(self._connection, _GIVERS.format(held=_HELD[kind]), named):
                run(self._connection, f"REVOKE GRANT OPTION FOR {privilege}{columns} {on} FROM {giver} CASCADE")
                run(self._connection, f"GRANT {privilege}{columns} {on} TO {giver} WITH GRANT OPTION")
                message = (
                    f"{privilege} on {what.kind.lower()} {what.shown} is revoked from roles with a grant by {giver}"
                )
                warnings.warn(
                    f"{message}: {role or 'PUBLIC'} has it from there, and lost it in the master", stacklevel=2
                )

    def _withhold(self, keys: Iterable[str], statement: str) -> None:
        """List privileges that this replica does not grant."""
        if not any(cause.startswith(_WITHHELD) for cause in self._left_out.values()):
            warnings.warn(f"privileges are left out: {_WITHHELD}; wlr status lists them", stacklevel=2)
        self._left_out.update(dict.fromkeys(keys, f"{_WITHHELD}, or run {statement}"))

    def _cause(self, what: _Object, statement: str, *, is_grant: bool) -> str | None:
        """Return why privileges on an object are left out: "" if the object is, too; None if they are granted."""
        match what.kind:
            case "TABLE" if what.shown in self._replicated:
                # Without its policies, roles would see more than in the master.
                return self._left_out.get(unknown_access(what.shown)) if is_grant else None
            case "TABLE" | "SEQUENCE":
                shown = self._shown_by(what)
                if not fetch(self._connection, "SELECT to_regclass(%s)::oid", [what.sql])[0][0]:
                    # A view that could not be made.
                    return self._until_there(what, statement)
                if what.kind == "TABLE" and shown == {what.shown}:
                    raise StepError(f"table {what.shown} is not replicated: {short(statement)}")
                is_farms = shown <= set(self._replicated) and (bool(shown) or what.kind == "TABLE")
            case "SCHEMA":
                tables = fetch(self._connection, _TABLES_IN, [what.shown.schema])
                is_farms = all(Name(*row) in self._replicated for row in tables)
            case _:
                routines = fetch(self._connection, _ROUTINE, [what.sql])
                if not routines:
                    return self._until_there(what, statement)
                is_farms = not routines[0][0]
        owned, asked = what.looked_up
        owner = fetch(self._connection, _OWNER[owned], [asked])
        # A pure REVOKE needs no more rights than the replica's role has.
        is_farms = (is_farms or not is_grant) and owner == [(True,)]
        return None if is_farms else f"it does not belong to the farm alone; if you want it, run {statement}"

    def _resolved(self, what: _Object) -> str:
        """Return the object in the server's own spelling, if its text can be more than a name."""
        if what.kind in ("FUNCTION", "PROCEDURE"):
            return str(fetch(self._connection, _ROUTINE, [what.sql])[0][1])
        return what.sql

    def _shown_by(self, what: _Object) -> set[Name]:
        if what.kind == "SEQUENCE":
            return {Name(*row) for row in fetch(self._connection, _SEQUENCE_OF, [what.sql])}
        return self._read_by(what.sql)

    def _read_by(self, view: str) -> set[Name]:
        return {Name(*row) for row in fetch(self._connection, _READS, [view])}

    def refuse_owners(self, view: Name) -> None:
        """Refuse a view of the farm that reads tables of the replica's owner: later grants could expose them.

        Raises:
            StepError: The view reads such a table.
        """
        if read := sorted(self._read_by(view.sql).difference(self._replicated)):
            raise StepError(f"table {read[0]}, which it reads, is not replicated", table=str(view))

    def withdraw(self, view: Name) -> None:
        """Restrict a view that differs from the master's, and views over it, to the owner."""
        if not fetch(self._connection, "SELECT to_regclass(%s)::oid", [view.sql])[0][0]:
            return
        for one in (view, *(over for over, _, _ in views_over(self._connection, view))):
            users = [row[0] for row in fetch(self._connection, _USERS, [one.sql])]
            if users:
                run(self._connection, f"REVOKE ALL ON TABLE {one.sql} FROM {', '.join(users)} CASCADE")
                cause = f"view {view} is not as in the master; once it is, grant them again to {', '.join(users)}"
                self._leave_out(f"access to view {one}", cause)

    # Row security ----------------------------------------------------------------------------------------------------

    def _secure(self, table: Name, verb: str) -> None:
        if "FORCE" in verb:
            what = f"forced row security on table {table}"
            self._left_out.pop(what, None)
            sees_all = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
            if verb == "FORCE" and fetch(self._connection, sees_all) != [(True,)]:
                self._leave_out(what, "the replica's role owns the table, and must see all of its rows")
                return
        run(self._connection, f"ALTER TABLE {table.sql} {verb} ROW LEVEL SECURITY")

    def _create_policy(self, found: re.Match[str], statement: str) -> None:
        table, policy = self._table(found), _plain(found["policy"])
        permitted_ddl.refuse_own(statement, str(table))
        self._forget_policy(policy, table)
        roles = re.findall(rf"PUBLIC|{_NAME}", found["roles"])
        here = [role for role in roles if role == "PUBLIC" or self._exists(_plain(role))]
        missing = [_plain(role) for role in roles if role not in here]
        what = f"policy {policy} on table {table}"
        if missing:
            remedy = f"ALTER POLICY {found['policy']} ON {table.sql} TO {found['roles']}" if here else statement
            cause = f"roles that do not exist here: {', '.join(missing)}; once they do, run {remedy}"
            self._leave_out(f"policy {policy} for {', '.join(missing)} on table {table}", cause)
        if not here:
            return
        to = f"FOR {found['command']} TO {', '.join(here)}"
        made = f"CREATE POLICY {found['policy']} ON {table.sql} AS {found['mode']} {to}"
        try:
            refuse_reaching(self._connection, statement, str(table))
            permitted_ddl.refuse_owners(self._connection, statement, str(table))
            failed = self._tried(made + found["conditions"], is_required=False)
        except ReachingError as error:
            failed = error.cause
        if failed is None:
            return
        if found["mode"] == "RESTRICTIVE":
            # Without a policy, roles would see more than in the master.
            condition = "WITH CHECK" if found["command"] == "INSERT" else "USING"
            run_foreign(self._connection, f"{made} {condition} (false)")
            failed = f"{failed}; no rows are shown instead"
        self._leave_out(what, failed)

    def _forget_policy(self, policy: str, table: Name) -> None:
        for what in list(self._left_out):
            if what.startswith(f"policy {policy} ") and what.endswith(f" on table {table}"):
                del self._left_out[what]

    def _table(self, found: re.Match[str]) -> Name:
        schema, name = map(_plain, re.findall(_NAME, found["table"]))
        table = Name(schema, name)
        if table not in self._replicated:
            raise StepError(f"table {table} is not replicated: {short(found.group(0))}", table=str(table))
        return table

    # Both ------------------------------------------------------------------------------------------------------------

    def _tried(self, statement: str, *, is_required: bool) -> str | None:
        """Run a statement; return the cause of a failure, None on success."""
        try:
            with applying(self._address), self._connection.transaction():
                run_foreign(self._connection, statement)
        except StepError as error:
            if is_required:
                raise
            return f"{error.cause}: {statement}"
        return None

    def _leave_out(self, what: str, cause: str) -> None:
        self._left_out[what] = cause
        warnings.warn(f"{what} is left out: {cause}", stacklevel=2)

    def _exists(self, role: str) -> bool:
        return bool(fetch(self._connection, "SELECT 1 FROM pg_roles WHERE rolname = %s", [role]))

    def _may_use(self, what: _Object, role: str) -> bool:
        """Return whether a role may use the schema already, as all roles may use the schema public."""
        if what.kind != "SCHEMA" or not (role == "PUBLIC" or self._exists(role)):
            return False
        query = "SELECT has_schema_privilege(%s::name, %s, 'USAGE')"
        return fetch(self._connection, query, ["public" if role == "PUBLIC" else role, what.shown.schema]) == [(True,)]

    def _is_self(self, role: str) -> bool:
        return fetch(self._connection, "SELECT current_user = %s", [role]) == [(True,)]


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"')

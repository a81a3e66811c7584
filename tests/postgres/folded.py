"""The schema of a PostgreSQL master as its catalog shows it, and as the effects in its log say it, in one form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wlc.farm.model import Check, CreatedObject, Ddl, Reference, Unique
from wlc.farm.schema_fold import SchemaFold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wlc.farm.model import Manifest, TableConstraint

_OURS = "n.nspname !~ '^(pg_|information_schema|wlc|wlr)'"
_NAMES = "(SELECT coalesce(json_agg(a.attname ORDER BY u.p), '[]') FROM unnest({}) WITH ORDINALITY u(n, p) JOIN pg_attribute a ON a.attrelid = {} AND a.attnum = u.n)"
# A key of which some partitions have no index yet is not there, nor is a constraint that not all rows obey.
_HELD = """
    (k.contype = 'f' OR k.convalidated) AND NOT EXISTS (SELECT FROM pg_constraint w WHERE w.oid = k.conparentid
    AND w.conrelid = k.conrelid) AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = k.conindid
    AND k.contype IN ('p', 'u') AND NOT i.indisvalid)"""
_KEY = f"""
    (SELECT {_NAMES.format("k.conkey", "c.oid")} FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p' AND {_HELD}
    AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (k.conkey) AND a.attgenerated <> ''))"""
_TABLES = f"""
    SELECT n.nspname, c.relname,
        (SELECT coalesce(json_agg(attname ORDER BY attnum), '[]') FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
            AND NOT attisdropped AND attgenerated = ''),
        coalesce({_KEY}, '[]'),
        (SELECT coalesce(json_agg(json_build_array(k.contype, {_NAMES.format("k.conkey", "c.oid")}, pn.nspname, p.relname,
            {_NAMES.format("k.confkey", "k.confrelid")}, pg_get_expr(k.conbin, k.conrelid))), '[]') FROM pg_constraint k
            LEFT JOIN pg_class p ON p.oid = k.confrelid LEFT JOIN pg_namespace pn ON pn.oid = p.relnamespace
            WHERE k.conrelid = c.oid AND (k.contype IN ('u', 'c', 'f') OR k.contype = 'p' AND {_KEY} IS NULL) AND {_HELD}),
        (SELECT coalesce(json_agg(json_build_array(pn.nspname, p.relname) ORDER BY inhseqno), '[]') FROM pg_inherits
            JOIN pg_class p ON p.oid = inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE inhrelid = c.oid)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND {_OURS}"""
_INDEXES = f"""
    SELECT n.nspname, i.relname, c.relname, CASE WHEN x.indisunique THEN (
            SELECT json_agg(a.attname ORDER BY k.p) FROM unnest(x.indkey::int2[]) WITH ORDINALITY k(n, p)
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.n AND a.attgenerated = ''
            WHERE k.p <= x.indnkeyatts) END, x.indpred IS NOT NULL
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
    JOIN pg_namespace n ON n.oid = i.relnamespace
    WHERE {_OURS} AND x.indisvalid AND NOT i.relispartition AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = x.indexrelid
        AND conrelid = x.indrelid)"""
_OTHERS = f"""
    SELECT upper(o.type), n.nspname, o.name, o.arguments, o.schema, o.table FROM (
        SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'SEQUENCE' END AS type,
            relnamespace AS namespace, relname AS name, NULL::text[] AS arguments, NULL AS schema, NULL AS table
        FROM pg_class c WHERE relkind IN ('v', 'm') OR relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend
            WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'i')
        UNION ALL SELECT found.type, pronamespace, proname, object_args, NULL, NULL FROM pg_proc,
            pg_identify_object_as_address('pg_proc'::regclass, oid, 0) found WHERE NOT EXISTS (SELECT FROM pg_depend
            WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid AND deptype IN ('e', 'i'))
        UNION ALL SELECT CASE typtype WHEN 'd' THEN 'domain' ELSE 'type' END, typnamespace, typname, NULL, NULL, NULL
        FROM pg_type LEFT JOIN pg_class r ON r.oid = typrelid WHERE typtype IN ('e', 'd', 'r') OR r.relkind = 'c'
        UNION ALL SELECT 'schema', oid, nspname, NULL, NULL, NULL FROM pg_namespace
        UNION ALL SELECT 'policy', relnamespace, polname, NULL, relnamespace::regnamespace::text, relname
        FROM pg_policy JOIN pg_class c ON c.oid = polrelid
        UNION ALL SELECT 'constraint', relnamespace, conname, NULL, relnamespace::regnamespace::text, relname
        FROM pg_constraint k JOIN pg_class c ON c.oid = conrelid WHERE contype IN ('u', 'c', 'f', 'x') AND {_HELD}
        UNION ALL SELECT 'domain constraint', typnamespace, conname, NULL, typnamespace::regnamespace::text, typname
        FROM pg_constraint JOIN pg_type t ON t.oid = contypid WHERE contype = 'c' AND convalidated
    ) o JOIN pg_namespace n ON n.oid = o.namespace WHERE {_OURS}"""


def shown(run: Callable[[str], list[tuple[Any, ...]]]) -> dict[str, Any]:
    """Return what the catalog shows; `run` gives the rows of a query."""
    return {
        "tables": {
            (schema, name): (
                sorted(columns),
                key,
                sorted(repr(_constraint(*parts)) for parts in constraints),
                [tuple(parent) for parent in parents],
            )
            for schema, name, columns, key, constraints, parents in run(_TABLES)
        },
        "indexes": {
            (schema, name): (table, [*(unique or ()), *([None] if unique and is_partial else [])])
            for schema, name, table, unique, is_partial in run(_INDEXES)
        },
        "others": sorted(
            (kind, schema, name, str(None if arguments is None else tuple(arguments)), str(of and (of_schema, of)))
            for kind, schema, name, arguments, of_schema, of in run(_OTHERS)
        ),
    }


def said(fold: SchemaFold) -> dict[str, Any]:
    """Return what the effects say in the form of `shown`."""
    return {
        "tables": {
            (name.schema, name.name): (
                sorted(table.columns),
                list(table.key),
                sorted(repr(_form(found)) for found in table.constraints),
                [(parent.schema, parent.name) for parent in table.parents],
            )
            for name, table in fold.tables.items()
        },
        "indexes": {
            (name.schema, name.name): (index.of.name, list(index.unique)) for name, index in fold.indexes.items()
        },
        "others": sorted(
            (
                found.kind,
                found.name.schema,
                found.name.name,
                str(found.arguments),
                str(of and (of.schema, of.name)),
            )
            for found, of in fold.others
            if found.kind != "EXTENSION"
        ),
    }


def differences(fold: SchemaFold, expected: dict[str, Any]) -> dict[str, Any]:
    """Return what a fold says otherwise than the catalog, which `shown` gave, by kind."""
    return {kind: _different(found, expected[kind]) for kind, found in said(fold).items() if found != expected[kind]}


def follow(fold: SchemaFold, ddls: Iterable[Ddl], *, is_postgres: bool) -> None:
    """Follow the statements that replicas which are PostgreSQL, or others, run."""
    for ddl in ddls:
        if ddl.original != "" if is_postgres else ddl.dialect != "postgres":
            assert ddl.does, ddl
            for effect in ddl.does:
                known = fold.indexes.get(effect.object.name) if effect.object.kind == "INDEX" else None
                assert isinstance(effect, CreatedObject) or known is None or known.of == effect.of, ddl
            fold.apply(ddl)


def of_snapshot(manifest: Manifest, *, is_postgres: bool) -> SchemaFold:
    """Return what replicas which are PostgreSQL, or others, make of a snapshot's schema."""
    fold = SchemaFold()
    follow(fold, (*manifest.schema, *manifest.schema_after), is_postgres=is_postgres)
    return fold


def _different(found: Any, expected: Any) -> Any:
    if isinstance(found, dict):
        names = sorted(found.keys() | expected.keys())
        return {name: (found.get(name), expected.get(name)) for name in names if found.get(name) != expected.get(name)}
    return [each for each in found if each not in expected], [each for each in expected if each not in found]


def _constraint(kind: str, columns: list[str], schema: str, table: str, keys: list[str], check: str) -> tuple[Any, ...]:
    match kind:
        case "c":
            return ("check", sorted(columns), check)
        case "f":
            return ("foreign", columns, (schema, table), keys)
        case _:
            return ("unique", columns)


def _form(found: TableConstraint) -> tuple[Any, ...]:
    match found:
        case Check(columns, sql):
            return ("check", sorted(columns), sql)
        case Reference(columns, to, keys):
            return ("foreign", list(columns), (to.schema, to.name), list(keys))
        case Unique(columns):
            return ("unique", list(columns))

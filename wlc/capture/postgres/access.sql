-- Who may do what with the tables and objects of a PostgreSQL master, and which of their rows they see.
--
-- Replicas belong to a role of their own, so what an owner may do is left out here. So is what a replica is not for:
-- CREATE in a schema, TRIGGER, and the use of types.

-- Whether a view shows no more to its readers in a replica, where one role owns everything: its owner, with whose rights it
-- is read, owns what it reads as well, and sees all its rows. The catalog of the server may be read by all.
CREATE FUNCTION wlc.reads_own(view oid) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE found AS (
        SELECT c.oid, c.relowner, true AS is_own FROM pg_class c WHERE c.oid = view
        UNION SELECT c.oid, c.relowner, c.relowner = f.relowner AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
            OR (SELECT rolsuper FROM pg_roles r WHERE r.oid = f.relowner)
            OR c.relnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
            OR EXISTS (SELECT FROM pg_class v, unnest(v.reloptions) option WHERE v.oid = f.oid
                AND option ~ '^security_invoker=(true|on|yes|1)$')
        FROM found f JOIN pg_rewrite w ON w.ev_class = f.oid AND w.rulename = '_RETURN'
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid <> f.oid
        JOIN pg_class c ON c.oid = d.refobjid AND c.relkind IN ('r', 'p', 'v', 'm', 'f'))
    SELECT bool_and(is_own) FROM found
$$;

-- Names of roles in order, NULL for PUBLIC, which is role 0.
CREATE FUNCTION wlc.role_names(roles oid[]) RETURNS jsonb LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(r.rolname ORDER BY r.rolname NULLS FIRST), '[]')
    FROM unnest(roles) role LEFT JOIN pg_roles r ON r.oid = role WHERE role = 0 OR r.oid IS NOT NULL
$$;

-- Each grant is the role (NULL for PUBLIC), the privilege, the number of the column (0 for the whole) and whether the role
-- may grant it to others.
CREATE FUNCTION wlc.describe_access(class oid, object oid) RETURNS jsonb LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relation pg_class;
    routine pg_proc;
    namespace pg_namespace;
    owner oid;
    acl aclitem[];
    described jsonb;
    grants jsonb := '[]';
BEGIN
    IF class = 'pg_class'::regclass THEN
        SELECT * INTO relation FROM pg_class WHERE oid = object;
        IF relation.relpersistence <> 'p' OR relation.relkind NOT IN ('r', 'p', 'v', 'm', 'S')
                OR relation.relkind IN ('r', 'p') AND NOT wlc.is_captured(object) THEN
            RETURN NULL;
        END IF;
        owner := relation.relowner;
        acl := coalesce(relation.relacl, acldefault(CASE relation.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", owner));
        described := jsonb_build_object('kind', CASE relation.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW'
                WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END,
            'schema', (SELECT nspname FROM pg_namespace WHERE oid = relation.relnamespace), 'name', relation.relname,
            'is_secured', relation.relrowsecurity, 'is_forced', relation.relforcerowsecurity,
            'columns', (SELECT coalesce(jsonb_object_agg(attnum::text, attname), '{}') FROM pg_attribute
                WHERE attrelid = object AND attnum > 0 AND NOT attisdropped),
            'policies', (SELECT coalesce(jsonb_object_agg(oid::text, jsonb_build_object('name', polname,
                    'is_permissive', polpermissive, 'roles', wlc.role_names(polroles), 'command', CASE polcmd
                    WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
                    'using', pg_get_expr(polqual, polrelid), 'check', pg_get_expr(polwithcheck, polrelid))), '{}')
                FROM pg_policy WHERE polrelid = object));
    ELSIF class = 'pg_proc'::regclass THEN
        SELECT * INTO routine FROM pg_proc WHERE oid = object;
        IF wlc.definition(class, object, '') IS NULL THEN
            RETURN NULL;
        END IF;
        owner := routine.proowner;
        acl := coalesce(routine.proacl, acldefault('f', owner));
        described := jsonb_build_object('kind', CASE routine.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
            'schema', (SELECT nspname FROM pg_namespace WHERE oid = routine.pronamespace), 'name', routine.proname,
            'arguments', (SELECT object_args FROM pg_identify_object_as_address(class, object, 0)));
    ELSIF class = 'pg_namespace'::regclass THEN
        SELECT * INTO namespace FROM pg_namespace WHERE oid = object;
        owner := namespace.nspowner;
        acl := coalesce(namespace.nspacl, acldefault('n', owner));
        described := jsonb_build_object('kind', 'SCHEMA', 'schema', namespace.nspname, 'name', namespace.nspname);
    END IF;
    IF described IS NULL OR wlc.is_system(described->>'schema') THEN
        RETURN NULL;
    END IF;
    SELECT coalesce(jsonb_agg(g.found ORDER BY g.found), '[]') INTO grants FROM (
        SELECT jsonb_build_array(r.rolname, a.privilege_type, a.number, bool_or(a.is_grantable)) AS found
        FROM (
            SELECT e.grantee, e.privilege_type, e.is_grantable, 0 AS number FROM aclexplode(acl) e
            UNION ALL SELECT e.grantee, e.privilege_type, e.is_grantable, c.attnum FROM pg_attribute c, aclexplode(c.attacl) e
            WHERE class = 'pg_class'::regclass AND c.attrelid = object AND c.attnum > 0 AND NOT c.attisdropped) a
        LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE a.grantee <> owner AND (a.grantee = 0 OR r.oid IS NOT NULL) AND a.privilege_type IN ('SELECT', 'INSERT',
            'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'USAGE', 'EXECUTE')
        GROUP BY r.rolname, a.privilege_type, a.number) g;
    RETURN described || jsonb_build_object('owner', owner::bigint, 'grants', grants, 'identity',
        (SELECT identity FROM pg_identify_object(class, object, 0)), 'is_hidden',
        class = 'pg_class'::regclass AND relation.relkind IN ('v', 'm') AND NOT wlc.reads_own(object));
END $$;

CREATE FUNCTION wlc.all_access() RETURNS TABLE (class oid, object oid, description jsonb) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT found.class, found.object, wlc.describe_access(found.class, found.object) FROM (
        SELECT 'pg_class'::regclass::oid AS class, oid AS object FROM pg_class c WHERE c.relkind IN ('r', 'p') AND wlc.is_captured(oid)
        UNION ALL SELECT o.class, o.object FROM wlc.all_objects(2, 6) o) found
    ORDER BY found.class = 'pg_namespace'::regclass DESC, found.object
$$;

-- Tell what became of the access to one table or object.
CREATE FUNCTION wlc.look_at_access(class_ oid, object_ oid) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old jsonb := (SELECT description FROM wlc.access a WHERE a.class = class_ AND a.oid = object_);
    new jsonb := wlc.describe_access(class_, object_);
    -- These change by themselves.
    aside text[] := ARRAY['columns', 'schema', 'name', 'identity', 'arguments', 'owner'];
BEGIN
    IF old IS NOT DISTINCT FROM new THEN
        RETURN;
    END IF;
    DELETE FROM wlc.access a WHERE a.class = class_ AND a.oid = object_;
    IF new IS NOT NULL THEN
        INSERT INTO wlc.access VALUES (class_, object_, new);
        IF (old - aside) IS DISTINCT FROM (new - aside) THEN
            PERFORM wlc.say(jsonb_build_object('access', object_::bigint, 'old', old, 'new', new, 'user', session_user));
        END IF;
        -- Views may no longer read what is their owner's alone.
        IF old->'owner' <> new->'owner' OR old->'is_forced' <> new->'is_forced' OR old->'is_secured' <> new->'is_secured' THEN
            INSERT INTO wlc.pending VALUES ('owner', object_);
        END IF;
    END IF;
END $$;

-- What the server keeps of the access to tables and objects; it is read much faster than described.
CREATE FUNCTION wlc.raw_access() RETURNS TABLE (class oid, object oid, raw text) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT found.class, found.oid, concat_ws(' ', owner, acl, columns) FROM (
        SELECT 'pg_class'::regclass AS class, c.oid, relnamespace AS namespace, relowner AS owner, relacl AS acl, columns
        FROM pg_class c LEFT JOIN (
            SELECT attrelid, string_agg(concat(attnum, attacl), ' ' ORDER BY attnum) AS columns FROM pg_attribute
            WHERE attacl IS NOT NULL GROUP BY 1) a ON a.attrelid = c.oid
        WHERE relkind IN ('r', 'p', 'v', 'm', 'S') AND relpersistence = 'p'
        UNION ALL SELECT 'pg_proc'::regclass, oid, pronamespace, proowner, proacl, NULL FROM pg_proc
        UNION ALL SELECT 'pg_namespace'::regclass, oid, oid, nspowner, nspacl, NULL FROM pg_namespace
    ) found JOIN pg_namespace n ON n.oid = namespace AND NOT wlc.is_system(n.nspname)
$$;

-- Tell likewise of all whose access has changed, since the commands that grant do not say what they are about; of really
-- all, if views may show something else than before.
CREATE FUNCTION wlc.look_at_all_access(is_full boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE found record;
BEGIN
    FOR found IN
        SELECT r.* FROM wlc.raw_access() r LEFT JOIN wlc.access a ON a.class = r.class AND a.oid = r.object
        WHERE is_full OR a.raw IS DISTINCT FROM r.raw
        ORDER BY r.class = 'pg_namespace'::regclass DESC, r.object
    LOOP
        PERFORM wlc.look_at_access(found.class, found.object);
        UPDATE wlc.access a SET raw = found.raw WHERE a.class = found.class AND a.oid = found.object;
    END LOOP;
END $$;

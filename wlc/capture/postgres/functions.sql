-- Watch the schema from inside a PostgreSQL master. Schema changes do not show in a publication, so event triggers
-- describe every table that changed, before and after, in a message that stands in the write-ahead log between the rows
-- that were written before and after the change.
--
-- Some changes give rows other values without writing decodable rows: a column gets another type, or a default that is
-- computed for each row; a table is made from a query. The table's rows are then written once more ("resend"), so that
-- the log holds them as they are now.

-- Type of a column as text, domains resolved to what they are made of.
CREATE FUNCTION wlc.base_type(type oid, modifier integer) RETURNS text LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE found pg_type;
BEGIN
    LOOP
        SELECT * INTO found FROM pg_type WHERE pg_type.oid = type;
        EXIT WHEN found.typtype <> 'd';
        type := found.typbasetype;
        modifier := CASE WHEN modifier >= 0 THEN modifier ELSE found.typtypmod END;
    END LOOP;
    RETURN format_type(type, modifier);
END $$;

CREATE FUNCTION wlc.sequence_options(sequence oid) RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', seqincrement, seqmin, seqmax,
        seqstart, seqcache, CASE WHEN seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END)
    FROM pg_sequence WHERE seqrelid = sequence
$$;

CREATE FUNCTION wlc.is_identity(sequence oid) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = sequence AND deptype = 'i')
$$;

-- What the text of a value depends on besides the value: labels of enums and attributes of composite types, however deep
-- they lie in a type; NULL where there are none.
CREATE FUNCTION wlc.shape(type oid) RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE found pg_type;
BEGIN
    -- The server's own types do not change.
    IF type < 16384 THEN
        RETURN NULL;
    END IF;
    SELECT * INTO found FROM pg_type WHERE pg_type.oid = type;
    RETURN CASE found.typtype
        WHEN 'e' THEN (SELECT jsonb_object_agg(oid::text, enumlabel) FROM pg_enum WHERE enumtypid = type)
        WHEN 'c' THEN (
            SELECT jsonb_build_object('attributes', count(*)) || coalesce(jsonb_object_agg(
                attnum::text, jsonb_build_array(atttypid::bigint, wlc.shape(atttypid))), '{}')
            FROM pg_attribute WHERE attrelid = found.typrelid AND attnum > 0 AND NOT attisdropped)
        WHEN 'd' THEN wlc.shape(found.typbasetype)
        WHEN 'r' THEN wlc.shape((SELECT rngsubtype FROM pg_range WHERE rngtypid = type))
        WHEN 'm' THEN wlc.shape((SELECT rngsubtype FROM pg_range WHERE rngmultitypid = type))
        ELSE CASE WHEN found.typlen = -1 AND found.typelem <> 0 THEN wlc.shape(found.typelem) END END;
END $$;

-- Whether the text of a value changes with the object that the value names (regclass), without a write to the row. For
-- the server's own types, their output is then not immutable. All other dependencies are settings, which are pinned.
CREATE FUNCTION wlc.follows_catalog(type oid) RETURNS boolean LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE found pg_type;
BEGIN
    SELECT * INTO found FROM pg_type WHERE pg_type.oid = type;
    IF found.typlen = -1 AND found.typelem <> 0 THEN
        RETURN wlc.follows_catalog(found.typelem);
    END IF;
    RETURN CASE found.typtype
        WHEN 'b' THEN type < 16384 AND found.typname NOT IN ('date', 'interval', 'money', 'timestamp', 'timestamptz')
            AND EXISTS (SELECT FROM pg_proc WHERE pg_proc.oid = found.typoutput AND provolatile <> 'i')
        WHEN 'c' THEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = found.typrelid AND attnum > 0
            AND NOT attisdropped AND wlc.follows_catalog(atttypid))
        WHEN 'd' THEN wlc.follows_catalog(found.typbasetype)
        WHEN 'r' THEN wlc.follows_catalog((SELECT rngsubtype FROM pg_range WHERE rngtypid = type))
        WHEN 'm' THEN wlc.follows_catalog((SELECT rngsubtype FROM pg_range WHERE rngmultitypid = type))
        ELSE false END;
END $$;

-- Whether a relation is a table that is replicated.
CREATE FUNCTION wlc.is_captured(relation oid) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, wlc.state s
        WHERE c.oid = relation AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname !~ '^pg_'
            AND n.nspname NOT IN ('information_schema', 'wlc', 'wlr') AND s.key = 'tables'
            AND (n.nspname || '.' || c.relname ~ s.value OR c.relname ~ s.value))
$$;

-- Whether a constraint is the key of a partitioned table (ALTER TABLE ONLY) that not all partitions have yet, as pg_dump
-- writes it.
CREATE FUNCTION wlc.is_incomplete(key pg_constraint) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT key.contype IN ('p', 'u') AND EXISTS (
        SELECT FROM pg_index WHERE indexrelid = key.conindid AND NOT indisvalid)
$$;

-- Everything about a table that a replica needs. Its texts depend on settings, which all sessions and event triggers pin.
CREATE FUNCTION wlc.describe(relation oid) RETURNS jsonb LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object(
        'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
        'columns', coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'number', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
                'declared', jsonb_build_array(a.atttypid::bigint, a.atttypmod),
                'base', CASE WHEN t.typtype = 'd' THEN wlc.base_type(a.atttypid, a.atttypmod)
                    ELSE format_type(a.atttypid, a.atttypmod) END,
                -- The server's own types do not change.
                'shape', CASE WHEN a.atttypid >= 16384 THEN wlc.shape(a.atttypid) END,
                -- PostgreSQL 18 has NOT NULL … NOT VALID, which rows of before need not obey, and NO INHERIT. The rows of
                -- children could not be written to a replica, so that it has neither.
                'nullable', NOT a.attnotnull OR EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = a.attrelid
                    AND k.contype = 'n' AND k.conkey[1] = a.attnum AND (NOT k.convalidated OR k.connoinherit)),
                'default', CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, d.adrelid) END,
                'generated', CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END,
                'expression', CASE WHEN a.attgenerated <> '' THEN
                    md5(regexp_replace(d.adbin::text, ':location -?\d+', '', 'g')) END,
                -- What a table has from one that is not replicated is its own.
                'is_inherited', a.attinhcount > 0 AND EXISTS (SELECT FROM pg_attribute x
                    WHERE x.attrelid = ANY (above.oids) AND x.attname = a.attname AND NOT x.attisdropped),
                -- From PostgreSQL 17 on, a partition has the identity of the table above it, without a sequence of its own.
                'identity', CASE WHEN c.relispartition AND a.attinhcount > 0 THEN NULL ELSE nullif(a.attidentity, '') END,
                'identity_options', CASE WHEN a.attidentity <> '' AND NOT c.relispartition THEN (
                    SELECT format('SEQUENCE NAME %I.%I ', sn.nspname, sc.relname) || wlc.sequence_options(sc.oid)
                    FROM pg_depend sd JOIN pg_class sc ON sc.oid = sd.objid JOIN pg_namespace sn ON sn.oid = sc.relnamespace
                    WHERE sd.classid = 'pg_class'::regclass AND sd.refclassid = 'pg_class'::regclass
                        AND sd.refobjid = c.oid AND sd.refobjsubid = a.attnum AND sd.deptype = 'i' AND sc.relkind = 'S') END,
                'collation', CASE WHEN a.attcollation <> t.typcollation
                    THEN quote_ident(l.nspname) || '.' || quote_ident(o.collname) END,
                'missing', CASE WHEN a.atthasmissing AND t.typdelim = ',' THEN (a.attmissingval::text::text[])[1]
                    WHEN a.atthasmissing THEN btrim(a.attmissingval::text, '{}') END
            ) ORDER BY a.attnum)
            FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
            LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            LEFT JOIN pg_collation o ON o.oid = a.attcollation LEFT JOIN pg_namespace l ON l.oid = o.collnamespace
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'),
        'key', coalesce((
            SELECT jsonb_agg(a.attname ORDER BY k.place)
            FROM pg_constraint p, unnest(p.conkey) WITH ORDINALITY AS k(number, place), pg_attribute a
            WHERE p.conrelid = c.oid AND p.contype = 'p' AND a.attrelid = c.oid AND a.attnum = k.number), '[]'),
        'constraints', coalesce((
            -- A foreign key to a partitioned table has a part for each partition, which comes and goes with it.
            SELECT jsonb_object_agg(p.conname, jsonb_build_object(
                'oid', p.oid::bigint, 'type', p.contype, 'definition', pg_get_constraintdef(p.oid),
                'columns', to_jsonb(coalesce(p.conkey, '{}')),
                'to', CASE WHEN p.contype = 'f' THEN jsonb_build_array(fc.oid::bigint, fn.nspname, fc.relname) END,
                'keys', to_jsonb(coalesce(p.confkey, '{}')), 'key_names', CASE WHEN p.contype = 'f' THEN (
                    SELECT jsonb_object_agg(fa.attnum::text, fa.attname) FROM pg_attribute fa
                    WHERE fa.attrelid = p.confrelid AND fa.attnum = ANY (p.confkey)) ELSE '{}' END,
                'is_inherited', found.is_inherited,
                'is_local', NOT found.is_inherited OR p.conparentid = 0 AND p.conislocal))
            FROM pg_constraint p LEFT JOIN pg_class fc ON fc.oid = p.confrelid
            LEFT JOIN pg_namespace fn ON fn.oid = fc.relnamespace CROSS JOIN LATERAL (SELECT (p.conparentid <> 0 OR p.coninhcount > 0) AND EXISTS (
                SELECT FROM pg_constraint x WHERE x.conrelid = ANY (above.oids) AND NOT wlc.is_incomplete(x)
                AND (x.oid = p.conparentid OR x.conname = p.conname AND x.contype = p.contype))) AS found (is_inherited)
            WHERE p.conrelid = c.oid AND p.contype IN ('p', 'u', 'c', 'f', 'x')
                AND NOT EXISTS (SELECT FROM pg_constraint whole
                    WHERE whole.oid = p.conparentid AND whole.conrelid = p.conrelid)
                AND NOT wlc.is_incomplete(p)), '{}'),
        'partition_key', pg_get_partkeydef(c.oid),
        'bound', pg_get_expr(c.relpartbound, c.oid),
        'parents', coalesce((
            SELECT jsonb_agg(jsonb_build_array(i.inhparent::bigint, pn.nspname, pc.relname) ORDER BY i.inhseqno)
            FROM pg_inherits i JOIN pg_class pc ON pc.oid = i.inhparent JOIN pg_namespace pn ON pn.oid = pc.relnamespace
            WHERE i.inhrelid = c.oid AND NOT i.inhdetachpending AND i.inhparent = ANY (above.oids)), '[]'))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL (SELECT array_agg(inhparent)
        FROM pg_inherits WHERE inhrelid = c.oid AND wlc.is_captured(inhparent)) AS above (oids) WHERE c.oid = relation
$$;

-- Every role may write messages into the log. Only a role that reads `wlc.state` knows the prefix of dbfarm's.
CREATE FUNCTION wlc.say(content jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_logical_emit_message(true, value, content::text) FROM wlc.state WHERE key = 'prefix'
$$;

-- The publication. Functions alter and drop it with the rights of a superuser, and a role may write what it is called.
CREATE FUNCTION wlc.publication() RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE name text := (SELECT value FROM wlc.state WHERE key = 'publication');
BEGIN
    IF name !~ '^dbfarm_[a-z0-9_]+$' THEN
        RAISE EXCEPTION 'publication % in wlc.state is not one of dbfarm', quote_ident(name)
            USING HINT = 'UPDATE wlc.state SET value = ''dbfarm_NAME'' WHERE key = ''publication'', with the database''s name';
    END IF;
    RETURN name;
END $$;

-- Run a statement that the event triggers ignore. They know it by a row that no user can write, and that no other
-- transaction sees.
CREATE FUNCTION wlc.run(statement text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO wlc.pending VALUES ('run');
    EXECUTE statement;
    DELETE FROM wlc.pending WHERE what = 'run';
END $$;

CREATE FUNCTION wlc.is_running() RETURNS boolean LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM wlc.pending WHERE what = 'run')
$$;

-- Refuse a table that replicas cannot hold: DuckDB does not tell upper case from lower case, and needs a column. Values that
-- change with a name have no images in the log that replicas could find again.
CREATE FUNCTION wlc.refuse(relation oid, new jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE other text;
BEGIN
    IF new->>'kind' = 'r' AND NOT EXISTS (SELECT FROM jsonb_array_elements(new->'columns') c WHERE c->>'generated' IS NULL) THEN
        RAISE EXCEPTION 'table % cannot be replicated: it has no columns', relation::regclass
            USING HINT = 'give it a column, or leave it out with wlc master --tables';
    END IF;
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = relation AND attgenerated = 'v' AND NOT attisdropped) THEN
        RAISE EXCEPTION 'table % cannot be replicated: PostgreSQL changes no rows of a published table with a virtual'
            ' generated column', relation::regclass USING HINT = 'make it GENERATED ALWAYS AS (…) STORED, or a view';
    END IF;
    SELECT quote_ident(attname) INTO other FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
        AND wlc.follows_catalog(atttypid) ORDER BY attnum LIMIT 1;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'table % cannot be replicated: values of column % change with the names of what they refer to',
            relation::regclass, other USING HINT = format('ALTER TABLE %s ALTER COLUMN %s TYPE text; or leave the table out'
            ' with wlc master --tables', relation::regclass, other);
    END IF;
    SELECT string_agg(quote_ident(c->>'name'), ' and ') INTO other FROM jsonb_array_elements(new->'columns') c
        GROUP BY lower(c->>'name') HAVING count(*) > 1;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'table % cannot be replicated: columns % differ in upper and lower case only',
            relation::regclass, other USING HINT = 'rename one of them';
    END IF;
    SELECT string_agg(quote_ident(nspname), ' and ') INTO other FROM pg_namespace
        WHERE lower(nspname) = lower(new->>'schema') HAVING count(*) > 1;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'schemas % cannot be replicated: they differ in upper and lower case only', other
            USING HINT = 'rename one of them';
    END IF;
    SELECT t.oid::regclass::text INTO other FROM wlc.tables t
        WHERE t.oid <> relation AND lower(t.description->>'name') = lower(new->>'name')
        AND lower(t.description->>'schema') = lower(new->>'schema');
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'tables % and % cannot both be replicated: their names differ in upper and lower case only',
            other, relation::regclass USING HINT = 'rename one of them';
    END IF;
END $$;

-- Note how a table is; if it was not noted before, also what its replica identity is before it becomes FULL.
CREATE FUNCTION wlc.note(relation oid) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE described jsonb := wlc.describe(relation);
BEGIN
    PERFORM wlc.refuse(relation, described);
    INSERT INTO wlc.tables SELECT oid, described,
        CASE relreplident WHEN 'd' THEN 'DEFAULT' WHEN 'n' THEN 'NOTHING' WHEN 'f' THEN 'FULL' ELSE
            coalesce((SELECT 'USING INDEX ' || quote_ident(i.relname) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
             WHERE x.indrelid = c.oid AND x.indisreplident), 'DEFAULT') END
    FROM pg_class c WHERE oid = relation ON CONFLICT (oid) DO UPDATE SET description = EXCLUDED.description;
END $$;

-- Let changes of a table be published from here on.
CREATE FUNCTION wlc.adopt(relation oid) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE found pg_class;
BEGIN
    PERFORM wlc.note(relation);
    SELECT * INTO found FROM pg_class WHERE oid = relation;
    IF found.relkind = 'r' THEN
        IF found.relreplident <> 'f' THEN
            PERFORM wlc.run(format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', relation::regclass));
        END IF;
        PERFORM wlc.run(format('ALTER PUBLICATION %I ADD TABLE ONLY %s',
            wlc.publication(), relation::regclass));
    END IF;
END $$;

-- Give a table a replica identity that it had before.
CREATE FUNCTION wlc.restore_identity(relation oid, identity text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM wlc.run(format('ALTER TABLE ONLY %s REPLICA IDENTITY %s', relation::regclass, identity));
EXCEPTION WHEN undefined_object OR wrong_object_type OR feature_not_supported THEN
    -- Its index was dropped since, has another name, or can no longer be an identity.
    PERFORM wlc.run(format('ALTER TABLE ONLY %s REPLICA IDENTITY DEFAULT', relation::regclass));
END $$;

-- Update all rows to what they are, and return how many. What the table calls meanwhile (triggers, checks, expressions of
-- indexes) is its owner's, and must not run with the rights of a superuser.
CREATE FUNCTION wlc.rewrite(relation oid, writable name) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    written bigint;
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = relation);
    is_super boolean := owner = current_user OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
    as_owner text := format('wlc.rewrite_%s()', relation);
BEGIN
    PERFORM wlc.run(format('CREATE FUNCTION %s RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER'
        ' SET search_path = pg_catalog, pg_temp AS %L', as_owner, format(
        'DECLARE written bigint; BEGIN UPDATE ONLY %s SET %2$I = %2$I; GET DIAGNOSTICS written = ROW_COUNT;'
        ' RETURN written; END', relation::regclass, writable)));
    -- Only a superuser can give a function to a role that may not create it.
    IF NOT is_super THEN
        PERFORM wlc.run(format('GRANT CREATE ON SCHEMA wlc TO %I', owner));
    END IF;
    PERFORM wlc.run(format('ALTER FUNCTION %s OWNER TO %I', as_owner, owner));
    IF NOT is_super THEN
        PERFORM wlc.run(format('REVOKE CREATE ON SCHEMA wlc FROM %I', owner));
    END IF;
    EXECUTE 'SELECT ' || as_owner INTO written;
    PERFORM wlc.run('DROP FUNCTION ' || as_owner);
    RETURN written;
END $$;

CREATE FUNCTION wlc.is_system(schema text) RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT schema ~ '^pg_' OR schema IN ('information_schema', 'wlc', 'wlr')
$$;

-- How many rows of each table the transaction has written; without ours, temporary ones, and those that it made.
CREATE FUNCTION wlc.count_written(relation oid) RETURNS TABLE (oid oid, rows bigint) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT found.oid, found.rows FROM (
        SELECT c.oid, c.relnamespace, pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
            + pg_stat_get_xact_tuples_deleted(c.oid) AS rows
        FROM pg_class c WHERE c.relkind = 'r') found
    WHERE found.rows > 0 AND relnamespace NOT IN (SELECT n.oid FROM pg_namespace n WHERE wlc.is_system(nspname))
        AND (found.oid = relation OR NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = found.oid
            AND attname = 'tableoid' AND xmin = pg_current_xact_id()::xid))
$$;

-- What keeps rows of a table from being written as they are, and those of others from being written meanwhile.
CREATE FUNCTION wlc.remedy(relation oid) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce('undo this again after the change: ' || string_agg(
            format('ALTER TABLE %s DISABLE %s %I', relation::regclass, found.kind, found.name), '; '),
        'drop checks and indexes whose functions write rows, and make them again after the change')
    FROM (
        SELECT 'TRIGGER' AS kind, tgname AS name FROM pg_trigger
        WHERE tgrelid = relation AND NOT tgisinternal AND tgenabled IN ('A', 'R')
        UNION ALL SELECT 'RULE', rulename FROM pg_rewrite WHERE ev_class = relation AND ev_enabled IN ('A', 'R')
    ) found
$$;

-- Write all rows of a table once more, as they are. What is called meanwhile may write no table: foreign keys and other
-- tables' triggers are off, and what it writes to this one would be taken for its rows.
CREATE FUNCTION wlc.resend(relation oid, is_rewritten boolean) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    writable name;
    present bigint;
    written bigint;
    before jsonb;
    other oid;
BEGIN
    -- Most changes hold a stronger lock; that of a type holds none on the tables that have it.
    EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', relation::regclass);
    -- Other transactions may not see rows that were committed since they began, but those of their own making.
    IF current_setting('transaction_isolation') <> 'read committed' AND NOT is_rewritten AND NOT EXISTS (
            SELECT FROM pg_attribute WHERE attrelid = relation AND attname = 'tableoid'
            AND xmin = pg_current_xact_id()::xid) THEN
        RAISE EXCEPTION 'this change of table % can be replicated from a transaction with READ COMMITTED only',
            relation::regclass;
    END IF;
    SELECT attname INTO writable FROM pg_attribute WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
        AND attgenerated = '' AND attidentity <> 'a' ORDER BY attnum LIMIT 1;
    EXECUTE format('SELECT count(*) FROM ONLY %s', relation::regclass) INTO present;
    IF present > 0 AND writable IS NULL THEN
        RAISE EXCEPTION 'table % cannot be replicated after this change: it has no column that can be written',
            relation::regclass;
    END IF;
    PERFORM wlc.say(jsonb_build_object('resend', relation::bigint));
    IF present > 0 THEN
        SELECT coalesce(jsonb_object_agg(c.oid::text, c.rows), '{}') INTO before FROM wlc.count_written(relation) c;
        written := wlc.rewrite(relation, writable);
        IF written <> present THEN
            RAISE EXCEPTION 'table % cannot be replicated after this change: its rows could not be written once more',
                relation::regclass USING HINT = CASE
                WHEN (SELECT relrowsecurity AND relforcerowsecurity FROM pg_class WHERE oid = relation)
                THEN format('undo this again after the change: ALTER TABLE %s NO FORCE ROW LEVEL SECURITY',
                    relation::regclass) ELSE wlc.remedy(relation) END;
        END IF;
        SELECT c.oid INTO other FROM wlc.count_written(relation) c
            WHERE c.rows <> coalesce((before->>c.oid::text)::bigint, 0) + CASE WHEN c.oid = relation THEN written ELSE 0 END
            ORDER BY c.oid LIMIT 1;
        IF other IS NOT NULL THEN
            RAISE EXCEPTION 'table % cannot be replicated after this change: while its rows were written once more,'
                ' table % was written, too', relation::regclass, other::regclass USING HINT = wlc.remedy(relation);
        END IF;
    END IF;
    PERFORM wlc.say(jsonb_build_object('resent', relation::bigint));
END $$;

-- Columns that stay, and whose values have another text or are no longer computed: the type is another one and not just
-- another length of text, or is made of something else. If none stays, DuckDB could not drop the last one.
CREATE FUNCTION wlc.has_retyped(old jsonb, new jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM jsonb_array_elements(old->'columns') o, jsonb_array_elements(new->'columns') n
        WHERE o->'number' = n->'number' AND (o->'base' <> n->'base'
            AND NOT (o->>'base' ~ '^(character varying|text)' AND n->>'base' ~ '^(character varying|text)')
            OR NOT n->'shape' @> (o->'shape') OR (o->>'generated' IS NULL) <> (n->>'generated' IS NULL)))
        OR NOT EXISTS (SELECT FROM jsonb_array_elements(old->'columns') o, jsonb_array_elements(new->'columns') n
            WHERE o->'number' = n->'number' AND o->>'generated' IS NULL)
$$;

-- A description without what changes by itself.
CREATE FUNCTION wlc.plain(description jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT description || jsonb_build_object('columns',
        (SELECT coalesce(jsonb_agg(c - 'missing' ORDER BY (c->>'number')::int), '[]')
         FROM jsonb_array_elements(description->'columns') c))
$$;

-- Tell what became of one table.
CREATE FUNCTION wlc.look_at(relation oid) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old jsonb := (SELECT description FROM wlc.tables WHERE oid = relation);
    new jsonb := wlc.describe(relation);
    is_wanted boolean := wlc.is_captured(relation);
    is_table boolean := new->>'kind' = 'r';
    has_rows boolean := false;
    is_rewritten boolean;
    identity text;
    parent oid;
BEGIN
    DELETE FROM wlc.pending WHERE what = 'rewritten' AND oid = relation;
    is_rewritten := FOUND;
    IF is_wanted AND old IS NULL THEN
        -- Commands within CREATE SCHEMA tell of a partition before the table that it is a part of.
        FOR parent IN SELECT inhparent FROM pg_inherits WHERE inhrelid = relation
                AND NOT EXISTS (SELECT FROM wlc.tables t WHERE t.oid = inhparent) LOOP
            PERFORM wlc.look_at_sequences(parent, 'CREATE TABLE');
            PERFORM wlc.look_at(parent);
        END LOOP;
        PERFORM wlc.adopt(relation);
        PERFORM wlc.look_at_foreign_rows('pg_class'::regclass, relation);
        PERFORM wlc.say(jsonb_build_object('table', relation::bigint, 'old', NULL, 'new', new));
        IF is_table THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', relation::regclass) INTO has_rows;
            IF has_rows THEN
                PERFORM wlc.resend(relation, false);
            END IF;
        END IF;
    ELSIF is_wanted THEN
        IF is_table AND (SELECT relreplident <> 'f' FROM pg_class WHERE oid = relation) THEN
            RAISE EXCEPTION 'table % is replicated by dbfarm, which needs its REPLICA IDENTITY FULL', relation::regclass
                USING HINT = 'stop replicating the database first: wlc stop';
        END IF;
        IF wlc.plain(old) <> wlc.plain(new) THEN
            PERFORM wlc.refuse(relation, new);
            UPDATE wlc.tables SET description = new WHERE oid = relation;
            PERFORM wlc.look_at_foreign_rows('pg_class'::regclass, relation);
            PERFORM wlc.say(jsonb_build_object('table', relation::bigint, 'old', old, 'new', new));
        END IF;
        IF is_table AND (old->'key' <> new->'key' OR old->'schema' <> new->'schema' OR wlc.has_retyped(old, new)
                OR is_rewritten) THEN
            PERFORM wlc.resend(relation, is_rewritten);
        END IF;
    ELSIF old IS NOT NULL THEN
        -- Replicas drop it. Its children are on their own before.
        PERFORM wlc.look_at(t.oid) FROM wlc.tables t WHERE t.description @> jsonb_build_object(
            'parents', jsonb_build_array(jsonb_build_array(relation::bigint)));
        DELETE FROM wlc.tables WHERE oid = relation RETURNING wlc.tables.identity INTO identity;
        IF is_table THEN
            PERFORM wlc.run(format('ALTER PUBLICATION %I DROP TABLE ONLY %s',
                wlc.publication(), relation::regclass));
            IF identity <> 'FULL' THEN
                PERFORM wlc.restore_identity(relation, identity);
            END IF;
        END IF;
        PERFORM wlc.say(jsonb_build_object('table', relation::bigint, 'old', old, 'new', NULL));
    END IF;
    PERFORM wlc.look_at_access('pg_class'::regclass, relation);
END $$;

-- A statement that makes an object which is no table, or brings it to its present form; NULL if there is none.
CREATE FUNCTION wlc.definition(class oid, object oid, tag text) RETURNS text LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    relation pg_class;
    name text;
    found text;
BEGIN
    IF class = 'pg_class'::regclass THEN
        SELECT * INTO relation FROM pg_class WHERE oid = object;
        name := (SELECT format('%I.%I', nspname, relation.relname) FROM pg_namespace WHERE oid = relation.relnamespace);
        CASE relation.relkind
            WHEN 'i', 'I' THEN
                -- Of a partitioned table the server shows the index without those of the partitions.
                found := CASE relation.relkind WHEN 'I' THEN regexp_replace(pg_get_indexdef(object), ' ON ONLY ', ' ON ')
                    ELSE pg_get_indexdef(object) END;
            WHEN 'v' THEN found := 'CREATE OR REPLACE VIEW ' || name || coalesce(' WITH (' || array_to_string(
                    relation.reloptions, ', ') || ')', '') || ' AS ' || pg_get_viewdef(object);
            WHEN 'm' THEN found := 'CREATE MATERIALIZED VIEW ' || name || ' AS ' || pg_get_viewdef(object);
            WHEN 'S' THEN
                SELECT format('%s SEQUENCE %s AS %s %s', CASE WHEN tag = 'CREATE SEQUENCE' THEN 'CREATE' ELSE 'ALTER' END,
                    name, format_type(seqtypid, NULL), wlc.sequence_options(object))
                INTO found FROM pg_sequence WHERE seqrelid = object;
            ELSE NULL;
        END CASE;
    ELSIF class = 'pg_proc'::regclass THEN
        SELECT pg_get_functiondef(object) INTO found FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
            WHERE p.oid = object AND p.prokind IN ('f', 'p') AND l.lanname IN ('sql', 'plpgsql') AND NOT p.prosecdef;
    ELSIF class = 'pg_namespace'::regclass THEN
        SELECT format('CREATE SCHEMA IF NOT EXISTS %I', nspname) INTO found FROM pg_namespace
            WHERE oid = object AND tag = 'CREATE SCHEMA';
    ELSIF class = 'pg_type'::regclass AND tag IN ('CREATE TYPE', 'CREATE DOMAIN') THEN
        SELECT CASE t.typtype
            WHEN 'e' THEN format('CREATE TYPE %s AS ENUM (%s)', format_type(object, NULL),
                (SELECT string_agg(quote_literal(enumlabel), ', ' ORDER BY enumsortorder) FROM pg_enum
                 WHERE enumtypid = object))
            WHEN 'c' THEN format('CREATE TYPE %s AS (%s)', format_type(object, NULL),
                (SELECT string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)
                 FROM pg_attribute WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped))
            WHEN 'd' THEN format('CREATE DOMAIN %s AS %s%s%s%s', format_type(object, NULL),
                format_type(t.typbasetype, t.typtypmod), coalesce(' DEFAULT ' || pg_get_expr(t.typdefaultbin, 0), ''),
                CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END,
                coalesce((SELECT string_agg(format(' CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)), '')
                          FROM pg_constraint WHERE contypid = object AND contype = 'c' AND convalidated), ''))
            -- Replicas before PostgreSQL 14 have no multirange types, and cannot read the name of one.
            WHEN 'r' THEN (SELECT format('CREATE TYPE %s AS RANGE (SUBTYPE = %s%s%s)',
                    format_type(object, NULL), format_type(rngsubtype, NULL),
                    CASE WHEN rngcollation <> s.typcollation THEN ', COLLATION = ' || rngcollation::regcollation ELSE '' END,
                    CASE WHEN (m.typnamespace, m.typname) <> (t.typnamespace, CASE WHEN t.typname ~ 'range'
                        THEN regexp_replace(t.typname, 'range', 'multirange') ELSE t.typname || '_multirange' END)
                        THEN ', MULTIRANGE_TYPE_NAME = ' || format_type(m.oid, NULL) ELSE '' END)
                FROM pg_range JOIN pg_type s ON s.oid = rngsubtype JOIN pg_type m ON m.oid = rngmultitypid
                WHERE rngtypid = object)
            -- Only a superuser makes a base type, of functions in C. Values are text in the farm, and with this in replicas.
            WHEN 'b' THEN format('CREATE DOMAIN %s AS text', format_type(object, NULL))
            END INTO found FROM pg_type t WHERE t.oid = object;
    END IF;
    RETURN found;
END $$;

-- Whether a type is a base type, and not one of arrays or only announced.
CREATE FUNCTION wlc.is_base(type oid) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT typtype = 'b' AND typisdefined AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
    FROM pg_type t WHERE t.oid = type
$$;

-- What is known of an object that is no table; NULL if replicas have none of its kind.
CREATE FUNCTION wlc.describe_object(class oid, object oid) RETURNS jsonb LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    type pg_type;
    relation pg_class;
    found record;
    schema name;
    name name;
    parts jsonb;
BEGIN
    -- A privilege has neither.
    IF class IS NULL OR object IS NULL THEN
        RETURN NULL;
    END IF;
    IF class = 'pg_class'::regclass THEN
        SELECT * INTO relation FROM pg_class WHERE oid = object;
        CASE
            WHEN relation.relkind = 'S' AND relation.relpersistence = 'p' THEN
                SELECT jsonb_build_object('type', format_type(seqtypid, NULL), 'options', wlc.sequence_options(object),
                    'start', seqstart, 'is_identity', wlc.is_identity(object)) INTO parts
                FROM pg_sequence WHERE seqrelid = object;
            WHEN relation.relkind IN ('v', 'm') THEN
                SELECT jsonb_agg(attname ORDER BY attnum) INTO parts FROM pg_attribute
                WHERE attrelid = object AND attnum > 0 AND NOT attisdropped;
            -- The indexes of a constraint are reported with their table. An invalid one need not fit the rows.
            WHEN relation.relkind IN ('i', 'I') AND EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
                    WHERE i.indexrelid = object AND i.indisvalid AND (c.relkind = 'm' OR wlc.is_captured(c.oid))) AND NOT EXISTS (SELECT FROM pg_constraint k JOIN pg_index i
                    ON i.indexrelid = k.conindid AND i.indrelid = k.conrelid WHERE k.conindid = object) THEN
                SELECT jsonb_build_object('is_part', relation.relispartition AND EXISTS (SELECT FROM pg_inherits h
                        JOIN pg_index i ON i.indexrelid = h.inhparent WHERE h.inhrelid = object AND wlc.is_captured(i.indrelid)),
                    'table', jsonb_build_array(n.nspname, c.relname), 'unique', CASE WHEN NOT x.indisunique THEN '[]' ELSE (
                        -- A generated column is an expression, and rows outside of a condition are as NULL is.
                        SELECT jsonb_agg(a.attname ORDER BY k.place) FROM unnest(x.indkey::int2[]) WITH ORDINALITY AS k(number, place)
                        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number AND a.attgenerated = ''
                        WHERE k.place <= x.indnkeyatts)
                        || CASE WHEN x.indpred IS NULL THEN '[]' ELSE '[null]' END::jsonb END) INTO parts
                FROM pg_index x JOIN pg_class c ON c.oid = x.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE x.indexrelid = object;
            ELSE RETURN NULL;
        END CASE;
    ELSIF class = 'pg_type'::regclass THEN
        SELECT * INTO type FROM pg_type WHERE oid = object;
        CASE
            WHEN type.typtype = 'e' THEN
                SELECT jsonb_agg(jsonb_build_array(oid::bigint, enumlabel) ORDER BY enumsortorder) INTO parts
                FROM pg_enum WHERE enumtypid = object;
            -- The rows of a foreign table are not replicated. Where something is made with their type, replicas get that.
            WHEN type.typtype = 'c' AND EXISTS (SELECT FROM pg_class WHERE oid = type.typrelid AND (relkind = 'c'
                    OR relkind = 'f' AND EXISTS (SELECT FROM pg_depend WHERE refclassid = 'pg_type'::regclass
                        AND refobjid IN (type.oid, type.typarray) AND deptype = 'n'))) THEN
                SELECT coalesce(jsonb_agg(jsonb_build_array(attnum, attname, format_type(atttypid, atttypmod)
                    || CASE WHEN attcollation NOT IN (0, 100) THEN ' COLLATE ' || attcollation::regcollation ELSE '' END,
                    jsonb_build_array(atttypid::bigint, atttypmod, attcollation::bigint)) ORDER BY attnum), '[]') INTO parts
                FROM pg_attribute WHERE attrelid = type.typrelid AND attnum > 0 AND NOT attisdropped;
            WHEN type.typtype = 'd' THEN
                parts := jsonb_build_object('default', pg_get_expr(type.typdefaultbin, 0), 'is_required', type.typnotnull, 'constraints',
                    (SELECT coalesce(jsonb_object_agg(oid::text, jsonb_build_array(conname, pg_get_constraintdef(oid))), '{}')
                     FROM pg_constraint WHERE contypid = object AND contype = 'c' AND convalidated));
            WHEN type.typtype = 'r' OR wlc.is_base(object) THEN NULL;
            ELSE RETURN NULL;
        END CASE;
    ELSIF class = 'pg_proc'::regclass THEN
        SELECT to_jsonb(object_args) INTO parts FROM pg_identify_object_as_address(class, object, 0);
    ELSIF class <> 'pg_namespace'::regclass THEN
        RETURN NULL;
    END IF;
    SELECT nspname INTO schema FROM pg_namespace WHERE oid = CASE class
        WHEN 'pg_proc'::regclass THEN (SELECT pronamespace FROM pg_proc WHERE oid = object)
        WHEN 'pg_class'::regclass THEN relation.relnamespace WHEN 'pg_type'::regclass THEN type.typnamespace ELSE object END;
    name := CASE class WHEN 'pg_proc'::regclass THEN (SELECT proname FROM pg_proc WHERE oid = object)
        WHEN 'pg_class'::regclass THEN relation.relname WHEN 'pg_type'::regclass THEN type.typname
        ELSE schema END;
    -- It was moved out of sight, or is made of what ends with a session.
    IF wlc.is_system(schema) OR type.typtype = 'd' AND EXISTS (
            SELECT FROM pg_type b JOIN pg_type e ON e.oid IN (b.oid, b.typelem)
            WHERE b.oid = type.typbasetype AND e.typnamespace = pg_my_temp_schema()) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO found FROM pg_identify_object(class, object, 0);
    RETURN jsonb_build_object('kind', CASE type.typtype WHEN 'd' THEN 'domain' ELSE found.type END, 'schema', schema, 'name', name,
        'identity', found.identity, 'definition', wlc.definition(class, object, 'CREATE ' || upper(found.type)),
        'parts', parts);
END $$;

-- Tell what became of an object that is no table.
CREATE FUNCTION wlc.look_at_object(class_ oid, object oid, tag text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old jsonb := (SELECT description FROM wlc.objects o WHERE o.class = class_ AND o.oid = object);
    new jsonb := wlc.describe_object(class_, object);
BEGIN
    -- An index was made anew by REINDEX CONCURRENTLY, and this is the first command afterwards, which gives it another name.
    IF old IS NULL AND tag = 'ALTER INDEX' THEN
        UPDATE wlc.objects o SET oid = object WHERE (o.class, o.oid) = (SELECT n.class, n.oid FROM wlc.objects n
            WHERE n.class = class_ AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = n.oid) AND new->>'definition' =
                replace(n.description->>'definition', format(' INDEX %I ON ', n.description->>'name'),
                    format(' INDEX %I ON ', new->>'name')) LIMIT 1)
            RETURNING description INTO old;
    END IF;
    IF old IS DISTINCT FROM new THEN
        DELETE FROM wlc.objects o WHERE o.class = class_ AND o.oid = object;
        IF new IS NOT NULL THEN
            PERFORM wlc.look_at_foreign_rows(class_, object);
            INSERT INTO wlc.objects VALUES (class_, object, new);
        END IF;
        PERFORM wlc.say(jsonb_build_object('object', object::bigint, 'tag', tag, 'old', old, 'new', new,
            'user', session_user));
    END IF;
    PERFORM wlc.look_at_access(class_, object);
END $$;

-- Tell of the foreign tables whose rows are the type of a column, attribute or argument.
CREATE FUNCTION wlc.look_at_foreign_rows(class oid, object oid) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT wlc.look_at_object('pg_type'::regclass, found.reltype, 'CREATE TYPE') FROM (
        SELECT DISTINCT f.reltype FROM pg_depend d
        JOIN pg_type t ON t.oid = d.refobjid LEFT JOIN pg_type e ON e.oid = t.typelem
        JOIN pg_class f ON f.oid = coalesce(nullif(t.typrelid, 0), e.typrelid) AND f.relkind = 'f'
        WHERE d.refclassid = 'pg_type'::regclass AND d.deptype = 'n' AND (d.classid, d.objid) IN (SELECT $1, $2
            UNION ALL SELECT 'pg_class'::regclass, c.typrelid FROM pg_type c WHERE $1 = 'pg_type'::regclass AND c.oid = $2)
    ) found ORDER BY found.reltype
$$;

-- Tell what became of the sequences of a table, which follow it into another schema.
CREATE FUNCTION wlc.look_at_sequences(relation oid, tag text) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT wlc.look_at_object('pg_class'::regclass, c.oid, tag) FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = relation
        AND d.deptype IN ('a', 'i') AND c.relkind = 'S' ORDER BY c.oid
$$;

-- Tell what became of the indexes of a table: some became constraints. ALTER TABLE gives a table that is known no other
-- new indexes than those of constraints and partitions, which come with the table.
CREATE FUNCTION wlc.look_at_indexes(relation oid, tag text, is_known boolean) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO wlc.objects SELECT 'pg_class'::regclass, x.indexrelid, found.description
        FROM pg_index x, wlc.describe_object('pg_class'::regclass, x.indexrelid) found (description)
        WHERE is_known AND x.indrelid = relation AND tag = 'ALTER TABLE' AND found.description IS NOT NULL
        ON CONFLICT DO NOTHING;
    -- Another type of a column makes its indexes anew, without a word. Replicas do that by themselves; but one that became
    -- a constraint by the same command is in its way there. The sequence of an identity goes without a word, too.
    WITH remade AS (
        DELETE FROM wlc.objects o WHERE is_known AND tag = 'ALTER TABLE' AND o.class = 'pg_class'::regclass
            AND o.description->>'kind' IN ('index', 'sequence')
            AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = o.oid)
            RETURNING o.oid, o.description)
    SELECT wlc.say(jsonb_build_object('object', r.oid::bigint, 'tag', tag, 'old', r.description, 'new', NULL,
        'user', session_user)) FROM remade r
    WHERE r.description->>'kind' = 'sequence'
        OR EXISTS (SELECT FROM pg_constraint WHERE conindid = to_regclass(r.description->>'identity'));
    SELECT wlc.look_at_object('pg_class'::regclass, x.indexrelid, tag) FROM pg_index x LEFT JOIN wlc.objects o
        ON o.oid = x.indexrelid AND o.class = 'pg_class'::regclass
    WHERE x.indrelid = relation AND is_known = (o.oid IS NOT NULL) ORDER BY x.indexrelid
$$;

-- Tell what became of a table and of what follows it.
CREATE FUNCTION wlc.look_at_table(relation oid, tag text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE is_known boolean := EXISTS (SELECT FROM wlc.tables WHERE oid = relation);
BEGIN
    PERFORM wlc.look_at_sequences(relation, tag);
    IF is_known THEN
        PERFORM wlc.look_at_indexes(relation, tag, true);
    END IF;
    PERFORM wlc.look_at_object('pg_type'::regclass, reltype, tag) FROM pg_class WHERE oid = relation AND relkind = 'f';
    PERFORM wlc.look_at(relation);
    IF NOT is_known THEN
        PERFORM wlc.look_at_indexes(relation, tag, false);
    END IF;
END $$;

-- REINDEX CONCURRENTLY rebuilds indexes, without firing event triggers before PostgreSQL 17. Find them by their names.
CREATE FUNCTION wlc.renumber_indexes() RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    UPDATE wlc.objects o SET oid = to_regclass(o.description->>'identity')
    WHERE o.class = 'pg_class'::regclass AND o.description->>'kind' = 'index'
        AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = o.oid) AND NOT EXISTS (SELECT FROM wlc.objects n
            WHERE n.class = o.class AND n.oid = coalesce(to_regclass(o.description->>'identity'), o.oid))
$$;

CREATE FUNCTION wlc.is_publication(type text, identity text) RETURNS boolean LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT type LIKE 'publication%' AND identity ~ ('(^|in publication )' || wlc.publication() || '$')
$$;

-- The objects that are no tables, in the order in which they can be created.
CREATE FUNCTION wlc.all_objects(first integer, last integer) RETURNS TABLE (class oid, object oid) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT found.class, found.oid FROM (
        -- Every table has two more types, which the server creates.
        SELECT 1 AS place, 'pg_type'::regclass AS class, t.oid, typnamespace AS namespace FROM pg_type t
            LEFT JOIN pg_class c ON c.oid = typrelid WHERE typtype IN ('e', 'd', 'r') OR typtype = 'c' AND relkind IN ('c', 'f')
                OR t.oid >= 16384 AND typtype = 'b' AND wlc.is_base(t.oid)
        UNION ALL SELECT 2, 'pg_class'::regclass, oid, relnamespace FROM pg_class
            WHERE relkind = 'S' AND relpersistence = 'p'
        -- Functions of the rows of tables and views come behind these; defaults and keys of tables need the others.
        UNION ALL SELECT coalesce((
            SELECT max(CASE WHEN r.relkind IN ('v', 'm') THEN 5 ELSE 4 END) FROM pg_depend d
                LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
                LEFT JOIN pg_type e ON e.oid = t.typelem JOIN pg_class r ON r.oid = CASE d.refclassid
                    WHEN 'pg_class'::regclass THEN d.refobjid ELSE coalesce(nullif(t.typrelid, 0), e.typrelid) END
            WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND r.relkind NOT IN ('c', 'S')), 3),
            'pg_proc'::regclass, p.oid, p.pronamespace FROM pg_proc p WHERE p.oid >= 16384
        UNION ALL SELECT 4, 'pg_class'::regclass, c.oid, c.relnamespace FROM pg_class c JOIN pg_index i
            ON i.indexrelid = c.oid WHERE i.indrelid >= 16384 AND wlc.is_captured(i.indrelid)
        UNION ALL SELECT 5, 'pg_class'::regclass, oid, relnamespace FROM pg_class WHERE relkind IN ('v', 'm')
        UNION ALL SELECT 5, 'pg_class'::regclass, c.oid, c.relnamespace FROM pg_class c JOIN pg_index i
            ON i.indexrelid = c.oid JOIN pg_class m ON m.oid = i.indrelid WHERE m.relkind = 'm'
        UNION ALL SELECT 6, 'pg_namespace'::regclass, oid, oid FROM pg_namespace
    ) found JOIN pg_namespace n ON n.oid = namespace
    WHERE NOT wlc.is_system(n.nspname) AND place BETWEEN first AND last AND NOT EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = found.class AND d.objid = found.oid AND d.deptype = 'e'
            AND NOT EXISTS (SELECT FROM pg_depend a WHERE a.classid = found.class AND a.objid = found.oid AND a.deptype IN ('a', 'i')))
    ORDER BY place, found.oid
$$;
-- Refuse a schema whose name means something else in DuckDB: a database that it always has, or the one that is replicated.
CREATE FUNCTION wlc.refuse_schema(schema text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF lower(schema) IN ('temp', 'system', 'memory') OR lower(schema) = 'main' AND schema <> 'main' THEN
        RAISE EXCEPTION 'schema % cannot be replicated: DuckDB has a schema or database of that name', quote_ident(schema)
            USING HINT = 'choose another name: ALTER SCHEMA … RENAME TO … before wlc master';
    END IF;
    IF lower(schema) = (SELECT lower(value) FROM wlc.state WHERE key = 'name') THEN
        RAISE EXCEPTION 'schema % cannot be replicated: the database has the same name in the farm', quote_ident(schema)
            USING HINT = 'choose another name for the database: wlc master --name';
    END IF;
END $$;

-- Refuse what cannot be captured at all.
CREATE FUNCTION wlc.refuse_object(type text, tag text, object oid, identity text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF wlc.is_publication(type, identity) THEN
        RAISE EXCEPTION 'the publication % is that of dbfarm', wlc.publication()
            USING HINT = 'stop replicating the database first: wlc stop';
    END IF;
    IF type = 'schema' AND tag IN ('CREATE SCHEMA', 'ALTER SCHEMA') THEN
        PERFORM wlc.refuse_schema(nspname) FROM pg_namespace n WHERE n.oid = object;
    END IF;
    IF type = 'schema' AND EXISTS (SELECT FROM pg_namespace a, pg_namespace b
            WHERE a.oid = object AND a.oid <> b.oid AND lower(a.nspname) = lower(b.nspname)) THEN
        RAISE EXCEPTION 'schema % differs from another one in upper and lower case only, which cannot be replicated',
            identity USING HINT = 'choose another name';
    END IF;
    IF tag = 'ALTER SCHEMA' AND EXISTS (
            SELECT FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid LEFT JOIN wlc.tables t ON t.oid = c.oid
            LEFT JOIN wlc.sequences s ON s.oid = c.oid
            WHERE n.oid = object AND n.nspname <> coalesce(t.description->>'schema', s.schema)) THEN
        RAISE EXCEPTION 'schema % has tables or sequences that are replicated by dbfarm, which cannot follow its new name',
            identity USING HINT = 'make a new schema, and move each with SET SCHEMA';
    END IF;
END $$;

-- What the descriptions of may change with an object: tables and objects that are made with it, directly or not, and those
-- that the server counts as a part of it or it as a part of them.
CREATE FUNCTION wlc.concerned(class oid, object oid) RETURNS SETOF oid LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE made_with AS (
        SELECT $1 AS class, $2 AS oid
        UNION SELECT n.class, n.oid FROM made_with m CROSS JOIN LATERAL (
            SELECT d.classid, d.objid FROM pg_depend d WHERE d.refclassid = m.class AND d.refobjid = m.oid
            -- The server notes attributes at the relation of a composite type.
            UNION ALL SELECT 'pg_type'::regclass, c.reltype FROM pg_class c
            WHERE m.class = 'pg_class'::regclass AND c.oid = m.oid AND c.relkind = 'c') n (class, oid))
    SELECT m.oid FROM made_with m
    UNION SELECT coalesce(f.adrelid, nullif(k.conrelid, 0), k.contypid, p.polrelid, w.ev_class, i.indrelid) FROM made_with m
        LEFT JOIN pg_attrdef f ON m.class = 'pg_attrdef'::regclass AND f.oid = m.oid
        LEFT JOIN pg_constraint k ON m.class = 'pg_constraint'::regclass AND k.oid = m.oid
        LEFT JOIN pg_policy p ON m.class = 'pg_policy'::regclass AND p.oid = m.oid
        LEFT JOIN pg_rewrite w ON m.class = 'pg_rewrite'::regclass AND w.oid = m.oid
        LEFT JOIN pg_index i ON m.class = 'pg_class'::regclass AND i.indexrelid = m.oid
    -- The index of a partitioned table becomes valid with the last one below, and the keys below are those of it then.
    UNION SELECT i.indrelid FROM pg_index i JOIN pg_partition_tree(pg_partition_root($2)) t ON t.relid = i.indexrelid
        WHERE $1 = 'pg_class'::regclass
    -- The sequence of an identity.
    UNION SELECT d.refobjid FROM pg_depend d WHERE d.classid = $1 AND d.objid = $2 AND d.deptype = 'i'
$$;

-- Whether it is known what a command can change. Later versions of PostgreSQL may have others.
CREATE FUNCTION wlc.is_known(tag text) RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT tag IN ('COMMENT', 'GRANT', 'REVOKE', 'IMPORT FOREIGN SCHEMA', 'REFRESH MATERIALIZED VIEW', 'REINDEX',
        'SECURITY LABEL', 'SELECT INTO', 'CREATE TABLE AS', 'DROP OWNED', 'REASSIGN OWNED') OR tag ~ ('^(ALTER|CREATE|DROP) ('
        'ACCESS METHOD|AGGREGATE|CAST|COLLATION|CONSTRAINT|CONVERSION|DEFAULT PRIVILEGES|DOMAIN|EXTENSION|'
        'FOREIGN DATA WRAPPER|FOREIGN TABLE|FUNCTION|INDEX|LANGUAGE|LARGE OBJECT|MATERIALIZED VIEW|OPERATOR|'
        'OPERATOR CLASS|OPERATOR FAMILY|POLICY|PROCEDURE|PUBLICATION|ROUTINE|RULE|SCHEMA|SEQUENCE|SERVER|STATISTICS|'
        'SUBSCRIPTION|TABLE|TEXT SEARCH (CONFIGURATION|DICTIONARY|PARSER|TEMPLATE)|TRANSFORM|TRIGGER|TYPE|USER MAPPING|VIEW)$')
$$;

CREATE FUNCTION wlc.on_ddl() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    command record;
    relation oid;
    concerned oid[] := '{}';
    is_wide boolean;
BEGIN
    IF wlc.is_running() THEN
        RETURN;
    END IF;
    PERFORM wlc.renumber_indexes();
    IF NOT wlc.is_known(TG_TAG) THEN
        RAISE EXCEPTION 'dbfarm does not know what % changes: %', TG_TAG, left(current_query(), 200)
            USING HINT = 'stop replicating the database first: wlc stop';
    END IF;
    FOR command IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
        -- What is known may have been moved there just now.
        CONTINUE WHEN (wlc.is_system(command.schema_name) OR command.object_identity ~ '^(pg_temp|wlc\.|wlr\.)')
            AND NOT EXISTS (SELECT FROM wlc.tables t WHERE t.oid = command.objid AND command.classid = 'pg_class'::regclass)
            AND NOT EXISTS (SELECT FROM wlc.objects o WHERE o.oid = command.objid AND o.class = command.classid);
        PERFORM wlc.refuse_object(command.object_type, command.command_tag, command.objid, command.object_identity);
        IF command.classid = 'pg_class'::regclass AND EXISTS (
                SELECT FROM pg_class WHERE oid = command.objid AND relkind IN ('r', 'p', 'f'))
                OR command.command_tag = 'ALTER SCHEMA' THEN
            IF command.command_tag = 'ALTER SCHEMA' AND NOT command.in_extension THEN
                PERFORM wlc.look_at_object(command.classid, command.objid, command.command_tag);
            END IF;
            FOR relation IN
                -- Parents come before their children; those that have just left them, or refer to them, come last.
                WITH RECURSIVE below AS (
                    SELECT c.oid, 0 AS level FROM pg_class c WHERE c.relkind IN ('r', 'p', 'f') AND CASE command.classid
                        WHEN 'pg_class'::regclass THEN c.oid ELSE c.relnamespace END = command.objid
                    UNION SELECT i.inhrelid, b.level + 1 FROM pg_inherits i JOIN below b ON b.oid = i.inhparent),
                concerned AS (
                    SELECT b.oid, max(b.level) AS level FROM below b GROUP BY b.oid UNION ALL
                    SELECT t.oid, 1000 FROM wlc.tables t JOIN below b ON t.description @> jsonb_build_object(
                        'parents', jsonb_build_array(jsonb_build_array(b.oid::bigint))) UNION ALL
                    SELECT k.conrelid, 2000 FROM pg_constraint k JOIN below b ON b.oid = k.confrelid)
                SELECT c.oid FROM concerned c GROUP BY c.oid ORDER BY min(c.level), c.oid
            LOOP
                PERFORM wlc.look_at_table(relation, command.command_tag);
            END LOOP;
        ELSIF command.classid = 'pg_class'::regclass
                AND EXISTS (SELECT FROM pg_class WHERE oid = command.objid AND relkind = 'c') THEN
            PERFORM wlc.look_at_object('pg_type'::regclass, (SELECT reltype FROM pg_class WHERE oid = command.objid),
                command.command_tag);
        -- The index of an extension's table is none of its members.
        ELSIF NOT command.in_extension OR command.object_type = 'index' THEN
            PERFORM wlc.look_at_object(command.classid, command.objid, command.command_tag);
            -- A renamed constraint of a domain is reported with the domain.
            PERFORM wlc.look_at_object('pg_type'::regclass, contypid, command.command_tag) FROM pg_constraint
                WHERE command.classid = 'pg_constraint'::regclass AND oid = command.objid AND contypid <> 0;
            -- The index of a partitioned table becomes valid with the last one below, and has those of the partitions made.
            IF command.object_type = 'index' THEN
                PERFORM wlc.look_at_object(command.classid, t.relid, command.command_tag)
                FROM pg_partition_tree(command.objid) t WHERE t.relid <> command.objid;
                PERFORM wlc.look_at_object(command.classid, a.relid, command.command_tag)
                FROM pg_partition_ancestors(command.objid) a WHERE a.relid <> command.objid;
            END IF;
        END IF;
        IF command.command_tag ~ '^(ALTER|CREATE) ' THEN
            concerned := concerned || ARRAY(SELECT wlc.concerned(command.classid, command.objid));
        END IF;
    END LOOP;
    FOR relation IN
        SELECT t.oid FROM wlc.tables t JOIN pg_class c USING (oid)
        WHERE t.oid = ANY (concerned) OR t.oid IN (SELECT p.oid FROM wlc.pending p WHERE what = 'touched')
        ORDER BY (SELECT count(*) FROM pg_partition_ancestors(t.oid)), t.oid
    LOOP
        PERFORM wlc.look_at_table(relation, TG_TAG);
        -- A rule makes a view of it.
        PERFORM wlc.look_at_object('pg_class'::regclass, relation, 'CREATE VIEW');
    END LOOP;
    -- What has another name now is written otherwise in all that is made with it. So it is in replicas, without a word;
    -- one that could not make a view or routine can do so when it is replaced, which is reported if the definition
    -- differs.
    UPDATE wlc.objects o SET description = coalesce(wlc.describe_object(o.class, o.oid), description) || CASE
            WHEN description->>'kind' IN ('view', 'function', 'procedure')
            THEN jsonb_build_object('definition', description->'definition') ELSE '{}' END
        WHERE o.oid = ANY (concerned) OR o.oid IN (SELECT p.oid FROM wlc.pending p WHERE what = 'touched');
    DELETE FROM wlc.pending WHERE what = 'touched';
    DELETE FROM wlc.pending WHERE what = 'owner';
    is_wide := FOUND;
    IF is_wide OR TG_TAG IN ('GRANT', 'REVOKE', 'DROP OWNED', 'REASSIGN OWNED') THEN
        PERFORM wlc.look_at_all_access(is_wide);
        DELETE FROM wlc.pending WHERE what = 'owner';
        IF FOUND AND NOT is_wide THEN
            PERFORM wlc.look_at_all_access(true);
        END IF;
        DELETE FROM wlc.pending WHERE what = 'owner';
    END IF;
END $$;

CREATE FUNCTION wlc.on_drop() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
    dropped record;
    old jsonb;
    relation oid;
BEGIN
    IF wlc.is_running() THEN
        RETURN;
    END IF;
    PERFORM wlc.renumber_indexes();
    -- A schema goes behind what was in it.
    FOR dropped IN SELECT d.* FROM pg_event_trigger_dropped_objects() WITH ORDINALITY d
            ORDER BY d.object_type = 'schema', d.ordinality LOOP
        CONTINUE WHEN dropped.is_temporary OR wlc.is_system(dropped.schema_name);
        IF dropped.original OR TG_TAG = 'ALTER PUBLICATION' THEN
            PERFORM wlc.refuse_object(dropped.object_type, TG_TAG, dropped.objid, dropped.object_identity);
        END IF;
        -- Parts of tables go with types, functions and tables that they need; `on_ddl`, which comes next, looks at these.
        IF dropped.object_type IN ('table column', 'table constraint', 'default value', 'policy', 'composite type column') THEN
            relation := to_regclass(format('%I.%I', dropped.address_names[1], dropped.address_names[2]));
            INSERT INTO wlc.pending SELECT 'touched', CASE relkind WHEN 'c' THEN reltype ELSE oid END
                FROM pg_class WHERE oid = relation;
            CONTINUE;
        END IF;
        DELETE FROM wlc.access a WHERE a.class = dropped.classid AND a.oid = dropped.objid AND dropped.objsubid = 0;
        IF dropped.classid = 'pg_class'::regclass AND dropped.objsubid = 0 THEN
            DELETE FROM wlc.tables WHERE oid = dropped.objid RETURNING description INTO old;
            IF FOUND THEN
                PERFORM wlc.say(jsonb_build_object('table', dropped.objid::bigint, 'old', old, 'new', NULL));
                CONTINUE;
            END IF;
        END IF;
        DELETE FROM wlc.objects o WHERE o.class = dropped.classid AND dropped.objsubid = 0 AND (o.oid = dropped.objid
                OR dropped.object_type = 'index' AND o.description->>'identity' = dropped.object_identity)
            RETURNING description INTO old;
        -- The type of the rows of a foreign table goes with the table, and an index with a column.
        IF FOUND AND (dropped.object_type IN ('sequence', 'type') OR dropped.original OR dropped.normal
                OR to_regclass(format('%I.%I', old->'parts'->'table'->>0, old->'parts'->'table'->>1)) IS NOT NULL) THEN
            PERFORM wlc.say(jsonb_build_object('object', dropped.objid::bigint, 'tag', TG_TAG, 'old', old, 'new', NULL,
                'user', session_user));
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION wlc.on_rewrite() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- 1 is another persistence, 8 another access method: the rows stay what they were. All rows of a table that is not
    -- captured yet are sent when it is.
    INSERT INTO wlc.pending SELECT 'rewritten', oid FROM wlc.tables
        WHERE oid = pg_event_trigger_table_rewrite_oid() AND pg_event_trigger_table_rewrite_reason() & 6 <> 0;
END $$;

-- The session that runs a command may have disabled the plans that are good for looking up few rows of the catalog.
DO $$
DECLARE
    function text;
    setting text;
BEGIN
    FOREACH function IN ARRAY ARRAY['on_ddl', 'on_drop', 'on_rewrite'] LOOP
        FOREACH setting IN ARRAY ARRAY['nestloop', 'hashjoin', 'mergejoin', 'sort', 'indexscan', 'indexonlyscan',
                'bitmapscan', 'seqscan', 'hashagg', 'material'] LOOP
            EXECUTE format('ALTER FUNCTION wlc.%I() SET enable_%s = on', function, setting);
        END LOOP;
        EXECUTE format('ALTER FUNCTION wlc.%I() SET join_collapse_limit = 8', function);
        EXECUTE format('ALTER FUNCTION wlc.%I() SET jit = off', function);
    END LOOP;
END $$;


-- Make the database a master, and end that. These functions run with the rights of their creator, so that the role that
-- publishes needs none of these. They take no text that becomes part of a statement.

-- Note all captured tables, in place of what an earlier history noted.
CREATE FUNCTION wlc.note_all() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE relation oid;
BEGIN
    DELETE FROM wlc.tables;
    DELETE FROM wlc.published;
    DELETE FROM wlc.sequences;
    DELETE FROM wlc.pending;
    PERFORM wlc.refuse_schema(nspname) FROM pg_namespace WHERE NOT wlc.is_system(nspname);
    FOR relation IN SELECT c.oid FROM pg_class c WHERE c.relkind IN ('r', 'p') AND wlc.is_captured(c.oid) ORDER BY c.oid LOOP
        PERFORM wlc.note(relation);
    END LOOP;
END $$;

-- Give a noted table the replica identity FULL.
CREATE FUNCTION wlc.make_full(relation oid) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM wlc.tables t JOIN pg_class c USING (oid) WHERE t.oid = relation AND c.relkind = 'r') THEN
        EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', relation::regclass);
    END IF;
END $$;

-- Give a noted table the replica identity that it had before.
CREATE FUNCTION wlc.restore(relation oid) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE before text;
BEGIN
    SELECT identity INTO before FROM wlc.tables t JOIN pg_class c USING (oid) WHERE t.oid = relation AND c.relkind = 'r';
    IF FOUND THEN
        PERFORM wlc.restore_identity(relation, before);
    END IF;
END $$;

-- Start to capture. (psql takes a function called `begin` for the beginning of a block, so that a dump could not be restored.)
CREATE FUNCTION wlc.start() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    publication text := wlc.publication();
    relation oid;
    event text;
BEGIN
    EXECUTE format('DROP PUBLICATION IF EXISTS %I', publication);
    -- From PostgreSQL 18 on, rows of a table whose replica identity has columns that are not published cannot be changed.
    EXECUTE format('CREATE PUBLICATION %I WITH (publish = ''insert, update, delete, truncate''%s)', publication,
        CASE WHEN current_setting('server_version_num')::int >= 180000 THEN ', publish_generated_columns = stored' END);
    -- Others may have altered, created and dropped tables since these were noted.
    DELETE FROM wlc.tables t WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.oid);
    FOR relation IN SELECT c.oid FROM pg_class c WHERE c.relkind IN ('r', 'p') AND wlc.is_captured(c.oid) ORDER BY c.oid LOOP
        PERFORM wlc.adopt(relation);
    END LOOP;
    DELETE FROM wlc.objects;
    INSERT INTO wlc.objects SELECT * FROM (
        SELECT class, object, wlc.describe_object(class, object) AS description FROM wlc.all_objects(1, 6)) found
        WHERE description IS NOT NULL;
    DELETE FROM wlc.access;
    INSERT INTO wlc.access SELECT f.class, f.object, f.description, r.raw FROM wlc.all_access() f
        JOIN wlc.raw_access() r USING (class, object) WHERE f.description IS NOT NULL;
    DELETE FROM wlc.pending;
    CREATE EVENT TRIGGER wlc_on_ddl ON ddl_command_end EXECUTE FUNCTION wlc.on_ddl();
    CREATE EVENT TRIGGER wlc_on_drop ON sql_drop EXECUTE FUNCTION wlc.on_drop();
    CREATE EVENT TRIGGER wlc_on_rewrite ON table_rewrite EXECUTE FUNCTION wlc.on_rewrite();
    ALTER EVENT TRIGGER wlc_on_ddl ENABLE ALWAYS;
    ALTER EVENT TRIGGER wlc_on_drop ENABLE ALWAYS;
    ALTER EVENT TRIGGER wlc_on_rewrite ENABLE ALWAYS;
END $$;

-- End the capture.
CREATE FUNCTION wlc.finish() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE publication text := wlc.publication();
BEGIN
    DROP EVENT TRIGGER IF EXISTS wlc_on_ddl;
    DROP EVENT TRIGGER IF EXISTS wlc_on_drop;
    DROP EVENT TRIGGER IF EXISTS wlc_on_rewrite;
    IF publication IS NOT NULL THEN
        EXECUTE format('DROP PUBLICATION IF EXISTS %I', publication);
    END IF;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA wlc FROM PUBLIC;

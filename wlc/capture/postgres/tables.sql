-- The tables of a PostgreSQL master:
--     state      key and value: which farm, history and batch the database has reached, and where in the server's log
--     tables     every captured table as the event triggers last described it, and what its replica identity was before
--     objects    every other object of the schema (index, view, sequence, type, function) as it was last described
--     access     who may do what with these tables and objects, and which rows they see, as last described
--     published  every captured table as the last published batch leaves it, and how many rows it has
--     sequences  every captured sequence and its last published value
--     pending    what the event triggers tell one another within a transaction; empty outside

-- Functions here run with the rights of their creator, and trust the schema's content.
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_namespace JOIN pg_roles r ON r.oid = nspowner
            WHERE nspname = 'wlc' AND NOT r.rolsuper AND r.rolname <> current_user) THEN
        RAISE EXCEPTION 'the schema wlc belongs to another role'
            USING HINT = 'look at what it holds; then DROP SCHEMA wlc CASCADE';
    END IF;
END $$;
CREATE SCHEMA IF NOT EXISTS wlc;
CREATE TABLE IF NOT EXISTS wlc.state (key text PRIMARY KEY, value text NOT NULL);
CREATE TABLE wlc.tables (oid oid PRIMARY KEY, description jsonb NOT NULL, identity text);
CREATE INDEX ON wlc.tables (lower(description->>'schema'), lower(description->>'name'));
CREATE TABLE wlc.published (oid oid PRIMARY KEY, description jsonb NOT NULL, rows bigint NOT NULL);
CREATE TABLE wlc.sequences (oid oid PRIMARY KEY, schema text NOT NULL, name text NOT NULL, value bigint);
CREATE TABLE wlc.objects (class oid, oid oid, description jsonb NOT NULL, PRIMARY KEY (class, oid));
CREATE TABLE wlc.access (class oid, oid oid, description jsonb NOT NULL, raw text, PRIMARY KEY (class, oid));
-- Its rows never outlive a transaction. A publication of all tables has no unlogged ones, and would want its identity.
CREATE UNLOGGED TABLE wlc.pending (what text NOT NULL, oid oid);


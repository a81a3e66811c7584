
-- The role reads all tables, and publishes. It cannot write what the functions above trust.
REVOKE ALL ON SCHEMA wlc FROM {role};
GRANT USAGE ON SCHEMA wlc TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA wlc TO {role};
GRANT INSERT, UPDATE, DELETE ON wlc.state, wlc.published, wlc.sequences TO {role};
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA wlc TO {role};
GRANT pg_read_all_data TO {role};
-- Row security would hide rows from the snapshots.
ALTER ROLE {role} REPLICATION BYPASSRLS;
COMMENT ON SCHEMA wlc IS {comment};
COMMIT;

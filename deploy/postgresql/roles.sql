-- Grants a role exactly the privileges that the service needs, so that `petstore serve` need not run as the owner of the
-- tables. The role cannot change the schema, and can delete no row except a pet that is in no order.
--
--   psql --dbname petstore --set service=petstore_service --file roles.sql
--
-- Run it as the owner of the database or as a superuser. It is idempotent. It creates the role if needed; give the role a
-- password or a line in pg_hba.conf. A new version may need more privileges: `petstore migrate --grant-to ROLE` grants an
-- existing role what is between BEGIN and COMMIT below.
-- `petstore migrate` and `petstore demo` need the owner, and so does `petstore keys apply` when it changes the scopes or the
-- rate limit of a key. Every other command works with this role.

\set ON_ERROR_STOP on
\if :{?service}
\else
  \set service petstore_service
\endif

SELECT current_database() AS database, current_schema() AS schema \gset
SELECT format('CREATE ROLE %I LOGIN', :'service')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'service') \gexec

BEGIN;

-- PostgreSQL 14 and earlier let every role create tables here, and an upgrade keeps that.
REVOKE CREATE ON SCHEMA :"schema" FROM PUBLIC;

-- `petstore import` uses temporary tables.
GRANT CONNECT, TEMPORARY ON DATABASE :"database" TO :"service";
GRANT USAGE ON SCHEMA :"schema" TO :"service";

GRANT SELECT ON refinery_schema_history TO :"service";
GRANT SELECT, INSERT, UPDATE ON pets, orders TO :"service";
-- Foreign keys keep the pets that are in an order.
GRANT DELETE ON pets TO :"service";
-- Requests with an Idempotency-Key draw pet ids before they insert the pets. All other ids come from column defaults.
GRANT USAGE ON SEQUENCE pets_id_seq TO :"service";

-- The service can end a key and record its use. It cannot change a key's digest, name, scopes or limits.
GRANT SELECT, INSERT, UPDATE (expires_at, revoked_at, last_used_at) ON api_keys TO :"service";
GRANT SELECT, INSERT ON api_key_events, imported_chunks TO :"service";

-- Partitions are accessed through their parent table and need no grants.
GRANT SELECT, INSERT ON idempotency_keys TO :"service";
-- Triggers write the events, with the privileges of the owner.
GRANT SELECT ON events, event_feed TO :"service";
GRANT EXECUTE ON FUNCTION create_idempotency_partitions(), drop_idempotency_partitions() TO :"service";
GRANT EXECUTE ON FUNCTION stored_results(uuid[]), stored_results_with_versions(uuid[]), result_days() TO :"service";
GRANT EXECUTE ON FUNCTION event_origin(), create_event_partitions(), drop_event_partitions(interval) TO :"service";
-- Called by nodes of the previous release during an upgrade.
GRANT EXECUTE ON FUNCTION turn_idempotency_pages() TO :"service";

COMMIT;

-- For a cluster: with this, the service sees how far each server is, and reads only what is proven to be fresh. Only a
-- superuser can grant it.
SELECT format('GRANT pg_monitor TO %I', :'service') AS command, rolsuper AS can_grant
FROM pg_roles
WHERE rolname = current_user \gset
\if :can_grant
  :command;
\else
  \echo For a cluster, run as a superuser: :command
\endif

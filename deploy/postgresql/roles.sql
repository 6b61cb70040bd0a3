-- Grants to a role exactly what the service needs, so that `petstore serve` does not have to run as the owner of the
-- tables: it can then neither change the schema nor delete a row.
--
--   psql --dbname petstore --set service=petstore_service --file roles.sql
--
-- Run it as the owner of the database or as a superuser, after each `petstore migrate`: a new version may need more.
-- It can be run again. The role is created if there is none; give it a password or a line in pg_hba.conf.
-- `petstore migrate` and `petstore demo` need the owner. Every other command works with this role.

\set ON_ERROR_STOP on
\if :{?service}
\else
  \set service petstore_service
\endif

SELECT current_database() AS database, current_schema() AS schema \gset
SELECT format('CREATE ROLE %I LOGIN', :'service')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'service') \gexec

BEGIN;

-- PostgreSQL 14 and earlier let everybody create tables here, and an upgrade keeps that.
REVOKE CREATE ON SCHEMA :"schema" FROM PUBLIC;

-- Temporary tables are for `petstore import`.
GRANT CONNECT, TEMPORARY ON DATABASE :"database" TO :"service";
GRANT USAGE ON SCHEMA :"schema" TO :"service";

GRANT SELECT ON refinery_schema_history TO :"service";
GRANT SELECT, INSERT, UPDATE ON pets, orders TO :"service";
-- Ids of pets with an Idempotency-Key are drawn before the pets are added. All others come by themselves.
GRANT USAGE ON SEQUENCE pets_id_seq TO :"service";

-- A key can be ended and its use recorded. What it is and what it allows stays as it was issued.
GRANT SELECT, INSERT, UPDATE (expires_at, revoked_at, last_used_at) ON api_keys TO :"service";
GRANT SELECT, INSERT ON api_key_events, imported_chunks TO :"service";

-- Partitions are reached through their table, and need no grants of their own.
GRANT SELECT, INSERT ON idempotency_keys TO :"service";
GRANT EXECUTE ON FUNCTION create_idempotency_partitions(), drop_idempotency_partitions() TO :"service";
-- For nodes of the release before, during an upgrade.
GRANT EXECUTE ON FUNCTION turn_idempotency_pages() TO :"service";

COMMIT;

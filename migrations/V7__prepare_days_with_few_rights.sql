-- Lets a role without DDL rights run the service, keeps creating partitions apart from dropping them, and gives keys a
-- lineage.

-- The first key of the chain of rotations that made this key; null for a key that no rotation made. What is remembered
-- of requests belongs to the lineage, so that a request can be sent again with the successor of its key. There is no
-- foreign key: the first key may be deleted.
ALTER TABLE api_keys ADD COLUMN lineage_id bigint;

-- The functions below run with the rights of their owner, who owns the tables. Their search_path is set at the end.

-- Creates the partitions from yesterday to seven days ahead that are missing, and attaches those that were detached.
-- Requests never wait for it: the lock on the table conflicts with neither reading nor writing. It makes callers wait
-- for each other.
CREATE FUNCTION create_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
DECLARE
  parent CONSTANT regclass := 'idempotency_keys'::regclass;
  home CONSTANT text := (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = parent);
  today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
  day date;
  partition text;
BEGIN
  FOR day IN SELECT today + n FROM generate_series(-1, 7) AS n LOOP
    -- With its schema: the first one of the search_path is not the table's.
    partition := home || '.idempotency_keys_' || to_char(day, 'YYYYMMDD');
    CONTINUE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent AND inhrelid = to_regclass(partition));
    LOCK TABLE idempotency_keys IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(partition) IS NULL THEN
      EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', partition, parent);
    END IF;
    -- Somebody else may have done it before the lock was free.
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent AND inhrelid = to_regclass(partition)) THEN
      EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', parent, partition, day, day + 1);
    END IF;
  END LOOP;
END
$$;

-- Drops the partitions of days before yesterday. Requests wait while it waits for other transactions, so it gives up
-- soon, and is called again later.
CREATE FUNCTION drop_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
  partition regclass;
BEGIN
  FOR partition IN
    SELECT inhrelid FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'idempotency_keys'::regclass
      AND relname < 'idempotency_keys_' || to_char((now() AT TIME ZONE 'UTC')::date - 1, 'YYYYMMDD')
  LOOP
    EXECUTE format('DROP TABLE %s', partition);
  END LOOP;
END
$$;

-- For nodes of the release before. A failed drop must not undo what was created.
CREATE OR REPLACE FUNCTION turn_idempotency_pages() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
BEGIN
  PERFORM create_idempotency_partitions();
  BEGIN
    PERFORM drop_idempotency_partitions();
  EXCEPTION WHEN OTHERS THEN
    -- Not a warning: nodes close a connection on which the server warns.
    RAISE LOG 'could not drop idempotency partitions: %', SQLERRM;
  END;
END
$$;

-- A caller must not be able to put an object of its own in front of ours, nor call what it was not granted.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY[
    'create_idempotency_partitions()', 'drop_idempotency_partitions()', 'turn_idempotency_pages()'
  ] LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', name, current_schema());
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', name);
  END LOOP;
END
$$;

SELECT create_idempotency_partitions();

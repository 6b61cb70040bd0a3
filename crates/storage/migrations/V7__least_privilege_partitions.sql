-- Lets a role without DDL privileges run the service, keeps creating partitions apart from dropping them, and gives keys a
-- lineage.

-- The first key of the chain of rotations that made this key; null for a key that no rotation made. What is remembered
-- of requests belongs to the lineage, so that a request can be sent again with the successor of its key. There is no
-- foreign key: the first key may be deleted.
ALTER TABLE api_keys ADD COLUMN lineage_id bigint;

-- The next two are for every table that is partitioned by day. They run with the privileges and the lock_timeout of the
-- functions that call them.

-- Creates the partitions from yesterday to seven days ahead that are missing, and attaches those that were detached.
-- Requests never wait for it: the lock on the table conflicts with neither reading nor writing. It makes callers wait
-- for each other.
CREATE FUNCTION create_daily_partitions(parent regclass) RETURNS void
-- The days are those of UTC, also in the bounds of a table that is partitioned by time.
LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
  -- With the schema: the first one of the search_path is not the table's.
  prefix CONSTANT text := (SELECT format('%s.%s_', relnamespace::regnamespace, relname) FROM pg_class WHERE oid = parent);
  day date;
  partition text;
BEGIN
  FOR day IN SELECT current_date + n FROM generate_series(-1, 7) AS n LOOP
    partition := prefix || to_char(day, 'YYYYMMDD');
    CONTINUE WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent AND inhrelid = to_regclass(partition));
    EXECUTE format('LOCK TABLE %s IN SHARE UPDATE EXCLUSIVE MODE', parent);
    IF to_regclass(partition) IS NULL THEN
      EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL)', partition, parent);
    END IF;
    -- Another session may have done it before the lock was free.
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent AND inhrelid = to_regclass(partition)) THEN
      EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', parent, partition, day, day + 1);
    END IF;
  END LOOP;
END
$$;

-- The partitions of days before this one.
CREATE FUNCTION daily_partitions_before(parent regclass, first_day date) RETURNS SETOF regclass LANGUAGE sql STABLE AS $$
  SELECT inhrelid::regclass
  FROM pg_inherits
  JOIN pg_class AS child ON child.oid = inhrelid
  JOIN pg_class AS whole ON whole.oid = inhparent
  WHERE inhparent = parent AND child.relname < whole.relname || '_' || to_char(first_day, 'YYYYMMDD')
$$;

-- The functions below run with the privileges of their owner, who owns the tables. Their search_path is set at the end.

CREATE FUNCTION create_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
BEGIN
  PERFORM create_daily_partitions('idempotency_keys');
END
$$;

-- Drops the partitions of days before yesterday. Requests wait while it waits for other transactions, so it gives up
-- soon, and is called again later.
CREATE FUNCTION drop_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
  partition regclass;
BEGIN
  FOR partition IN SELECT daily_partitions_before('idempotency_keys', (now() AT TIME ZONE 'UTC')::date - 1) LOOP
    EXECUTE format('DROP TABLE %s', partition);
  END LOOP;
END
$$;

-- A caller must not be able to put an object of its own in front of ours, nor call what it was not granted.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY[
    'create_daily_partitions(regclass)', 'daily_partitions_before(regclass, date)',
    'create_idempotency_partitions()', 'drop_idempotency_partitions()'
  ] LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', name, current_schema());
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', name);
  END LOOP;
END
$$;

SELECT create_idempotency_partitions();

-- Keeps every time within what RFC 3339 can express: no response, log line or calculation can contain another. V15 has corrected
-- what was stored, and V18 validates it. The times of `idempotency_keys` and `events` have no constraint: their partitions bound
-- the one, and nothing but a comparison reads the other.
--
-- Also keeps partitions when a clock that is wrong makes them look old, and creates those of idempotency keys for two days ahead:
-- each lookup searches all of them from yesterday on, because a clock may be set back. V19 drops those for later days.

-- Orders first: nothing else is locked while this waits for transactions that change orders.
ALTER TABLE orders ADD CONSTRAINT orders_times CHECK (
  created_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z'
  AND updated_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z'
  AND expires_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z') NOT VALID;
ALTER TABLE api_keys ADD CONSTRAINT api_keys_times CHECK (
  created_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z'
  AND expires_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z'
  AND revoked_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z'
  AND last_used_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z') NOT VALID;
ALTER TABLE event_feed ADD CONSTRAINT event_feed_time CHECK (
  started_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z') NOT VALID;
ALTER TABLE api_key_events ADD CONSTRAINT api_key_events_time CHECK (
  happened_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z') NOT VALID;
ALTER TABLE imported_chunks ADD CONSTRAINT imported_chunks_time CHECK (
  imported_at BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-30 22:00:00.999999Z') NOT VALID;

-- Creates the partitions from yesterday to so many days ahead that are missing, and attaches those that were detached. Requests
-- never wait for it: the lock on the table conflicts with neither reading nor writing. It makes callers wait for each other.
CREATE FUNCTION create_daily_partitions(parent regclass, days_ahead integer) RETURNS void
-- The days are those of UTC, also in the bounds of a table that is partitioned by time.
LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
  -- With the schema: the first one of the search_path is not the table's.
  prefix CONSTANT text := (SELECT format('%s.%s_', relnamespace::regnamespace, relname) FROM pg_class WHERE oid = parent);
  day date;
  partition text;
BEGIN
  FOR day IN SELECT current_date + n FROM generate_series(-1, days_ahead) AS n LOOP
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

-- For the events.
CREATE OR REPLACE FUNCTION create_daily_partitions(parent regclass) RETURNS void LANGUAGE sql AS $$
  SELECT create_daily_partitions(parent, 7)
$$;

CREATE OR REPLACE FUNCTION create_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
BEGIN
  PERFORM create_daily_partitions('idempotency_keys', 2);
END
$$;

-- The partitions of days before this one that can be dropped: those that are empty, and those after which rows were written on
-- three days on which they were old already. So a clock that is days ahead drops nothing until it has been wrong for a whole day,
-- even if it passes a midnight. Rows that a clock wrote years behind stay as long: events are in the order in which they were
-- written, whatever their time.
CREATE FUNCTION outdated_partitions(parent regclass, first_day date) RETURNS SETOF regclass
LANGUAGE plpgsql STABLE SET timezone = 'UTC' AS $$
DECLARE
  kept CONSTANT integer := current_date - first_day;
  partition regclass;
  other regclass;
  day date;
  written_later text;
  has_rows boolean;
  days integer;
BEGIN
  FOR partition, day IN
    SELECT old, to_date(right(relname, 8), 'YYYYMMDD')
    FROM daily_partitions_before(parent, first_day) AS old
    JOIN pg_class ON pg_class.oid = old
  LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', partition) INTO has_rows;
    IF NOT has_rows THEN
      RETURN NEXT partition;
      CONTINUE;
    END IF;
    written_later := 'true';
    IF parent = 'events'::regclass THEN
      EXECUTE format('SELECT format(''xid > %%L'', xid) FROM %s AS old ORDER BY old.xid DESC LIMIT 1', partition)
      INTO written_later;
    END IF;
    days := 0;
    FOR other IN
      SELECT inhrelid::regclass
      FROM pg_inherits
      JOIN pg_class ON pg_class.oid = inhrelid
      -- Not tomorrow, for which keys are stored before midnight. The days as text: this may be asked of any table's name.
      WHERE inhparent = parent
        AND right(relname, 8) BETWEEN to_char(day + kept + 1, 'YYYYMMDD') AND to_char(current_date, 'YYYYMMDD')
    LOOP
      EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE %s)', other, written_later) INTO has_rows;
      days := days + has_rows::integer;
    END LOOP;
    IF days >= 3 THEN
      RETURN NEXT partition;
    END IF;
  END LOOP;
END
$$;

-- Drops the outdated partitions of days before yesterday. Requests wait while it waits for other transactions, so it gives up
-- soon, and is called again later.
CREATE OR REPLACE FUNCTION drop_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
  partition regclass;
BEGIN
  FOR partition IN SELECT outdated_partitions('idempotency_keys', (now() AT TIME ZONE 'UTC')::date - 1) LOOP
    EXECUTE format('DROP TABLE %s', partition);
  END LOOP;
END
$$;

-- Drops the outdated partitions of days that are older than this, but never those of yesterday or later, and records how far
-- they reached. Requests wait while it waits for other transactions, so it gives up soon, and is called again later.
CREATE OR REPLACE FUNCTION drop_event_partitions(kept interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
  first_day CONSTANT date := (now() AT TIME ZONE 'UTC' - greatest(kept, interval '1 day'))::date;
  partition regclass;
BEGIN
  IF NOT EXISTS (SELECT FROM outdated_partitions('events', first_day)) THEN
    RETURN;
  END IF;
  -- The parent first, as readers and writers do. No event can be added to a partition that has been looked at.
  LOCK TABLE events IN ACCESS EXCLUSIVE MODE;
  FOR partition IN SELECT outdated_partitions('events', first_day) LOOP
    EXECUTE format(
      'UPDATE event_feed
       SET dropped_xid = last.xid, dropped_number = last.number,
         dropped_pet_id = (SELECT max(id) FROM unnest(coalesce(pet_ids, ARRAY[pet_id])) AS id)
       FROM (SELECT xid, number, pet_id, pet_ids FROM %s ORDER BY xid DESC, number DESC LIMIT 1) AS last
       WHERE (last.xid, last.number) > (dropped_xid, dropped_number)', partition);
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
    'create_daily_partitions(regclass, integer)', 'create_daily_partitions(regclass)', 'create_idempotency_partitions()',
    'outdated_partitions(regclass, date)', 'drop_idempotency_partitions()', 'drop_event_partitions(interval)'
  ] LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', name, current_schema());
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', name);
  END LOOP;
END
$$;

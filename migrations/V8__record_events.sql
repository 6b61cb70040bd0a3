-- Records every change of a pet or an order as an event, for readers who follow the changes.
--
-- Events are read in the order of (xid, pet_id), and only those of transactions that are older than every running one: so a
-- reader never passes an event that is not committed yet. One transaction has at most one event of a pet.
--
-- Pets that one statement adds share a row: that costs a fraction of a row for each.

CREATE TYPE event_type AS ENUM (
  'pet.created', 'pet.updated', 'pets.imported', 'order.placed', 'order.completed', 'order.cancelled', 'order.expired');

CREATE TABLE events (
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  -- The last of them, if there are several.
  pet_id bigint NOT NULL,
  -- When the transaction began. Of two transactions, the one with the larger xid began a few seconds before the other at most.
  happened_at timestamptz NOT NULL DEFAULT date_trunc('milliseconds', now()),
  type event_type NOT NULL,
  -- The first of the pets that were imported.
  first_pet_id bigint,
  order_id bigint,
  -- The API key of the request; null for what the service or an operator did. No foreign key: a key may be deleted.
  key_id bigint,
  -- Each is an event of its own, with the pet and the key in the same place of both arrays.
  pet_ids bigint[],
  key_ids bigint[],
  CONSTRAINT events_pkey PRIMARY KEY (xid, pet_id, happened_at),
  CONSTRAINT events_first_pet_id CHECK ((type = 'pets.imported') = (first_pet_id IS NOT NULL) AND first_pet_id <= pet_id),
  CONSTRAINT events_pet_ids CHECK (cardinality(pet_ids) = cardinality(key_ids)),
  CONSTRAINT events_order_id CHECK (
    (type IN ('order.placed', 'order.completed', 'order.cancelled', 'order.expired')) = (order_id IS NOT NULL))
) PARTITION BY RANGE (happened_at);

-- One row.
CREATE TABLE event_feed (
  -- Part of every position in the feed. Random, so that two restores of the same backup differ.
  epoch integer NOT NULL,
  -- The database in which the events were written: see event_origin(). A restored dump has that of another.
  origin text NOT NULL,
  -- A reader whose position is from this time or later has missed nothing.
  kept_since timestamptz NOT NULL
);

-- The PostgreSQL cluster, whose transaction ids the events have, and the database.
CREATE FUNCTION event_origin() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT system_identifier || '/' || pg_database.oid
  FROM pg_control_system(), pg_database
  WHERE datname = current_database()
$$;

-- Starts the feed anew: positions from before are answered with 410, and their readers read everything again. For an
-- operator after a point-in-time recovery, which reuses transaction ids. In a restored dump it happens by itself.
CREATE FUNCTION start_event_epoch() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
BEGIN
  TRUNCATE events;
  DELETE FROM event_feed;
  INSERT INTO event_feed (epoch, origin, kept_since)
  -- A day ago: transactions that run now may have begun before this one.
  VALUES ((random() * 2147483647)::integer, event_origin(), now() - interval '1 day');
END
$$;

-- For every table that is partitioned by day. They run with the rights and the lock_timeout of the functions that call them.

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
    -- Somebody else may have done it before the lock was free.
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = parent AND inhrelid = to_regclass(partition)) THEN
      EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', parent, partition, day, day + 1);
    END IF;
  END LOOP;
END
$$;

-- Drops the partitions of days before this one. Requests wait while it waits for other transactions, so its callers give
-- up soon, and call it again later.
CREATE FUNCTION drop_daily_partitions(parent regclass, first_day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  partition regclass;
BEGIN
  FOR partition IN
    SELECT inhrelid
    FROM pg_inherits
    JOIN pg_class AS child ON child.oid = inhrelid
    JOIN pg_class AS whole ON whole.oid = inhparent
    WHERE inhparent = parent AND child.relname < whole.relname || '_' || to_char(first_day, 'YYYYMMDD')
  LOOP
    EXECUTE format('DROP TABLE %s', partition);
  END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION create_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
BEGIN
  PERFORM create_daily_partitions('idempotency_keys');
END
$$;

CREATE OR REPLACE FUNCTION drop_idempotency_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
BEGIN
  PERFORM drop_daily_partitions('idempotency_keys', (now() AT TIME ZONE 'UTC')::date - 1);
END
$$;

-- Also prepares the feed of a new database or a restored dump.
CREATE FUNCTION create_event_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
BEGIN
  PERFORM create_daily_partitions('events');
  IF NOT EXISTS (SELECT FROM event_feed WHERE origin = event_origin()) THEN
    LOCK TABLE event_feed IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM event_feed WHERE origin = event_origin()) THEN
      PERFORM start_event_epoch();
    END IF;
  END IF;
END
$$;

-- Drops the partitions whose events ended more than a day before the time from which positions are kept.
CREATE FUNCTION drop_event_partitions(kept interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
  kept_day CONSTANT date := (now() AT TIME ZONE 'UTC' - kept)::date;
BEGIN
  -- A reader needs up to a day more than its position says: see happened_at.
  PERFORM drop_daily_partitions('events', kept_day - 1);
  UPDATE event_feed
  SET kept_since = kept_day::timestamp AT TIME ZONE 'UTC'
  WHERE kept_since < kept_day::timestamp AT TIME ZONE 'UTC';
END
$$;

-- A caller must not be able to put an object of its own in front of ours, nor call what it was not granted.
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY[
    'event_origin()', 'start_event_epoch()', 'create_event_partitions()', 'drop_event_partitions(interval)',
    'create_idempotency_partitions()', 'drop_idempotency_partitions()',
    'create_daily_partitions(regclass)', 'drop_daily_partitions(regclass, date)'
  ] LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', name, current_schema());
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', name);
  END LOOP;
END
$$;

SELECT create_event_partitions();

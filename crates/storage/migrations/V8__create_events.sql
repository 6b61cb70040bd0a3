-- The feed of events: every change of a pet or an order, whoever makes it. V11 adds the triggers that write it.
--
-- Events are read in the order of (xid, number, pet), and only those of transactions that are older than every running one: so
-- a reader never passes an event that is not committed yet.
--
-- The pets that one statement changes share a row, because a row for each would cost a quarter of the rate at which pets are
-- added.

CREATE TYPE event_type AS ENUM (
  'pet.created', 'pet.updated', 'pet.deleted', 'pets.imported',
  'order.placed', 'order.completed', 'order.cancelled', 'order.expired', 'order.updated', 'order.deleted');

-- Orders the events of one transaction. It says nothing about the order of transactions.
CREATE SEQUENCE event_numbers;

CREATE TABLE events (
  xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
  number bigint NOT NULL DEFAULT nextval('event_numbers'),
  -- The time of the change, not of the beginning of its transaction, which may be days before.
  happened_at timestamptz NOT NULL DEFAULT date_trunc('milliseconds', clock_timestamp()),
  type event_type NOT NULL,
  -- The pet, or one of several; of pets.imported, the first.
  pet_id bigint NOT NULL,
  -- Several pets, at most a thousand: each is an event of its own.
  pet_ids bigint[],
  -- The last of the pets that were imported, which are one event. Others may have been added in between.
  last_pet_id bigint,
  order_id bigint,
  -- No CHECK constraints: PostgreSQL parses each of them for every statement, which takes nearly as long as the rest of a
  -- trigger. Only the functions below write here.
  CONSTRAINT events_pkey PRIMARY KEY (xid, number, happened_at)
) PARTITION BY RANGE (happened_at);

CREATE TABLE event_feed (
  only_row boolean NOT NULL DEFAULT true,
  -- Part of every position in the feed. Random, so that two restores of the same backup differ.
  epoch integer NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  -- Why this epoch began.
  reason text NOT NULL,
  -- The database in which the events were written: see event_origin().
  origin text NOT NULL,
  -- The last position that was dropped: every later event is kept. A reader whose position is before it may have missed
  -- some.
  dropped_xid xid8 NOT NULL DEFAULT '0',
  dropped_number bigint NOT NULL DEFAULT 0,
  dropped_pet_id bigint NOT NULL DEFAULT 0,
  CONSTRAINT event_feed_pkey PRIMARY KEY (only_row),
  CONSTRAINT event_feed_only_row CHECK (only_row)
);

-- The PostgreSQL cluster, whose transaction ids the events have, the database, and this very table: a dump that is restored
-- into the same database creates it again.
CREATE FUNCTION event_origin() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT concat_ws('/', system_identifier, pg_database.oid, 'event_feed'::regclass::oid)
  FROM pg_control_system(), pg_database
  WHERE datname = current_database()
$$;

-- Empties the feed and starts a new epoch: positions from before are answered with 410, and their readers read everything
-- again. For an operator after a point-in-time recovery, which reuses transaction ids.
CREATE FUNCTION start_event_epoch(why text DEFAULT 'start_event_epoch() was called') RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
BEGIN
  TRUNCATE events;
  DELETE FROM event_feed;
  INSERT INTO event_feed (epoch, reason, origin) VALUES ((random() * 2147483647)::integer, why, event_origin());
END
$$;

-- Writes the events of the pets that a statement changed. If it created more than a thousand, each full thousand whose ids are
-- dense is one event.
CREATE FUNCTION record_pets(what event_type, ids bigint[]) RETURNS void
-- Not SQL, whose plan is not kept from one call to the next.
LANGUAGE plpgsql AS $$
BEGIN
  IF cardinality(ids) <= 1000 THEN
    INSERT INTO events (type, pet_id, pet_ids) VALUES (what, ids[1], CASE WHEN cardinality(ids) > 1 THEN ids END);
  ELSIF ids IS NOT NULL THEN
    INSERT INTO events (type, pet_id, pet_ids, last_pet_id)
    SELECT CASE WHEN is_dense THEN 'pets.imported' ELSE what END, first, CASE WHEN NOT is_dense THEN several END,
      CASE WHEN is_dense THEN last END
    FROM (
      SELECT min(id) AS first, max(id) AS last, array_agg(id) AS several,
        what = 'pet.created' AND count(*) = 1000 AND max(id) - min(id) < 2000 AS is_dense
      FROM (SELECT id, (row_number() OVER (ORDER BY id) - 1) / 1000 AS thousand FROM unnest(ids) AS id) AS numbered
      GROUP BY thousand
      ORDER BY thousand) AS thousands;
  END IF;
END
$$;

-- Writes the events of a statement that changed pets. The names of the transition tables are those of V11.
CREATE FUNCTION record_pet_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  created bigint[];
  updated bigint[];
  deleted bigint[];
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM record_pets('pet.created', (SELECT array_agg(id) FROM new_rows));
  ELSIF TG_OP = 'DELETE' THEN
    PERFORM record_pets('pet.deleted', (SELECT array_agg(id) FROM old_rows));
  ELSE
    SELECT array_agg(id) FILTER (WHERE old_rows.id IS NULL), array_agg(id) FILTER (WHERE new_rows.id IS NULL),
      array_agg(id) FILTER (WHERE old_rows.id IS NOT NULL AND new_rows.id IS NOT NULL)
    INTO created, deleted, updated
    -- A full join, because an id may have been changed, and because it cannot be a nested loop: the plan is cached for the
    -- session, and one for a single row would take hours for a million.
    FROM old_rows FULL JOIN new_rows USING (id)
    -- All columns, also those that a later version adds.
    WHERE old_rows IS DISTINCT FROM new_rows;
    PERFORM record_pets('pet.updated', updated);
    IF created IS NOT NULL OR deleted IS NOT NULL THEN
      PERFORM record_pets('pet.deleted', deleted), record_pets('pet.created', created);
    END IF;
  END IF;
  RETURN NULL;
END
$$;

-- Writes the events of a statement that changed orders. An event has the name of the order's status if that is new.
CREATE FUNCTION record_order_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO events (type, pet_id, order_id)
    SELECT ('order.' || status)::event_type, pet_id, id FROM new_rows ORDER BY id;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO events (type, pet_id, order_id) SELECT 'order.deleted', pet_id, id FROM old_rows ORDER BY id;
  ELSE
    INSERT INTO events (type, pet_id, order_id)
    SELECT
      CASE
        WHEN new_rows.id IS NULL THEN 'order.deleted'::event_type
        WHEN old_rows.status = new_rows.status THEN 'order.updated'
        ELSE ('order.' || new_rows.status)::event_type
      END, coalesce(new_rows.pet_id, old_rows.pet_id), id
    FROM old_rows FULL JOIN new_rows USING (id)
    WHERE old_rows IS DISTINCT FROM new_rows
    ORDER BY id;
  END IF;
  RETURN NULL;
END
$$;

-- No event could say that a whole table was emptied.
CREATE FUNCTION record_truncation() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM start_event_epoch(TG_TABLE_NAME || ' was truncated');
  RETURN NULL;
END
$$;

-- Also starts the feed of a new database, of a restored dump, and after pg_upgrade.
CREATE FUNCTION create_event_partitions() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '2s' AS $$
BEGIN
  PERFORM create_daily_partitions('events');
  IF NOT EXISTS (SELECT FROM event_feed WHERE origin = event_origin()) THEN
    LOCK TABLE event_feed IN SHARE ROW EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT FROM event_feed) THEN
      PERFORM start_event_epoch('the feed was created');
    ELSIF NOT EXISTS (SELECT FROM event_feed WHERE origin = event_origin()) THEN
      PERFORM start_event_epoch('the database was copied, restored from a dump, or upgraded by pg_upgrade');
    END IF;
  END IF;
END
$$;

-- Drops the partitions of days that are older than this, but never those of yesterday or later, and records how far they
-- reached. Requests wait while it waits for other transactions, so it gives up soon, and is called again later.
CREATE FUNCTION drop_event_partitions(kept interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
DECLARE
  first_day CONSTANT date := (now() AT TIME ZONE 'UTC' - greatest(kept, interval '1 day'))::date;
  partition regclass;
BEGIN
  IF NOT EXISTS (SELECT FROM daily_partitions_before('events', first_day)) THEN
    RETURN;
  END IF;
  -- The parent first, as readers and writers do. No event can be added to a partition that has been looked at.
  LOCK TABLE events IN ACCESS EXCLUSIVE MODE;
  FOR partition IN SELECT daily_partitions_before('events', first_day) LOOP
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

-- For nodes of the previous release, which know nothing of events: a week after a rollback to it, its writes would find no
-- partition. A failed drop must not undo what was created.
CREATE OR REPLACE FUNCTION turn_idempotency_pages() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '200ms' AS $$
BEGIN
  PERFORM create_idempotency_partitions();
  PERFORM create_event_partitions();
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
    'event_origin()', 'start_event_epoch(text)', 'record_pet_events()', 'record_order_events()', 'record_truncation()',
    'create_event_partitions()', 'drop_event_partitions(interval)', 'turn_idempotency_pages()'
  ] LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', name, current_schema());
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', name);
  END LOOP;
END
$$;
-- It has the search_path of the trigger that calls it.
REVOKE ALL ON FUNCTION record_pets(event_type, bigint[]) FROM PUBLIC;

SELECT create_event_partitions();

-- The rules of idempotency keys, in one place for every statement that looks one up or stores one. PostgreSQL inlines both
-- functions, so they must be stable and must have no settings of their own.

-- The stored results of these digests.
CREATE FUNCTION stored_results(digests uuid[]) RETURNS TABLE (digest uuid, fingerprint uuid, subject_id bigint)
LANGUAGE sql STABLE AS $$
  SELECT DISTINCT ON (digest) digest, fingerprint, subject_id
  FROM idempotency_keys
  WHERE digest = ANY (digests)
    -- A minute more than a day: a digest that was stored for the next day must be found until that day ends.
    AND used_at > now() - interval '24 hours 1 minute'
    -- Prunes the partitions before yesterday. No upper bound: a clock that was set back finds what it stored before.
    AND kept_on >= (now() AT TIME ZONE 'UTC')::date - 1
  ORDER BY digest, used_at DESC
$$;

-- The days to store a digest for: today and, in its last minute, tomorrow. Partitions cannot share a unique index: so two requests
-- with one digest on either side of midnight conflict there.
CREATE FUNCTION result_days() RETURNS SETOF date
LANGUAGE sql STABLE AS $$
  SELECT (now() AT TIME ZONE 'UTC')::date
  UNION
  SELECT ((now() + interval '1 minute') AT TIME ZONE 'UTC')::date
$$;

-- Drops the partitions that were created for days after the day after tomorrow, if they are empty. Here, where no other table is
-- locked: placeOrder locks this one before orders.
DO $$
DECLARE
  partition regclass;
  has_rows boolean;
BEGIN
  FOR partition IN
    SELECT inhrelid::regclass
    FROM pg_inherits
    JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'idempotency_keys'::regclass
      -- The day as text: this may be asked of any table's name.
      AND right(relname, 8) > to_char((now() AT TIME ZONE 'UTC')::date + 2, 'YYYYMMDD')
  LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', partition) INTO has_rows;
    IF NOT has_rows THEN
      EXECUTE format('DROP TABLE %s', partition);
    END IF;
  END LOOP;
END
$$;

-- Requests that are to take effect once, however often they are sent: what `Idempotency-Key` stands for.
--
-- A table a day, so that a day is forgotten by dropping its table: nothing is deleted row by row.

CREATE TABLE idempotency_keys (
  -- The first 128 bits of the SHA-256 of the API key's id, the operation and the client's key.
  digest uuid NOT NULL,
  -- The day, UTC.
  kept_on date NOT NULL,
  used_at timestamptz NOT NULL,
  -- The same of what was asked for.
  fingerprint uuid NOT NULL,
  -- What came of it: with the request, which is the same again, it is the whole answer.
  subject_id bigint NOT NULL,
  CONSTRAINT idempotency_keys_pkey PRIMARY KEY (digest, kept_on)
) PARTITION BY RANGE (kept_on);

-- Makes the tables of the next two days, and drops those of days before yesterday. It gives up rather than keep requests
-- waiting, and is called again. (No more days ahead: every statement that looks for a key locks all of the tables.)
CREATE FUNCTION turn_idempotency_pages() RETURNS void LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
  today date := (now() AT TIME ZONE 'UTC')::date;
  day date;
  page text;
BEGIN
  FOR day IN SELECT today + n FROM generate_series(-1, 2) AS n LOOP
    page := 'idempotency_keys_' || to_char(day, 'YYYYMMDD');
    IF to_regclass(page) IS NULL THEN
      EXECUTE format('CREATE TABLE %I (LIKE idempotency_keys INCLUDING ALL)', page);
      EXECUTE format(
        'ALTER TABLE idempotency_keys ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', page, day, day + 1);
    END IF;
  END LOOP;
  FOR page IN
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'idempotency_keys'::regclass
      AND relname < 'idempotency_keys_' || to_char(today - 1, 'YYYYMMDD')
  LOOP
    EXECUTE format('DROP TABLE %I', page);
  END LOOP;
END
$$;

SELECT turn_idempotency_pages();

-- Validates the constraints of V17, without blocking requests. A time that somebody has stored in SQL and that violates them
-- becomes the nearest one that does not: infinity becomes the end of the year 9999.

DO $$
DECLARE
  first CONSTANT timestamptz := '0001-01-01 00:00:00Z';
  last CONSTANT timestamptz := '9999-12-30 22:00:00Z';
  name text;
  columns text[];
BEGIN
  FOR name, columns IN VALUES
    ('api_keys', ARRAY['created_at', 'expires_at', 'revoked_at', 'last_used_at']),
    ('api_key_events', ARRAY['happened_at']),
    ('orders', ARRAY['created_at', 'updated_at', 'expires_at']),
    ('imported_chunks', ARRAY['imported_at']),
    ('event_feed', ARRAY['started_at'])
  LOOP
    EXECUTE format('UPDATE %I SET %s WHERE %s', name,
      -- Nulls stay: greatest and least ignore them.
      (SELECT string_agg(format(
        '%1$I = CASE WHEN %1$I IS NOT NULL THEN greatest(%2$L, least(%3$L, %1$I)) END', col, first, last), ', ')
       FROM unnest(columns) AS col),
      (SELECT string_agg(format('%1$I NOT BETWEEN %2$L AND %3$L', col, first, last), ' OR ') FROM unnest(columns) AS col));
  END LOOP;
END
$$;

ALTER TABLE api_keys VALIDATE CONSTRAINT api_keys_times;
ALTER TABLE api_key_events VALIDATE CONSTRAINT api_key_events_time;
ALTER TABLE orders VALIDATE CONSTRAINT orders_times;
ALTER TABLE imported_chunks VALIDATE CONSTRAINT imported_chunks_time;
ALTER TABLE event_feed VALIDATE CONSTRAINT event_feed_time;

-- Corrects what somebody has set in SQL and V16 and V17 do not allow, before they are applied: a row that violates a constraint
-- cannot be changed. This blocks no request.

-- Control characters become spaces. A reference of only white space is removed.
UPDATE orders
SET reference = CASE
  WHEN regexp_replace(reference, '[\u0001-\u001F\u007F-\u009F]', ' ', 'g')
    ~ '[^\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]'
  THEN regexp_replace(reference, '[\u0001-\u001F\u007F-\u009F]', ' ', 'g') END
WHERE reference ~ '[\u0001-\u001F\u007F-\u009F]'
  OR reference !~ '[^\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]';

-- A time becomes the nearest one that is allowed: infinity becomes the end of the year 9999.
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

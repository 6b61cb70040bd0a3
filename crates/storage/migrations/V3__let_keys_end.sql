-- The life of a key: when it ends, what it may ask for, when it was used, and who did what to it.

ALTER TABLE api_keys
  ADD COLUMN expires_at timestamptz,
  ADD COLUMN revoked_at timestamptz,
  -- To the minute: a request never writes here, a node does it for many at once.
  ADD COLUMN last_used_at timestamptz,
  -- So many requests in so many seconds; both or neither.
  ADD COLUMN rate_limit_requests integer,
  ADD COLUMN rate_limit_seconds integer,
  ADD CONSTRAINT api_keys_rate_limit CHECK (
    (rate_limit_requests IS NULL AND rate_limit_seconds IS NULL)
    OR (rate_limit_requests >= 1 AND rate_limit_seconds IN (1, 60, 3600))
  );

-- What was done to keys, and by whom. Without a foreign key: it outlives the rows that it speaks of.
CREATE TABLE api_key_events (
  id bigint GENERATED ALWAYS AS IDENTITY,
  key_id bigint NOT NULL,
  happened_at timestamptz NOT NULL DEFAULT now(),
  action text NOT NULL,
  actor text NOT NULL,
  -- The key that takes the place of a rotated one.
  successor_id bigint,
  CONSTRAINT api_key_events_pkey PRIMARY KEY (id),
  CONSTRAINT api_key_events_action CHECK (action IN ('created', 'rotated', 'revoked')),
  CONSTRAINT api_key_events_actor_length CHECK (char_length(actor) BETWEEN 1 AND 200)
);

CREATE INDEX api_key_events_key_id ON api_key_events (key_id, id);

-- Tells every node which key it must look up again, whoever changed it and by whatever means.
CREATE FUNCTION tell_api_key_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('petstore_api_keys', encode(OLD.digest, 'hex'));
  RETURN NULL;
END
$$;

CREATE TRIGGER api_keys_tell_change
  AFTER DELETE OR UPDATE OF digest, scopes, expires_at, revoked_at, rate_limit_requests, rate_limit_seconds
  ON api_keys FOR EACH ROW EXECUTE FUNCTION tell_api_key_change();

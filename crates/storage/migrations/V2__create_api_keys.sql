-- API keys. Only a digest of a key is kept: the key itself cannot be read back from here.

CREATE TABLE api_keys (
  id bigint GENERATED ALWAYS AS IDENTITY,
  name text NOT NULL,
  -- The start of the key as issued, to recognise it by.
  prefix text NOT NULL,
  -- SHA-256 of the whole key.
  digest bytea NOT NULL,
  scopes text[] NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT api_keys_pkey PRIMARY KEY (id),
  CONSTRAINT api_keys_digest_key UNIQUE (digest),
  CONSTRAINT api_keys_digest_length CHECK (octet_length(digest) = 32),
  CONSTRAINT api_keys_name_length CHECK (char_length(name) BETWEEN 1 AND 100)
);

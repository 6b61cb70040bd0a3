-- Lets pets and orders carry the shop's own data. The service checks the form; this bounds what SQL may store.

ALTER TABLE pets
  ADD COLUMN metadata jsonb,
  -- Not validated: that would scan the table under a lock, and the column is null so far.
  ADD CONSTRAINT pets_metadata CHECK (
    jsonb_typeof(metadata) = 'object' AND octet_length(metadata::text) <= 16384) NOT VALID;

ALTER TABLE orders
  ADD COLUMN metadata jsonb,
  ADD CONSTRAINT orders_metadata CHECK (
    jsonb_typeof(metadata) = 'object' AND octet_length(metadata::text) <= 16384) NOT VALID;

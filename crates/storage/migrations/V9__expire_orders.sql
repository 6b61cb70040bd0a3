-- Lets orders expire, and carry the shop's own number. `petstore migrate` builds the indexes on the new columns, without
-- blocking writes.

ALTER TYPE order_status ADD VALUE 'expired';

ALTER TABLE orders
  -- When the order expires unless it is completed before; null if it never does.
  ADD COLUMN expires_at timestamptz,
  -- The shop's own name for the order, such as the number of a basket.
  ADD COLUMN reference text,
  -- Not validated: that would scan the table under a lock, and both columns are null so far.
  ADD CONSTRAINT orders_expires_at CHECK (expires_at >= created_at) NOT VALID,
  ADD CONSTRAINT orders_reference_length CHECK (char_length(reference) BETWEEN 1 AND 255) NOT VALID;

-- Lets orders end by themselves, and carry the shop's own number.

ALTER TYPE order_status ADD VALUE 'expired';

ALTER TABLE orders
  -- When the order ends unless it is completed before; null if it never does.
  ADD COLUMN expires_at timestamptz,
  -- The shop's own name for the order, such as the number of a basket.
  ADD COLUMN reference text,
  -- Not validated: that would scan the table under a lock, and both columns are null so far.
  ADD CONSTRAINT orders_expires_at CHECK (expires_at >= created_at) NOT VALID,
  ADD CONSTRAINT orders_reference_length CHECK (char_length(reference) BETWEEN 1 AND 255) NOT VALID;

-- For finding the orders that are due. Both indexes are empty so far; building them reads the table once each.
CREATE INDEX orders_expires_at_idx ON orders (expires_at) WHERE status = 'placed' AND expires_at IS NOT NULL;
-- For the list filtered by reference, with or without a status, in the order of its pages.
CREATE INDEX orders_reference_status_id_idx ON orders (reference, status, id) WHERE reference IS NOT NULL;

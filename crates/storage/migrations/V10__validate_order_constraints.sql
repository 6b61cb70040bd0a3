-- Validates the constraints of V9, without blocking requests.

ALTER TABLE orders VALIDATE CONSTRAINT orders_expires_at;
ALTER TABLE orders VALIDATE CONSTRAINT orders_reference_length;

-- Validates the constraints of V20, without blocking requests.

ALTER TABLE pets VALIDATE CONSTRAINT pets_metadata;
ALTER TABLE orders VALIDATE CONSTRAINT orders_metadata;

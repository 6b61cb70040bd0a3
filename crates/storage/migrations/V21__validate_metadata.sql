-- Validates the constraints of V20, without blocking requests.

-- Longer than deadlock_timeout, after which an autovacuum gives way.
SET LOCAL lock_timeout = '1500ms';

ALTER TABLE pets VALIDATE CONSTRAINT pets_metadata;
ALTER TABLE orders VALIDATE CONSTRAINT orders_metadata;

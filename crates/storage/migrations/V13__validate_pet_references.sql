-- Validates the constraint of V12, without blocking requests. A node that needs this version can rely on the indexes on the
-- columns of V12.

ALTER TABLE pets VALIDATE CONSTRAINT pets_reference;

-- Lets a pet carry the shop's own number, such as its chip or stock number. `petstore migrate` builds the unique index on it
-- and the index for the list by category, both without blocking writes, before it applies V13.

ALTER TABLE pets
  ADD COLUMN reference text,
  -- The rules of Reference in the domain. One constraint, because PostgreSQL parses each of them for every
  -- statement. Not validated: that would scan the table under a lock, and the column is null so far.
  ADD CONSTRAINT pets_reference CHECK (
    char_length(reference) BETWEEN 1 AND 255
    AND reference !~ '[\u0001-\u001F\u007F-\u009F]'
    AND reference ~ '[^\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]') NOT VALID;

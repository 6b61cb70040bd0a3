-- Corrects the references that somebody has set in SQL and that V15 does not allow, and validates the constraint of V15, without
-- blocking requests. Control characters become spaces. A reference of only white space is removed.

UPDATE orders
SET reference = CASE
  WHEN regexp_replace(reference, '[\u0001-\u001F\u007F-\u009F]', ' ', 'g')
    ~ '[^\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]'
  THEN regexp_replace(reference, '[\u0001-\u001F\u007F-\u009F]', ' ', 'g') END
WHERE reference ~ '[\u0001-\u001F\u007F-\u009F]'
  OR reference !~ '[^\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]';

ALTER TABLE orders VALIDATE CONSTRAINT orders_reference;

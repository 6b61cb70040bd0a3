-- Keeps texts out of orders.reference that the service cannot show: control characters, and only white space. The rules of
-- Reference in the domain, as for pets.reference.

ALTER TABLE orders
  -- Not validated: that would scan the table under a lock.
  ADD CONSTRAINT orders_reference CHECK (
    char_length(reference) BETWEEN 1 AND 255
    AND reference !~ '[\u0001-\u001F\u007F-\u009F]'
    AND reference ~ '[^\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]') NOT VALID;

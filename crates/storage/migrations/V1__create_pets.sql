-- The inventory: one row an animal.

CREATE TYPE pet_status AS ENUM ('available', 'pending', 'sold');

CREATE TABLE pets (
  -- At most 2^53 - 1, so that a JavaScript client never rounds an id.
  id bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 9007199254740991),
  category_id bigint NOT NULL,
  -- Absent when the client stated none: no status filter matches it then.
  status pet_status,
  name text NOT NULL,
  CONSTRAINT pets_pkey PRIMARY KEY (id),
  -- The rules of PetName in src/domain/pet.rs, kept here as well so that no other way in can break them.
  CONSTRAINT pets_name_length CHECK (char_length(name) BETWEEN 1 AND 255),
  CONSTRAINT pets_name_no_control CHECK (name !~ '[\u0001-\u001F\u007F-\u009F]'),
  CONSTRAINT pets_name_not_blank
    CHECK (name ~ '[^\u0020\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]')
);

-- Serves the list filtered by status, in the order of its pages.
CREATE INDEX pets_status_id_idx ON pets (status, id) WHERE status IS NOT NULL;

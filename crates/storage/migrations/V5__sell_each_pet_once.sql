-- Orders: one row an order, each for one animal.

CREATE TYPE order_status AS ENUM ('placed', 'completed', 'cancelled');

CREATE TABLE orders (
  -- At most 2^53 - 1, so that a JavaScript client never rounds an id.
  id bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 9007199254740991),
  pet_id bigint NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  status order_status NOT NULL,
  CONSTRAINT orders_pkey PRIMARY KEY (id),
  CONSTRAINT orders_pet_id_fkey FOREIGN KEY (pet_id) REFERENCES pets (id),
  CONSTRAINT orders_updated_at CHECK (updated_at >= created_at)
);

-- An animal is in one open order at most, whatever way in an order came.
CREATE UNIQUE INDEX orders_one_open_a_pet ON orders (pet_id) WHERE status = 'placed';

-- These serve the lists filtered by status, and by pet with or without a status, in the order of their pages.
CREATE INDEX orders_status_id_idx ON orders (status, id);
CREATE INDEX orders_pet_id_status_id_idx ON orders (pet_id, status, id);

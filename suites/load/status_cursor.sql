\set after random(0, :pets)
SELECT id, name, category_id, status FROM pets WHERE status = 'available' AND id > :after ORDER BY id LIMIT 21;

\set after random(0, :pets)
SELECT id, name, category_id, status FROM pets WHERE id > :after ORDER BY id LIMIT 21;

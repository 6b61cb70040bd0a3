SELECT id, name, category_id, status FROM pets WHERE status = 'available' AND id > 0 ORDER BY id LIMIT 21;

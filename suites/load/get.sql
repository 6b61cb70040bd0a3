\set id random(1, :pets)
SELECT id, name, category_id, status FROM pets WHERE id = :id;

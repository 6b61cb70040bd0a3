INSERT INTO pets (name, category_id, status) VALUES ('Rex', 3, 'available') RETURNING id;

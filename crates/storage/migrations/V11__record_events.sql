-- Records every change of a pet or an order as an event. From here on none is missing, whoever makes it: a node of an earlier
-- release, an import, or somebody in psql.
--
-- Alone and last, because it blocks writes while it waits for the transactions that have written to these tables. It waits
-- for each of them, so that none writes without the triggers afterwards.

CREATE TRIGGER pets_record_insert AFTER INSERT ON pets
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_pet_events();
CREATE TRIGGER pets_record_update AFTER UPDATE ON pets
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_pet_events();
CREATE TRIGGER pets_record_delete AFTER DELETE ON pets
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION record_pet_events();
CREATE TRIGGER pets_record_truncate AFTER TRUNCATE ON pets
  FOR EACH STATEMENT EXECUTE FUNCTION record_truncation();
CREATE TRIGGER orders_record_insert AFTER INSERT ON orders
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_order_events();
CREATE TRIGGER orders_record_update AFTER UPDATE ON orders
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION record_order_events();
CREATE TRIGGER orders_record_delete AFTER DELETE ON orders
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION record_order_events();
CREATE TRIGGER orders_record_truncate AFTER TRUNCATE ON orders
  FOR EACH STATEMENT EXECUTE FUNCTION record_truncation();

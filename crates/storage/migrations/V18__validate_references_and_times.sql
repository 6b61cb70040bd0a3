-- Validates the constraints of V16 and V17, without blocking requests.

-- Longer than deadlock_timeout, after which an autovacuum gives way.
SET LOCAL lock_timeout = '1500ms';

ALTER TABLE orders VALIDATE CONSTRAINT orders_reference;
ALTER TABLE api_keys VALIDATE CONSTRAINT api_keys_times;
ALTER TABLE api_key_events VALIDATE CONSTRAINT api_key_events_time;
ALTER TABLE orders VALIDATE CONSTRAINT orders_times;
ALTER TABLE imported_chunks VALIDATE CONSTRAINT imported_chunks_time;
ALTER TABLE event_feed VALIDATE CONSTRAINT event_feed_time;

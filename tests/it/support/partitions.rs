//! The partitions of idempotency keys.

use petstore_storage::KEY_DAYS_AHEAD;
use tokio_postgres::Client as Connection;

/// Creates a partition that should have been dropped long ago.
pub(crate) const OLD_PARTITION: &str = "CREATE TABLE idempotency_keys_20200101 PARTITION OF idempotency_keys \
    FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')";

/// The days with a partition while all is well: today and the days ahead. Yesterday's partition is not counted.
pub(crate) fn prepared() -> usize {
    usize::try_from(KEY_DAYS_AHEAD + 1).unwrap()
}

/// The name of the partition of this many days after today.
pub(crate) async fn partition_name(database: &Connection, days: i32) -> String {
    let name =
        "SELECT 'idempotency_keys_' || to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')";
    database.query_one(name, &[&days]).await.unwrap().get(0)
}

/// Drops the partitions from this many days after today on.
pub(crate) async fn drop_partitions(database: &Connection, from: i32) {
    let partitions = partitions_from(database, from).await;
    if !partitions.is_empty() {
        database.batch_execute(&format!("DROP TABLE {}", partitions.join(", "))).await.unwrap();
    }
}

/// How many days from today on have a partition.
pub(crate) async fn days(database: &Connection) -> usize {
    partitions_from(database, 0).await.len()
}

/// The partitions from this many days after today on.
async fn partitions_from(database: &Connection, from: i32) -> Vec<String> {
    let names = "SELECT relname::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid \
        WHERE inhparent = 'idempotency_keys'::regclass AND relname >= $1::text";
    let rows = database.query(names, &[&partition_name(database, from).await]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

//! What the database says of itself: for the metrics, and for `petstore doctor`.
//!
//! **Invariant:** it costs the same however many animals there are: numbers come from PostgreSQL's statistics.

use std::time::Duration;

use metrics::gauge;
use tokio::time::sleep;

use super::idempotency_keys::DAYS_PREPARED;
use super::postgres::error::unexpected;
use super::{Storage, StorageError};
use crate::telemetry::metrics::{
    DATABASE_UP, IDEMPOTENCY_DAYS, PETS, POOL_CONNECTIONS, POOL_MAX, POOL_WAITING, STANDBYS, count,
};

/// How often it is asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// How many standbys follow (a role without the rights of `pg_monitor` is not told which of them are backups under way),
/// and how many pets there are of each status, as far as the last look at the table tells.
const LOOK: &str = "\
    SELECT (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'), status, reltuples::float8 * share \
    FROM (SELECT 1) AS always \
    LEFT JOIN (pg_class AS class \
      JOIN pg_stats AS stats ON stats.schemaname = class.relnamespace::regnamespace::text \
        AND stats.tablename = class.relname AND stats.attname = 'status' \
      CROSS JOIN LATERAL unnest(array_append(stats.most_common_vals::text::text[], 'none'), \
        array_append(stats.most_common_freqs::float8[], stats.null_frac::float8)) AS common (status, share)) ON class.oid = to_regclass('pets')";

impl Storage {
    /// Measures the pool.
    pub fn measure(&self) {
        let status = self.database.pool.status();
        gauge!(POOL_CONNECTIONS, "state" => "used").set(count(status.size.saturating_sub(status.available)));
        gauge!(POOL_CONNECTIONS, "state" => "idle").set(count(status.available));
        gauge!(POOL_MAX).set(count(status.max_size));
        gauge!(POOL_WAITING).set(count(status.waiting));
    }

    /// Looks now and then at what the database says of itself, for ever.
    pub async fn poll_database_metrics(&self) {
        loop {
            let up = self.look().await.is_ok();
            gauge!(DATABASE_UP).set(if up { 1.0 } else { 0.0 });
            sleep(INTERVAL).await;
        }
    }

    async fn look(&self) -> Result<(), StorageError> {
        for row in self.database.read(DAYS_PREPARED, &[]).await? {
            let days: Option<i32> = row.try_get(0).map_err(unexpected)?;
            gauge!(IDEMPOTENCY_DAYS).set(count(days.unwrap_or_default()));
        }
        for row in self.database.read(LOOK, &[]).await? {
            let standbys: i64 = row.try_get(0).map_err(unexpected)?;
            gauge!(STANDBYS).set(count(standbys));
            let estimate: (Option<String>, Option<f64>) =
                (row.try_get(1).map_err(unexpected)?, row.try_get(2).map_err(unexpected)?);
            if let (Some(status), Some(pets)) = estimate {
                gauge!(PETS, "status" => status).set(pets.max(0.0).round());
            }
        }
        Ok(())
    }
}

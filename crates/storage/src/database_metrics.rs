//! Metrics of the connection pool and of the database.
//!
//! **Invariant:** the cost does not depend on the number of pets: counts are estimates from PostgreSQL's statistics. Only the
//! keys are read, of which there are few.

use std::convert::Infallible;
use std::time::Duration;

use metrics::gauge;
use petstore_postgres::{StorageError, unexpected};
use petstore_telemetry::metrics::{
    ARCHIVING_FAILING, DATABASE_UP, FEED_LAG, IDEMPOTENCY_DAYS, KEYS_NEXT_EXPIRY, ORDERS_OVERDUE, PETS,
    POOL_CONNECTIONS, POOL_MAX, POOL_WAITING, STANDBYS, count,
};
use tokio::time::sleep;

use super::events::LAG;
use super::expire_orders::OVERDUE;
use super::partitions::DAYS_PREPARED;
use super::storage::Storage;

const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The number of standbys, and for each status the estimated number of pets: the density of rows and the share of the status
/// as of the last ANALYZE, and the size of the table as of now, as PostgreSQL's planner estimates it.
const STANDBYS_AND_PETS: &str = "\
    SELECT
      -- Without pg_monitor, the state is hidden (null), and a running base backup counts as a standby.
      (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup') AS standbys,
      status,
      reltuples / relpages * (pg_relation_size(class.oid) / current_setting('block_size')::float8) * share AS pets
    -- One row also without statistics, for the standbys.
    FROM (SELECT 1) AS always
    LEFT JOIN (
      pg_class AS class
      JOIN pg_stats AS stats
        ON stats.schemaname = class.relnamespace::regnamespace::text
        AND stats.tablename = class.relname
        AND stats.attname = 'status'
      CROSS JOIN LATERAL unnest(
        -- most_common_vals is an anyarray, which casts to text[] only by way of text.
        array_append(stats.most_common_vals::text::text[], 'none'),
        array_append(stats.most_common_freqs::float8[], stats.null_frac::float8)
      ) AS common (status, share)
    ) ON class.oid = to_regclass('pets') AND class.relpages > 0";

/// When the next key expires, in seconds since 1970; null if none does. A rotated key expires on purpose: its successor counts.
const NEXT_KEY_EXPIRY: &str = "\
    SELECT extract(epoch FROM min(expires_at))::double precision AS value
    FROM api_keys AS key
    WHERE revoked_at IS NULL AND expires_at > now()
      AND NOT EXISTS (
        SELECT FROM api_keys AS successor
        WHERE successor.lineage_id = coalesce(key.lineage_id, key.id)
          AND successor.id > key.id
          AND successor.revoked_at IS NULL)";

/// 1 if the last attempt to archive a WAL file failed. PostgreSQL tries again every minute.
const ARCHIVING: &str = "\
    SELECT CASE
      WHEN current_setting('archive_mode') <> 'off'
        AND last_failed_time > coalesce(last_archived_time, '-infinity') THEN 1.0::double precision
      ELSE 0.0
    END AS value
    FROM pg_stat_archiver";

impl Storage {
    /// Updates the metrics of the connection pool; in a cluster, those of the busiest one.
    pub fn record_pool_metrics(&self) {
        let status = self.database.busiest_pool();
        let abandoned = self.database.abandoned_writes();
        let used = status.size.saturating_sub(status.available).saturating_sub(abandoned);
        gauge!(POOL_CONNECTIONS, "state" => "used").set(count(used));
        gauge!(POOL_CONNECTIONS, "state" => "abandoned").set(count(abandoned));
        gauge!(POOL_CONNECTIONS, "state" => "idle").set(count(status.available));
        gauge!(POOL_MAX).set(count(status.max_size));
        gauge!(POOL_WAITING).set(count(status.waiting));
    }

    /// Updates the metrics of the database every few seconds, indefinitely.
    pub async fn poll_database_metrics(&self) -> Infallible {
        loop {
            let up = self.record_database_metrics().await.is_ok();
            gauge!(DATABASE_UP).set(if up { 1.0 } else { 0.0 });
            if !up {
                gauge!(STANDBYS).set(0.0);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn record_database_metrics(&self) -> Result<(), StorageError> {
        for row in self.database.read_unproven(DAYS_PREPARED, &[]).await? {
            let days: Option<i32> = row.try_get("days").map_err(unexpected)?;
            gauge!(IDEMPOTENCY_DAYS).set(count(days.unwrap_or_default()));
        }
        for (gauge, statement) in [(FEED_LAG, LAG), (ORDERS_OVERDUE, OVERDUE)] {
            // Without a row, nothing is late.
            let rows = self.database.read_unproven(statement, &[]).await?;
            let seconds = rows.first().map(|row| row.try_get("seconds").map_err(unexpected)).transpose()?;
            gauge!(gauge).set(seconds.unwrap_or(0.0));
        }
        for (gauge, statement) in [(KEYS_NEXT_EXPIRY, NEXT_KEY_EXPIRY), (ARCHIVING_FAILING, ARCHIVING)] {
            for row in self.database.read_unproven(statement, &[]).await? {
                let value: Option<f64> = row.try_get("value").map_err(unexpected)?;
                gauge!(gauge).set(value.unwrap_or_default());
            }
        }
        self.observe_epoch().await?;
        for row in self.database.read_unproven(STANDBYS_AND_PETS, &[]).await? {
            let standbys: i64 = row.try_get("standbys").map_err(unexpected)?;
            gauge!(STANDBYS).set(count(standbys));
            let status: Option<String> = row.try_get("status").map_err(unexpected)?;
            let pets: Option<f64> = row.try_get("pets").map_err(unexpected)?;
            if let (Some(status), Some(pets)) = (status, pets) {
                gauge!(PETS, "status" => status).set(pets.max(0.0).round());
            }
        }
        Ok(())
    }
}

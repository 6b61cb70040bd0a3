//! Expires orders: ends those that were not completed in time. Every node does, whichever gets to an order first.
//!
//! **Invariant:** it never waits for a lock. What somebody else holds is skipped until the next pass, and delays no other order.

use std::time::SystemTime;

use petstore_domain::event::EventType;
use petstore_domain::order::{EndDecision, ORDERABLE, OrderEnd};
use petstore_domain::pet::PetStatus;
use petstore_postgres::{Step, StorageError, unexpected};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Timestamp};

use super::pg_enum::PgEnum;
use super::place_and_end_orders::{SET_PET_STATUS, SET_STATUS, count_order_events};
use super::storage::Storage;

/// The orders that are due, from the time `$1` on and without the orders `$2`, which were looked at. (Sorted by the time alone, as the
/// index is.)
const DUE: &str = "\
    SELECT id, pet_id, expires_at
    FROM orders
    WHERE status = 'placed' AND expires_at <= now() AND expires_at >= $1 AND id <> ALL ($2)
    ORDER BY expires_at
    LIMIT 100";

/// The same lock as `pets::ADVISORY_LOCK`, without waiting: of the pets `$2` of the orders `$1`. Returns the orders whose pets it has locked.
const LOCK_PETS: &str = "\
    SELECT id
    FROM unnest($1::bigint[], $2::bigint[]) AS due (id, pet_id)
    WHERE pg_try_advisory_xact_lock(1885697139, hashint8(pet_id))";

/// Locks the orders and their pets, without waiting. Returns the orders as they are now, which may be changed since [`DUE`].
const LOCK: &str = "\
    SELECT orders.id, pet_id, orders.status, COALESCE(expires_at <= now(), false) AS is_due, pets.status AS pet_status
    FROM orders
    JOIN pets ON pets.id = pet_id
    WHERE orders.id = ANY ($1)
    FOR NO KEY UPDATE SKIP LOCKED";

/// How many seconds ago the oldest overdue order was due. No row if none is overdue.
pub(super) const OVERDUE: &str = "\
    SELECT (extract(epoch FROM now()) - extract(epoch FROM expires_at))::double precision AS seconds
    FROM orders
    WHERE status = 'placed' AND expires_at <= now()
    ORDER BY expires_at
    LIMIT 1";

pub(super) const STATEMENTS: &[&str] = &[DUE, LOCK_PETS, LOCK, OVERDUE];

impl Storage {
    /// Ends the orders that are due, in batches. Each is looked at once. If some cannot be changed, returns why the last one cannot,
    /// after the others have ended.
    pub async fn expire_orders(&self) -> Result<(), StorageError> {
        // Which orders of the last time were looked at.
        let (mut last, mut seen) = (Timestamp::NegInfinity, Vec::new());
        let mut failed = Ok(());
        loop {
            let due = self.database.read_unproven(DUE, &[&last, &seen]).await?;
            if due.is_empty() {
                return failed;
            }
            for row in &due {
                let expires_at = Timestamp::Value(column::<SystemTime>(row, "expires_at")?);
                if expires_at != last {
                    (last, seen) = (expires_at, Vec::new());
                }
                seen.push(column::<i64>(row, "id")?);
            }
            match self.expire(&due).await {
                // Somebody has locked a table. The next pass tries again.
                Err(StorageError::Locked(_)) => return failed,
                // One of them cannot be changed, for example because of a trigger that the shop has added.
                Err(StorageError::Unexpected(_)) => {
                    for order in due.chunks(1) {
                        match self.expire(order).await {
                            Err(error @ StorageError::Unexpected(_)) => failed = Err(error),
                            expired => count_order_events(EventType::OrderExpired, expired?),
                        }
                    }
                }
                expired => count_order_events(EventType::OrderExpired, expired?),
            }
        }
    }

    /// Ends those of the orders that nobody else is changing, and returns how many.
    async fn expire(&self, due: &[Row]) -> Result<usize, StorageError> {
        let (orders, pets) = (ids(due, "id")?, ids(due, "pet_id")?);
        let lock_timeout = self.database.brief_lock_timeout();
        // All pets before the first row: see `pets::ADVISORY_LOCK`.
        let (transaction, [free]) =
            self.database.begin(lock_timeout, [(LOCK_PETS, &[&orders, &pets])]).await?;
        let (transaction, [locked]) = transaction.read([(LOCK, &[&ids(&free, "id")?])]).await?;
        let mut expiring = Vec::new();
        for row in locked {
            let PgEnum(status) = column(&row, "status")?;
            // It may have ended, or have got more time.
            if column(&row, "is_due")? && OrderEnd::Expire.decide(status) == Ok(EndDecision::End) {
                expiring.push(row);
            }
        }
        let mut released = Vec::new();
        for row in &expiring {
            let now: Option<PgEnum<PetStatus>> = column(row, "pet_status")?;
            let now = now.map(|PgEnum(status)| status);
            if OrderEnd::Expire.pet_status(now) != now {
                released.push(column::<i64>(row, "pet_id")?);
            }
        }
        let ending: Step<'_> = (SET_STATUS, &[&ids(&expiring, "id")?, &PgEnum(OrderEnd::Expire.status())]);
        let releasing: Step<'_> = (SET_PET_STATUS, &[&released, &PgEnum(ORDERABLE)]);
        let (transaction, _) = transaction.write(expiring.len(), [ending]).await?;
        let (transaction, _) = transaction.write(released.len(), [releasing]).await?;
        transaction.commit(&[]).await?;
        Ok(expiring.len())
    }
}

fn ids(rows: &[Row], name: &str) -> Result<Vec<i64>, StorageError> {
    rows.iter().map(|row| column(row, name)).collect()
}

fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, StorageError> {
    row.try_get(name).map_err(unexpected)
}

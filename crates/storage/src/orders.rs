//! SQL on the `orders` table. One statement changes both an order and its pet.
//!
//! Requests are not batched here. Each locks a pet or an order until it commits, so a batch would wait for its slowest
//! row lock; and there are few, one per sale.
//!
//! A statement sees the snapshot of its start, but where it updates a row it waits for a concurrent update and checks only
//! that row again (READ COMMITTED). So it may lose a race without seeing the winner's other rows: then it is retried.

use std::error::Error;

use petstore_domain::event::EventType;
use petstore_domain::idempotency::{Digest128, IdempotentRequest};
use petstore_domain::order::{
    NewOrder, ORDERABLE, ORDERED, Order, OrderEnd, OrderFilter, OrderId, OrderPageRequest, OrderStatus,
    RELEASED,
};
use petstore_domain::page::Page;
use petstore_domain::pet::PetStatus;
use petstore_domain::reference::Reference;
use petstore_postgres::{Parameters, error_message, unexpected};
use tokio_postgres::Row;

use super::events::count_events;
use super::idempotency_keys::{StoredDigest, digest};
use super::pets::reference;
use super::pg_enum::PgEnum;
use super::{Storage, StorageError};

const LIST: &str = "\
    SELECT * FROM (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference
      FROM orders
      WHERE id > $1
      ORDER BY id
      -- The longest page and one more. Without a constant limit, the planner expects a tenth of the table.
      LIMIT 101) AS longest
    LIMIT $2";

const LIST_BY_STATUS: &str = "\
    SELECT * FROM (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference
      FROM orders
      -- A range of the index on (status, id), for the reason given for pets.
      WHERE (status, id) > ($3, $1) AND status <= $3
      ORDER BY status, id
      LIMIT 101) AS longest
    LIMIT $2";

const LIST_OF_PET: &str = "\
    SELECT page.*
    FROM unnest($3::order_status[]) AS requested (status)
    -- One page per status, each a range of the index on (pet_id, status, id), of which the first rows are one page.
    CROSS JOIN LATERAL (
      SELECT id, pet_id, orders.status, created_at, updated_at, expires_at, reference
      FROM orders
      WHERE pet_id = $4 AND orders.status = requested.status AND id > $1
        -- Filtered: a pet has few orders.
        AND ($5::text IS NULL OR reference = $5)
      ORDER BY id
      LIMIT 101) AS page
    ORDER BY id
    LIMIT $2";

const LIST_OF_REFERENCE: &str = "\
    SELECT page.*
    FROM unnest($3::order_status[]) AS requested (status)
    -- Likewise, of the index on (reference, status, id).
    CROSS JOIN LATERAL (
      SELECT id, pet_id, orders.status, created_at, updated_at, expires_at, reference
      FROM orders
      WHERE reference = $4 AND orders.status = requested.status AND id > $1
      ORDER BY id
      LIMIT 101) AS page
    ORDER BY id
    LIMIT $2";

const FIND: &str = "\
    SELECT id, pet_id, status, created_at, updated_at, expires_at, reference
    FROM orders
    WHERE id = $1";

/// Places an order for the pet `$1` if its status is `$2`, and sets the status to `$3`; with the idempotency key `$4`, once.
/// `$6` is the reference, and `$7` the seconds that the order waits. Returns no row if the pet does not exist.
const PLACE: &str = "\
    WITH requested AS (
      SELECT $4::uuid AS digest, $5::uuid AS fingerprint),
    stored AS (
      SELECT requested.digest, result.fingerprint, result.subject_id
      FROM requested
      -- LATERAL: one index search per digest, where a join might read whole partitions.
      CROSS JOIN LATERAL (
        SELECT fingerprint, subject_id
        FROM idempotency_keys
        WHERE digest = requested.digest
          -- A minute more than a day: a digest that was stored for the next day must be found until that day ends.
          AND used_at > now() - interval '24 hours 1 minute'
          -- Prunes all partitions but two.
          AND kept_on BETWEEN (now() AT TIME ZONE 'UTC')::date - 1 AND (now() AT TIME ZONE 'UTC')::date
        LIMIT 1) AS result),
    days AS (
      -- Today and, in its last minute, tomorrow.
      SELECT (now() AT TIME ZONE 'UTC')::date AS day
      UNION
      SELECT ((now() + interval '1 minute') AT TIME ZONE 'UTC')::date),
    wait_limit AS MATERIALIZED (
      -- Limits each wait for a lock to a second. What may wait reads this first.
      SELECT set_config('lock_timeout', '1s', true)),
    pet_lock AS MATERIALIZED (
      -- Waits until no other transaction changes the pet; 1885697139 is 'pets' in ASCII. The update reads this, and
      -- everything else that is written depends on the update.
      SELECT pg_advisory_xact_lock(1885697139, hashint8($1))
      FROM wait_limit),
    open_order AS (
      SELECT FROM orders
      WHERE pet_id = $1 AND status = 'placed'),
    ordered_pet AS (
      -- Concurrent orders for a pet wait for the lock: only the first finds the status that it needs.
      UPDATE pets
      SET status = $3
      WHERE id = (SELECT $1 FROM pet_lock) AND status = $2 AND NOT EXISTS (SELECT FROM stored)
        -- Only if somebody has set the status in SQL.
        AND NOT EXISTS (SELECT FROM open_order)
      RETURNING id),
    placed AS (
      INSERT INTO orders (pet_id, status, created_at, updated_at, expires_at, reference)
      SELECT id, 'placed', date_trunc('milliseconds', now()), date_trunc('milliseconds', now()),
        date_trunc('milliseconds', now()) + $7::double precision * interval '1 second', $6
      FROM ordered_pet
      RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference),
    found AS (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference
      FROM placed
      UNION ALL
      -- As it is now, so that a client that retries learns what has become of its order.
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference
      FROM orders
      WHERE id = (SELECT subject_id FROM stored)),
    inserted_keys AS (
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id)
      SELECT digest, day, now(), fingerprint, id
      FROM placed, requested, days, wait_limit
      WHERE digest IS NOT NULL
      ORDER BY day),
    replication_wait AS MATERIALIZED (
      -- A message in the WAL makes the commit wait for a standby, which may not have the stored result yet.
      SELECT pg_logical_emit_message(true, 'petstore', '') AS lsn
      WHERE EXISTS (SELECT FROM stored))
    SELECT found.*, EXISTS (SELECT FROM placed) AS placed_now, pets.status AS pet_status,
      EXISTS (SELECT FROM open_order) AS has_open_order, stored.fingerprint AS stored_fingerprint,
      (SELECT lsn FROM replication_wait)
    -- The status is that of before the update: the snapshot of a statement does not see its own changes.
    FROM pets
    LEFT JOIN found ON true
    LEFT JOIN stored ON true
    WHERE pets.id = $1";

/// Sets the status of the order `$1` to `$2` if it is open, and that of its pet to `$3`; with the idempotency key `$4`, once.
/// Returns no row if the order does not exist.
const END: &str = "\
    WITH requested AS (
      SELECT $4::uuid AS digest, $5::uuid AS fingerprint),
    stored AS (
      SELECT requested.digest, result.fingerprint, result.subject_id
      FROM requested
      -- LATERAL: one index search per digest, where a join might read whole partitions.
      CROSS JOIN LATERAL (
        SELECT fingerprint, subject_id
        FROM idempotency_keys
        WHERE digest = requested.digest
          -- A minute more than a day: a digest that was stored for the next day must be found until that day ends.
          AND used_at > now() - interval '24 hours 1 minute'
          -- Prunes all partitions but two.
          AND kept_on BETWEEN (now() AT TIME ZONE 'UTC')::date - 1 AND (now() AT TIME ZONE 'UTC')::date
        LIMIT 1) AS result),
    days AS (
      -- Today and, in its last minute, tomorrow.
      SELECT (now() AT TIME ZONE 'UTC')::date AS day
      UNION
      SELECT ((now() + interval '1 minute') AT TIME ZONE 'UTC')::date),
    wait_limit AS MATERIALIZED (
      -- Limits each wait for a lock to a second. What may wait reads this first.
      SELECT set_config('lock_timeout', '1s', true)),
    pet_lock AS MATERIALIZED (
      -- Waits until no other transaction changes the pet. The update of the order reads this, and everything else that is
      -- written depends on that update.
      SELECT pg_advisory_xact_lock(1885697139, hashint8(pet_id))
      FROM orders, wait_limit
      WHERE id = $1),
    ended AS (
      UPDATE orders
      -- The clock may have been set back.
      SET status = $2, updated_at = greatest(created_at, date_trunc('milliseconds', now()))
      WHERE id = (SELECT $1 FROM pet_lock) AND status = 'placed' AND NOT EXISTS (SELECT FROM stored)
      RETURNING id, pet_id, status, created_at, updated_at, expires_at, reference),
    released_pet AS (
      UPDATE pets
      SET status = $3
      WHERE id = (SELECT pet_id FROM ended)),
    found AS (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference
      FROM ended
      UNION ALL
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference
      FROM orders
      WHERE id = $1 AND NOT EXISTS (SELECT FROM ended)),
    inserted_keys AS (
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id)
      SELECT digest, day, now(), fingerprint, id
      FROM found, requested, days, wait_limit
      -- Also if the order had ended this way before: the request has succeeded then, too.
      WHERE digest IS NOT NULL AND status = $2 AND NOT EXISTS (SELECT FROM stored)
      ORDER BY day),
    replication_wait AS MATERIALIZED (
      -- A message in the WAL makes the commit wait for a standby, which may not have the earlier end of the order yet.
      SELECT pg_logical_emit_message(true, 'petstore', '') AS lsn
      FROM found
      WHERE status = $2 AND NOT EXISTS (SELECT FROM ended))
    SELECT found.*, stored.fingerprint AS stored_fingerprint, EXISTS (SELECT FROM ended) AS ended_now,
      (SELECT lsn FROM replication_wait)
    FROM found
    LEFT JOIN stored ON true";

/// Ends up to [`EXPIRE_LIMIT`] orders that are due, and sets the status of their pets to `$1`. Skips those that somebody else is
/// changing, so several nodes may run it at the same time, and a row that is locked in psql delays no other.
const EXPIRE: &str = "\
    WITH due AS MATERIALIZED (
      SELECT id, pet_id
      FROM orders
      WHERE status = 'placed' AND expires_at <= now()
      ORDER BY expires_at
      LIMIT 100),
    pet_locks AS MATERIALIZED (
      SELECT id
      FROM due
      -- The same lock as `pet_lock` elsewhere, but without waiting.
      WHERE pg_try_advisory_xact_lock(1885697139, hashint8(pet_id))),
    free AS MATERIALIZED (
      SELECT orders.id
      FROM orders
      JOIN pets ON pets.id = orders.pet_id
      -- An array, so that all pets are locked before anything is written.
      WHERE orders.id = ANY (ARRAY(SELECT id FROM pet_locks)) AND orders.status = 'placed'
      FOR NO KEY UPDATE SKIP LOCKED),
    expired AS (
      UPDATE orders
      SET status = 'expired', updated_at = greatest(created_at, date_trunc('milliseconds', now()))
      WHERE id = ANY (ARRAY(SELECT id FROM free))
      RETURNING id, pet_id),
    released_pets AS (
      UPDATE pets
      SET status = $1
      WHERE id IN (SELECT pet_id FROM expired))
    SELECT count(*) AS expired
    FROM expired";

/// How many seconds ago the oldest overdue order was due. No row if none is overdue.
pub(super) const OVERDUE: &str = "\
    SELECT extract(epoch FROM now() - expires_at)::double precision AS seconds
    FROM orders
    WHERE status = 'placed' AND expires_at <= now()
    ORDER BY expires_at
    LIMIT 1";

pub(super) const STATEMENTS: &[&str] =
    &[LIST, LIST_BY_STATUS, LIST_OF_PET, LIST_OF_REFERENCE, FIND, PLACE, END, EXPIRE, OVERDUE];

/// The most orders that one call of [`Storage::expire_orders`] ends.
pub const EXPIRE_LIMIT: usize = 100;

/// How often a statement that lost a race is run.
const ATTEMPTS: usize = 3;

/// The outcome of placing an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceOrderOutcome {
    /// The order was placed.
    Placed(Order),
    /// An earlier request with the same key and content placed the order: as it is now.
    Replayed(Order),
    /// No pet has this id.
    PetNotFound,
    /// The pet's status is not `available`.
    NotAvailable,
    /// The pet's status is `available` although an order for it is open: somebody has set it in SQL.
    HasOpenOrder,
    /// The key was used for a different request.
    KeyReused,
    /// A request with the same key is in progress.
    InProgress,
}

/// The outcome of ending an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndOrderOutcome {
    /// The order was ended.
    Ended(Order),
    /// The order had the requested status before.
    HadEnded(Order),
    /// An earlier request with the same key and content ended the order.
    Replayed(Order),
    /// No order has this id.
    OrderNotFound,
    /// The order has ended with another status.
    EndedOtherwise(OrderStatus),
    /// The key was used for a different request.
    KeyReused,
    /// A request with the same key is in progress.
    InProgress,
}

impl Storage {
    /// One page of orders, by ascending id.
    pub async fn list_orders(&self, request: &OrderPageRequest) -> Result<Page<Order>, StorageError> {
        let after = request.after.map_or(0, OrderId::get);
        let limit = i64::from(request.limit.get()) + 1;
        let OrderFilter { status, pet_id, reference } = &request.filter;
        let reference = reference.as_ref().map(Reference::as_str);
        let statuses = || -> Vec<_> {
            let all = OrderStatus::ALL.into_iter();
            all.filter(|one| status.is_none_or(|status| status == *one)).map(PgEnum).collect()
        };
        let rows = match (pet_id, reference, status) {
            (None, None, None) => self.database.read(LIST, &[&after, &limit]).await?,
            (None, None, Some(status)) => {
                self.database.read(LIST_BY_STATUS, &[&after, &limit, &PgEnum(*status)]).await?
            }
            (Some(pet), _, _) => {
                let parameters: Parameters<'_> = &[&after, &limit, &statuses(), &pet.get(), &reference];
                self.database.read(LIST_OF_PET, parameters).await?
            }
            (None, Some(reference), _) => {
                self.database.read(LIST_OF_REFERENCE, &[&after, &limit, &statuses(), &reference]).await?
            }
        };
        let mut orders = rows.iter().map(order).collect::<Result<Vec<_>, _>>()?;
        // The statements do not guarantee the order of their rows.
        orders.sort_unstable_by_key(|order| order.id);
        Ok(Page::from_limit_plus_one(orders, request.limit))
    }

    /// The order with this id, if it exists.
    pub async fn find_order(&self, id: OrderId) -> Result<Option<Order>, StorageError> {
        let rows = self.database.read(FIND, &[&id.get()]).await?;
        rows.first().map(order).transpose()
    }

    /// Places an order for a pet if it is available; with an idempotency key, once.
    pub async fn place_order(
        &self,
        new: &NewOrder,
        once: Option<IdempotentRequest>,
    ) -> Result<PlaceOrderOutcome, StorageError> {
        let fingerprint = once.map(|once| once.fingerprint);
        let (digest, stored) = (once.map(|once| StoredDigest(once.digest)), fingerprint.map(StoredDigest));
        let reference = new.reference.as_ref().map(Reference::as_str);
        let hold = new.hold.map(|hold| f64::from(hold.seconds()));
        let parameters: Parameters<'_> =
            &[&new.pet_id.get(), &PgEnum(ORDERABLE), &PgEnum(ORDERED), &digest, &stored, &reference, &hold];
        let in_progress = once.map(|_| PlaceOrderOutcome::InProgress);
        let decode = |rows: &[Row]| match rows.first() {
            None => Ok(Some(PlaceOrderOutcome::PetNotFound)),
            Some(row) => place_outcome(row, fingerprint),
        };
        let placing = self.retry_lost_race(PLACE, parameters, in_progress, decode);
        let acknowledges = |outcome: &PlaceOrderOutcome| {
            matches!(outcome, PlaceOrderOutcome::Placed(_) | PlaceOrderOutcome::Replayed(_))
        };
        let outcome = self.database.write_or_find(placing, acknowledges).await?;
        if matches!(outcome, PlaceOrderOutcome::Placed(_)) {
            count_order_events(EventType::OrderPlaced, 1);
        }
        Ok(outcome)
    }

    /// Ends an order if it is open; with an idempotency key, once.
    pub async fn end_order(
        &self,
        id: OrderId,
        end: OrderEnd,
        once: Option<IdempotentRequest>,
    ) -> Result<EndOrderOutcome, StorageError> {
        let fingerprint = once.map(|once| once.fingerprint);
        let (digest, stored) = (once.map(|once| StoredDigest(once.digest)), fingerprint.map(StoredDigest));
        let parameters: Parameters<'_> =
            &[&id.get(), &PgEnum(end.status()), &PgEnum(end.pet_status()), &digest, &stored];
        let in_progress = once.map(|_| EndOrderOutcome::InProgress);
        let decode = |rows: &[Row]| match rows.first() {
            None => Ok(Some(EndOrderOutcome::OrderNotFound)),
            Some(row) => end_outcome(row, end, fingerprint),
        };
        let ending = self.retry_lost_race(END, parameters, in_progress, decode);
        let acknowledges = |outcome: &EndOrderOutcome| {
            use EndOrderOutcome::{Ended, HadEnded, Replayed};
            matches!(outcome, Ended(_) | HadEnded(_) | Replayed(_))
        };
        let outcome = self.database.write_or_find(ending, acknowledges).await?;
        if matches!(outcome, EndOrderOutcome::Ended(_)) {
            count_order_events(end.into(), 1);
        }
        Ok(outcome)
    }

    /// Ends orders that were not completed in time, and returns how many. There may be more if it is [`EXPIRE_LIMIT`].
    pub async fn expire_orders(&self) -> Result<usize, StorageError> {
        let count = |rows: &[Row]| match rows {
            [row] => row.try_get::<_, i64>("expired").map_err(unexpected)?.try_into().map_err(unexpected),
            _ => Err(unexpected("not one row")),
        };
        let expired = self.database.write(EXPIRE, &[&PgEnum(RELEASED)], count).await?;
        count_order_events(EventType::OrderExpired, expired);
        Ok(expired)
    }

    /// Runs a statement until `decode` returns an outcome; it returns none if a concurrent statement won the race.
    ///
    /// A request that lost every race, or timed out waiting for a lock, did nothing. If it has a key, the others may have been
    /// attempts of the same request: then the outcome is `in_progress`, and the client retries.
    async fn retry_lost_race<T>(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
        in_progress: Option<T>,
        decode: impl Fn(&[Row]) -> Result<Option<T>, StorageError>,
    ) -> Result<T, StorageError> {
        let mut failure =
            StorageError::Raced(error_message("the row was changed by concurrent transactions"));
        for _ in 0..ATTEMPTS {
            match self.database.write_row(statement, parameters, &decode).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(error @ StorageError::Raced(_)) => failure = error,
                Err(error @ StorageError::Locked(_)) => return in_progress.ok_or(error),
                Err(error) => return Err(error),
            }
        }
        in_progress.ok_or(failure)
    }
}

/// Counts the events of orders, each of which is also a change of the pet.
fn count_order_events(event_type: EventType, count: usize) {
    count_events(event_type, count);
    count_events(EventType::PetUpdated, count);
}

/// Decodes a row of [`PLACE`]. None if the pet was available but a concurrent request ordered it: for a request with a key,
/// that may have been another attempt of the same request.
fn place_outcome(
    row: &Row,
    fingerprint: Option<Digest128>,
) -> Result<Option<PlaceOrderOutcome>, StorageError> {
    if row.try_get("placed_now").map_err(unexpected)? {
        return Ok(Some(PlaceOrderOutcome::Placed(order(row)?)));
    }
    let stored = digest(row, "stored_fingerprint")?;
    if stored.is_some() {
        return Ok(Some(if stored == fingerprint {
            PlaceOrderOutcome::Replayed(order(row)?)
        } else {
            PlaceOrderOutcome::KeyReused
        }));
    }
    let status: Option<PgEnum<PetStatus>> = row.try_get("pet_status").map_err(unexpected)?;
    let status = status.map(|PgEnum(status)| status);
    if status == Some(ORDERABLE) && row.try_get("has_open_order").map_err(unexpected)? {
        return Ok(Some(PlaceOrderOutcome::HasOpenOrder));
    }
    Ok((status != Some(ORDERABLE) || fingerprint.is_none()).then_some(PlaceOrderOutcome::NotAvailable))
}

/// Decodes a row of [`END`]. None if the order was open but a concurrent request ended it.
fn end_outcome(
    row: &Row,
    end: OrderEnd,
    fingerprint: Option<Digest128>,
) -> Result<Option<EndOrderOutcome>, StorageError> {
    let order = order(row)?;
    let stored = digest(row, "stored_fingerprint")?;
    let ended_now: bool = row.try_get("ended_now").map_err(unexpected)?;
    Ok(match stored {
        Some(_) if stored != fingerprint => Some(EndOrderOutcome::KeyReused),
        Some(_) => Some(EndOrderOutcome::Replayed(order)),
        None if ended_now => Some(EndOrderOutcome::Ended(order)),
        None if order.status == end.status() => Some(EndOrderOutcome::HadEnded(order)),
        None if order.status.may_end(end) => None,
        None => Some(EndOrderOutcome::EndedOtherwise(order.status)),
    })
}

fn order(row: &Row) -> Result<Order, StorageError> {
    let PgEnum(status) = row.try_get("status").map_err(unexpected)?;
    Ok(Order {
        id: id_column(row, "id")?,
        pet_id: id_column(row, "pet_id")?,
        status,
        created_at: row.try_get("created_at").map_err(unexpected)?,
        updated_at: row.try_get("updated_at").map_err(unexpected)?,
        expires_at: row.try_get("expires_at").map_err(unexpected)?,
        reference: reference(row.try_get("reference").map_err(unexpected)?)?,
    })
}

fn id_column<T: TryFrom<i64, Error: Error + Send + Sync + 'static>>(
    row: &Row,
    column: &str,
) -> Result<T, StorageError> {
    row.try_get::<_, i64>(column).map_err(unexpected)?.try_into().map_err(unexpected)
}

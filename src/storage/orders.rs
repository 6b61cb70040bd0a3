//! SQL on the `orders` table. What an order does to its pet is in the same statement: both happen or neither.
//!
//! Requests are not merged here. Each of them holds a pet or an order until it is committed, so in a shared statement
//! all would wait for the one whose pet somebody else holds; and there are few, since every sale is one.
//!
//! A statement sees the database as it was when it began, but where it changes a row it waits for whoever changes it
//! too, and looks again at that row alone. So it may find that it came too late without seeing why: then it is run
//! once more.

use std::time::SystemTime;

use tokio_postgres::Row;

use super::idempotency_keys::{days_to_remember, remembered_before};
use super::postgres::database::Parameters;
use super::postgres::error::{cause, unexpected};
use super::postgres::pg_enum::stored_as_words;
use super::{Storage, StorageError};
use crate::domain::idempotency::{Digest128, IdempotentRequest};
use crate::domain::order::{
    ORDERABLE, ORDERED, Order, OrderEnd, OrderFilter, OrderId, OrderPageRequest, OrderStatus,
};
use crate::domain::page::Page;
use crate::domain::pet::{PetId, PetStatus};

/// The longest page, and one more, is a number that the planner can see: otherwise it prepares for a tenth of the table.
const LIST: &str = "\
    SELECT * FROM (SELECT id, pet_id, status, created_at, updated_at FROM orders \
      WHERE id > $1 ORDER BY id LIMIT 101) AS longest LIMIT $2";

/// A range of the index on status and id: see the same statement on pets.
const LIST_BY_STATUS: &str = "\
    SELECT * FROM (SELECT id, pet_id, status, created_at, updated_at FROM orders \
      WHERE (status, id) > ($3, $1) AND status <= $3 ORDER BY status, id LIMIT 101) AS longest LIMIT $2";

/// Of one pet: a page of each status wanted, and of these the first.
const LIST_OF_PET: &str = "\
    SELECT page.* FROM unnest($3::order_status[]) AS wanted (status) CROSS JOIN LATERAL ( \
      SELECT id, pet_id, orders.status, created_at, updated_at FROM orders \
      WHERE pet_id = $4 AND orders.status = wanted.status AND id > $1 ORDER BY id LIMIT 101) AS page \
    ORDER BY id LIMIT $2";

const FIND: &str = "SELECT id, pet_id, status, created_at, updated_at FROM orders WHERE id = $1";

/// Places an order for the pet `$1` if it is `$2`, and makes the pet `$3`; under the name `$4`, once.
const PLACE: &str = concat!(
    "WITH asked AS (SELECT $4::uuid AS digest, $5::uuid AS fingerprint), \
    before AS (SELECT kept.* FROM asked CROSS JOIN LATERAL (",
    remembered_before!(),
    ") AS kept), \
    ordered AS ( \
      UPDATE pets SET status = $3 WHERE id = $1 AND status = $2 AND NOT EXISTS (SELECT FROM before) RETURNING id), \
    placed AS ( \
      INSERT INTO orders (pet_id, status, created_at, updated_at) \
      SELECT id, 'placed', date_trunc('milliseconds', now()), date_trunc('milliseconds', now()) FROM ordered \
      RETURNING id, created_at), \
    day AS (",
    days_to_remember!(),
    "), \
    remembered AS ( \
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id) \
      SELECT digest, day, now(), fingerprint, id FROM placed, asked, day WHERE digest IS NOT NULL ORDER BY day) \
    SELECT placed.id, placed.created_at, pets.status, before.fingerprint, first.id, first.created_at \
    FROM pets LEFT JOIN placed ON true LEFT JOIN before ON true LEFT JOIN orders AS first ON first.id = subject_id \
    WHERE pets.id = $1"
);

/// Makes the order `$1` `$2` if it is open, and its pet `$3`; under the name `$4`, once.
const END: &str = concat!(
    "WITH asked AS (SELECT $4::uuid AS digest, $5::uuid AS fingerprint), \
    before AS (SELECT kept.* FROM asked CROSS JOIN LATERAL (",
    remembered_before!(),
    ") AS kept), \
    ended AS ( \
      UPDATE orders SET status = $2, updated_at = greatest(created_at, date_trunc('milliseconds', now())) \
      WHERE id = $1 AND status = 'placed' AND NOT EXISTS (SELECT FROM before) \
      RETURNING id, pet_id, status, created_at, updated_at), \
    moved AS (UPDATE pets SET status = $3 WHERE id = (SELECT pet_id FROM ended)), \
    found AS ( \
      SELECT id, pet_id, status, created_at, updated_at FROM ended UNION ALL \
      SELECT id, pet_id, status, created_at, updated_at FROM orders WHERE id = $1 AND NOT EXISTS (SELECT FROM ended)), \
    day AS (",
    days_to_remember!(),
    "), \
    remembered AS ( \
      INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id) \
      SELECT digest, day, now(), fingerprint, id FROM found, asked, day \
      WHERE digest IS NOT NULL AND status = $2 AND NOT EXISTS (SELECT FROM before) ORDER BY day) \
    SELECT found.*, before.fingerprint FROM found LEFT JOIN before ON true"
);

pub(super) const STATEMENTS: &[&str] = &[LIST, LIST_BY_STATUS, LIST_OF_PET, FIND, PLACE, END];

/// How often a statement is run that came too late.
const ATTEMPTS: usize = 3;

/// What came of an order that was to be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceOrderOutcome {
    /// It was placed.
    Placed(Order),
    /// It was placed before, by the same request: the order as it was then.
    PlacedBefore(Order),
    /// There is no such pet.
    NoSuchPet,
    /// The pet is not to be had.
    NotAvailable,
    /// Another request was sent under the same name before.
    OtherRequest,
    /// The same request is under way elsewhere.
    InProgress,
}

/// What came of an order that was to be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndOrderOutcome {
    /// It has come to that end, now or before.
    Ended(Order),
    /// The same request was sent under the same name before: this is what came of it.
    EndedBefore(Order),
    /// There is no such order.
    NoSuchOrder,
    /// It has come to another end before.
    OtherEnd(OrderStatus),
    /// Another request was sent under the same name before.
    OtherRequest,
    /// The same request is under way elsewhere.
    InProgress,
}

impl Storage {
    /// One page of the orders asked for, by ascending id.
    pub async fn list_orders(&self, request: &OrderPageRequest) -> Result<Page<Order>, StorageError> {
        let after = request.after.map_or(0, OrderId::get);
        let size = i64::from(request.limit.get()) + 1;
        let OrderFilter { status, pet_id } = request.filter;
        let rows = match (pet_id, status) {
            (None, None) => self.database.read(LIST, &[&after, &size]).await?,
            (None, Some(status)) => self.database.read(LIST_BY_STATUS, &[&after, &size, &status]).await?,
            (Some(pet), status) => {
                let statuses = status.map_or(OrderStatus::ALL.to_vec(), |status| vec![status]);
                self.database.read(LIST_OF_PET, &[&after, &size, &statuses, &pet.get()]).await?
            }
        };
        let mut orders = rows.iter().map(order).collect::<Result<Vec<_>, _>>()?;
        // The statements promise which orders, and not their order.
        orders.sort_unstable_by_key(|order| order.id);
        Ok(Page::from_limit_plus_one(orders, request.limit))
    }

    /// The order with this id, if there is one.
    pub async fn find_order(&self, id: OrderId) -> Result<Option<Order>, StorageError> {
        let rows = self.database.read(FIND, &[&id.get()]).await?;
        rows.first().map(order).transpose()
    }

    /// Places an order for a pet, if it is to be had; with a name for the request, once.
    pub async fn place_order(
        &self,
        pet: PetId,
        once: Option<IdempotentRequest>,
    ) -> Result<PlaceOrderOutcome, StorageError> {
        let (digest, fingerprint) = hashes(once);
        let parameters: Parameters<'_> = &[&pet.get(), &ORDERABLE, &ORDERED, &digest, &fingerprint];
        let placed = self.retry_lost_race(PLACE, parameters, |rows| match rows.first() {
            None => Ok(Some(PlaceOrderOutcome::NoSuchPet)),
            Some(row) => placement(row, pet, once),
        });
        in_progress_if_delayed(placed.await, once, PlaceOrderOutcome::InProgress)
    }

    /// Ends an order, if it is open; with a name for the request, once.
    pub async fn end_order(
        &self,
        id: OrderId,
        end: OrderEnd,
        once: Option<IdempotentRequest>,
    ) -> Result<EndOrderOutcome, StorageError> {
        let (digest, fingerprint) = hashes(once);
        let parameters: Parameters<'_> =
            &[&id.get(), &end.status(), &end.pet_status(), &digest, &fingerprint];
        let ended = self.retry_lost_race(END, parameters, |rows| match rows.first() {
            None => Ok(Some(EndOrderOutcome::NoSuchOrder)),
            Some(row) => ending(row, end, once),
        });
        in_progress_if_delayed(ended.await, once, EndOrderOutcome::InProgress)
    }

    /// Runs a statement until it has an outcome: it has none if somebody else was faster.
    async fn retry_lost_race<T>(
        &self,
        statement: &'static str,
        parameters: Parameters<'_>,
        outcome: impl Fn(&[Row]) -> Result<Option<T>, StorageError>,
    ) -> Result<T, StorageError> {
        let mut too_late = cause("others were faster every time");
        for _ in 0..ATTEMPTS {
            match self.database.write_row(statement, parameters, &outcome).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(StorageError::Raced(by)) => too_late = by,
                Err(error) => return Err(error),
            }
        }
        Err(StorageError::Raced(too_late))
    }
}

/// What a row of [`PLACE`] says; nothing if the pet was there to be had, and somebody else had it, which for a request
/// with a name may be another attempt of its own.
fn placement(
    row: &Row,
    pet: PetId,
    once: Option<IdempotentRequest>,
) -> Result<Option<PlaceOrderOutcome>, StorageError> {
    let as_placed = |id: i64, at: SystemTime| -> Result<Order, StorageError> {
        let id = id.try_into().map_err(unexpected)?;
        Ok(Order { id, pet_id: pet, status: OrderStatus::Placed, created_at: at, updated_at: at })
    };
    if let Some(id) = row.try_get(0).map_err(unexpected)? {
        let at = row.try_get(1).map_err(unexpected)?;
        return Ok(Some(PlaceOrderOutcome::Placed(as_placed(id, at)?)));
    }
    if let Some(fingerprint) = row.try_get::<_, Option<Digest128>>(3).map_err(unexpected)? {
        if once.is_none_or(|once| once.fingerprint != fingerprint) {
            return Ok(Some(PlaceOrderOutcome::OtherRequest));
        }
        let (id, at) = (row.try_get(4).map_err(unexpected)?, row.try_get(5).map_err(unexpected)?);
        return Ok(Some(PlaceOrderOutcome::PlacedBefore(as_placed(id, at)?)));
    }
    let found: Option<PetStatus> = row.try_get(2).map_err(unexpected)?;
    Ok((found != Some(ORDERABLE) || once.is_none()).then_some(PlaceOrderOutcome::NotAvailable))
}

/// What a row of [`END`] says; nothing if the order was open, and somebody else ended it.
fn ending(
    row: &Row,
    end: OrderEnd,
    once: Option<IdempotentRequest>,
) -> Result<Option<EndOrderOutcome>, StorageError> {
    let order = order(row)?;
    let before: Option<Digest128> = row.try_get(5).map_err(unexpected)?;
    Ok(match before {
        Some(fingerprint) if once.is_none_or(|once| once.fingerprint != fingerprint) => {
            Some(EndOrderOutcome::OtherRequest)
        }
        Some(_) => Some(EndOrderOutcome::EndedBefore(order)),
        None if order.status == end.status() => Some(EndOrderOutcome::Ended(order)),
        None if order.status.may_end(end) => None,
        None => Some(EndOrderOutcome::OtherEnd(order.status)),
    })
}

/// A request with a key that had to wait for others too long, or lost to them every time, did nothing: it is told to
/// come again, since the others may have been attempts of its own.
fn in_progress_if_delayed<T>(
    outcome: Result<T, StorageError>,
    once: Option<IdempotentRequest>,
    in_progress: T,
) -> Result<T, StorageError> {
    match outcome {
        Err(StorageError::Locked(_) | StorageError::Raced(_)) if once.is_some() => Ok(in_progress),
        outcome => outcome,
    }
}

fn hashes(once: Option<IdempotentRequest>) -> (Option<Digest128>, Option<Digest128>) {
    (once.map(|once| once.digest), once.map(|once| once.fingerprint))
}

fn order(row: &Row) -> Result<Order, StorageError> {
    let number = |column: usize| row.try_get::<_, i64>(column).map_err(unexpected);
    Ok(Order {
        id: number(0)?.try_into().map_err(unexpected)?,
        pet_id: number(1)?.try_into().map_err(unexpected)?,
        status: row.try_get(2).map_err(unexpected)?,
        created_at: row.try_get(3).map_err(unexpected)?,
        updated_at: row.try_get(4).map_err(unexpected)?,
    })
}

stored_as_words!(OrderStatus, "order_status");

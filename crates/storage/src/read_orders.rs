//! SQL that reads the `orders` table; [`place_and_end_orders`](super::place_and_end_orders) places and ends orders,
//! [`update_order`](super::update_order) changes open and ended ones, and [`expire_orders`](super::expire_orders) ends those that
//! are due. As in lists of pets, an id below 1 is left out.

use std::error::Error;
use std::sync::Once;

use petstore_domain::order::{Order, OrderFilter, OrderId, OrderPageRequest, OrderStatus};
use petstore_domain::page::Page;
use petstore_domain::reference::Reference;
use petstore_domain::version::Versioned;
use petstore_postgres::{Parameters, StorageError, unexpected};
use tokio_postgres::Row;

use super::pg_enum::PgEnum;
use super::row_version::VersionColumn;
use super::storage::Storage;
use super::stored_metadata::StoredMetadata;

const LIST: &str = "\
    SELECT * FROM (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      WHERE id > $1
      ORDER BY id
      -- The longest page and one more. Without a constant limit, the planner expects a tenth of the table.
      LIMIT 101) AS longest
    LIMIT $2";

/// [`LIST`] in descending order: as for pets, each list has a statement for each direction.
const LIST_DESCENDING: &str = "\
    SELECT * FROM (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      WHERE id < $1 AND id >= 1
      ORDER BY id DESC
      LIMIT 101) AS longest
    LIMIT $2";

const LIST_BY_STATUS: &str = "\
    SELECT * FROM (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      -- A range of the index on (status, id), for the reason given for pets.
      WHERE (status, id) > ($3, $1) AND status <= $3
      ORDER BY status, id
      LIMIT 101) AS longest
    LIMIT $2";

const LIST_BY_STATUS_DESCENDING: &str = "\
    SELECT * FROM (
      SELECT id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      WHERE (status, id) < ($3, $1) AND status >= $3 AND id >= 1
      ORDER BY status DESC, id DESC
      LIMIT 101) AS longest
    LIMIT $2";

const LIST_OF_PET: &str = "\
    SELECT page.*
    FROM unnest($3::order_status[]) AS requested (status)
    -- One page per status, each a range of the index on (pet_id, status, id), of which the first rows are one page.
    CROSS JOIN LATERAL (
      SELECT id, pet_id, orders.status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      WHERE pet_id = $4 AND orders.status = requested.status AND id > $1
        -- Filtered: a pet has few orders.
        AND ($5::text IS NULL OR reference = $5)
      ORDER BY id
      LIMIT 101) AS page
    ORDER BY id
    LIMIT $2";

const LIST_OF_PET_DESCENDING: &str = "\
    SELECT page.*
    FROM unnest($3::order_status[]) AS requested (status)
    CROSS JOIN LATERAL (
      SELECT id, pet_id, orders.status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      WHERE pet_id = $4 AND orders.status = requested.status AND id < $1 AND id >= 1
        AND ($5::text IS NULL OR reference = $5)
      ORDER BY id DESC
      LIMIT 101) AS page
    ORDER BY id DESC
    LIMIT $2";

const LIST_OF_REFERENCE: &str = "\
    SELECT page.*
    FROM unnest($3::order_status[]) AS requested (status)
    -- One page per status, each a range of the index on (reference, status, id).
    CROSS JOIN LATERAL (
      SELECT id, pet_id, orders.status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      WHERE reference = $4 AND orders.status = requested.status AND id > $1
      ORDER BY id
      LIMIT 101) AS page
    ORDER BY id
    LIMIT $2";

const LIST_OF_REFERENCE_DESCENDING: &str = "\
    SELECT page.*
    FROM unnest($3::order_status[]) AS requested (status)
    CROSS JOIN LATERAL (
      SELECT id, pet_id, orders.status, created_at, updated_at, expires_at, reference, metadata, xmin
      FROM orders
      WHERE reference = $4 AND orders.status = requested.status AND id < $1 AND id >= 1
      ORDER BY id DESC
      LIMIT 101) AS page
    ORDER BY id DESC
    LIMIT $2";

pub(super) const FIND: &str = "\
    SELECT id, pet_id, status, created_at, updated_at, expires_at, reference, metadata, xmin
    FROM orders
    WHERE id = $1";

pub(super) const STATEMENTS: &[&str] = &[
    LIST,
    LIST_DESCENDING,
    LIST_BY_STATUS,
    LIST_BY_STATUS_DESCENDING,
    LIST_OF_PET,
    LIST_OF_PET_DESCENDING,
    LIST_OF_REFERENCE,
    LIST_OF_REFERENCE_DESCENDING,
    FIND,
];

impl Storage {
    /// One page of orders.
    pub async fn list_orders(
        &self,
        request: &OrderPageRequest,
    ) -> Result<Page<Versioned<Order>>, StorageError> {
        let (sort, after) = (request.sort, request.starts_after());
        let limit = i64::from(request.limit.get()) + 1;
        let OrderFilter { status, pet_id, reference } = &request.filter;
        let reference = reference.as_ref().map(Reference::as_str);
        let statuses = || -> Vec<_> {
            let all = OrderStatus::ALL.into_iter();
            all.filter(|one| status.is_none_or(|status| status == *one)).map(PgEnum).collect()
        };
        let rows = match (pet_id, reference, status) {
            (None, None, None) => {
                self.database.read(sort.choose(LIST, LIST_DESCENDING), &[&after, &limit]).await?
            }
            (None, None, Some(status)) => {
                let list = sort.choose(LIST_BY_STATUS, LIST_BY_STATUS_DESCENDING);
                self.database.read(list, &[&after, &limit, &PgEnum(*status)]).await?
            }
            (Some(pet), _, _) => {
                let list = sort.choose(LIST_OF_PET, LIST_OF_PET_DESCENDING);
                let parameters: Parameters<'_> = &[&after, &limit, &statuses(), &pet.get(), &reference];
                self.database.read(list, parameters).await?
            }
            (None, Some(reference), _) => {
                let list = sort.choose(LIST_OF_REFERENCE, LIST_OF_REFERENCE_DESCENDING);
                self.database.read(list, &[&after, &limit, &statuses(), &reference]).await?
            }
        };
        let orders = rows.iter().map(decode_order).collect::<Result<Vec<_>, _>>()?;
        Ok(Page::from_limit_plus_one(orders, sort, request.limit))
    }

    /// The order with this id, if it exists.
    pub async fn find_order(&self, id: OrderId) -> Result<Option<Versioned<Order>>, StorageError> {
        let rows = self.database.read(FIND, &[&id.get()]).await?;
        rows.first().map(decode_order).transpose()
    }
}

pub(super) fn decode_order(row: &Row) -> Result<Versioned<Order>, StorageError> {
    let PgEnum(status) = row.try_get("status").map_err(unexpected)?;
    let StoredMetadata(metadata) = row.try_get("metadata").map_err(unexpected)?;
    let VersionColumn(version) = row.try_get("xmin").map_err(unexpected)?;
    let content = Order {
        id: id_column(row, "id")?,
        pet_id: id_column(row, "pet_id")?,
        status,
        created_at: row.try_get("created_at").map_err(unexpected)?,
        updated_at: row.try_get("updated_at").map_err(unexpected)?,
        expires_at: row.try_get("expires_at").map_err(unexpected)?,
        reference: readable_reference(row)?,
        metadata,
    };
    Ok(Versioned { content, version })
}

/// Decodes the reference of an order. One that somebody has set in SQL, before a constraint forbade it, and that cannot be shown
/// is left out, so that the order and its page can be read.
fn readable_reference(row: &Row) -> Result<Option<Reference>, StorageError> {
    static LOGGED: Once = Once::new();
    let text: Option<String> = row.try_get("reference").map_err(unexpected)?;
    let error = match text.map(Reference::try_from).transpose() {
        Ok(reference) => return Ok(reference),
        Err(error) => error,
    };
    let order: i64 = row.try_get("id").map_err(unexpected)?;
    LOGGED.call_once(|| {
        tracing::warn!(order, %error, "an order's reference cannot be shown and is left out: `petstore migrate` corrects it");
    });
    Ok(None)
}

fn id_column<T: TryFrom<i64, Error: Error + Send + Sync + 'static>>(
    row: &Row,
    column: &str,
) -> Result<T, StorageError> {
    row.try_get::<_, i64>(column).map_err(unexpected)?.try_into().map_err(unexpected)
}

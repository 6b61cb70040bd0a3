//! SQL on the `pets` table.
//!
//! **Invariant:** rows leave as domain values; no other file names this table.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::{Storage, StorageError};
use crate::domain::page::{PetPage, PetPageRequest};
use crate::domain::pet::{CategoryId, NewPet, Pet, PetId, PetName, PetStatus};

const LIST: &str = "\
    SELECT id, name, category_id, status FROM pets \
    WHERE id > $1 ORDER BY id LIMIT $2";

const LIST_BY_STATUS: &str = "\
    SELECT id, name, category_id, status FROM pets \
    WHERE status = $3 AND id > $1 ORDER BY id LIMIT $2";

const LIST_BY_ID: &str = "\
    SELECT id, name, category_id, status FROM pets \
    WHERE id = ANY ($3) AND id > $1 ORDER BY id LIMIT $2";

const LIST_BY_ID_AND_STATUS: &str = "\
    SELECT id, name, category_id, status FROM pets \
    WHERE id = ANY ($3) AND status = $4 AND id > $1 ORDER BY id LIMIT $2";

const FIND: &str = "SELECT id, name, category_id, status FROM pets WHERE id = $1";

const INSERT: &str = "\
    INSERT INTO pets (name, category_id, status) VALUES ($1, $2, $3) \
    RETURNING id, name, category_id, status";

pub(super) const STATEMENTS: &[&str] =
    &[LIST, LIST_BY_STATUS, LIST_BY_ID, LIST_BY_ID_AND_STATUS, FIND, INSERT];

impl Storage {
    /// One page of the pets asked for, by ascending id.
    pub async fn list_pets(&self, request: &PetPageRequest) -> Result<PetPage, StorageError> {
        let after = request.after.map_or(0, PetId::get);
        let one_too_many = i64::from(request.limit.get()) + 1;
        let rows = match (&request.filter.ids, request.filter.status) {
            (None, None) => self.read(LIST, &[&after, &one_too_many]).await?,
            (None, Some(status)) => self.read(LIST_BY_STATUS, &[&after, &one_too_many, &status]).await?,
            (Some(ids), None) => self.read(LIST_BY_ID, &[&after, &one_too_many, &numbers(ids)]).await?,
            (Some(ids), Some(status)) => {
                self.read(LIST_BY_ID_AND_STATUS, &[&after, &one_too_many, &numbers(ids), &status]).await?
            }
        };
        let pets = rows.iter().map(pet).collect::<Result<_, _>>()?;
        Ok(PetPage::from_one_too_many(pets, request.limit))
    }

    /// The pet with this id, if there is one.
    pub async fn find_pet(&self, id: PetId) -> Result<Option<Pet>, StorageError> {
        self.read(FIND, &[&id.get()]).await?.first().map(pet).transpose()
    }

    /// Adds a pet and returns it with the id it was given.
    pub async fn insert_pet(&self, new: &NewPet) -> Result<Pet, StorageError> {
        let rows = self.write(INSERT, &[&new.name.as_str(), &new.category_id.0, &new.status]).await?;
        rows.first().ok_or(StorageError::Unexpected("nothing was inserted".into())).and_then(pet)
    }
}

fn numbers(ids: &[PetId]) -> Vec<i64> {
    ids.iter().copied().map(PetId::get).collect()
}

fn pet(row: &Row) -> Result<Pet, StorageError> {
    let decode = || -> Result<Pet, Box<dyn Error + Send + Sync>> {
        Ok(Pet {
            id: PetId::try_from(row.try_get::<_, i64>(0)?)?,
            name: PetName::try_from(row.try_get::<_, String>(1)?)?,
            category_id: CategoryId(row.try_get(2)?),
            status: row.try_get(3)?,
        })
    };
    decode().map_err(StorageError::Unexpected)
}

impl<'a> FromSql<'a> for PetStatus {
    fn from_sql(_: &Type, word: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(std::str::from_utf8(word)?.parse()?)
    }

    fn accepts(sql_type: &Type) -> bool {
        sql_type.name() == "pet_status"
    }
}

impl ToSql for PetStatus {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.as_str().as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        <Self as FromSql>::accepts(sql_type)
    }

    to_sql_checked!();
}

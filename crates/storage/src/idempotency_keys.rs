//! SQL on the `idempotency_keys` table: the stored results of requests with an `Idempotency-Key`.
//!
//! The functions `stored_results` and `result_days` in the database have the rules: how long a result is found, and for which days
//! it is stored. createPet calls `stored_results_with_versions` and `result_days` in its own statement, which also inserts the pets;
//! all other operations use the statements here.
//!
//! If two concurrent transactions store the same digest, the second waits for the first. If the first commits, the second fails with
//! a unique violation; repeated, it finds the stored result.

use std::error::Error;
use std::ops::ControlFlow;

use bytes::{BufMut, BytesMut};
use petstore_domain::idempotency::{Digest128, IdempotentRequest};
use petstore_postgres::{StorageError, Transaction, unexpected};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The stored result of the digest `$1`, which is null for a request without a key.
pub(super) const FIND: &str = "\
    SELECT fingerprint, subject_id
    FROM stored_results(ARRAY[$1::uuid])";

/// Stores the result of the digest `$1`: the request had the fingerprint `$2`, and changed the pet or the order `$3`.
const STORE: &str = "\
    INSERT INTO idempotency_keys (digest, kept_on, used_at, fingerprint, subject_id)
    SELECT $1, day, now(), $2, $3
    FROM result_days() AS day
    -- In the same order in every transaction, so that two of them cannot deadlock.
    ORDER BY day";

pub(super) const STATEMENTS: &[&str] = &[FIND, STORE, WAIT_FOR_STANDBY];

/// Makes the commit wait for a standby although nothing else may have been written: a replay acknowledges the change that an earlier
/// request has made, and PostgreSQL does not wait for what a statement only found.
pub(super) const WAIT_FOR_STANDBY: &str = "\
    SELECT pg_logical_emit_message(true, 'petstore', '')";

/// The outcome of a request that may have an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<T, R> {
    /// The request took effect, or changed nothing because everything is as it asks for.
    Done(T),
    /// An earlier request with the same key and content took effect. What it changed is shown as it is now, and is none if it has
    /// been deleted since.
    Replayed(Option<T>),
    /// A rule of the operation forbids it. Nothing was changed, and the key can be used again.
    Refused(R),
    /// The key was used for a different request.
    KeyReused,
    /// Another transaction had a lock for too long. It may be an earlier attempt of this request, which has the same key.
    InProgress,
}

impl<T, R> Outcome<T, R> {
    /// A request that another transaction kept from its locks, or that lost every race, has changed nothing. If it has a key, that
    /// other transaction may be an earlier attempt of the same request, and the client is told so.
    pub(super) fn or_in_progress(
        outcome: Result<Self, StorageError>,
        key: Option<IdempotentRequest>,
    ) -> Result<Self, StorageError> {
        match outcome {
            Err(StorageError::Locked(_) | StorageError::Raced(_) | StorageError::Deadlock(_))
                if key.is_some() =>
            {
                Ok(Self::InProgress)
            }
            outcome => outcome,
        }
    }
}

/// The earlier request with the same key.
pub(super) enum EarlierRequest {
    /// It had the same content, and changed this pet or order.
    Same {
        subject: i64,
    },
    Different,
}

impl EarlierRequest {
    /// Decodes the rows of [`FIND`].
    pub(super) fn decode(rows: &[Row], key: Option<IdempotentRequest>) -> Result<Option<Self>, StorageError> {
        let Some(row) = rows.first() else { return Ok(None) };
        let is_same = decode_digest(row, "fingerprint")? == key.map(|key| key.fingerprint);
        let subject = row.try_get("subject_id").map_err(unexpected)?;
        Ok(Some(if is_same { Self::Same { subject } } else { Self::Different }))
    }
}

/// Stores the result of a request that has a key, and commits.
pub(super) async fn commit_with_result(
    transaction: Transaction<'_>,
    key: Option<IdempotentRequest>,
    subject: i64,
) -> Result<(), StorageError> {
    let Some(IdempotentRequest { digest, fingerprint }) = key else { return transaction.commit(&[]).await };
    transaction.commit(&[(STORE, &[&DigestAsUuid(digest), &DigestAsUuid(fingerprint), &subject])]).await
}

/// Ends the transaction of a request whose key was used before, with the outcome; otherwise returns the transaction. `changed` is what
/// the earlier request has changed, as it is now.
pub(super) async fn end_if_repeated<'a, T, R>(
    transaction: Transaction<'a>,
    earlier: &[Row],
    key: Option<IdempotentRequest>,
    changed: impl FnOnce() -> Option<T>,
) -> Result<ControlFlow<Outcome<T, R>, Transaction<'a>>, StorageError> {
    match EarlierRequest::decode(earlier, key)? {
        None => Ok(ControlFlow::Continue(transaction)),
        Some(EarlierRequest::Different) => {
            transaction.roll_back().await.map(|()| ControlFlow::Break(Outcome::KeyReused))
        }
        Some(EarlierRequest::Same { .. }) => {
            commit_replay(transaction).await.map(|()| ControlFlow::Break(Outcome::Replayed(changed())))
        }
    }
}

/// Commits a transaction that has found the result of an earlier request.
pub(super) async fn commit_replay(transaction: Transaction<'_>) -> Result<(), StorageError> {
    let (transaction, _) = transaction.read([(WAIT_FOR_STANDBY, &[])]).await?;
    transaction.commit(&[]).await
}

/// A digest as a parameter or a column of type `uuid`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DigestAsUuid(pub(crate) Digest128);

impl<'a> FromSql<'a> for DigestAsUuid {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(Digest128(bytes.try_into()?)))
    }

    fn accepts(sql_type: &Type) -> bool {
        *sql_type == Type::UUID
    }
}

impl ToSql for DigestAsUuid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(&self.0.0);
        Ok(IsNull::No)
    }

    fn accepts(sql_type: &Type) -> bool {
        <Self as FromSql>::accepts(sql_type)
    }

    to_sql_checked!();
}

/// Decodes a digest.
pub(crate) fn decode_digest(row: &Row, column: &str) -> Result<Option<Digest128>, StorageError> {
    let stored: Option<DigestAsUuid> = row.try_get(column).map_err(unexpected)?;
    Ok(stored.map(|DigestAsUuid(digest)| digest))
}

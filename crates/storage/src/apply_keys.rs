//! SQL of `petstore keys apply`: reads the keys, and carries out a plan.
//!
//! **Invariants:**
//! - a plan is made and carried out in one transaction under a lock, which `petstore keys rotate` takes, too: of two programs that
//!   apply the same file, the second finds nothing to do, and no key is rotated meanwhile;
//! - a key that was changed after it was read is not overwritten: the plan is made again;
//! - one statement both changes a key and records the event: both happen or neither.

use std::io;
use std::time::{Duration, SystemTime};

use petstore_config::DatabaseUrl;
use petstore_domain::api_key::KeyDigest;
use petstore_domain::key_plan::{
    DeclaredKey, ExistingKey, KeyPlan, KeyPlanError, KeyStep, KeyTerms, PlanOptions, plan,
};
use petstore_domain::key_record::{Actor, KeyId, KeyState};
use petstore_postgres::{Parameters, StatementError, StorageError, error_message, not_committed, unexpected};
use thiserror::Error;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, IsolationLevel, Row, Transaction};

use super::api_keys::{INSERT, LOCK_LINEAGES, REVOKE, columns, rate_limit};
use super::migrations::open_migrated;
use super::show_then_commit::{IssueError, begin, commit_shown};

/// After the lock: `now()` is the start of the transaction.
const NOW: &str = "SELECT clock_timestamp() AS now, current_user::text AS role";

/// A page of all keys: those after an id.
const LIST: &str = "\
    SELECT id, COALESCE(lineage_id, id) AS lineage_id, name, digest, scopes, expires_at, revoked_at, rate_limit_requests,
      rate_limit_seconds,
      (SELECT max(successor_id) FROM api_key_events WHERE key_id = api_keys.id AND action = 'rotated') AS successor_id
    FROM api_keys
    WHERE id > $1
    ORDER BY id
    LIMIT 1000";

/// Only the owner may: the service's role cannot update these columns.
const CHANGE_TERMS: &str = "\
    WITH changed AS (
      UPDATE api_keys
      SET scopes = $4, rate_limit_requests = $5, rate_limit_seconds = $6, expires_at = $3
      WHERE id = $1 AND revoked_at IS NULL AND expires_at IS NOT DISTINCT FROM $2
      RETURNING id)
    INSERT INTO api_key_events (key_id, action, actor)
    SELECT id, 'changed', $7
    FROM changed";

const CHANGE_EXPIRY: &str = "\
    WITH changed AS (
      UPDATE api_keys
      SET expires_at = $3
      WHERE id = $1 AND revoked_at IS NULL AND expires_at IS NOT DISTINCT FROM $2
      RETURNING id)
    INSERT INTO api_key_events (key_id, action, actor)
    SELECT id, 'changed', $4
    FROM changed";

/// The key expires at `$2` at the latest, unless that is null.
const REPLACE: &str = "\
    WITH replaced AS (
      UPDATE api_keys
      SET expires_at = LEAST(expires_at, $2)
      WHERE id = $1 AND revoked_at IS NULL
      RETURNING id)
    INSERT INTO api_key_events (key_id, action, actor, successor_id)
    SELECT id, 'rotated', $4, $3
    FROM replaced";

pub(super) const STATEMENTS: &[&str] = &[NOW, LIST, CHANGE_TERMS, CHANGE_EXPIRY, REPLACE];

/// How often to plan: again if a key was changed after it was read, or another transaction had to go first.
const ATTEMPTS: u32 = 5;

/// Why keys were not applied.
#[derive(Debug, Error)]
pub enum ApplyKeysError {
    /// The keys in the database do not allow it.
    #[error(transparent)]
    Plan(#[from] KeyPlanError),
    /// The keys were not issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl From<StorageError> for ApplyKeysError {
    fn from(error: StorageError) -> Self {
        Self::Issue(error.into())
    }
}

/// What to apply, and how.
#[derive(Debug, Clone, Copy)]
pub struct KeysToApply<'a> {
    /// The keys of the file.
    pub declared: &'a [DeclaredKey],
    /// Whether to revoke the keys that are not declared.
    pub prune: bool,
    /// For how long a key works after another digest was declared.
    pub overlap: Duration,
}

/// A plan that was carried out.
#[derive(Debug)]
pub struct AppliedKeys {
    /// The plan.
    pub plan: KeyPlan,
    /// For each step, the id of the key that it issued.
    pub issued: Vec<Option<KeyId>>,
}

/// Why an attempt failed.
enum AttemptError {
    /// Another attempt may succeed.
    Raced(StorageError),
    Failed(ApplyKeysError),
}

impl From<StorageError> for AttemptError {
    fn from(error: StorageError) -> Self {
        Self::Failed(error.into())
    }
}

/// Plans, and changes nothing.
pub async fn plan_keys(url: &DatabaseUrl, keys: KeysToApply<'_>) -> Result<KeyPlan, ApplyKeysError> {
    let mut client = open_migrated(url).await?;
    let snapshot = client.build_transaction().read_only(true).isolation_level(IsolationLevel::RepeatableRead);
    let transaction = snapshot.start().await.map_err(not_committed)?;
    Ok(make_plan(&transaction, keys).await?.0)
}

/// Makes the current keys those that are declared, after `show` has shown the new ones.
pub async fn apply_keys(
    url: &DatabaseUrl,
    keys: KeysToApply<'_>,
    actor: &Actor,
    mut show: impl FnMut(&AppliedKeys) -> io::Result<()>,
) -> Result<AppliedKeys, ApplyKeysError> {
    let mut client = open_migrated(url).await?;
    let mut attempts = 1;
    loop {
        match attempt(&mut client, keys, actor, &mut show).await {
            Ok(applied) => return Ok(applied),
            Err(AttemptError::Raced(_)) if attempts < ATTEMPTS => attempts += 1,
            Err(AttemptError::Raced(error)) => return Err(error.into()),
            Err(AttemptError::Failed(error)) => return Err(error),
        }
    }
}

/// Plans, carries out the plan, shows what it issues, and commits.
async fn attempt(
    client: &mut Client,
    keys: KeysToApply<'_>,
    actor: &Actor,
    show: &mut impl FnMut(&AppliedKeys) -> io::Result<()>,
) -> Result<AppliedKeys, AttemptError> {
    let transaction = begin(client).await?;
    transaction.execute(LOCK_LINEAGES, &[]).await.map_err(not_committed)?;
    let (plan, role) = make_plan(&transaction, keys).await.map_err(AttemptError::Failed)?;
    let mut issued = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let last = issued.iter().rev().find_map(|id| *id);
        issued.push(carry_out(&transaction, step, last, actor, &role).await?);
    }
    let applied = AppliedKeys { plan, issued };
    let committed = commit_shown(transaction, || show(&applied)).await;
    committed.map_err(|error| AttemptError::Failed(error.into()))?;
    Ok(applied)
}

/// The plan, and the name of the database role.
async fn make_plan(
    transaction: &Transaction<'_>,
    keys: KeysToApply<'_>,
) -> Result<(KeyPlan, String), ApplyKeysError> {
    let row = transaction.query_one(NOW, &[]).await.map_err(not_committed)?;
    let now: SystemTime = row.try_get("now").map_err(unexpected)?;
    let mut existing: Vec<ExistingKey> = Vec::new();
    loop {
        let after = existing.last().map_or(0, |key| key.id.0);
        let rows = transaction.query(LIST, &[&after]).await.map_err(not_committed)?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            existing.push(existing_key(row, now)?);
        }
    }
    let options = PlanOptions { now, prune: keys.prune, overlap: keys.overlap };
    let plan = plan(keys.declared, &existing, options)?;
    Ok((plan, row.try_get("role").map_err(unexpected)?))
}

/// Carries out a step, and returns the id of the key that it issued. `last` is the key that was issued last.
async fn carry_out(
    transaction: &Transaction<'_>,
    step: &KeyStep,
    last: Option<KeyId>,
    actor: &Actor,
    role: &str,
) -> Result<Option<KeyId>, AttemptError> {
    let actor = actor.as_str();
    match step {
        KeyStep::Create { declared, predecessor } => {
            let lineage = predecessor.as_ref().map(|key| key.lineage);
            insert(transaction, declared, lineage, actor).await.map(Some)
        }
        KeyStep::Change { key, terms } if key.terms.has_same_rights(terms) => {
            let (old, new) = (key.terms.expires_at, terms.expires_at);
            update_one(transaction, CHANGE_EXPIRY, &[&key.id.0, &old, &new, &actor]).await?;
            Ok(None)
        }
        KeyStep::Change { key, terms: KeyTerms { scopes, expires_at, rate_limit } } => {
            let (requests, seconds) = columns(*rate_limit);
            let old = key.terms.expires_at;
            let parameters: Parameters<'_> =
                &[&key.id.0, &old, expires_at, scopes, &requests, &seconds, &actor];
            let changed = update_one(transaction, CHANGE_TERMS, parameters).await;
            changed.map_err(|error| explained(error, role))?;
            Ok(None)
        }
        KeyStep::Rotate { key, until, declared } => {
            let successor = insert(transaction, declared, Some(key.lineage), actor).await?;
            update_one(transaction, REPLACE, &[&key.id.0, until, &successor.0, &actor]).await?;
            if until.is_none() {
                update_one(transaction, REVOKE, &[&key.id.0, &actor]).await?;
            }
            Ok(Some(successor))
        }
        KeyStep::End { key, until, successor } => {
            let successor = successor.or(last).map(|id| id.0);
            update_one(transaction, REPLACE, &[&key.id.0, until, &successor, &actor]).await?;
            Ok(None)
        }
        KeyStep::Revoke { key } => {
            update_one(transaction, REVOKE, &[&key.id.0, &actor]).await?;
            Ok(None)
        }
    }
}

async fn insert(
    transaction: &Transaction<'_>,
    declared: &DeclaredKey,
    lineage: Option<KeyId>,
    actor: &str,
) -> Result<KeyId, AttemptError> {
    let (prefix, digest) = declared.stored();
    let KeyTerms { scopes, expires_at, rate_limit } = declared.terms();
    let (requests, seconds) = columns(rate_limit);
    let parameters: Parameters<'_> = &[
        &declared.name(),
        &prefix,
        &digest.as_bytes(),
        &scopes,
        &expires_at,
        &requests,
        &seconds,
        &lineage.map(|id| id.0),
        &actor,
    ];
    let row = transaction.query_one(INSERT, parameters).await.map_err(raced)?;
    Ok(KeyId(row.try_get("id").map_err(unexpected)?))
}

/// Updates a key that must be as it was read.
async fn update_one(
    transaction: &Transaction<'_>,
    statement: &str,
    parameters: Parameters<'_>,
) -> Result<(), AttemptError> {
    if transaction.execute(statement, parameters).await.map_err(raced)? == 1 {
        return Ok(());
    }
    Err(AttemptError::Raced(StorageError::Raced(error_message("a key was changed by another program"))))
}

/// The error of a statement. Another transaction may have inserted the digest, or the server ended this one because both waited
/// for each other.
fn raced(error: tokio_postgres::Error) -> AttemptError {
    let states = [SqlState::UNIQUE_VIOLATION, SqlState::T_R_DEADLOCK_DETECTED];
    let is_race = error.code().is_some_and(|code| states.contains(code));
    let error = StatementError::Sent(error).into_read_error();
    if is_race { AttemptError::Raced(error) } else { error.into() }
}

/// Says what to do if the role may not change the terms of keys.
fn explained(error: AttemptError, role: &str) -> AttemptError {
    let AttemptError::Failed(ApplyKeysError::Issue(IssueError::Storage(StorageError::Unexpected(cause)))) =
        &error
    else {
        return error;
    };
    let code = cause.downcast_ref().and_then(tokio_postgres::Error::code);
    if code != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return error;
    }
    StorageError::Unusable(format!(
        "the role {role} may not change the scopes or the rate limit of a key: run this command as the owner of the database"
    ))
    .into()
}

fn existing_key(row: &Row, now: SystemTime) -> Result<ExistingKey, StorageError> {
    let expires_at = get(row, "expires_at")?;
    Ok(ExistingKey {
        id: KeyId(get(row, "id")?),
        lineage: KeyId(get(row, "lineage_id")?),
        name: get(row, "name")?,
        digest: digest(row)?,
        state: KeyState::at(now, expires_at, get(row, "revoked_at")?),
        successor: get::<Option<_>>(row, "successor_id")?.map(KeyId),
        terms: KeyTerms {
            scopes: get(row, "scopes")?,
            expires_at,
            rate_limit: rate_limit(row).map_err(unexpected)?,
        },
    })
}

fn digest(row: &Row) -> Result<KeyDigest, StorageError> {
    // A constraint ensures its length.
    KeyDigest::from_bytes(get(row, "digest")?).ok_or_else(|| unexpected("a digest of another length"))
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T, StorageError> {
    row.try_get(column).map_err(unexpected)
}

//! The queues of createPet: which inserts share a statement, and which wait for another transaction.
//!
//! **Invariants:**
//! - a request without a key is never retried by the service, unless the database has reported that nothing was written;
//! - one failing request never fails the others of its batch;
//! - a request that waits for another transaction's decision about its key or reference waits alone, without a slot. It delays the
//!   batch in which that is noticed by a few milliseconds.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use petstore_batcher::BatchHandler;
use petstore_domain::idempotency::{Digest128, IdempotentRequest};
use petstore_domain::pet::{NewPet, Pet, PetId};
use petstore_domain::reference::Reference;
use petstore_domain::version::{Version, Versioned};
use petstore_postgres::{
    BRIEF_LOCK_WAIT, Database, LONG_LOCK_WAIT, StorageError, WaitLimit, error_message, unexpected,
};
use tokio::time::Instant;

use super::insert_pets::{InsertedOnce, LockWait, insert, insert_once};
use super::queue::{LIMITS, Queue};
use super::storage::Storage;

/// Nothing is tried again for a request that arrived this long ago. With the longest statement, it still gets its response within
/// 10 seconds.
const RETRY_LIMIT: Duration = Duration::from_secs(2);
/// How many requests of a failed batch are tried at the same time, and how long each waits for a lock: hardly, because the others
/// of its batch wait, too. One that needs longer waits alone.
const ALONE_AT_ONCE: usize = 2;
const ALONE_WAIT: Duration = Duration::from_millis(5);

/// The unique index on references, and the beginning of the names of those on idempotency keys.
const REFERENCE_INDEX: &str = "pets_reference_key";
const KEY_INDEX: &str = "idempotency_keys_";

/// The outcome of an insert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertOutcome {
    /// The pet was inserted.
    Inserted(Versioned<Pet>),
    /// An earlier request with the same key and content inserted the pet, which is shown as it was then.
    Replayed(Versioned<Pet>),
    /// The key was used for a different request. Nothing was inserted.
    KeyReused,
    /// A request with the same key is in progress on another node. This one inserted nothing.
    InProgress,
    /// Another pet has the reference. Nothing was inserted.
    ReferenceTaken,
}

type InsertResult = Result<InsertOutcome, StorageError>;

impl Storage {
    /// Inserts a pet; with an idempotency key, once. [`StorageError::Locked`] if another transaction has inserted a pet with the
    /// same reference and has not committed yet.
    pub async fn insert_pet(&self, pet: NewPet, idempotency: Option<IdempotentRequest>) -> InsertResult {
        self.create_pet.insert(pet, idempotency).await
    }
}

/// Inserts pets in batches. Cheap to clone.
#[derive(Clone)]
pub(super) struct CreatePetQueue {
    /// Pets with neither a key nor a reference: nothing that is stored can prevent the insert, and nothing makes it wait.
    plain: Queue<PlainBatch>,
    /// Pets with a key and no reference: only an attempt with the same key makes one wait.
    once: Queue<OnceBatch>,
    /// Pets with a reference, of which an import can hold thousands.
    referenced: Queue<OnceBatch>,
    waiting: Arc<WaitingRequests>,
    waits: WaitLimit,
    database: Database,
}

impl CreatePetQueue {
    /// Must be called within the Tokio runtime that is to run the batches.
    pub(super) fn new(database: &Database) -> Self {
        Self {
            plain: Queue::new("insert_pet", PlainBatch(database.clone()), LIMITS),
            once: Queue::new("insert_pet_once", OnceBatch(database.clone()), LIMITS),
            referenced: Queue::new("insert_pet_referenced", OnceBatch(database.clone()), LIMITS),
            waiting: Arc::default(),
            waits: database.wait_limit(),
            database: database.clone(),
        }
    }

    async fn insert(&self, pet: NewPet, idempotency: Option<IdempotentRequest>) -> InsertResult {
        if idempotency.is_none() && pet.reference.is_none() {
            return self.plain.write(pet).await?.map(InsertOutcome::Inserted);
        }
        let queue = if pet.reference.is_some() { &self.referenced } else { &self.once };
        let request = OnceRequest { pet, idempotency, arrived: Instant::now() };
        let blocked = match self.waiting.blocker_of(&request) {
            Some(blocker) => Blocked { request, blocker },
            None => match queue.write(request).await?? {
                AttemptOutcome::Decided(outcome) => return Ok(outcome),
                AttemptOutcome::Undecided(blocked) => *blocked,
            },
        };
        Box::pin(self.wait(blocked)).await
    }

    /// Runs a request alone, on a connection that may wait.
    async fn wait(&self, Blocked { request, blocker }: Blocked) -> InsertResult {
        let _waiting = self.waiting.register(blocker.clone());
        let deadline = (request.arrived + RETRY_LIMIT).min(Instant::now() + LONG_LOCK_WAIT);
        match insert_alone(&self.database, &request, LockWait::Until(&self.waits, deadline)).await {
            Ok(AttemptOutcome::Decided(outcome)) => Ok(outcome),
            Ok(AttemptOutcome::Undecided(blocked)) => blocked.blocker.undecided(),
            // Too many wait.
            Err(StorageError::Locked(_)) => blocker.undecided(),
            Err(error) => Err(error),
        }
    }
}

/// Handles batches of pets with neither a key nor a reference with one statement.
struct PlainBatch(Database);

impl BatchHandler for PlainBatch {
    type Request = NewPet;
    type Response = Result<Versioned<Pet>, StorageError>;

    async fn handle(&self, pets: Vec<NewPet>) -> Vec<Self::Response> {
        let started = Instant::now();
        match self.insert(&pets.iter().collect::<Vec<_>>()).await {
            Ok(inserted) => inserted.into_iter().map(Ok).collect(),
            // Nothing was inserted. One of the pets may be the cause, so each is tried alone.
            Err(StorageError::Unexpected(_)) if pets.len() > 1 => {
                let alone = pets.into_iter().map(async |pet| {
                    check_retry_limit(started)?;
                    self.insert(&[&pet]).await?.pop().ok_or_else(|| unexpected("a pet has no outcome"))
                });
                stream::iter(alone).buffered(ALONE_AT_ONCE).collect().await
            }
            Err(error) => vec![Err(error); pets.len()],
        }
    }
}

impl PlainBatch {
    async fn insert(&self, pets: &[&NewPet]) -> Result<Vec<Versioned<Pet>>, StorageError> {
        let ids = match insert(&self.0, pets).await {
            Err(StorageError::Deadlock(_)) => insert(&self.0, pets).await?,
            ids => ids?,
        };
        Ok(pets.iter().zip(ids).map(|(pet, (id, version))| with_id(pet, id, version)).collect())
    }
}

/// A pet to insert, with a key, a reference or both.
#[derive(Debug, Clone)]
struct OnceRequest {
    pet: NewPet,
    idempotency: Option<IdempotentRequest>,
    arrived: Instant,
}

impl OnceRequest {
    fn needs(&self, blocker: &Blocker) -> bool {
        match blocker {
            Blocker::Key(digest) => self.idempotency.is_some_and(|key| key.digest == *digest),
            Blocker::Reference(reference) => self.pet.reference.as_ref() == Some(reference),
        }
    }

    /// What the request waited for, if it is another transaction's decision.
    fn blocker(&self, error: &StorageError) -> Option<Blocker> {
        if error.names_index(KEY_INDEX) {
            self.idempotency.map(|key| Blocker::Key(key.digest))
        } else if error.names_index(REFERENCE_INDEX) {
            self.pet.reference.clone().map(Blocker::Reference)
        } else {
            None
        }
    }
}

/// What another transaction has inserted without committing yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Blocker {
    Key(Digest128),
    Reference(Reference),
}

impl Blocker {
    /// The outcome of a request that has waited for too long. It inserted nothing.
    fn undecided(&self) -> InsertResult {
        match self {
            Self::Key(_) => Ok(InsertOutcome::InProgress),
            Self::Reference(_) => Err(StorageError::Locked(error_message(
                "another transaction has inserted the same reference and has not ended",
            ))),
        }
    }
}

#[derive(Debug, Clone)]
struct Blocked {
    request: OnceRequest,
    blocker: Blocker,
}

#[derive(Debug, Clone)]
enum AttemptOutcome {
    Decided(InsertOutcome),
    /// Another transaction is about to decide. Nothing was inserted.
    Undecided(Box<Blocked>),
}

/// What requests wait for, and how many do.
#[derive(Default)]
struct WaitingRequests(Mutex<HashMap<Blocker, usize>>);

impl WaitingRequests {
    /// What a request would wait for, because others do. It does not join a batch.
    fn blocker_of(&self, request: &OnceRequest) -> Option<Blocker> {
        let blockers = self.blockers();
        if blockers.is_empty() {
            return None;
        }
        let key = request.idempotency.map(|key| Blocker::Key(key.digest));
        let reference = request.pet.reference.clone().map(Blocker::Reference);
        key.into_iter().chain(reference).find(|blocker| blockers.contains_key(blocker))
    }

    /// Counts a request as waiting until the result is dropped.
    fn register(&self, blocker: Blocker) -> WaitingRequest<'_> {
        *self.blockers().entry(blocker.clone()).or_default() += 1;
        WaitingRequest { requests: self, blocker }
    }

    fn blockers(&self) -> MutexGuard<'_, HashMap<Blocker, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct WaitingRequest<'a> {
    requests: &'a WaitingRequests,
    blocker: Blocker,
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        let mut blockers = self.requests.blockers();
        if let Some(count) = blockers.get_mut(&self.blocker) {
            *count -= 1;
            if *count == 0 {
                blockers.remove(&self.blocker);
            }
        }
    }
}

/// Handles batches of pets with a key or a reference with one statement.
struct OnceBatch(Database);

type AttemptResult = Result<AttemptOutcome, StorageError>;

impl BatchHandler for OnceBatch {
    type Request = OnceRequest;
    type Response = AttemptResult;

    /// One statement, one commit, one flush to disk for all. Of several requests with the same key, the first is inserted.
    /// Those with the same content share its outcome, and the others are handled after it; likewise all but the first with the
    /// same reference.
    async fn handle(&self, requests: Vec<OnceRequest>) -> Vec<AttemptResult> {
        let (firsts, repeats) = split_repeats(&requests);
        let mut results: HashMap<usize, AttemptResult> = self.insert_all(&requests, firsts).await;
        for index in repeats {
            let request = &requests[index];
            let result =
                match results.iter().find_map(|(other, result)| share(&requests[*other], result, request)) {
                    Some(result) => result,
                    None => self.insert_again(request).await,
                };
            results.insert(index, result);
        }
        (0..requests.len())
            .map(|index| results.remove(&index).unwrap_or_else(|| Err(unexpected("a pet has no outcome"))))
            .collect()
    }
}

/// The result of a request that another request of the batch decides: it has the same key and content, or needs what that one
/// waits for.
fn share(other: &OnceRequest, result: &AttemptResult, request: &OnceRequest) -> Option<AttemptResult> {
    match result {
        Ok(AttemptOutcome::Undecided(waiting)) if request.needs(&waiting.blocker) => {
            let blocked = Blocked { request: request.clone(), blocker: waiting.blocker.clone() };
            Some(Ok(AttemptOutcome::Undecided(Box::new(blocked))))
        }
        _ if request.idempotency.is_none() || request.idempotency != other.idempotency => None,
        Ok(AttemptOutcome::Decided(InsertOutcome::Inserted(pet))) => {
            Some(Ok(AttemptOutcome::Decided(InsertOutcome::Replayed(pet.clone()))))
        }
        result => Some(result.clone()),
    }
}

/// The indexes of the requests that can share a statement (each the first with its key and with its reference), and of the
/// others.
fn split_repeats(requests: &[OnceRequest]) -> (Vec<usize>, Vec<usize>) {
    let (mut keys, mut references) = (HashSet::new(), HashSet::new());
    (0..requests.len()).partition(|index| {
        let OnceRequest { pet, idempotency, .. } = &requests[*index];
        idempotency.is_none_or(|key| keys.insert(key.digest))
            && pet.reference.as_ref().is_none_or(|reference| references.insert(reference))
    })
}

impl OnceBatch {
    async fn insert_all(
        &self,
        requests: &[OnceRequest],
        indexes: Vec<usize>,
    ) -> HashMap<usize, AttemptResult> {
        let batch: Vec<&OnceRequest> = indexes.iter().map(|index| &requests[*index]).collect();
        let results = match self.insert_batch(&batch).await {
            Ok(outcomes) => {
                outcomes.into_iter().map(|outcome| Ok(AttemptOutcome::Decided(outcome))).collect()
            }
            // Nothing was inserted. One of the requests may be the cause, so each is tried alone.
            Err(
                StorageError::Unexpected(_)
                | StorageError::Locked(_)
                | StorageError::Raced(_)
                | StorageError::Deadlock(_)
                | StorageError::NoPartition(_),
            ) => {
                let alone =
                    indexes.iter().copied().map(async |index| self.insert_again(&requests[index]).await);
                stream::iter(alone).buffered(ALONE_AT_ONCE).collect().await
            }
            Err(error) => vec![Err(error); batch.len()],
        };
        indexes.into_iter().zip(results).collect()
    }

    /// Inserts a batch. A lock on a table concerns all requests, so they wait for it together.
    async fn insert_batch(&self, batch: &[&OnceRequest]) -> Result<Vec<InsertOutcome>, StorageError> {
        match insert_requests(&self.0, batch, LockWait::AtMost(BRIEF_LOCK_WAIT)).await {
            Err(error @ StorageError::Locked(_))
                if !error.names_index(KEY_INDEX) && !error.names_index(REFERENCE_INDEX) =>
            {
                let inserted = insert_requests(&self.0, batch, LockWait::AtMost(LONG_LOCK_WAIT)).await;
                inserted.map_err(|error| match error {
                    StorageError::Locked(source) => StorageError::Unavailable(source),
                    error => error,
                })
            }
            inserted => inserted,
        }
    }

    async fn insert_again(&self, request: &OnceRequest) -> AttemptResult {
        check_retry_limit(request.arrived)?;
        insert_alone(&self.0, request, LockWait::AtMost(ALONE_WAIT)).await
    }
}

/// Whether there is time to try a request again.
fn check_retry_limit(since: Instant) -> Result<(), StorageError> {
    let too_late = || StorageError::Unavailable(error_message("no time to try the request again"));
    (since.elapsed() < RETRY_LIMIT).then_some(()).ok_or_else(too_late)
}

async fn insert_alone(database: &Database, request: &OnceRequest, lock_wait: LockWait<'_>) -> AttemptResult {
    match insert_requests(database, &[request], lock_wait).await {
        Ok(mut outcomes) => {
            outcomes.pop().map(AttemptOutcome::Decided).ok_or_else(|| unexpected("a pet has no outcome"))
        }
        Err(error) => {
            let blocker = request.blocker(&error).ok_or(error)?;
            Ok(AttemptOutcome::Undecided(Box::new(Blocked { request: request.clone(), blocker })))
        }
    }
}

async fn insert_requests(
    database: &Database,
    requests: &[&OnceRequest],
    lock_wait: LockWait<'_>,
) -> Result<Vec<InsertOutcome>, StorageError> {
    let pets: Vec<&NewPet> = requests.iter().map(|request| &request.pet).collect();
    let keys: Vec<Option<IdempotentRequest>> = requests.iter().map(|request| request.idempotency).collect();
    let rows = match insert_once(database, &pets, &keys, lock_wait).await {
        // Nothing was inserted, and the concurrent transaction has ended or goes on: the retry finds its key or its pet, if any.
        Err(StorageError::Raced(_) | StorageError::Deadlock(_)) => {
            insert_once(database, &pets, &keys, lock_wait).await?
        }
        rows => rows?,
    };
    let outcomes = requests.iter().zip(rows).map(|(request, row)| match row {
        InsertedOnce::New(id, version) => InsertOutcome::Inserted(with_id(&request.pet, id, version)),
        // The same request gets the same response, even if the pet has changed since.
        InsertedOnce::Stored { id, version, fingerprint }
            if request.idempotency.is_some_and(|key| key.fingerprint == fingerprint) =>
        {
            InsertOutcome::Replayed(with_id(&request.pet, id, version))
        }
        InsertedOnce::Stored { .. } => InsertOutcome::KeyReused,
        InsertedOnce::ReferenceTaken => InsertOutcome::ReferenceTaken,
    });
    Ok(outcomes.collect())
}

fn with_id(pet: &NewPet, id: PetId, version: Version) -> Versioned<Pet> {
    Versioned { content: pet.with_id(id), version }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petstore_domain::metadata::Metadata;
    use petstore_domain::pet::CategoryId;

    fn request(key: Option<u8>, fingerprint: u8, reference: Option<&str>) -> OnceRequest {
        OnceRequest {
            pet: NewPet {
                name: "Rex".to_owned().try_into().unwrap(),
                category_id: CategoryId(1),
                status: None,
                reference: reference.map(|text| text.to_owned().try_into().unwrap()),
                metadata: Metadata::default(),
            },
            idempotency: key.map(|key| IdempotentRequest {
                digest: Digest128([key; 16]),
                fingerprint: Digest128([fingerprint; 16]),
            }),
            arrived: Instant::now(),
        }
    }

    #[test]
    fn only_the_first_with_each_key_and_reference_shares_the_statement() {
        let requests = [
            request(Some(1), 1, None),
            request(Some(2), 1, Some("a")),
            request(Some(1), 1, None),
            request(Some(1), 2, Some("b")),
            request(Some(3), 1, Some("a")),
            request(None, 0, Some("a")),
            request(None, 0, Some("c")),
        ];
        assert_eq!(split_repeats(&requests), (vec![0, 1, 6], vec![2, 3, 4, 5]));
    }

    #[test]
    fn a_repeat_shares_the_outcome_of_its_key_and_the_wait_for_its_reference() {
        let pet = || with_id(&request(None, 0, None).pet, 7.try_into().unwrap(), Version(1));
        let decided = |outcome| Ok(AttemptOutcome::Decided(outcome));
        let inserted = || decided(InsertOutcome::Inserted(pet()));
        let first = request(Some(1), 1, Some("a"));
        assert_eq!(
            decision(share(&first, &inserted(), &request(Some(1), 1, Some("a")))),
            Some(InsertOutcome::Replayed(pet()))
        );
        assert_eq!(
            decision(share(&first, &decided(InsertOutcome::InProgress), &request(Some(1), 1, None))),
            Some(InsertOutcome::InProgress)
        );
        for other in [request(Some(1), 2, None), request(Some(2), 1, Some("a")), request(None, 0, Some("a"))]
        {
            assert!(share(&first, &inserted(), &other).is_none(), "{other:?}");
        }
        let (key, reference) =
            (Blocker::Key(Digest128([1; 16])), Blocker::Reference("a".to_owned().try_into().unwrap()));
        for (blocker, repeat) in
            [(key, request(Some(1), 2, Some("b"))), (reference, request(Some(2), 1, Some("a")))]
        {
            let waits = Blocked { request: first.clone(), blocker: blocker.clone() };
            let undecided = Ok(AttemptOutcome::Undecided(Box::new(waits)));
            let Some(Ok(AttemptOutcome::Undecided(shared))) = share(&first, &undecided, &repeat) else {
                panic!("it would wait once more for the same transaction");
            };
            assert_eq!((shared.request.idempotency, shared.blocker), (repeat.idempotency, blocker));
            assert!(share(&first, &undecided, &request(Some(2), 1, Some("b"))).is_none());
        }
    }

    fn decision(shared: Option<AttemptResult>) -> Option<InsertOutcome> {
        match shared? {
            Ok(AttemptOutcome::Decided(outcome)) => Some(outcome),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_knows_what_it_would_wait_for_while_another_waits_for_it() {
        let waiting = WaitingRequests::default();
        let (key, reference) =
            (Blocker::Key(Digest128([1; 16])), Blocker::Reference("a".to_owned().try_into().unwrap()));
        let of_key = waiting.register(key.clone());
        let of_references = [waiting.register(reference.clone()), waiting.register(reference.clone())];
        assert_eq!(waiting.blocker_of(&request(Some(1), 1, Some("b"))), Some(key));
        assert_eq!(waiting.blocker_of(&request(Some(2), 1, Some("a"))), Some(reference.clone()));
        assert_eq!(waiting.blocker_of(&request(Some(2), 1, Some("b"))), None);
        drop(of_key);
        assert_eq!(waiting.blocker_of(&request(Some(1), 1, None)), None);
        let [first, last] = of_references;
        drop(first);
        assert_eq!(waiting.blocker_of(&request(None, 0, Some("a"))), Some(reference));
        drop(last);
        assert!(waiting.blockers().is_empty());
    }
}

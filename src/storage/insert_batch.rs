//! Adding pets, many at once, and those with an `Idempotency-Key` once.
//!
//! **Invariants:**
//! - a request with a key takes effect once: the pet and the memory of the request are one statement;
//! - a request without one is never repeated by the service;
//! - one bad request never sinks those that travel with it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::batch::{Batcher, CallError, Work};
use super::pets::{Inserted, LIMITS, insert, insert_once};
use super::postgres::database::Database;
use super::postgres::error::cause;
use super::{Storage, StorageError};
use crate::domain::idempotency::IdempotentRequest;
use crate::domain::pet::{NewPet, Pet, PetId};

/// A pet to be added; with a key, once.
#[derive(Debug, Clone)]
pub(super) struct Create {
    pub(super) new: NewPet,
    pub(super) once: Option<IdempotentRequest>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertOutcome {
    /// It was added.
    Added(Pet),
    /// It was added before, by the same request.
    AddedBefore(Pet),
    /// Another request was sent under the same name before. Nothing was added.
    OtherRequest,
    /// The same request is under way elsewhere. Nothing was added by this one.
    InProgress,
}

type Answer = Result<InsertOutcome, StorageError>;

/// Pets to be added. Those that arrive together share a statement.
pub(super) struct Insert(Database);

impl Insert {
    pub(super) fn start(database: &Database) -> Batcher<Self> {
        Batcher::start("insert_pet", Self(database.clone()), LIMITS)
    }
}

impl Storage {
    /// Adds a pet; with a name for the request, once.
    pub async fn insert_pet(
        &self,
        new: NewPet,
        once: Option<IdempotentRequest>,
    ) -> Result<InsertOutcome, StorageError> {
        self.insert_pet.call(Create { new, once }).await.map_err(|error| match error {
            // The work panicked, so what it did is not known.
            CallError::Lost => StorageError::OutcomeUnknown(Arc::new(error)),
            nothing_begun => nothing_begun.into(),
        })?
    }
}

impl Work for Insert {
    type Request = Create;
    type Answer = Answer;

    /// One statement, one commit, one flush to disk for all. Requests under the same name are one if they ask for
    /// the same; else the later ones are looked at when the first has been.
    async fn run(&self, creates: Vec<Create>) -> Vec<Answer> {
        let (leaders, rest) = leaders(&creates);
        let mut answers: HashMap<usize, Answer> = self.add_all(&creates, leaders).await;
        for place in rest {
            let same = answers.keys().copied().find(|other| creates[*other].once == creates[place].once);
            let answer = match same.and_then(|same| answers.get(&same)) {
                Some(Ok(InsertOutcome::Added(pet))) => Ok(InsertOutcome::AddedBefore(pet.clone())),
                Some(answer) => answer.clone(),
                None => self.add_one(&creates[place]).await,
            };
            answers.insert(place, answer);
        }
        (0..creates.len()).map(|place| answers.remove(&place).unwrap_or_else(|| Err(forgotten()))).collect()
    }
}

/// The requests that can share a statement, the first under each name, and the others.
fn leaders(creates: &[Create]) -> (Vec<usize>, Vec<usize>) {
    let mut names = HashSet::new();
    (0..creates.len()).partition(|place| creates[*place].once.is_none_or(|once| names.insert(once.digest)))
}

impl Insert {
    async fn add_all(&self, creates: &[Create], places: Vec<usize>) -> HashMap<usize, Answer> {
        let together: Vec<&Create> = places.iter().map(|place| &creates[*place]).collect();
        let answers = match self.add(&together).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            // The server refused them together, or one of them has to wait for another node, or lost to it, or cannot be
            // remembered.
            Err(
                StorageError::Unexpected(_)
                | StorageError::Locked(_)
                | StorageError::Raced(_)
                | StorageError::NoPartition(_),
            ) => {
                let mut answers = Vec::with_capacity(together.len());
                for create in together {
                    answers.push(self.add_one(create).await);
                }
                answers
            }
            Err(error) => vec![Err(error); together.len()],
        };
        places.into_iter().zip(answers).collect()
    }

    async fn add_one(&self, create: &Create) -> Answer {
        match self.add(&[create]).await {
            Ok(mut answers) => answers.pop().ok_or_else(forgotten),
            Err(StorageError::Locked(_) | StorageError::Raced(_)) if create.once.is_some() => {
                Ok(InsertOutcome::InProgress)
            }
            Err(error) => Err(error),
        }
    }

    async fn add(&self, creates: &[&Create]) -> Result<Vec<InsertOutcome>, StorageError> {
        let pets: Vec<&NewPet> = creates.iter().map(|create| &create.new).collect();
        if creates.iter().all(|create| create.once.is_none()) {
            let ids = insert(&self.0, &pets).await?;
            return Ok(pets
                .into_iter()
                .zip(ids)
                .map(|(new, id)| InsertOutcome::Added(with_id(new, id)))
                .collect());
        }
        let once: Vec<Option<IdempotentRequest>> = creates.iter().map(|create| create.once).collect();
        let inserted = match insert_once(&self.0, &pets, &once).await {
            // Nothing was done, and whoever was faster has finished: this time it is found.
            Err(StorageError::Raced(_)) => insert_once(&self.0, &pets, &once).await?,
            outcome => outcome?,
        };
        let outcomes = creates.iter().zip(inserted).map(|(create, inserted)| match (inserted, create.once) {
            (Inserted::New(id), _) => InsertOutcome::Added(with_id(&create.new, id)),
            // What was asked for is the same, so the answer is as well, whatever became of the pet since.
            (Inserted::Before(before), Some(once)) if before.fingerprint == once.fingerprint => {
                InsertOutcome::AddedBefore(with_id(&create.new, before.id))
            }
            (Inserted::Before(_), _) => InsertOutcome::OtherRequest,
        });
        Ok(outcomes.collect())
    }
}

fn with_id(new: &NewPet, id: PetId) -> Pet {
    Pet { id, name: new.name.clone(), category_id: new.category_id, status: new.status }
}

fn forgotten() -> StorageError {
    StorageError::Unexpected(cause("a pet was forgotten on the way"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::idempotency::Digest128;
    use crate::domain::pet::{CategoryId, PetName};

    fn create(name: Option<u8>, fingerprint: u8) -> Create {
        let new = NewPet {
            name: PetName::try_from("Rex".to_owned()).unwrap(),
            category_id: CategoryId(1),
            status: None,
        };
        Create {
            new,
            once: name.map(|name| IdempotentRequest {
                digest: Digest128([name; 16]),
                fingerprint: Digest128([fingerprint; 16]),
            }),
        }
    }

    #[test]
    fn only_the_first_under_each_name_shares_the_statement() {
        let creates = [
            create(None, 0),
            create(Some(1), 1),
            create(Some(2), 1),
            create(None, 0),
            create(Some(1), 1),
            create(Some(1), 2),
        ];
        assert_eq!(leaders(&creates), (vec![0, 1, 2, 3], vec![4, 5]));
    }
}

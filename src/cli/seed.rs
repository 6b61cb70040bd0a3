//! `petstore seed`

use std::time::Instant;

use clap::Args;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::connection::storage;
use super::progress::{grouped, per_second};
use super::sample_pets;
use super::{Failure, print};
use crate::config::DatabaseSettings;
use crate::domain::pet::NewPet;
use crate::storage::Storage;

/// How many animals one statement adds.
const BATCH: u32 = 10_000;

/// Adds believable animals to a database for trials.
///
/// The same seed gives the same animals, as long as the program is the same. They cannot be taken out again: there is
/// no deleting.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  petstore seed --count 100000 --seed 7")]
pub(super) struct Seed {
    /// How many animals to add.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// Which animals: any number.
    #[arg(long = "seed", value_name = "SEED", default_value_t = 1)]
    number: u64,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl Seed {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let begun = Instant::now();
        add(&storage(&self.database)?, self.count, self.number).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let (count, rate) = (grouped(self.count.into()), grouped(per_second(self.count.into(), seconds)));
        Ok(print(&format!("added {count} animals in {seconds:.1} seconds: {rate} a second\n"))?)
    }
}

/// Adds the animals of a seed, a batch at a time. If a batch fails, those before it stay, and the error counts them.
pub(super) async fn add(storage: &Storage, count: u32, seed: u64) -> Result<(), Failure> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut added = 0;
    while added < count {
        let size = BATCH.min(count - added);
        let pet = |_| sample_pets::pet(|sides| dice.random_range(..sides));
        let pets = (0..size).map(pet).collect::<Result<Vec<NewPet>, _>>()?;
        storage.insert_pets(&pets).await.map_err(|source| SeedError { added, count, source })?;
        added += size;
    }
    Ok(())
}

/// Why not all animals were added.
#[derive(Debug, thiserror::Error)]
#[error("{} of {} animals were added", grouped((*.added).into()), grouped((*.count).into()))]
struct SeedError {
    added: u32,
    count: u32,
    source: crate::storage::StorageError,
}

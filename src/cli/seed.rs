//! `petstore seed`

use std::time::Instant;

use clap::Args;
use petstore_config::DatabaseSettings;
use petstore_domain::pet::NewPet;
use petstore_storage::Storage;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::error::CommandError;
use super::output::confirm;
use super::progress::{grouped, per_second};
use super::sample_pets::sample_pet;
use super::storage::storage;

/// The number of pets per statement.
const BATCH: u32 = 10_000;

/// Adds realistic sample pets to a database, for testing.
///
/// The same seed and version give the same pets. Do not run this on a production database, because pets can be
/// deleted only one by one.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  petstore seed --count 100000 --seed 7")]
pub(super) struct SeedCommand {
    /// The number of pets to add.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// The seed of the random number generator. A different number gives different pets.
    #[arg(long = "seed", value_name = "SEED", default_value_t = 1)]
    number: u64,

    #[command(flatten)]
    database: DatabaseSettings,
}

impl SeedCommand {
    pub(super) async fn run(self) -> Result<(), CommandError> {
        let started = Instant::now();
        add(&storage(&self.database.url())?, self.count, self.number).await?;
        let seconds = started.elapsed().as_secs_f64();
        let (count, rate) = (grouped(self.count.into()), grouped(per_second(self.count.into(), seconds)));
        confirm(&format!("added {count} pets in {seconds:.1} s, {rate} per second\n")).await;
        Ok(())
    }
}

/// Adds the pets of a seed in batches. If a batch fails, the earlier ones stay, and the error counts them.
pub(super) async fn add(storage: &Storage, count: u32, seed: u64) -> Result<(), CommandError> {
    // No node may have run for days.
    storage.create_partitions().await?;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut added = 0;
    while added < count {
        let size = BATCH.min(count - added);
        let pet = |_| sample_pet(|bound| rng.random_range(..bound));
        let pets = (0..size).map(pet).collect::<Result<Vec<NewPet>, _>>()?;
        storage.insert_pets(&pets).await.map_err(|source| SeedError { added, count, source })?;
        added += size;
    }
    Ok(())
}

/// Why not all pets were added.
#[derive(Debug, thiserror::Error)]
#[error("only {} of {} pets were added", grouped((*.added).into()), grouped((*.count).into()))]
struct SeedError {
    added: u32,
    count: u32,
    source: petstore_storage::StorageError,
}

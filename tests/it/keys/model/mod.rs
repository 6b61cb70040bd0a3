//! A model-based test of keys over time: random histories of `petstore keys create`, `rotate`, `apply` and `revoke`, of rotations
//! by release 1.2.0, and of hours that pass. After each command, a node that has not seen the keys before must accept exactly
//! those that the [model](model) says, with their scopes.
//!
//! | property | checked by |
//! |---|---|
//! | a key works if and only if the commands and the file say so, and for as long | requests with every key after each command, and its stored expiry |
//! | keys of a lineage, and no others, share idempotency keys and a rate limit | the pet that the first request with each key adds, and the `RateLimit` header of each answer |
//! | a file that was applied leaves nothing to do | applying it again |
//! | a refused command changes nothing | the requests after it |
//! | a key that stopped working never works again, and no command prolongs an overlap | the model, which is checked against this after each step |
//!
//! A history that fails is shortened, and printed as commands. `MODEL_SECONDS` sets how long to search, and `SEED` repeats a
//! search.

mod generator;
#[expect(clippy::module_inception, reason = "it is the model")]
mod model;
mod run;

use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use generator::next_action;
use model::{Action, Step};
use run::{Run, World};

use crate::support::environment;

/// How many histories run at the same time, each on its own database.
const WORKERS: u64 = 2;

/// A history that the program does not follow.
struct Counterexample {
    steps: Vec<Step>,
    problem: String,
    /// The commands that were run.
    script: String,
}

/// Runs a random history and returns its length, or the counterexample that it is.
async fn search(world: &World, random: &mut StdRng) -> Result<usize, Counterexample> {
    let length = random.random_range(3..12);
    let mut run = Run::start(world).await;
    let mut steps = Vec::new();
    for number in 0..length {
        steps.push(Step { number, action: next_action(random, &run.model) });
        if let Err(problem) = run.take(&steps[number]).await {
            return Err(Counterexample { steps, problem, script: run.script() });
        }
    }
    Ok(length)
}

/// Runs a given history.
async fn replay(world: &World, steps: &[Step]) -> Result<(), Counterexample> {
    let mut run = Run::start(world).await;
    for (index, step) in steps.iter().enumerate() {
        if let Err(problem) = run.take(step).await {
            return Err(Counterexample { steps: steps[..=index].to_vec(), problem, script: run.script() });
        }
    }
    Ok(())
}

/// Leaves out steps, and what is special about each, while the rest still fails.
async fn shortened(world: &World, mut found: Counterexample) -> Counterexample {
    let mut start = 0;
    while start < found.steps.len() {
        let rest = [&found.steps[..start], &found.steps[start + 1..]].concat();
        match replay(world, &rest).await {
            Err(shorter) => found = shorter,
            Ok(()) => start += 1,
        }
    }
    for index in 0..found.steps.len() {
        for simplify in SIMPLIFICATIONS {
            let mut steps = found.steps.clone();
            if let Some(step) = steps.get_mut(index) {
                simplify(&mut step.action);
            }
            if steps != found.steps
                && let Err(simpler) = replay(world, &steps).await
            {
                found = simpler;
            }
        }
    }
    found
}

/// What may be special about an action.
const SIMPLIFICATIONS: [fn(&mut Action); 6] = [
    |action| match action {
        Action::Create { expires, .. } | Action::Rotate { expires, .. } => *expires = None,
        Action::Apply { entries, .. } => entries.truncate(1),
        _ => {}
    },
    |action| match action {
        Action::Rotate { overlap, .. } | Action::Apply { overlap, .. } => *overlap = 24,
        _ => {}
    },
    |action| change_entries(action, |entry| entry.expires = None),
    |action| change_entries(action, |entry| entry.is_narrow = false),
    |action| change_entries(action, |entry| entry.digest = None),
    |action| {
        if let Action::Apply { prune, .. } = action {
            *prune = false;
        }
    },
];

fn change_entries(action: &mut Action, change: fn(&mut model::Entry)) {
    if let Action::Apply { entries, .. } = action {
        entries.iter_mut().for_each(change);
    }
}

/// Runs random histories until then, and returns their number and that of their steps. Panics with the first counterexample.
#[tokio::main(flavor = "current_thread")]
async fn search_until(until: Instant, seed: u64, worker: u64) -> (usize, usize) {
    let world = World::start().await;
    let mut random = StdRng::seed_from_u64(seed ^ worker << 32);
    let (mut histories, mut steps) = (0, 0);
    while Instant::now() < until {
        match search(&world, &mut random).await {
            Ok(length) => (histories, steps) = (histories + 1, steps + length),
            Err(found) => {
                let Counterexample { problem, script, .. } = shortened(&world, found).await;
                panic!("SEED={seed}: {problem}\n\n{script}");
            }
        }
    }
    (histories, steps)
}

#[test]
fn after_every_command_the_keys_work_that_the_model_says() {
    let seconds = environment::number("MODEL_SECONDS").unwrap_or(15);
    let seed = environment::number("SEED").unwrap_or_else(|| UNIX_EPOCH.elapsed().unwrap().as_secs());
    let until = Instant::now() + Duration::from_secs(seconds);
    let workers = (0..WORKERS).map(|worker| thread::spawn(move || search_until(until, seed, worker)));
    for worker in workers.collect::<Vec<_>>() {
        let (histories, steps) = worker.join().unwrap();
        eprintln!("SEED={seed}: {histories} histories, {steps} steps");
    }
}

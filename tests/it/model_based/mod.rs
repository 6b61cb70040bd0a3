//! A model-based test of the whole interface over time: random histories of all operations, from several clients over two nodes, in
//! which every earlier request can be sent again at any later time, exactly as it was. In between, rows are changed in psql and
//! orders expire. Each answer must be the one that the model gives.
//!
//! | property | checked by |
//! |---|---|
//! | a repeated request with a key changes nothing, nor does one with an old tag; one with neither does what its operation says | the model's answer to each request, and the tables at the end |
//! | a pet is in at most one open order, and sold once until it is returned | the same |
//! | an ended order never changes, except by updateOrder | every answer that shows the same version has the same text |
//! | the feed has every change, in order | the events of each pet and order at the end |
//! | equal tags stand for equal versions, and no tag comes back | each tag, wherever it is shown |
//!
//! A history that fails is shortened, and printed as commands that reproduce it. `MODEL_SECONDS` sets how long to search, and
//! `SEED` repeats a search.

mod generator;
mod model;
mod operation;
mod run;
mod script;

use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use generator::next_step;
use operation::{Action, Request, Step};
use run::{Run, World};

use crate::support::environment;

/// How many histories run at the same time, each on its own database.
const WORKERS: u64 = 2;

/// A history that the service does not follow: its steps, and what is wrong with the last answer or with the state afterwards.
struct Counterexample {
    steps: Vec<Step>,
    problem: String,
}

/// Runs a random history and returns its length, or the counterexample that it is.
async fn search(world: &World, random: &mut StdRng) -> Result<usize, Counterexample> {
    let mut run = Run::start(world).await;
    let length = *[20, 40, 80, 160].get(random.random_range(0..4)).unwrap();
    let (mut steps, mut sent) = (Vec::new(), Vec::new());
    for number in 0..length {
        let step = next_step(random, &run.model, &sent, number);
        if matches!(step.action, Action::Send(_)) {
            sent.push(number);
        }
        steps.push(step);
        if let Err(problem) = run.take(&steps[number]).await {
            return Err(Counterexample { steps, problem });
        }
    }
    match run.finish().await {
        Ok(()) => Ok(length),
        Err(problem) => Err(Counterexample { steps, problem }),
    }
}

/// Runs a given history.
async fn replay(world: &World, steps: &[Step]) -> Result<(), Counterexample> {
    let mut run = Run::start(world).await;
    for (index, step) in steps.iter().enumerate() {
        if let Err(problem) = run.take(step).await {
            return Err(Counterexample { steps: steps[..=index].to_vec(), problem });
        }
    }
    run.finish().await.map_err(|problem| Counterexample { steps: steps.to_vec(), problem })
}

/// How long a counterexample is shortened: one that depends on times may fail differently each time.
const SHORTENING: Duration = Duration::from_mins(1);

/// Leaves out steps, many at a time and then one by one, and what is special about each, while the rest still fails.
async fn shortened(world: &World, mut found: Counterexample) -> Counterexample {
    let until = Instant::now() + SHORTENING;
    found = without_steps(world, found, until).await;
    for index in 0..found.steps.len() {
        for simplify in SIMPLIFICATIONS {
            let mut steps = found.steps.clone();
            if let Some(step) = steps.get_mut(index) {
                simplify(step);
            }
            if let Err(simpler) = replay(world, &steps).await {
                found = simpler;
            }
        }
    }
    // Without its tag, for example, a request does not need the step that had the tag.
    without_steps(world, found, until).await
}

async fn without_steps(world: &World, mut found: Counterexample, until: Instant) -> Counterexample {
    let mut size = found.steps.len();
    while size > 0 {
        let mut start = 0;
        while start < found.steps.len() && Instant::now() < until {
            let end = (start + size).min(found.steps.len());
            let rest = [&found.steps[..start], &found.steps[end..]].concat();
            match replay(world, &rest).await {
                Err(shorter) => found = shorter,
                Ok(()) => start += size,
            }
        }
        size /= 2;
    }
    found
}

/// What may be special about a step.
const SIMPLIFICATIONS: [fn(&mut Step); 4] = [
    |step| step.node = 0,
    |step| change_request(step, |request| request.client = 0),
    |step| change_request(step, |request| request.key = None),
    |step| change_request(step, |request| request.tag = None),
];

fn change_request(step: &mut Step, change: impl FnOnce(&mut Request)) {
    if let Action::Send(request) = &mut step.action {
        change(request);
    }
}

/// Runs random histories until then, and returns their number and that of their steps, or the first counterexample.
#[tokio::main(flavor = "current_thread")]
async fn search_until(until: Instant, seed: u64, worker: u64) -> Result<(usize, usize), String> {
    let world = World::start().await;
    let mut random = StdRng::seed_from_u64(seed ^ worker << 32);
    let (mut histories, mut steps) = (0, 0);
    while Instant::now() < until {
        match search(&world, &mut random).await {
            Ok(length) => (histories, steps) = (histories + 1, steps + length),
            Err(found) => {
                let Counterexample { steps, problem } = shortened(&world, found).await;
                return Err(format!("{problem}\n\n{}", script::script(&steps)));
            }
        }
    }
    world.stop().await;
    Ok((histories, steps))
}

#[test]
fn every_history_of_requests_is_answered_as_the_model_says() {
    let seconds = environment::number("MODEL_SECONDS").unwrap_or(30);
    let seed = environment::number("SEED").unwrap_or_else(|| UNIX_EPOCH.elapsed().unwrap().as_secs());
    let until = Instant::now() + Duration::from_secs(seconds);
    let workers = (0..WORKERS).map(|worker| thread::spawn(move || search_until(until, seed, worker)));
    let workers: Vec<_> = workers.collect();
    let found: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    for result in &found {
        match result {
            Ok((histories, steps)) => eprintln!("SEED={seed}: {histories} histories, {steps} steps"),
            Err(counterexample) => eprintln!("SEED={seed}: {counterexample}"),
        }
    }
    assert!(found.iter().all(Result::is_ok), "see the counterexample above");
}

#[tokio::test]
async fn a_change_without_an_event_is_found_and_shown_in_a_few_commands() {
    let world = World::start().await;
    let hole = "ALTER TABLE pets DISABLE TRIGGER pets_record_update";
    world.session.batch_execute(hole).await.unwrap();
    let mut random = StdRng::seed_from_u64(7);
    let found = loop {
        if let Err(found) = search(&world, &mut random).await {
            break shortened(&world, found).await;
        }
    };
    let script = script::script(&found.steps);
    assert!(found.problem.contains("the events of pet"), "{}", found.problem);
    assert_eq!(found.steps.len(), 2, "{script}");
    assert!(script.contains("\nsend ") && script.contains(" -X POST \"$URL_0/v1/pets\""), "{script}");
}

//! Combinations of nodes, connections and pets, each with the CPU time of the service, the database and the load generator.

use std::thread;

use super::capacity_model::{CapacityModel, Deployment, Measured};
use super::{Database, with_retries};
use crate::Outcome;
use crate::measure::{Load, Measurements, Samples, load};
use crate::topology::{Postgres, Server, cpu_seconds, output};

/// The operations of a shop: workload, name, and the queue in which requests are batched, if they are.
pub(super) const OPERATIONS: [(&str, &str, Option<&str>); 6] = [
    ("get_any", "getPet", Some("find_pet")),
    ("page any random", "listPets, random pages", Some("list_pets")),
    ("create", "createPet", Some("insert_pet")),
    ("update", "updatePet", None),
    ("orders", "placeOrder and cancelOrder", None),
    ("events", "listEvents, 100 per page", Some("read_events")),
];
/// With more connections, requests that are not batched wait for a connection to the database until they fail.
const MOST_UNBATCHED: u32 = 256;
/// Of these, the first three, the throughput must be predicted.
const PREDICTED: usize = 3;
const NODES: [u32; 3] = [1, 2, 4];
const CONNECTIONS: [u32; 5] = [16, 64, 256, 1_024, 4_096];
/// The model is fitted to these, with the fewest and with the most pets: not to two nodes, 256 connections, or a size
/// between.
const FITTED_NODES: [u32; 2] = [1, 4];
const FITTED_CONNECTIONS: [u32; 3] = [16, 64, 1_024];
/// The configuration that it must predict, with the size in the middle, and the largest relative error.
const HELD_OUT: (u32, u32) = (2, 256);
const LARGEST_ERROR: f64 = 0.2;

/// The measurements of one configuration, one sample per round.
#[derive(Default)]
struct Cell {
    rate: Samples,
    p99: Samples,
    bytes: Samples,
    batch: Samples,
    seconds: [Samples; 3],
}

/// All measurements, and a model for each operation.
pub(super) struct Grid {
    configurations: Vec<Deployment>,
    /// One row per configuration, one column per operation.
    cells: Vec<[Cell; OPERATIONS.len()]>,
    pub(super) models: [CapacityModel; OPERATIONS.len()],
    /// The pets in the configurations with all nodes and connections.
    pets: f64,
}

impl Grid {
    pub(super) fn measure(
        postgres: &Postgres,
        databases: &[Database],
        rounds: usize,
        seconds: u16,
    ) -> Outcome<Self> {
        let middle = databases.len() / 2;
        let mut places = Vec::new();
        for (place, _) in databases.iter().enumerate() {
            let fitted =
                FITTED_NODES.iter().flat_map(|nodes| FITTED_CONNECTIONS.map(|count| (place, *nodes, count)));
            let whole = NODES.iter().flat_map(|nodes| CONNECTIONS.map(|count| (place, *nodes, count)));
            match place {
                _ if place == middle => places.extend(whole),
                _ if place == 0 || place == databases.len() - 1 => places.extend(fitted),
                _ => {}
            }
        }
        let mut cells: Vec<[Cell; OPERATIONS.len()]> = places.iter().map(|_| Default::default()).collect();
        for round in 1..=rounds {
            for ((place, nodes, connections), cells) in places.iter().zip(&mut cells) {
                let database = &databases[*place];
                let services: Vec<_> = (0..*nodes)
                    .map(|_| Server::with_many_connections(&database.url))
                    .collect::<Outcome<_>>()?;
                let measured = OPERATIONS
                    .iter()
                    .zip(cells)
                    .filter(|((_, _, queue), _)| queue.is_some() || *connections <= MOST_UNBATCHED);
                for ((script, _, queue), cell) in measured {
                    cell.add(postgres, &services, database, script, *queue, connections / nodes, seconds)?;
                }
            }
            println!("round {round} of {rounds} with {} configurations", places.len());
        }
        let configurations: Vec<_> = places
            .iter()
            .map(|(place, nodes, connections)| Deployment {
                nodes: *nodes,
                connections: *connections,
                pets: float(databases[*place].pets),
            })
            .collect();
        let ends = [float(databases[0].pets), float(databases[databases.len() - 1].pets)];
        let models = std::array::from_fn(|operation| {
            let points: Vec<Measured> = configurations
                .iter()
                .zip(&cells)
                .filter(|(configuration, cells)| {
                    cells[operation].rate.median() > 0.0
                        && FITTED_NODES.contains(&configuration.nodes)
                        && FITTED_CONNECTIONS.contains(&configuration.connections)
                        && ends.contains(&configuration.pets)
                })
                .map(|(configuration, cells)| cells[operation].measured(*configuration))
                .collect();
            CapacityModel::fit(&points)
        });
        Ok(Self { configurations, cells, models, pets: float(databases[middle].pets) })
    }

    /// A row for each round of each configuration and operation.
    pub(super) fn add_to(&self, measurements: &mut Measurements) {
        for (Deployment { nodes, connections, pets }, cells) in self.configurations.iter().zip(&self.cells) {
            for ((_, name, _), cell) in OPERATIONS.iter().zip(cells) {
                for (place, round) in (1..=cell.rate.0.len()).enumerate() {
                    let micros = cell.seconds.each_ref().map(|samples| samples.0[place] * 1e6);
                    measurements.add(
                        &[
                            ("part", &"nodes"),
                            ("operation", name),
                            ("pets", pets),
                            ("nodes", nodes),
                            ("connections", connections),
                            ("round", &round),
                        ],
                        &[
                            ("requests_per_s", cell.rate.0[place]),
                            ("p99_ms", cell.p99.0[place]),
                            ("requests_per_batch", cell.batch.0[place]),
                            ("service_cpu_us", micros[0]),
                            ("database_cpu_us", micros[1]),
                            ("client_cpu_us", micros[2]),
                            ("bytes_per_response", cell.bytes.0[place]),
                        ],
                    );
                }
            }
        }
    }

    /// The relative error of the prediction for the held-out configuration.
    pub(super) fn error(&self, operation: usize) -> f64 {
        let (nodes, connections) = HELD_OUT;
        let held_out = Deployment { nodes, connections, pets: self.pets };
        let place = self.configurations.iter().position(|one| *one == held_out);
        place.map_or(f64::NAN, |place| {
            self.models[operation].rate(held_out) / self.cells[place][operation].rate.median() - 1.0
        })
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        let errors = (0..PREDICTED).map(|operation| (OPERATIONS[operation].1, self.error(operation)));
        errors
            .filter(|(_, error)| error.abs() > LARGEST_ERROR)
            .map(|(name, error)| format!("{name}: the prediction is off by {:+.0} %", error * 100.0))
    }
}

impl Cell {
    /// Measures once: every node has its own load generator.
    #[expect(clippy::too_many_arguments, reason = "a measurement has many parameters")]
    fn add(
        &mut self,
        postgres: &Postgres,
        services: &[Server],
        database: &Database,
        script: &str,
        queue: Option<&str>,
        connections: u32,
        seconds: u16,
    ) -> Outcome {
        let batches = || queue.map_or(Ok((0.0, 0.0)), |queue| batches(services, queue));
        let connections = u16::try_from(connections)?;
        let scripts = (0..services.len())
            .map(|node| database.script(script, node, services.len()))
            .collect::<Outcome<Vec<_>>>()?;
        let before = (used(postgres, services)?, batches()?);
        let loads: Vec<Load> = thread::scope(|scope| {
            let running: Vec<_> = services
                .iter()
                .zip(&scripts)
                .map(|(service, script)| {
                    scope.spawn(|| {
                        with_retries(|| {
                            load(service.address, script, &database.key, database.pets, connections, seconds)
                        })
                    })
                })
                .collect();
            running
                .into_iter()
                .map(|load| load.join().map_err(|_| "a load generator panicked")?)
                .collect::<Outcome<_>>()
        })?;
        let after = (used(postgres, services)?, batches()?);
        let rate: f64 = loads.iter().map(|load| load.rate).sum();
        // Those in batches include the ones that wrk did not wait for.
        let (in_batches, count) = (after.1.0 - before.1.0, after.1.1 - before.1.1);
        let requests =
            if queue.is_some() { in_batches } else { loads.iter().map(|load| load.requests).sum() };
        self.rate.push(rate);
        self.p99.push(loads.iter().map(|load| load.p99).fold(0.0, f64::max));
        self.bytes.push(loads[0].bytes);
        self.batch.push(requests / count);
        for (place, samples) in self.seconds.iter_mut().enumerate() {
            samples.push((after.0[place] - before.0[place]) / requests);
        }
        Ok(())
    }

    fn measured(&self, configuration: Deployment) -> Measured {
        let seconds = self.seconds.each_ref().map(Samples::median);
        Measured { configuration, rate: self.rate.median(), batch: self.batch.median(), seconds }
    }
}

/// CPU seconds so far: of the nodes, of the database, of load generators that have exited.
fn used(postgres: &Postgres, services: &[Server]) -> Outcome<[f64; 3]> {
    let nodes = services.iter().map(Server::cpu_seconds).sum::<Outcome<f64>>()?;
    let postmaster = postgres.pid()?;
    let time = cpu_seconds(postmaster)?;
    let mut database = time.own + time.exited_children;
    // A process that exits in between counts among its parent's exited children the next time.
    for child in output("pgrep", &["--parent", &postmaster.to_string()])?.lines() {
        database += cpu_seconds(child.parse()?).map_or(0.0, |time| time.own);
    }
    Ok([nodes, database, cpu_seconds(std::process::id())?.exited_children])
}

/// The number of requests in this queue on all nodes, and of their batches.
fn batches(services: &[Server], queue: &str) -> Outcome<(f64, f64)> {
    let mut sums = (0.0, 0.0);
    for service in services {
        let value = |name: &str| service.metric(&format!("petstore_batch_size_{name}{{queue=\"{queue}\"}}"));
        sums = (sums.0 + value("sum")?, sums.1 + value("count")?);
    }
    Ok(sums)
}

#[expect(clippy::cast_precision_loss, reason = "no database has 2^53 pets")]
pub(super) fn float(pets: u64) -> f64 {
    pets as f64
}

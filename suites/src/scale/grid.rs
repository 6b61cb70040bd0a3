//! Combinations of nodes, connections and pets, each with the CPU time of the service, the database and the load generator.

use std::thread;

use super::model::{Configuration, Measured, Model};
use super::{Database, with_retries};
use crate::Outcome;
use crate::measure::{Load, Samples, load};
use crate::topology::{Postgres, Server, cpu_seconds, output};

/// The three operations: workload, name, and the queue in which requests are batched.
pub(super) const OPERATIONS: [(&str, &str, &str); 3] = [
    ("get_any", "getPet by random id", "find_pet"),
    ("page any random", "listPets, random pages", "list_pets"),
    ("create", "createPet", "insert_pet"),
];
pub(super) const NODES: [u32; 3] = [1, 2, 4];
pub(super) const CONNECTIONS: [u32; 5] = [16, 64, 256, 1_024, 4_096];
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
    configurations: Vec<Configuration>,
    /// One row per configuration, one column per operation.
    cells: Vec<[Cell; 3]>,
    pub(super) models: [Model; 3],
    /// The pets in the configurations with all nodes and connections.
    pub(super) pets: f64,
}

/// The measurement and the prediction of one configuration and operation.
pub(super) struct Comparison {
    pub(super) rate: f64,
    pub(super) p99: f64,
    pub(super) predicted: f64,
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
        let mut cells: Vec<[Cell; 3]> = places.iter().map(|_| Default::default()).collect();
        for round in 1..=rounds {
            for ((place, nodes, connections), cells) in places.iter().zip(&mut cells) {
                let database = &databases[*place];
                let services: Vec<_> = (0..*nodes)
                    .map(|_| Server::with_many_connections(&database.url))
                    .collect::<Outcome<_>>()?;
                for ((script, _, queue), cell) in OPERATIONS.iter().zip(cells) {
                    cell.add(postgres, &services, database, script, queue, connections / nodes, seconds)?;
                }
            }
            println!("round {round} of {rounds} with {} configurations", places.len());
        }
        let configurations: Vec<_> = places
            .iter()
            .map(|(place, nodes, connections)| Configuration {
                nodes: *nodes,
                connections: *connections,
                pets: float(databases[*place].pets),
            })
            .collect();
        let ends = [float(databases[0].pets), float(databases[databases.len() - 1].pets)];
        let models = [0, 1, 2].map(|operation| {
            let points: Vec<Measured> = configurations
                .iter()
                .zip(&cells)
                .filter(|(configuration, _)| {
                    FITTED_NODES.contains(&configuration.nodes)
                        && FITTED_CONNECTIONS.contains(&configuration.connections)
                        && ends.contains(&configuration.pets)
                })
                .map(|(configuration, cells)| cells[operation].measured(*configuration))
                .collect();
            Model::fit(&points)
        });
        Ok(Self { configurations, cells, models, pets: float(databases[middle].pets) })
    }

    /// The comparison for a configuration.
    pub(super) fn comparison(&self, nodes: u32, connections: u32, operation: usize) -> Option<Comparison> {
        let configuration = Configuration { nodes, connections, pets: self.pets };
        let place = self.configurations.iter().position(|one| *one == configuration)?;
        let cell = &self.cells[place][operation];
        Some(Comparison {
            rate: cell.rate.median(),
            p99: cell.p99.median(),
            predicted: self.models[operation].rate(configuration),
        })
    }

    /// Bytes per answer.
    pub(super) fn bytes(&self, operation: usize) -> f64 {
        self.cells[0][operation].bytes.median()
    }

    /// The held-out configuration: for each operation, the measurement and the prediction.
    pub(super) fn held_out(&self) -> impl Iterator<Item = (&'static str, Comparison)> {
        OPERATIONS.iter().enumerate().filter_map(|(place, (_, name, _))| {
            Some((*name, self.comparison(HELD_OUT.0, HELD_OUT.1, place)?))
        })
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.held_out().filter(|(_, comparison)| comparison.error().abs() > LARGEST_ERROR).map(
            |(name, comparison)| {
                format!("{name}: the prediction is off by {:+.0} %", comparison.error() * 100.0)
            },
        )
    }
}

impl Comparison {
    pub(super) fn error(&self) -> f64 {
        self.predicted / self.rate - 1.0
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
        queue: &str,
        connections: u32,
        seconds: u16,
    ) -> Outcome {
        let before = (used(postgres, services)?, batches(services, queue)?);
        let connections = u16::try_from(connections)?;
        let loads: Vec<Load> = thread::scope(|scope| {
            let running: Vec<_> = services
                .iter()
                .map(|service| {
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
        let after = (used(postgres, services)?, batches(services, queue)?);
        let rate: f64 = loads.iter().map(|load| load.rate).sum();
        let requests = after.1.0 - before.1.0;
        self.rate.push(rate);
        self.p99.push(loads.iter().map(|load| load.p99).fold(0.0, f64::max));
        self.bytes.push(loads[0].bytes);
        self.batch.push(requests / (after.1.1 - before.1.1));
        for (place, samples) in self.seconds.iter_mut().enumerate() {
            samples.push((after.0[place] - before.0[place]) / requests);
        }
        Ok(())
    }

    fn measured(&self, configuration: Configuration) -> Measured {
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

pub(super) fn cores() -> f64 {
    thread::available_parallelism().map_or(1.0, |count| f64::from(u32::try_from(count.get()).unwrap_or(1)))
}

#[expect(clippy::cast_precision_loss, reason = "no database has 2^53 pets")]
pub(super) fn float(pets: u64) -> f64 {
    pets as f64
}

//! Nodes, connections and pets in many combinations, each with what it costs whom.

use std::thread;

use super::model::{Configuration, Measured, Model};
use super::{Shop, patiently};
use crate::Outcome;
use crate::report::Samples;
use crate::tools::{Load, Postgres, Server, load, output, processor_seconds};

/// The three operations: their script, their name, and the queue that they travel in.
pub(super) const OPERATIONS: [(&str, &str, &str); 3] = [
    ("get_any", "getPet by random id", "find_pet"),
    ("page any random", "listPets, random pages", "list_pets"),
    ("create", "createPet", "insert_pet"),
];
pub(super) const NODES: [u32; 3] = [1, 2, 4];
pub(super) const CONNECTIONS: [u32; 5] = [16, 64, 256, 1_024, 4_096];
/// What the model is fitted to, with the fewest and with the most pets: it knows neither two nodes, nor 256
/// connections, nor what lies between.
const FITTED_NODES: [u32; 2] = [1, 4];
const FITTED_CONNECTIONS: [u32; 3] = [16, 64, 1_024];
/// What it is to predict, with the pets in the middle, and how well.
const HELD_OUT: (u32, u32) = (2, 256);
const LARGEST_ERROR: f64 = 0.2;

/// What was measured of one configuration, a sample a round.
#[derive(Default)]
struct Cell {
    rate: Samples,
    p99: Samples,
    bytes: Samples,
    batch: Samples,
    seconds: [Samples; 3],
}

/// All of it, and for each operation a model.
pub(super) struct Grid {
    configurations: Vec<Configuration>,
    /// A row a configuration, a column an operation.
    cells: Vec<[Cell; 3]>,
    pub(super) models: [Model; 3],
    /// The pets of the whole grid.
    pub(super) pets: f64,
}

/// A configuration and an operation, as measured and as predicted.
pub(super) struct Outlook {
    pub(super) rate: f64,
    pub(super) p99: f64,
    pub(super) predicted: f64,
}

impl Grid {
    pub(super) fn measure(postgres: &Postgres, shops: &[Shop], rounds: usize, seconds: u16) -> Outcome<Self> {
        let middle = shops.len() / 2;
        let mut places = Vec::new();
        for (place, _) in shops.iter().enumerate() {
            let fitted =
                FITTED_NODES.iter().flat_map(|nodes| FITTED_CONNECTIONS.map(|count| (place, *nodes, count)));
            let whole = NODES.iter().flat_map(|nodes| CONNECTIONS.map(|count| (place, *nodes, count)));
            match place {
                _ if place == middle => places.extend(whole),
                _ if place == 0 || place == shops.len() - 1 => places.extend(fitted),
                _ => {}
            }
        }
        let mut cells: Vec<[Cell; 3]> = places.iter().map(|_| Default::default()).collect();
        for round in 1..=rounds {
            for ((place, nodes, connections), cells) in places.iter().zip(&mut cells) {
                let shop = &shops[*place];
                let services: Vec<_> =
                    (0..*nodes).map(|_| Server::petstore_for_crowds(&shop.url)).collect::<Outcome<_>>()?;
                for ((script, _, queue), cell) in OPERATIONS.iter().zip(cells) {
                    cell.add(postgres, &services, shop, script, queue, connections / nodes, seconds)?;
                }
            }
            println!("round {round} of {rounds} with {} configurations", places.len());
        }
        let configurations: Vec<_> = places
            .iter()
            .map(|(place, nodes, connections)| Configuration {
                nodes: *nodes,
                connections: *connections,
                pets: float(shops[*place].pets),
            })
            .collect();
        let ends = [float(shops[0].pets), float(shops[shops.len() - 1].pets)];
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
        Ok(Self { configurations, cells, models, pets: float(shops[middle].pets) })
    }

    /// What came of a configuration of the whole grid.
    pub(super) fn outlook(&self, nodes: u32, connections: u32, operation: usize) -> Option<Outlook> {
        let configuration = Configuration { nodes, connections, pets: self.pets };
        let place = self.configurations.iter().position(|one| *one == configuration)?;
        let cell = &self.cells[place][operation];
        Some(Outlook {
            rate: cell.rate.median(),
            p99: cell.p99.median(),
            predicted: self.models[operation].rate(configuration),
        })
    }

    /// The bytes of an operation's answer.
    pub(super) fn bytes(&self, operation: usize) -> f64 {
        self.cells[0][operation].bytes.median()
    }

    /// What the model was not fitted to and is held to: for each operation the rate, as predicted and as measured.
    pub(super) fn held_out(&self) -> impl Iterator<Item = (&'static str, Outlook)> {
        OPERATIONS
            .iter()
            .enumerate()
            .filter_map(|(place, (_, name, _))| Some((*name, self.outlook(HELD_OUT.0, HELD_OUT.1, place)?)))
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.held_out().filter(|(_, outlook)| outlook.error().abs() > LARGEST_ERROR).map(|(name, outlook)| {
            format!("{name}: the prediction is off by {:+.0} %", outlook.error() * 100.0)
        })
    }
}

impl Outlook {
    pub(super) fn error(&self) -> f64 {
        self.predicted / self.rate - 1.0
    }
}

impl Cell {
    /// One measurement: every node has a load generator of its own.
    #[expect(clippy::too_many_arguments, reason = "a measurement has many circumstances")]
    fn add(
        &mut self,
        postgres: &Postgres,
        services: &[Server],
        shop: &Shop,
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
                        patiently(|| {
                            load(service.address, script, &shop.key, shop.pets, connections, seconds)
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

/// Seconds of processors that were used until now: by the nodes, by the database, by load generators that have ended.
fn used(postgres: &Postgres, services: &[Server]) -> Outcome<[f64; 3]> {
    let nodes = services.iter().map(Server::processor_seconds).sum::<Outcome<f64>>()?;
    let postmaster = postgres.pid()?;
    let time = processor_seconds(postmaster)?;
    let mut database = time.own + time.ended_children;
    // A process that ends in between counts among its parent's ended children the next time.
    for child in output("pgrep", &["--parent", &postmaster.to_string()])?.lines() {
        database += processor_seconds(child.parse()?).map_or(0.0, |time| time.own);
    }
    Ok([nodes, database, processor_seconds(std::process::id())?.ended_children])
}

/// How many requests travelled in this queue of all nodes, and in how many batches.
fn batches(services: &[Server], queue: &str) -> Outcome<(f64, f64)> {
    let mut sums = (0.0, 0.0);
    for service in services {
        let value = |name: &str| service.metric(&format!("petstore_batch_size_{name}{{queue=\"{queue}\"}}"));
        sums = (sums.0 + value("sum")?, sums.1 + value("count")?);
    }
    Ok(sums)
}

pub(super) fn processors() -> f64 {
    thread::available_parallelism().map_or(1.0, |count| f64::from(u32::try_from(count.get()).unwrap_or(1)))
}

/// A number of pets to calculate with.
#[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 pets")]
pub(super) fn float(pets: u64) -> f64 {
    pets as f64
}

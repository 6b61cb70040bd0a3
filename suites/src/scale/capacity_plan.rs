//! The plan for growth: what a shop of a certain size needs, calculated from the costs that were measured.

use super::Maintenance;
use super::capacity_model::CapacityModel;
use super::grid::OPERATIONS;
use crate::measure::{Table, grouped, readable};

/// A shop's requests, as fractions, in the order of `OPERATIONS`: look at a pet, browse, create, change, order. Requests of
/// followers come on top.
const MIX: [f64; 5] = [0.25, 0.70, 0.01, 0.02, 0.02];
/// Events of each: an order changes the pet's status, too.
const EVENTS: [f64; 5] = [0.0, 0.0, 1.0, 1.0, 2.0];
/// Requests per statement of the operations that are batched.
const BATCH: f64 = 8.0;
/// A node looks for new events every 25 ms, and a page has at most 100.
const PAGES_PER_SECOND: f64 = 40.0;
const EVENTS_PER_PAGE: f64 = 100.0;
/// How busy CPUs are at the peak, and the peak as a multiple of the average.
const BUSY: f64 = 0.5;
const PEAK: f64 = 4.0;
/// How long events are kept.
const RETENTION_SECONDS: f64 = 30.0 * 86_400.0;
/// Memory per core, the disk as a multiple of the data, and dollars per month for each core and each GB of disk.
const GB_PER_CORE: f64 = 4.0;
const DISK: f64 = 2.0;
const SMALLEST_DISK_GB: f64 = 10.0;
const DOLLARS: [f64; 2] = [30.0, 0.1];
const GB: f64 = 1e9;

/// A size: pets, requests per second at the peak, and programs that follow the event feed.
struct Step {
    name: &'static str,
    pets: u64,
    requests: u32,
    followers: u32,
}

const fn step(name: &'static str, pets: u64, requests: u32, followers: u32) -> Step {
    Step { name, pets, requests, followers }
}

const STEPS: [Step; 5] = [
    step("one shop", 10_000, 10, 2),
    step("a chain", 1_000_000, 1_000, 10),
    step("a country", 10_000_000, 10_000, 20),
    step("a marketplace", 100_000_000, 100_000, 50),
    step("every shop on earth", 1_000_000_000, 1_000_000, 100),
];

/// The table of all steps, with these costs of each operation and bytes per row.
pub(super) fn table(models: &[CapacityModel; OPERATIONS.len()], stored: &Maintenance) -> String {
    let mut table = Table::new(
        "| | pets | requests/s | followers | cores: service, database | with copies | memory, disk | dollars per month |",
    );
    for step in &STEPS {
        let [service, database] = step.cores(models, false);
        let disk = (DISK * step.gigabytes(stored)).max(SMALLEST_DISK_GB);
        let memory = database * GB_PER_CORE;
        let (cores, disks) =
            if step.is_one_machine() { (database, 1.0) } else { (service + 3.0 * database, 3.0) };
        let described = |[service, database]: [f64; 2]| {
            if step.is_one_machine() {
                format!("{database:.0}, shared")
            } else {
                format!("{service:.0}, {database:.0}")
            }
        };
        table.row(&[
            step.name.to_owned(),
            grouped(step.pets),
            grouped(step.requests.into()),
            step.followers.to_string(),
            described([service, database]),
            described(step.cores(models, true)),
            format!("{} GB, {} GB", readable(memory, 0), rounded(disk)),
            rounded(cores * DOLLARS[0] + disks * disk * DOLLARS[1]),
        ]);
    }
    table.0
}

impl Step {
    /// The smallest step runs on a single machine. The others have two nodes or more, and three database machines.
    fn is_one_machine(&self) -> bool {
        self.requests < 100
    }

    /// The cores of all nodes, and of each database machine: an even number, of which only a part is busy.
    fn cores(&self, models: &[CapacityModel; OPERATIONS.len()], with_copies: bool) -> [f64; 2] {
        let least = if self.is_one_machine() { [2.0; 2] } else { [4.0, 2.0] };
        let busy = self.busy_cores(models, with_copies);
        [0, 1].map(|who| ((busy[who] / BUSY / 2.0).ceil() * 2.0).max(least[who]))
    }

    /// The cores that are busy at the peak: of the service, and of the database.
    fn busy_cores(&self, models: &[CapacityModel; OPERATIONS.len()], with_copies: bool) -> [f64; 2] {
        let mut rates = MIX.map(|share| share * f64::from(self.requests));
        let events: f64 = rates.iter().zip(EVENTS).map(|(rate, events)| rate * events).sum();
        if with_copies {
            rates[..2].fill(0.0);
        }
        // For each page, a follower asks for the pets in it.
        let pages = f64::from(self.followers) * events.min(PAGES_PER_SECOND).max(events / EVENTS_PER_PAGE);
        rates[1] += pages;
        [0, 1].map(|who| {
            let cost = |model: &CapacityModel| model.costs[who].of(BATCH, super::grid::float(self.pets));
            rates.iter().chain([&pages]).zip(models).map(|(rate, model)| rate * cost(model)).sum()
        })
    }

    /// Pets, and the orders and events of the time for which events are kept.
    fn gigabytes(&self, stored: &Maintenance) -> f64 {
        let seconds = RETENTION_SECONDS / PEAK * f64::from(self.requests);
        let events: f64 = MIX.iter().zip(EVENTS).map(|(share, events)| share * events).sum();
        // An order takes two requests.
        let orders = MIX[4] / 2.0;
        let pets = super::grid::float(self.pets) * stored.bytes.iter().sum::<f64>();
        (pets + seconds * (orders * stored.order + events * stored.event)) / GB
    }
}

/// To two digits, because it is an estimate.
fn rounded(value: f64) -> String {
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    readable((value / unit).round() * unit, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::capacity_model::{Deployment, Measured};

    /// A model in which each request costs 50 µs of the service and 100 µs of the database, batched or not.
    fn model() -> CapacityModel {
        let points = [(16, 1e6), (64, 1e8), (256, 1e7)].map(|(connections, pets)| Measured {
            configuration: Deployment { nodes: 1, connections, pets },
            rate: 10_000.0,
            batch: f64::INFINITY,
            seconds: [50e-6, 100e-6, 10e-6],
        });
        CapacityModel::fit(&points)
    }

    #[test]
    fn copies_leave_only_writes_and_followers() {
        let models = std::array::from_fn(|_| model());
        let marketplace = &STEPS[3];
        // 7,000 events per second: 50 followers each get 70 pages, and ask for the pets of each.
        let followed = 2.0 * 50.0 * 70.0;
        for (with_copies, requests) in [(false, 100_000.0 + followed), (true, 5_000.0 + followed)] {
            let [service, database] = marketplace.busy_cores(&models, with_copies);
            assert!((service - requests * 50e-6).abs() < 1e-6, "{service}");
            assert!((database - requests * 100e-6).abs() < 1e-6, "{database}");
        }
        assert_eq!(marketplace.cores(&models, false).map(|cores| cores.to_string()), ["12", "22"]);
        assert_eq!(STEPS[0].cores(&models, true).map(|cores| cores.to_string()), ["2", "2"]);
    }
}

//! The capacity model: what a request costs, and how many requests a second follow from it.
//!
//! A request costs something by itself and its share of a statement, which requests that travel together divide among
//! them; each tenfold of the table may cost a little more:
//!
//! ```text
//! seconds a request = own + statement / batch + tenfold × log10(pets / 1,000,000)
//! batch             = requests that travel together = (connections / nodes) × share, from 1 to 128
//! ```
//!
//! Of the whole machine these seconds are the rate. Of the processors they say what the service, the database and the
//! load generator each need.

/// The most requests that share a statement (`LIMITS` in `src/storage/pets.rs`).
const LARGEST_BATCH: f64 = 128.0;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Configuration {
    pub(crate) nodes: u32,
    /// Clients' connections to all nodes.
    pub(crate) connections: u32,
    pub(crate) pets: f64,
}

/// What was measured of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) configuration: Configuration,
    /// Requests a second.
    pub(crate) rate: f64,
    /// Requests that shared a statement, on average.
    pub(crate) batch: f64,
    /// Seconds of a processor for each request: the service, the database, the load generator.
    pub(crate) seconds: [f64; 3],
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// By itself.
    pub(crate) own: f64,
    /// For the statement that it shares.
    pub(crate) statement: f64,
    /// For each tenfold of the pets.
    pub(crate) tenfold: f64,
}

impl Cost {
    /// From batches, pets and the seconds that a request took.
    fn fit(points: impl Iterator<Item = (f64, f64, f64)>) -> Self {
        let rows: Vec<_> =
            points.map(|(batch, pets, seconds)| ([1.0, 1.0 / batch, tenfolds(pets)], seconds)).collect();
        let [own, statement, tenfold] = least_squares(&rows);
        Self { own, statement, tenfold }
    }

    fn of(&self, batch: f64, pets: f64) -> f64 {
        self.own + self.statement / batch + self.tenfold * tenfolds(pets)
    }
}

/// Fitted to some configurations, to predict others.
#[derive(Debug)]
pub(crate) struct Model {
    /// The share of a node's connections that travel together.
    share: f64,
    /// Seconds of the whole machine.
    machine: Cost,
    /// Seconds of a processor: the service, the database, the load generator.
    pub(crate) costs: [Cost; 3],
}

impl Model {
    /// The costs that come closest to what was measured.
    pub(crate) fn fit(points: &[Measured]) -> Self {
        // Full batches say nothing about the share.
        let growing = points.iter().filter(|point| point.batch > 1.5 && point.batch < LARGEST_BATCH / 2.0);
        let share = median(growing.map(|point| point.batch / per_node(point.configuration)));
        let machine =
            Cost::fit(points.iter().map(|point| {
                (batch(point.configuration, share), point.configuration.pets, 1.0 / point.rate)
            }));
        let costs = [0, 1, 2].map(|who| {
            Cost::fit(points.iter().map(|point| (point.batch, point.configuration.pets, point.seconds[who])))
        });
        Self { share, machine, costs }
    }

    /// Requests a second.
    pub(crate) fn rate(&self, configuration: Configuration) -> f64 {
        1.0 / self.machine.of(batch(configuration, self.share), configuration.pets)
    }
}

/// How many requests travel together, if this share of a node's connections does.
fn batch(configuration: Configuration, share: f64) -> f64 {
    (per_node(configuration) * share).clamp(1.0, LARGEST_BATCH)
}

fn tenfolds(pets: f64) -> f64 {
    (pets / 1e6).log10()
}

fn per_node(configuration: Configuration) -> f64 {
    f64::from(configuration.connections) / f64::from(configuration.nodes)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    crate::report::Samples(values.collect()).median()
}

/// The coefficients for which the sum of the squared differences, as shares of the values, is least; none is negative,
/// because nothing is gained by doing more.
fn least_squares<const N: usize>(rows: &[([f64; N], f64)]) -> [f64; N] {
    let mut kept = [true; N];
    loop {
        let found = solve(rows, kept);
        let least = (0..N).min_by(|one, other| found[*one].total_cmp(&found[*other])).unwrap_or_default();
        if found[least] >= 0.0 {
            return found;
        }
        kept[least] = false;
    }
}

/// The same of some coefficients, which may be negative: the normal equations, by elimination.
fn solve<const N: usize>(rows: &[([f64; N], f64)], kept: [bool; N]) -> [f64; N] {
    let (mut left, mut right) = ([[0.0; N]; N], [0.0; N]);
    for (features, value) in rows {
        let share: [f64; N] =
            std::array::from_fn(|place| if kept[place] { features[place] / value } else { 0.0 });
        for row in 0..N {
            right[row] += share[row];
            for column in 0..N {
                left[row][column] += share[row] * share[column];
            }
        }
    }
    let nothing = |diagonal: f64| diagonal.abs() < 1e-9;
    for pivot in 0..N {
        // What does not vary among the points costs nothing by itself.
        if nothing(left[pivot][pivot]) {
            continue;
        }
        for row in (0..N).filter(|row| *row != pivot) {
            let factor = left[row][pivot] / left[pivot][pivot];
            let (source, value) = (left[pivot], right[pivot]);
            for (cell, source) in left[row].iter_mut().zip(source) {
                *cell -= factor * source;
            }
            right[row] -= factor * value;
        }
    }
    std::array::from_fn(|row| if nothing(left[row][row]) { 0.0 } else { right[row] / left[row][row] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A world that is as the model has it.
    fn measured(nodes: u32, connections: u32, pets: f64) -> Measured {
        let configuration = Configuration { nodes, connections, pets };
        let batch = batch(configuration, 0.4);
        let seconds = [30e-6 + 5e-6 / batch, 4e-6 + 40e-6 / batch + 1e-6 * tenfolds(pets), 10e-6];
        Measured { configuration, rate: 2.0 * 0.9 / seconds.iter().sum::<f64>(), batch, seconds }
    }

    #[test]
    fn what_the_world_costs_is_found_and_what_was_not_measured_is_predicted() {
        let points: Vec<_> = [(1, 16, 1e6), (1, 64, 1e8), (4, 64, 1e6), (4, 1024, 1e8), (1, 1024, 1e6)]
            .map(|(nodes, connections, pets)| measured(nodes, connections, pets))
            .into();
        let model = Model::fit(&points);
        let database = model.costs[1];
        for (found, is) in [(database.own, 4e-6), (database.statement, 40e-6), (database.tenfold, 1e-6)] {
            assert!((found - is).abs() < 1e-9, "{found} is not {is}");
        }
        let other = measured(2, 256, 1e7);
        let predicted = model.rate(other.configuration);
        assert!((predicted / other.rate - 1.0).abs() < 0.001, "{predicted} is not {}", other.rate);
    }

    #[test]
    fn nothing_is_found_to_cost_less_than_nothing() {
        let points: Vec<_> = [(16, 1e6), (64, 1e8), (256, 1e6), (1024, 1e8)]
            .map(|(connections, pets)| {
                let mut point = measured(1, connections, pets);
                // A quieter hour, by chance, when there were many pets.
                point.seconds[1] *= if pets > 1e6 { 0.7 } else { 1.0 };
                point
            })
            .into();
        let Cost { own, statement, tenfold } = Model::fit(&points).costs[1];
        assert!(own >= 0.0 && statement > 0.0 && tenfold >= 0.0, "{own} {statement} {tenfold}");
    }

    #[test]
    fn what_never_varied_costs_nothing_by_itself() {
        let points: Vec<_> = [16, 64, 256].map(|connections| measured(1, connections, 1e6)).into();
        assert!(Model::fit(&points).costs[1].tenfold.abs() < 1e-12);
    }
}

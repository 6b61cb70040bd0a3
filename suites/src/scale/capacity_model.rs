//! The capacity model: the cost of a request, and the throughput that follows from it.
//!
//! A request has its own cost, and its share of the cost of a statement, which the requests of a batch divide among them.
//! Each factor of ten in pets may add a little. Changes of a pet and orders are not batched: they have only their own cost.
//!
//! ```text
//! seconds per request = own + statement / batch + decade × log10(pets / 1,000,000)
//! batch               = (connections / nodes) × share, from 1 to 128
//! ```
//!
//! Fitted to the seconds of the whole machine, it gives the throughput. Fitted to CPU time, it gives what the service, the
//! database and the load generator each need.

/// The largest batch (`LIMITS` in `crates/storage/src/queue.rs`).
const LARGEST_BATCH: f64 = 128.0;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Deployment {
    pub(crate) nodes: u32,
    /// Client connections to all nodes.
    pub(crate) connections: u32,
    pub(crate) pets: f64,
}

/// The measurements of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) configuration: Deployment,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Requests per batch, on average; infinite if the operation is not batched.
    pub(crate) batch: f64,
    /// CPU seconds per request: the service, the database, the load generator.
    pub(crate) seconds: [f64; 3],
}

/// The cost of a request, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// Per request.
    pub(crate) own: f64,
    /// Per statement.
    pub(crate) statement: f64,
    /// Per factor of ten in pets.
    pub(crate) decade: f64,
}

impl Cost {
    /// Fits to batch sizes, pets and seconds per request.
    fn fit(points: impl Iterator<Item = (f64, f64, f64)>) -> Self {
        let rows: Vec<_> =
            points.map(|(batch, pets, seconds)| ([1.0, 1.0 / batch, decades(pets)], seconds)).collect();
        let [own, statement, decade] = least_squares(&rows);
        Self { own, statement, decade }
    }

    pub(crate) fn of(&self, batch: f64, pets: f64) -> f64 {
        self.own + self.statement / batch + self.decade * decades(pets)
    }
}

/// Fitted to some configurations, to predict others.
#[derive(Debug)]
pub(crate) struct CapacityModel {
    /// The share of a node's connections whose requests are in one batch.
    share: f64,
    /// Seconds of the whole machine.
    machine: Cost,
    /// CPU seconds: the service, the database, the load generator.
    pub(crate) costs: [Cost; 3],
}

impl CapacityModel {
    /// Fits the costs to the measurements.
    pub(crate) fn fit(points: &[Measured]) -> Self {
        let is_batched = points.iter().all(|point| point.batch.is_finite());
        // Full batches say nothing about the share.
        let growing = points.iter().filter(|point| point.batch > 1.5 && point.batch < LARGEST_BATCH / 2.0);
        let share = if is_batched {
            median(growing.map(|point| point.batch / per_node(point.configuration)))
        } else {
            f64::INFINITY
        };
        let machine =
            Cost::fit(points.iter().map(|point| {
                (batch(point.configuration, share), point.configuration.pets, 1.0 / point.rate)
            }));
        let costs = [0, 1, 2].map(|who| {
            Cost::fit(points.iter().map(|point| (point.batch, point.configuration.pets, point.seconds[who])))
        });
        Self { share, machine, costs }
    }

    /// Requests per second.
    pub(crate) fn rate(&self, configuration: Deployment) -> f64 {
        1.0 / self.machine.of(batch(configuration, self.share), configuration.pets)
    }
}

/// The batch size, given this share of a node's connections.
fn batch(configuration: Deployment, share: f64) -> f64 {
    if share.is_infinite() { share } else { (per_node(configuration) * share).clamp(1.0, LARGEST_BATCH) }
}

fn decades(pets: f64) -> f64 {
    (pets / 1e6).log10()
}

fn per_node(configuration: Deployment) -> f64 {
    f64::from(configuration.connections) / f64::from(configuration.nodes)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    crate::measure::Samples(values.collect()).median()
}

/// The coefficients with the least sum of squared relative errors; none is negative, because more work never costs less.
fn least_squares<const N: usize>(rows: &[([f64; N], f64)]) -> [f64; N] {
    let mut kept = [true; N];
    loop {
        let found = solve(rows, kept);
        let least = (0..N).min_by(|one, other| found[*one].total_cmp(&found[*other])).unwrap_or_default();
        // Not a number if a measurement was zero.
        if found[least] >= 0.0 || found[least].is_nan() {
            return found;
        }
        kept[least] = false;
    }
}

/// The same for some of the coefficients, which may be negative: the normal equations, solved by elimination.
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
        // A feature that does not vary among the points has no cost.
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

    /// A measurement that follows the model exactly.
    fn measured(nodes: u32, connections: u32, pets: f64) -> Measured {
        let configuration = Deployment { nodes, connections, pets };
        let batch = batch(configuration, 0.4);
        let seconds = [30e-6 + 5e-6 / batch, 4e-6 + 40e-6 / batch + 1e-6 * decades(pets), 10e-6];
        Measured { configuration, rate: 2.0 * 0.9 / seconds.iter().sum::<f64>(), batch, seconds }
    }

    #[test]
    fn the_fit_finds_the_costs_and_predicts_other_configurations() {
        let points: Vec<_> = [(1, 16, 1e6), (1, 64, 1e8), (4, 64, 1e6), (4, 1024, 1e8), (1, 1024, 1e6)]
            .map(|(nodes, connections, pets)| measured(nodes, connections, pets))
            .into();
        let model = CapacityModel::fit(&points);
        let database = model.costs[1];
        for (found, is) in [(database.own, 4e-6), (database.statement, 40e-6), (database.decade, 1e-6)] {
            assert!((found - is).abs() < 1e-9, "{found} is not {is}");
        }
        let other = measured(2, 256, 1e7);
        let predicted = model.rate(other.configuration);
        assert!((predicted / other.rate - 1.0).abs() < 0.001, "{predicted} is not {}", other.rate);
    }

    #[test]
    fn no_cost_is_negative() {
        let points: Vec<_> = [(16, 1e6), (64, 1e8), (256, 1e6), (1024, 1e8)]
            .map(|(connections, pets)| {
                let mut point = measured(1, connections, pets);
                // The machine happened to be less busy when there were many pets.
                point.seconds[1] *= if pets > 1e6 { 0.7 } else { 1.0 };
                point
            })
            .into();
        let Cost { own, statement, decade } = CapacityModel::fit(&points).costs[1];
        assert!(own >= 0.0 && statement > 0.0 && decade >= 0.0, "{own} {statement} {decade}");
    }

    #[test]
    fn an_operation_that_is_not_batched_has_only_its_own_cost() {
        let points: Vec<_> = [(1, 16, 1e6), (4, 64, 1e8), (1, 1024, 1e6)]
            .map(|(nodes, connections, pets)| Measured {
                batch: f64::INFINITY,
                rate: 4_000.0,
                seconds: [60e-6, 300e-6 + 20e-6 * decades(pets), 20e-6],
                ..measured(nodes, connections, pets)
            })
            .into();
        let model = CapacityModel::fit(&points);
        assert!((model.costs[1].of(8.0, 1e7) - 320e-6).abs() < 1e-9, "{model:?}");
        assert!((model.rate(points[0].configuration) - 4_000.0).abs() < 1e-6, "{model:?}");
    }

    #[test]
    fn a_feature_that_never_varied_has_no_cost() {
        let points: Vec<_> = [16, 64, 256].map(|connections| measured(1, connections, 1e6)).into();
        assert!(CapacityModel::fit(&points).costs[1].decade.abs() < 1e-12);
    }
}

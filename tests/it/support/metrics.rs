//! Reading `/metrics`.

use std::net::SocketAddr;

use super::client::Client;

/// The metrics of the service with this admin address.
pub(crate) async fn scrape(admin_address: SocketAddr) -> String {
    let answer = Client::new(admin_address, None).get("/metrics").await;
    assert_eq!(answer.status, 200);
    answer.body
}

/// The value of a series, written as in Prometheus' text format without spaces.
pub(crate) fn value(metrics: &str, series: &str) -> Option<f64> {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// The current value of a series.
pub(crate) async fn metric(admin_address: SocketAddr, series: &str) -> Option<f64> {
    value(&scrape(admin_address).await, series)
}

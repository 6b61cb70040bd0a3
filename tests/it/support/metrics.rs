//! Reading `/metrics`.

use std::net::SocketAddr;

use super::client::Client;
use super::wait::eventually;

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

/// Waits until a series has this value.
pub(crate) async fn wait_for_metric(admin_address: SocketAddr, series: &str, expected: f64) {
    let reached = async || metric(admin_address, series).await == Some(expected);
    eventually(&format!("{series} is {expected}"), reached).await;
}

/// Waits until this many requests are in flight. Those that wait for an event are not counted.
pub(crate) async fn wait_for_requests_in_flight(admin_address: SocketAddr, requests: u32) {
    wait_for_metric(admin_address, "http_server_active_requests", requests.into()).await;
}

/// The current value of a series.
pub(crate) async fn metric(admin_address: SocketAddr, series: &str) -> Option<f64> {
    value(&scrape(admin_address).await, series)
}

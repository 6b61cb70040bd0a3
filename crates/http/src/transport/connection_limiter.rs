//! Limits the number of open connections, in total and per client address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use metrics::{Counter, Gauge, counter, gauge};
use petstore_config::LimitSettings;
use petstore_telemetry::metrics::{CONNECTIONS, CONNECTIONS_REFUSED};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many refused clients get a response at the same time. Others are disconnected without one.
const MAX_REFUSALS: usize = 64;

/// Limits the number of open connections.
pub struct ConnectionLimiter {
    permits: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    max_per_address: u32,
    /// Not limited per address: a proxy serves many clients.
    trusted_proxies: Vec<IpNet>,
    by_address: Mutex<HashMap<IpAddr, u32>>,
    connections: Gauge,
    refused: Counter,
}

/// Counts a connection as open until dropped.
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    address: Option<IpAddr>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimiter {
    /// Creates the limiter with the configured limits.
    #[must_use]
    pub fn new(settings: &LimitSettings) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(settings.max_connections as usize)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            max_per_address: settings.max_connections_per_address,
            trusted_proxies: settings.trusted_proxies.clone(),
            by_address: Mutex::default(),
            connections: gauge!(CONNECTIONS),
            refused: counter!(CONNECTIONS_REFUSED),
        })
    }

    /// Returns a permit for a connection from this address, if there is one left.
    pub(crate) fn acquire(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionPermit> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let peer = peer.to_canonical();
        let address = if self.trusted_proxies.iter().any(|network| network.contains(&peer)) {
            None
        } else {
            Some(client_network(peer))
        };
        if let Some(address) = address {
            let mut by_address = self.by_address();
            let open = by_address.entry(address).or_default();
            if *open >= self.max_per_address {
                return None;
            }
            *open += 1;
        }
        self.connections.increment(1.0);
        Some(ConnectionPermit { limiter: self.clone(), address, _permit: permit })
    }

    /// Counts a refused connection. Returns a permit to send it a response, if there is one left.
    pub(crate) fn acquire_refusal(&self) -> Option<OwnedSemaphorePermit> {
        self.refused.increment(1);
        self.refusals.clone().try_acquire_owned().ok()
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network that counts as one client: an IPv4 address or an IPv6 /64.
fn client_network(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

impl ConnectionPermit {
    /// The client's address; `None` for a trusted proxy.
    pub(crate) fn client_address(&self) -> Option<IpAddr> {
        self.address
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.connections.decrement(1.0);
        let Some(address) = self.address else { return };
        let mut by_address = self.limiter.by_address();
        if let Some(count) = by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(all: u32, per_address: u32) -> Arc<ConnectionLimiter> {
        ConnectionLimiter::new(&LimitSettings {
            max_connections: all,
            max_connections_per_address: per_address,
            trusted_proxies: vec!["192.0.2.0/24".parse().unwrap()],
            default_rate_limit: None,
            max_requests: 1,
        })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_has_its_own_permits_and_returns_them() {
        let limiter = limiter(10, 2);
        let (first, _second) =
            (limiter.acquire(address("198.51.100.1")).unwrap(), limiter.acquire(address("198.51.100.1")));
        assert!(limiter.acquire(address("198.51.100.1")).is_none());
        assert!(limiter.acquire(address("::ffff:198.51.100.1")).is_none(), "the same address");
        assert!(limiter.acquire(address("198.51.100.2")).is_some(), "another one");
        drop(first);
        assert!(limiter.acquire(address("198.51.100.1")).is_some());
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_client() {
        let limiter = limiter(10, 1);
        let _permit = limiter.acquire(address("2001:db8::1")).unwrap();
        assert!(limiter.acquire(address("2001:db8::2")).is_none());
        assert!(limiter.acquire(address("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn a_trusted_proxy_can_use_all_permits() {
        let limiter = limiter(3, 1);
        let permits: Vec<_> = (0..4).map(|_| limiter.acquire(address("192.0.2.7"))).collect();
        assert_eq!(permits.iter().flatten().count(), 3);
    }

    #[test]
    fn an_address_without_connections_takes_no_memory() {
        let limiter = limiter(10, 5);
        for last in 0..=255 {
            drop(limiter.acquire(IpAddr::from([198, 51, 100, last])));
        }
        assert!(limiter.by_address().is_empty());
    }
}

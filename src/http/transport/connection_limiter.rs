//! How many connections a listener takes, in all and from one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use metrics::{Counter, Gauge, counter, gauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::LimitSettings;
use crate::telemetry::metrics::{CONNECTIONS, CONNECTIONS_REFUSED};

/// How many clients that find no place are told so at once. Others are cut off without a word.
const MAX_REFUSALS: usize = 64;

/// Lets connections in while there is a place for them.
pub struct Gate {
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    places_per_address: u32,
    /// Many clients come through these, so they are not one.
    trusted: Vec<IpNet>,
    taken: Mutex<HashMap<IpAddr, u32>>,
    connections: Gauge,
    refused: Counter,
}

/// A connection's place, given back when it is dropped.
pub(crate) struct Place {
    gate: Arc<Gate>,
    address: Option<IpAddr>,
    _permit: OwnedSemaphorePermit,
}

impl Gate {
    /// With the bounds that the operator set.
    #[must_use]
    pub fn new(settings: &LimitSettings) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(settings.max_connections as usize)),
            refusals: Arc::new(Semaphore::new(MAX_REFUSALS)),
            places_per_address: settings.max_connections_per_address,
            trusted: settings.trusted_proxies.clone(),
            taken: Mutex::default(),
            connections: gauge!(CONNECTIONS),
            refused: counter!(CONNECTIONS_REFUSED),
        })
    }

    /// A place for a connection from this address, if there is one.
    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let permit = self.places.clone().try_acquire_owned().ok()?;
        let peer = peer.to_canonical();
        let address = if self.trusted.iter().any(|network| network.contains(&peer)) {
            None
        } else {
            Some(one_client(peer))
        };
        if let Some(address) = address {
            let mut taken = self.taken();
            let taken = taken.entry(address).or_default();
            if *taken >= self.places_per_address {
                return None;
            }
            *taken += 1;
        }
        self.connections.increment(1.0);
        Some(Place { gate: self.clone(), address, _permit: permit })
    }

    /// Leave to tell a client that there is no place for it.
    pub(crate) fn refuse(&self) -> Option<OwnedSemaphorePermit> {
        self.refused.increment(1);
        self.refusals.clone().try_acquire_owned().ok()
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What counts as one client: an address, or the network of 64 bits that every client of IPv6 has to itself.
fn one_client(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

impl Place {
    /// The client's address; none for a trusted proxy, behind which there are many clients.
    pub(crate) fn client(&self) -> Option<IpAddr> {
        self.address
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.connections.decrement(1.0);
        let Some(address) = self.address else { return };
        let mut taken = self.gate.taken();
        if let Some(count) = taken.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(all: u32, per_address: u32) -> Arc<Gate> {
        Gate::new(&LimitSettings {
            max_connections: all,
            max_connections_per_address: per_address,
            trusted_proxies: vec!["192.0.2.0/24".parse().unwrap()],
            ..LimitSettings::default()
        })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_has_its_own_places_and_gives_them_back() {
        let gate = gate(10, 2);
        let (first, _second) =
            (gate.enter(address("198.51.100.1")).unwrap(), gate.enter(address("198.51.100.1")));
        assert!(gate.enter(address("198.51.100.1")).is_none());
        assert!(gate.enter(address("::ffff:198.51.100.1")).is_none(), "the same address");
        assert!(gate.enter(address("198.51.100.2")).is_some(), "another one");
        drop(first);
        assert!(gate.enter(address("198.51.100.1")).is_some());
    }

    #[test]
    fn a_network_of_64_bits_is_one_client() {
        let gate = gate(10, 1);
        let _place = gate.enter(address("2001:db8::1")).unwrap();
        assert!(gate.enter(address("2001:db8::2")).is_none());
        assert!(gate.enter(address("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn a_trusted_proxy_has_all_the_places() {
        let gate = gate(3, 1);
        let places: Vec<_> = (0..4).map(|_| gate.enter(address("192.0.2.7"))).collect();
        assert_eq!(places.iter().flatten().count(), 3);
    }

    #[test]
    fn nothing_is_remembered_of_addresses_that_are_gone() {
        let gate = gate(10, 5);
        for last in 0..=255 {
            drop(gate.enter(IpAddr::from([198, 51, 100, last])));
        }
        assert!(gate.taken().is_empty());
    }
}

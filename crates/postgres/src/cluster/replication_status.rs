//! What a server reports of itself, as [`read_quorum`](petstore_read_quorum) needs it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use deadpool_postgres::ClientWrapper;
use petstore_read_quorum::{Lsn, Role, ServerReport};
use tokio::net::lookup_host;
use tokio_postgres::Statement;
use tokio_postgres::types::PgLsn;

use crate::connect::ServerAddress;

/// The role and position of a server. As simple as possible: it runs with every read. (The view `pg_stat_wal_receiver`, a
/// join or a subquery doubles its time.) Needs `pg_monitor`.
pub(super) const REPORT: &str = "\
    SELECT
      pg_postmaster_start_time() AS start,
      CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() END AS flushed,
      CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_flush_lsn()) END AS file,
      pg_last_wal_receive_lsn() AS received,
      pg_last_wal_replay_lsn() AS replayed,
      status = 'streaming' AS receives,
      received_tli,
      sender_host,
      sender_port
    FROM pg_stat_get_wal_receiver()";

/// The timeline of a standby that does not receive: that of its newest segment. (A history file may be of a timeline of which
/// it has nothing.)
const NEWEST_TIMELINE: &str = "\
    SELECT max(('x' || left(name, 8))::bit(32)::int) AS timeline
    FROM pg_ls_waldir()
    WHERE name ~ '^[0-9A-F]{24}$'";

const LOCALHOST_V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOCALHOST_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Finds the server from which a standby receives, by the address that the standby uses for it.
pub(super) struct UpstreamFinder {
    servers: Vec<ServerAddress>,
    /// For each standby, the address that was looked up last.
    found: Mutex<Vec<Option<(String, u16, usize)>>>,
}

impl UpstreamFinder {
    pub(super) fn new(servers: Vec<ServerAddress>) -> Self {
        let found = Mutex::new(servers.iter().map(|_| None).collect());
        Self { servers, found }
    }

    /// Runs [`REPORT`] in a session. A standby that follows a server outside of the URL is reported like one that has received
    /// nothing, so that it does not count.
    pub(super) async fn report(
        &self,
        server: usize,
        session: &ClientWrapper,
        report: &Statement,
    ) -> Result<ServerReport, tokio_postgres::Error> {
        let row = session.query_one(report, &[]).await?;
        let start: SystemTime = row.try_get("start")?;
        let start = start.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let start = u64::try_from(start).unwrap_or_default();
        let position =
            |column| row.try_get::<_, Option<PgLsn>>(column).map(|lsn| lsn.map(|lsn| Lsn(lsn.into())));
        if let (Some(flushed), Some(file)) = (position("flushed")?, row.try_get::<_, Option<&str>>("file")?) {
            let timeline = file.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
            let timeline = timeline.unwrap_or_default();
            return Ok(ServerReport { start, timeline, role: Role::Primary { flushed } });
        }
        let replayed = position("replayed")?.unwrap_or(Lsn(0));
        // When the timeline changes, PostgreSQL counts from the start of a segment again.
        let mut received = position("received")?.map(|received| received.max(replayed));
        let mut upstream = None;
        let timeline = if row.try_get::<_, Option<bool>>("receives")? == Some(true) {
            let host: Option<&str> = row.try_get("sender_host")?;
            let port: Option<i32> = row.try_get("sender_port")?;
            if let (Some(host), Some(Ok(port))) = (host, port.map(u16::try_from)) {
                upstream = self.find(server, host, port).await;
            }
            received = received.filter(|_| upstream.is_some());
            row.try_get::<_, Option<i32>>("received_tli")?
        } else {
            let newest = session.prepare_cached(NEWEST_TIMELINE).await?;
            session.query_one(&newest, &[]).await?.try_get("timeline")?
        };
        let timeline = timeline.unwrap_or_default().unsigned_abs();
        Ok(ServerReport { start, timeline, role: Role::Standby { received, replayed, upstream } })
    }

    async fn find(&self, standby: usize, host: &str, port: u16) -> Option<usize> {
        let found = || self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, known_port, upstream)) = &found()[standby]
            && (known.as_str(), *known_port) == (host, port)
        {
            return Some(*upstream);
        }
        let upstream = self.search(standby, host, port).await?;
        found()[standby] = Some((host.to_owned(), port, upstream));
        Some(upstream)
    }

    async fn search(&self, standby: usize, host: &str, port: u16) -> Option<usize> {
        let mut addresses = resolve(host).await;
        let is_local =
            !addresses.is_empty() && addresses.iter().all(|it| *it == LOCALHOST_V4 || *it == LOCALHOST_V6);
        if is_local {
            // On the machine of the standby, which is this one only if the URL says so.
            let standby = resolve(&self.servers[standby].host).await;
            addresses.retain(|_| standby.iter().any(IpAddr::is_loopback));
            addresses.extend(standby);
        }
        let others = self.servers.iter().enumerate().filter(|(index, _)| *index != standby);
        for (index, server) in others.filter(|(_, server)| server.port == port) {
            let is_same_name = server.host == host && !is_local;
            if is_same_name || resolve(&server.host).await.iter().any(|it| addresses.contains(it)) {
                return Some(index);
            }
        }
        None
    }
}

/// The addresses of a host. A directory of sockets is on this machine.
async fn resolve(host: &str) -> Vec<IpAddr> {
    let host = if Path::new(host).is_absolute() { "localhost" } else { host };
    lookup_host((host, 0)).await.map(|found| found.map(|address| address.ip()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_upstream_is_found_by_name_by_address_or_on_the_machine_of_its_standby() {
        let servers = [
            ("localhost", 5433),
            ("127.0.0.1", 5434),
            ("/run/sockets", 5435),
            ("192.0.2.7", 5432),
            ("192.0.2.7", 5433),
            ("127.0.0.11", 5432),
            ("127.0.0.12", 5432),
        ];
        let servers = servers.map(|(host, port)| ServerAddress { host: host.to_owned(), port });
        let upstreams = UpstreamFinder::new(servers.into());
        let find = async |standby, host: &str, port| upstreams.find(standby, host, port).await;
        assert_eq!(find(1, "localhost", 5433).await, Some(0));
        assert_eq!(find(1, "127.0.0.1", 5433).await, Some(0));
        assert_eq!(find(0, "/var/run/postgresql", 5434).await, Some(1));
        assert_eq!(find(0, "/run/sockets", 5435).await, Some(2));
        assert_eq!(find(2, "127.0.0.1", 5434).await, Some(1));
        assert_eq!(find(0, "192.0.2.7", 5432).await, Some(3));
        assert_eq!(find(3, "localhost", 5433).await, Some(4), "on the machine of the standby");
        assert_eq!(find(3, "localhost", 5434).await, None);
        assert_eq!(find(5, "127.0.0.12", 5432).await, Some(6));
        assert_eq!(find(0, "192.0.2.8", 5432).await, None);
        assert_eq!(find(1, "127.0.0.1", 5433).await, Some(0), "again after another address");
    }
}

//! A TCP proxy in front of the database that delays, resets or drops traffic: the kernels of many machines cannot.
//!
//! `tests/it/support/proxy.rs` says why it shares no code with the proxies of the integration tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval, sleep};

use crate::Outcome;

/// A fault of the network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkFault {
    /// No fault.
    None,
    /// 50 ms each way, and 5 % of all sends close the connection.
    Slow,
    /// Everything is accepted, and nothing arrives.
    BlackHole,
}

/// A proxy whose fault can be changed.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    fault: Arc<AtomicU8>,
}

impl Proxy {
    /// In front of a server.
    pub(crate) async fn start(server: SocketAddr) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, fault) = (listener.local_addr()?, Arc::new(AtomicU8::new(0)));
        let (shared, sent) = (fault.clone(), Arc::new(AtomicU32::new(0)));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (fault, sent) = (shared.clone(), sent.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    // The end of either direction ends both.
                    tokio::select! {
                        () = forward(from_client, to_server, fault.clone(), sent.clone()) => {}
                        () = forward(from_server, to_client, fault, sent) => {}
                    }
                });
            }
        });
        Ok(Self { address, fault })
    }

    pub(crate) fn set(&self, fault: NetworkFault) {
        self.fault.store(fault as u8, Ordering::Relaxed);
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    fault: Arc<AtomicU8>,
    sent: Arc<AtomicU32>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let now = fault.load(Ordering::Relaxed);
        if now == NetworkFault::BlackHole as u8 {
            let mut ticks = interval(Duration::from_millis(50));
            while fault.load(Ordering::Relaxed) == NetworkFault::BlackHole as u8 {
                ticks.tick().await;
            }
            // The dropped bytes are lost, so the connection is of no use.
            return;
        }
        if now == NetworkFault::Slow as u8 {
            sleep(Duration::from_millis(50)).await;
            if sent.fetch_add(1, Ordering::Relaxed) % 20 == 19 {
                return;
            }
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

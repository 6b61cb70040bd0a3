//! A TCP proxy before the database that delays, breaks or swallows what passes. The kernels of many machines cannot.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval, sleep};

use crate::Outcome;

/// What is wrong with the network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing.
    None,
    /// 50 ms each way, and 5 % of what is sent ends its connection.
    Slow,
    /// Everything is taken, and nothing arrives.
    BlackHole,
}

/// A proxy with trouble that can be changed.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    trouble: Arc<AtomicU8>,
}

impl Proxy {
    /// Before a server.
    pub(crate) async fn before(server: SocketAddr) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, trouble) = (listener.local_addr()?, Arc::new(AtomicU8::new(0)));
        let (shared, sent) = (trouble.clone(), Arc::new(AtomicU32::new(0)));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (trouble, sent) = (shared.clone(), sent.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    // The end of either way ends both.
                    tokio::select! {
                        () = pass(from_client, to_server, trouble.clone(), sent.clone()) => {}
                        () = pass(from_server, to_client, trouble, sent) => {}
                    }
                });
            }
        });
        Ok(Self { address, trouble })
    }

    pub(crate) fn set(&self, trouble: Trouble) {
        self.trouble.store(trouble as u8, Ordering::Relaxed);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, trouble: Arc<AtomicU8>, sent: Arc<AtomicU32>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let now = trouble.load(Ordering::Relaxed);
        if now == Trouble::BlackHole as u8 {
            let mut ticks = interval(Duration::from_millis(50));
            while trouble.load(Ordering::Relaxed) == Trouble::BlackHole as u8 {
                ticks.tick().await;
            }
            // What was swallowed is gone, so nothing sensible can follow.
            return;
        }
        if now == Trouble::Slow as u8 {
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

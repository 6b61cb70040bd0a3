//! A TCP proxy in front of the database that delays chosen responses.
//!
//! It shares no code with the proxy of the suites, which breaks the whole network, nor with the one in
//! `commands/interrupted_import.rs`, which stops within a message: a common accept and copy loop adds 25 lines to the first two
//! alone.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// A response to delay.
#[derive(Default)]
enum Delay {
    #[default]
    None,
    /// The response to the next statement that contains these bytes.
    Armed { bytes: Vec<u8>, delay: Duration },
    /// The statement was sent on this connection.
    Sent { connection: u64, delay: Duration },
    /// The response has arrived from the database and is held back.
    Holding,
}

/// A proxy between the service and its database.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    delay: Arc<Mutex<Delay>>,
    running: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to this address.
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let delay = Arc::<Mutex<Delay>>::default();
        let shared = delay.clone();
        let running = tokio::spawn(async move {
            for connection in 0.. {
                let Ok((client, _)) = listener.accept().await else { break };
                if let Ok(server) = TcpStream::connect(&target).await {
                    tokio::spawn(forward(connection, client, server, shared.clone()));
                }
            }
        });
        Self { address, delay, running }
    }

    /// Delays the response to the next statement that contains these bytes. Later responses on the same connection wait
    /// behind it; other connections do not.
    pub(crate) fn delay_response_to(&self, bytes: &[u8], delay: Duration) {
        *self.delay.lock().unwrap() = Delay::Armed { bytes: bytes.to_vec(), delay };
    }

    /// Whether the database has sent that response, so that the statement has run.
    pub(crate) fn holds_the_response(&self) -> bool {
        matches!(*self.delay.lock().unwrap(), Delay::Holding)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn forward(connection: u64, client: TcpStream, server: TcpStream, shared: Arc<Mutex<Delay>>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let state = shared.clone();
    let statements = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            mark_sent(&mut state.lock().unwrap(), connection, &buffer[..read]);
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    let responses = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            let delay = hold(&mut shared.lock().unwrap(), connection);
            sleep(delay).await;
            if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = statements => {}
        () = responses => {}
    }
}

/// Notes that the statement whose response is to be delayed was sent.
fn mark_sent(state: &mut Delay, connection: u64, sent: &[u8]) {
    if let Delay::Armed { bytes, delay } = state
        && sent.windows(bytes.len()).any(|window| window == *bytes)
    {
        *state = Delay::Sent { connection, delay: *delay };
    }
}

/// Notes that the response has arrived, and returns how long to hold it back.
fn hold(state: &mut Delay, connection: u64) -> Duration {
    match *state {
        Delay::Sent { connection: delayed, delay } if delayed == connection => {
            *state = Delay::Holding;
            delay
        }
        _ => Duration::ZERO,
    }
}

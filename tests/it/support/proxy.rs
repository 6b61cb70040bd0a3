//! A way to the database that loses a packet now and then: an answer comes later than it should.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Delays the answers on a connection once certain bytes were sent over it.
struct Trap {
    bytes: Vec<u8>,
    delay: Duration,
}

/// Stands between the service and its database.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    trap: Arc<Mutex<Option<Trap>>>,
    running: JoinHandle<()>,
}

impl Proxy {
    /// Leads to this address.
    pub(crate) async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let trap = Arc::new(Mutex::new(None));
        let armed = trap.clone();
        let running = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(&target).await {
                    tokio::spawn(forward(client, server, armed.clone()));
                }
            }
        });
        Self { address, trap, running }
    }

    /// The answer to the next statement that has these bytes in it comes this much later. What else the connection
    /// carries waits behind it; other connections do not.
    pub(crate) fn delay_answer_to(&self, bytes: &[u8], delay: Duration) {
        *self.trap.lock().unwrap() = Some(Trap { bytes: bytes.to_vec(), delay });
    }

    /// Whether such a statement has been sent.
    pub(crate) fn has_met_it(&self) -> bool {
        self.trap.lock().unwrap().is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn forward(client: TcpStream, server: TcpStream, trap: Arc<Mutex<Option<Trap>>>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let held_until = Arc::new(Mutex::new(Instant::now()));
    let hold = held_until.clone();
    let there = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            let is_met =
                |trap: &mut Trap| buffer[..read].windows(trap.bytes.len()).any(|window| window == trap.bytes);
            if let Some(met) = trap.lock().unwrap().take_if(is_met) {
                *hold.lock().unwrap() = Instant::now() + met.delay;
            }
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    let back = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            let until = *held_until.lock().unwrap();
            sleep_until(until).await;
            if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

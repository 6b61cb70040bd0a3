//! systemd: socket activation, readiness and the watchdog. Without systemd, all of it does nothing.
//!
//! **Invariant:** besides `config`, the only reader of the environment, and only of the variables that systemd sets.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// The `FileDescriptorName=` of the private listener's socket.
const ADMIN_SOCKET: &str = "admin";

/// Sockets that systemd opened for this program: clients can wait in them while it restarts.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For the service itself.
    pub public: Option<TcpListener>,
    /// For health and metrics.
    pub admin: Option<TcpListener>,
}

impl Listeners {
    /// Takes the sockets that were passed: the one named `admin` for the private listener, the other for the public
    /// one. More are an error: their clients would wait forever.
    ///
    /// Changes the environment, so that child processes do not use the sockets. Call it before there are other threads.
    pub fn inherited() -> io::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let mut listeners = Self::default();
        for index in 0..passed.len() {
            let admin = names.next() == Some(ADMIN_SOCKET);
            let slot = if admin { &mut listeners.admin } else { &mut listeners.public };
            let socket = passed.take_tcp_listener(index)?;
            if slot.is_some() {
                return Err(io::Error::other(
                    "too many sockets were passed: expected at most one public and one named `admin`",
                ));
            }
            *slot = socket;
        }
        Ok(listeners)
    }
}

/// Reports why the service is not ready yet, for `systemctl status`.
pub fn waiting(cause: &str) {
    notify(&[NotifyState::Status(&format!("waiting for the database: {cause}"))]);
}

/// Reports that the service is ready.
pub fn ready() {
    notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Reports that the service is stopping.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Notifies the watchdog forever, twice per configured interval.
pub async fn notify_watchdog() -> Infallible {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| *limit > Duration::from_millis(1)) else {
        return pending().await;
    };
    let mut ticks = interval(limit / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "could not notify systemd");
    }
}

//! What systemd passes to the program and hears from it: open sockets, readiness, the watchdog. Without systemd, nothing
//! is passed and nobody hears.
//!
//! **Invariant:** besides `config`, the only reader of the environment, and only of the variables that systemd sets.

use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};

/// What `FileDescriptorName=` calls the socket of the private listener.
const ADMIN: &str = "admin";

/// Sockets that somebody else opened for this program, so that clients can wait in them while it is restarted.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For the service itself.
    pub public: Option<TcpListener>,
    /// For health and metrics.
    pub admin: Option<TcpListener>,
}

impl Listeners {
    /// Takes what was passed: the socket named `admin` is the private listener, the other one the public. One that
    /// nobody would serve is an error: its clients would wait for ever.
    ///
    /// Changes the environment, so that programs started by this one do not take them for theirs: call it before
    /// there are other threads.
    pub fn inherited() -> io::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let mut listeners = Self::default();
        for index in 0..passed.len() {
            let admin = names.next() == Some(ADMIN);
            let place = if admin { &mut listeners.admin } else { &mut listeners.public };
            let socket = passed.take_tcp_listener(index)?;
            if place.is_some() {
                return Err(io::Error::other(
                    "more sockets were passed than one, and one with the name `admin`",
                ));
            }
            *place = socket;
        }
        Ok(listeners)
    }
}

/// Tells that the service listens.
pub fn ready() {
    notify(&NotifyState::Ready);
}

/// Tells that the service is about to end.
pub fn stopping() {
    notify(&NotifyState::Stopping);
}

/// Tells, for ever and twice as often as is asked for, that the program still comes round to doing things.
pub async fn notify_watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| *limit > Duration::from_millis(1)) else {
        return pending().await;
    };
    let mut ticks = interval(limit / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notify(&NotifyState::Watchdog);
    }
}

fn notify(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        tracing::warn!(%error, "systemd could not be told");
    }
}

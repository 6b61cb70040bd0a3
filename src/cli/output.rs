//! Standard output, which may be a full disk, a closed pipe, or a pipe that nobody reads.
//!
//! **Invariant:** the exit code says whether a command did what it was asked to, also if the output fails:
//! - a command that only prints fails, unless the reader closed the pipe ([`print()`]);
//! - a command that issues a key prints it first, and then commits, so that a failure changes nothing ([`print_secret`]);
//! - any other command that has changed something succeeds, and reports to standard error instead ([`confirm`] and
//!   [`confirm_step`]).

use std::io::{self, ErrorKind, Write};
use std::thread;
use std::time::Duration;

use tokio::select;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::stop_signal::{StopSignal, stop_signals};

/// How long to wait for a blocked output once a signal asks the program to stop, and for standard error in its place.
const BLOCKED_WAIT: Duration = Duration::from_secs(1);

/// Prints what a command was asked for. A closed pipe (`petstore openapi | head`) is not an error.
pub(super) fn print(text: &str) -> io::Result<()> {
    match print_secret(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Prints what is shown only once. A closed pipe is an error: nobody reads it.
pub(super) fn print_secret(text: &str) -> io::Result<()> {
    write_all(io::stdout(), text.as_bytes())
}

/// The same for a command that waits for signals as well.
pub(super) async fn print_in_thread(text: String) -> io::Result<()> {
    in_thread(io::stdout(), text).await
}

/// Prints what a command has done and does not undo. If that is not possible, reports it to standard error.
pub(super) async fn confirm(text: &str) {
    match stop_signals() {
        Ok(mut stop_signal) => confirm_until(stop_signal(), text).await,
        Err(_) => confirm_until(std::future::pending(), text).await,
    }
}

/// The same for a command that catches signals: `stop` ends the wait for an output that is blocked.
pub(super) async fn confirm_until(stop: impl Future<Output = StopSignal>, text: &str) {
    let stopped = async {
        let signal = stop.await;
        sleep(BLOCKED_WAIT).await;
        signal
    };
    let problem = select! {
        written = in_thread(io::stdout(), text.to_owned()) => match written {
            Ok(()) => return,
            Err(error) => error.to_string(),
        },
        signal = stopped => format!("standard output is blocked: stopped by {signal}"),
    };
    // Nothing can be done if standard error fails as well.
    let _ = timeout(BLOCKED_WAIT, in_thread(io::stderr(), format!("petstore: {problem}\n{text}"))).await;
}

/// The same between the steps of a command that can be run again: it waits for a blocked output.
pub(super) fn confirm_step(text: &str) {
    if let Err(error) = print_secret(text) {
        let _ = write_all(io::stderr(), format!("petstore: {error}\n{text}").as_bytes());
    }
}

/// Writes in a thread that is not joined: it may be blocked forever.
async fn in_thread(output: impl Write + Send + 'static, text: String) -> io::Result<()> {
    let (sender, written) = oneshot::channel();
    thread::Builder::new().name("output".into()).spawn(move || {
        let _ = sender.send(write_all(output, text.as_bytes()));
    })?;
    written.await.map_err(io::Error::other)?
}

fn write_all(mut output: impl Write, text: &[u8]) -> io::Result<()> {
    output
        .write_all(text)
        .and_then(|()| output.flush())
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write the output: {error}")))
}

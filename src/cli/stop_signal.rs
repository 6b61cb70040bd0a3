//! The signals that stop a command.

use std::process::ExitCode;
use std::{fmt, io};

use tokio::select;
use tokio::signal::unix::{SignalKind, signal};

/// A signal that asks the program to stop.
#[derive(Debug, Clone, Copy)]
pub(super) enum StopSignal {
    Interrupt,
    Terminate,
}

impl StopSignal {
    /// The code that a shell reports for a program that the signal ended.
    pub(super) fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        })
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// A signal stopped the command before it was done.
#[derive(Debug, thiserror::Error)]
#[error("stopped by {0}")]
pub(super) struct Stopped(pub(super) StopSignal);

/// Catches SIGTERM and SIGINT from now on. Each call of the result waits for the next of them.
pub(super) fn stop_signals() -> io::Result<impl AsyncFnMut() -> StopSignal> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move || {
        select! {
            _ = terminate.recv() => StopSignal::Terminate,
            _ = interrupt.recv() => StopSignal::Interrupt,
        }
    })
}

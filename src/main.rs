//! The `petstore` program: parses the command line, starts the runtime, and prints an error with its causes.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use petstore::systemd::Listeners;
use petstore::telemetry::with_causes;
use tokio::runtime::{self, Runtime};

/// Requests make many small allocations, in which mimalloc is faster than the system's allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let command = petstore::cli::Cli::parse();
    let outcome =
        start().map_err(Into::into).and_then(|(runtime, listeners)| runtime.block_on(command.run(listeners)));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // If standard error is closed, the exit code still reports the failure.
            let _ = writeln!(io::stderr(), "petstore: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Takes the inherited sockets first: that must happen before there are other threads.
fn start() -> io::Result<(Runtime, Listeners)> {
    let listeners = Listeners::inherited()?;
    Ok((runtime::Builder::new_multi_thread().enable_all().build()?, listeners))
}

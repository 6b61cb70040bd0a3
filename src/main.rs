//! The `petstore` program: parse the command line, start the runtime, print an error with its causes.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use petstore::systemd::Listeners;
use petstore::telemetry::with_causes;
use tokio::runtime::{self, Runtime};

/// Requests make many small allocations, which this allocator serves faster than the system's.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let command = petstore::cli::Cli::parse();
    let outcome =
        start().map_err(Into::into).and_then(|(runtime, listeners)| runtime.block_on(command.run(listeners)));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Nothing can be done where standard error is closed, and the exit code still tells.
            let _ = writeln!(io::stderr(), "petstore: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The sockets are taken first: that wants no other threads.
fn start() -> io::Result<(Runtime, Listeners)> {
    let listeners = Listeners::inherited()?;
    Ok((runtime::Builder::new_multi_thread().enable_all().build()?, listeners))
}

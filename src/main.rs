//! The `petstore` program: parse the command line, start the runtime, print an error with its causes.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use petstore::telemetry::with_causes;

/// Requests make many small allocations, which this allocator serves faster than the system's.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let command = petstore::cli::Cli::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(command.run()));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Nothing can be done where standard error is closed, and the exit code still tells.
            let _ = writeln!(std::io::stderr(), "petstore: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

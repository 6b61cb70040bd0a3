//! The `petstore` program: parses the command line, starts the runtime, and reports an error.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use petstore::cli::{self, Cli};
use petstore::systemd::Listeners;
use tokio::runtime;

/// Requests make many small allocations, in which mimalloc is faster than the system's allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let command = match Cli::from_command_line() {
        Ok(command) => command,
        Err(error) => return cli::refuse(&error),
    };
    // Before there are other threads: it changes the environment.
    let listeners = Listeners::inherited();
    match runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command.run(listeners)),
        Err(error) => cli::report(&error),
    }
}

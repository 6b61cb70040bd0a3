//! The command line: one command a file.

mod keys;
mod migrate;
mod openapi;
mod serve;

use std::error::Error;
use std::io::{self, Write};

use clap::{Parser, Subcommand};

use crate::config::LogSettings;
use crate::supervisor::Listeners;
use crate::telemetry;

/// What a command ends with when it fails: printed with all its causes.
type Failure = Box<dyn Error + Send + Sync>;

/// An inventory service for animals: HTTP and JSON in front, PostgreSQL behind.
#[derive(Debug, Parser)]
#[command(version, about, long_about = None, after_help = "\
Start a shop:
  export DATABASE_URL=postgresql://localhost/petstore
  petstore migrate
  KEY=$(petstore keys create --name shop)
  petstore serve &
  curl -H \"Authorization: Bearer $KEY\" http://127.0.0.1:8080/v1/pets")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    log: LogSettings,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Migrate(migrate::Migrate),
    #[command(subcommand)]
    Keys(keys::Keys),
    Openapi(openapi::Openapi),
}

impl Cli {
    /// Runs the command that was asked for; `serve` on the sockets that were passed, if any were.
    pub async fn run(self, listeners: Listeners) -> Result<(), Failure> {
        let _log = telemetry::start_logging(&self.log)?;
        match self.command {
            Command::Serve(serve) => serve.run(listeners).await,
            Command::Migrate(migrate) => migrate.run().await,
            Command::Keys(keys) => keys.run().await,
            Command::Openapi(openapi) => openapi.run(),
        }
    }
}

/// Writes to standard output. A reader that has seen enough (`petstore openapi | head`) is no failure.
fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

//! The command line: one file per command.

mod demo;
mod doctor;
mod effective_settings;
mod env_file;
mod error;
mod events;
mod export;
mod import;
mod keys;
mod migrate;
mod openapi;
mod output;
mod progress;
mod rejects_file;
mod sample_pets;
mod seed;
mod serve;
mod shell_command;
mod stop_signal;
mod storage;
mod unknown_variables;

use std::env;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use petstore_config::{LogSettings, version};
use petstore_telemetry::with_causes;

use crate::systemd::Listeners;
pub use error::report;
use error::{CommandError, INVALID_SETTINGS, exit_code};

/// An inventory service for pets: HTTP and JSON in front, PostgreSQL behind.
#[derive(Debug, Parser)]
#[command(version = version::FULL, about, long_about = None, after_help = "\
Try it:
  petstore demo

Set up a service:
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

    /// Reads settings from this file, in the format of systemd's `EnvironmentFile=`, instead of the environment. Flags
    /// take precedence over the file.
    // Always `None`: `from_command_line` takes it from the arguments before they are parsed.
    #[arg(long, global = true, value_name = "FILE")]
    env_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoCommand),
    Serve(serve::ServeCommand),
    Migrate(migrate::MigrateCommand),
    Doctor(doctor::DoctorCommand),
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    Import(import::ImportCommand),
    Export(export::ExportCommand),
    Events(events::EventsCommand),
    Openapi(openapi::OpenapiCommand),
    Seed(seed::SeedCommand),
}

impl Cli {
    /// Parses the command line, and the environment or the file that `--env-file` names. Call it before there are other
    /// threads: a file becomes the environment by starting this program again.
    pub fn from_command_line() -> Result<Self, clap::Error> {
        env_file::apply()?;
        Self::try_parse()
    }

    /// Runs the command, `serve` on the sockets that systemd passed, if any, and reports its error.
    pub async fn run(self, listeners: io::Result<Listeners>) -> ExitCode {
        let log = if let Command::Demo(_) = self.command { self.log.quiet_by_default() } else { self.log };
        let _log = match petstore_telemetry::start_logging(&log) {
            Ok(guard) => guard,
            Err(error) => return report(&error),
        };
        let is_service = matches!(self.command, Command::Serve(_));
        let error = match self.command.run(listeners).await {
            Ok(code) => return code,
            Err(error) => error,
        };
        if is_service && petstore_telemetry::is_logging_json() {
            tracing::error!(cause = with_causes(&*error), "the service failed");
            exit_code(&*error)
        } else {
            report(&*error)
        }
    }
}

impl Command {
    /// `import`, `export` and `doctor` have their own exit codes.
    async fn run(self, listeners: io::Result<Listeners>) -> Result<ExitCode, CommandError> {
        let outcome = match self {
            Command::Import(import) => return Box::pin(import.run()).await,
            Command::Export(export) => return export.run().await,
            Command::Doctor(doctor) => return doctor.run().await,
            Command::Demo(demo) => Box::pin(demo.run()).await,
            Command::Serve(serve) => Box::pin(serve.run(listeners?)).await,
            Command::Migrate(migrate) => migrate.run().await,
            Command::Keys(keys) => keys.run().await,
            Command::Events(events) => events.run().await,
            Command::Openapi(openapi) => openapi.run(),
            Command::Seed(seed) => seed.run().await,
        };
        outcome.map(|()| ExitCode::SUCCESS)
    }
}

/// Prints what is wrong with the command line or the environment; or the help, if that was asked for.
pub fn refuse(error: &clap::Error) -> ExitCode {
    let is_service = env::args().nth(1).is_some_and(|command| command == "serve");
    if is_service && error.use_stderr() && !io::stderr().is_terminal() {
        let _log = petstore_telemetry::start_logging(&LogSettings::default());
        tracing::error!(cause = error.to_string().trim(), "invalid settings");
    } else {
        match error.print() {
            // A closed pipe (`petstore --help | head`) is not an error.
            Err(failure) if !error.use_stderr() && failure.kind() != io::ErrorKind::BrokenPipe => {
                return report(&failure);
            }
            _ => {}
        }
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(INVALID_SETTINGS))
}

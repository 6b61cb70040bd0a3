//! The command line: one file per command.

mod demo;
mod doctor;
mod effective_settings;
mod env_file;
mod events;
mod export;
mod import;
mod keys;
mod migrate;
mod openapi;
mod progress;
mod rejects_file;
mod sample_pets;
mod seed;
mod serve;
mod shell_command;
mod unknown_variables;

use std::env;
use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use petstore_config::version;
use petstore_config::{DatabaseUrl, LogSettings, PoolSettings, ReadFrom};
use petstore_storage::{DatabaseUrlError, MigrateError, Storage};
use petstore_telemetry::traces::ExporterBuildError;
use petstore_telemetry::with_causes;
use petstore_telemetry::{self, LogError};
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};

use crate::app::StartError;
use crate::systemd::Listeners;
use unknown_variables::UnknownVariable;

/// The error of a command: printed with all its causes.
type CommandError = Box<dyn Error + Send + Sync>;

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

/// Prints an error with its causes.
pub fn report(error: &(dyn Error + 'static)) -> ExitCode {
    // If standard error is closed, the exit code still reports the failure.
    let _ = writeln!(io::stderr(), "petstore: {}", with_causes(error));
    exit_code(error)
}

/// Prints an error with its causes, and on a line of its own what the command did before it and how to continue.
fn report_with_advice(error: &(dyn Error + 'static), advice: &str) -> ExitCode {
    let code = report(error);
    let _ = writeln!(io::stderr(), "{advice}");
    code
}

/// Prints what is wrong with the command line or the environment; or the help, if that was asked for.
pub fn refuse(error: &clap::Error) -> ExitCode {
    let is_service = env::args().nth(1).is_some_and(|command| command == "serve");
    if is_service && error.use_stderr() && !io::stderr().is_terminal() {
        let _log = petstore_telemetry::start_logging(&LogSettings::default());
        tracing::error!(cause = error.to_string().trim(), "invalid settings");
    } else {
        // A closed pipe (`petstore --help | head`) is not an error.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(INVALID_SETTINGS))
}

/// 2 if a setting is wrong, 128 and its number after a signal, else 1.
fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
    if let Some(Stopped(signal)) = error.downcast_ref() {
        return signal.exit_code();
    }
    let is_setting = error.is::<SettingError>()
        || error.is::<DatabaseUrlError>()
        || matches!(error.downcast_ref(), Some(StartError::DatabaseUrl(_)))
        || matches!(error.downcast_ref(), Some(MigrateError::Url(_)))
        || matches!(error.downcast_ref(), Some(LogError::Filter(_)))
        || error.is::<UnknownVariable>()
        || error.is::<ExporterBuildError>();
    ExitCode::from(if is_setting { INVALID_SETTINGS } else { 1 })
}

/// The exit code for a wrong setting, as clap uses it.
const INVALID_SETTINGS: u8 = 2;

/// A wrong setting, or a wrong combination of settings, that clap cannot find.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct SettingError(String);

/// Opens the storage with a single connection, which is enough for a command.
fn storage(url: &DatabaseUrl) -> Result<Storage, CommandError> {
    let pool = PoolSettings {
        database_connections: 1,
        database_timeout: Duration::from_secs(10),
        reads: ReadFrom::default(),
    };
    Ok(Storage::new(url, &pool)?)
}

/// A signal that asks the program to stop.
#[derive(Debug, Clone, Copy)]
enum StopSignal {
    Interrupt,
    Terminate,
}

impl StopSignal {
    /// The code that a shell reports for a program that the signal ended.
    fn exit_code(self) -> ExitCode {
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
struct Stopped(StopSignal);

/// Catches SIGTERM and SIGINT from now on. Each call of the result waits for the next of them.
fn stop_signals() -> io::Result<impl AsyncFnMut() -> StopSignal> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move || {
        select! {
            _ = terminate.recv() => StopSignal::Terminate,
            _ = interrupt.recv() => StopSignal::Interrupt,
        }
    })
}

/// Writes to standard output. A closed pipe (`petstore openapi | head`) is not an error.
fn print(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

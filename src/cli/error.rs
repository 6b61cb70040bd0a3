//! The errors of commands, how they are printed, and their exit codes.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use petstore_storage::{DatabaseUrlError, MigrateError};
use petstore_telemetry::traces::ExporterBuildError;
use petstore_telemetry::{LogError, with_causes};

use super::stop_signal::Stopped;
use super::unknown_variables::UnknownVariable;
use crate::app::StartError;

/// The error of a command: printed with all its causes.
pub(super) type CommandError = Box<dyn Error + Send + Sync>;

/// Prints an error with its causes.
pub fn report(error: &(dyn Error + 'static)) -> ExitCode {
    // If standard error is closed, the exit code still reports the failure.
    let _ = writeln!(io::stderr(), "petstore: {}", with_causes(error));
    exit_code(error)
}

/// Prints an error with its causes, and on a line of its own what the command did before it and how to continue.
pub(super) fn report_with_advice(error: &(dyn Error + 'static), advice: &str) -> ExitCode {
    let code = report(error);
    let _ = writeln!(io::stderr(), "{advice}");
    code
}

/// 2 if a setting is wrong, 128 and its number after a signal, else 1.
pub(super) fn exit_code(error: &(dyn Error + 'static)) -> ExitCode {
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
pub(super) const INVALID_SETTINGS: u8 = 2;

/// A wrong setting, or a wrong combination of settings, that clap cannot find.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct SettingError(pub(super) String);

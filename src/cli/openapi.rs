//! `petstore openapi`

use clap::Args;

use super::{CommandError, print};
use crate::config::InterfaceSettings;
use crate::http::interface_document;

/// Prints the OpenAPI 3.1 document, as `/openapi.json` serves it with the same settings.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  petstore openapi > openapi.json")]
pub(super) struct OpenapiCommand {
    #[command(flatten)]
    interface: InterfaceSettings,
}

impl OpenapiCommand {
    pub(super) fn run(self) -> Result<(), CommandError> {
        Ok(print(&interface_document(&self.interface))?)
    }
}

//! `petstore openapi`

use clap::Args;
use petstore_config::InterfaceSettings;
use petstore_http::interface_document;

use super::error::CommandError;
use super::output::print;

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

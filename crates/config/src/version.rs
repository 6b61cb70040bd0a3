//! Which build this is, so that a mixed fleet can be seen: in `--version`, the log, the metrics, `petstore doctor`, and in the
//! `application_name` of every database connection.

/// The version of the service. That of the interface is in the OpenAPI document.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, in short, or `unknown` if the sources were not in a Git repository and `BUILD_COMMIT` was not set.
pub const COMMIT: &str = env!("BUILD_COMMIT");

/// Both, for people and for the log.
pub const FULL: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");

/// Both, as the `application_name` of a database connection.
pub const APPLICATION_NAME: &str = concat!("petstore/", env!("CARGO_PKG_VERSION"), "+", env!("BUILD_COMMIT"));

//! The password of a connection, read again from its file for each connection, so that a changed one needs no restart.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio::task::spawn_blocking;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::database_url::{DEFAULT_PORT, UrlParameters};

/// Why there is no password.
#[derive(Debug, Error)]
pub enum PasswordSourceError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// The file does not contain a database URL.
    #[error("{} does not contain a valid database URL", .0.display())]
    NotAUrl(PathBuf),
}

/// Where the password comes from.
#[derive(Debug, Clone)]
pub(super) enum PasswordSource {
    /// From the URL, if it has one.
    Fixed,
    /// From the file with the whole URL. The servers and the other settings are those of the start.
    UrlFile(PathBuf),
    /// From a password file of PostgreSQL. It applies only if the URL has no password.
    PassFile(PathBuf),
}

impl PasswordSource {
    /// Adds the current user and password.
    pub(super) async fn apply(&self, config: &mut Config) -> Result<(), PasswordSourceError> {
        match self {
            Self::UrlFile(file) => {
                let not_a_url = || PasswordSourceError::NotAUrl(file.clone());
                let (url, _) = UrlParameters::extract(read(file).await?.trim()).map_err(|_| not_a_url())?;
                let current: Config = url.parse().map_err(|_| not_a_url())?;
                if let Some(user) = current.get_user() {
                    config.user(user);
                }
                if let Some(password) = current.get_password() {
                    config.password(password);
                }
            }
            Self::PassFile(file) if config.get_password().is_none() => {
                if let Some(password) = password_for(config, &read(file).await?) {
                    config.password(password);
                }
            }
            Self::Fixed | Self::PassFile(_) => {}
        }
        Ok(())
    }
}

async fn read(file: &Path) -> Result<String, PasswordSourceError> {
    let path = file.to_owned();
    let text =
        spawn_blocking(move || std::fs::read_to_string(path)).await.unwrap_or_else(|error| Err(error.into()));
    text.map_err(|error| PasswordSourceError::Unreadable(file.to_owned(), error))
}

/// The password of the first line that matches: `host:port:database:user:password`, each of the first four may be `*`.
fn password_for(config: &Config, file: &str) -> Option<String> {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(_)) => "localhost".to_owned(),
        None => config.get_hostaddrs().first()?.to_string(),
    };
    let port = config.get_ports().first().unwrap_or(&DEFAULT_PORT).to_string();
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    let wanted = [&*host, &*port, database, user];
    file.lines().filter(|line| !line.starts_with('#')).map(fields).find_map(|mut fields| {
        let is_match = fields.len() == 5
            && fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted);
        is_match.then(|| fields.swap_remove(4))
    })
}

/// The fields of a line: separated by colons; a backslash makes a colon or a backslash part of a field.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        let last = fields.len() - 1;
        match character {
            '\\' => fields[last].extend(characters.next()),
            // The password is the last field, and may contain colons.
            ':' if fields.len() < 5 => fields.push(String::new()),
            other => fields[last].push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(url: &str, file: &str) -> Option<String> {
        password_for(&url.parse().unwrap(), file)
    }

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let file = "# comment\n\nother:5432:*:shop:wrong\ndb:5433:pets:shop:first\ndb:*:*:shop:se\\:c\\\\r:et\n*:*:*:*:last";
        assert_eq!(password("postgresql://shop@db:5433/pets", file).as_deref(), Some("first"));
        assert_eq!(password("postgresql://shop@db/pets", file).as_deref(), Some("se:c\\r:et"));
        assert_eq!(password("postgresql://eve@db/pets", file).as_deref(), Some("last"));
        assert_eq!(password("postgresql://shop@db/pets", "db:5432:shop:shop:x\nshort:5432").as_deref(), None);
        assert_eq!(password("postgresql://shop@db", "db:5432:shop:shop:x").as_deref(), Some("x"));
        assert_eq!(
            password("postgresql:///pets?host=/run/postgresql&user=shop", "localhost:5432:pets:shop:x")
                .as_deref(),
            Some("x")
        );
    }
}

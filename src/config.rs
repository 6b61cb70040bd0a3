//! Typed settings, each from a flag or an environment variable. `--help` is their reference.
//!
//! **Invariant:** the only reader of the environment, but for what systemd says: `supervisor`.

use std::env;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser};
use ipnet::IpNet;
use jiff::SignedDuration;
use jiff::civil::{Date, date};

use crate::domain::rate_limit::RateLimit;

/// The day on which getPet is to be removed, as announced with version 1.0.0.
pub const GET_PET_REMOVAL: Date = date(2030, 12, 5);

/// How to reach the database.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct DatabaseSettings {
    /// The PostgreSQL database, such as `postgresql://user:password@host/petstore?sslmode=verify-full`.
    ///
    /// It may name several servers of one cluster, separated by commas (`@one:5432,two:5432/petstore`): the one that takes
    /// writes is used, and found anew when it changes.
    ///
    /// `sslmode` is `disable`, `prefer` (the default), `require` or `verify-full`; the last checks the
    /// server's certificate and name against the system's authorities, or those in the file
    /// `sslrootcert=…`.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: DatabaseUrl,
}

/// What `petstore migrate` needs to know.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct MigrateSettings {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseSettings,

    /// How long to try again while other transactions hold what a migration must lock.
    #[arg(long, env = "PETSTORE_MIGRATE_PATIENCE", default_value = "30s", value_name = "TIME",
        value_parser = duration)]
    pub patience: Duration,
}

/// How much to ask of the database.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct PoolSettings {
    /// The most connections that this node holds to the database, besides one that hears of changed keys.
    #[arg(long, env = "PETSTORE_DATABASE_CONNECTIONS", default_value_t = 16, value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub database_connections: u16,

    /// How long one statement may take before its request is answered with 503.
    #[arg(long, env = "PETSTORE_DATABASE_TIMEOUT", default_value = "5s", value_name = "TIME",
        value_parser = positive_duration)]
    pub database_timeout: Duration,
}

/// What `petstore serve` needs to know.
#[derive(Debug, Clone, Args)]
pub struct ServeSettings {
    /// Where the service itself listens.
    #[arg(long, env = "PETSTORE_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// Where health and metrics are. Keep this address private: it asks for no key.
    #[arg(long, env = "PETSTORE_ADMIN_LISTEN", default_value = "127.0.0.1:9090", value_name = "ADDRESS")]
    pub admin_listen: SocketAddr,

    /// The database.
    #[command(flatten)]
    pub database: DatabaseSettings,

    /// The pool of connections to it.
    #[command(flatten)]
    pub pool: PoolSettings,

    /// The interface as clients see it.
    #[command(flatten)]
    pub interface: InterfaceSettings,

    /// How long clients may take.
    #[command(flatten)]
    pub timeouts: TimeoutSettings,

    /// How much clients may ask.
    #[command(flatten)]
    pub limits: LimitSettings,

    /// What is told about requests.
    #[command(flatten)]
    pub traces: TraceSettings,

    /// Counts and measures nothing. Only to find out what that costs.
    #[arg(long, hide = true)]
    pub without_metrics: bool,
}

/// Where traces go.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceSettings {
    /// A collector of traces that takes OTLP over HTTP, such as `http://127.0.0.1:4318`. No traces are kept without it.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

/// What `petstore demo` may be told.
#[derive(Debug, Clone, Args)]
pub struct DemoSettings {
    /// Where the service listens. On 127.0.0.1:8080 without it, or the next port that is free.
    #[arg(long, env = "PETSTORE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,

    /// An empty PostgreSQL database to use, and to keep. A temporary one is made without it.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<DatabaseUrl>,

    /// The directory of PostgreSQL's `initdb` and `postgres`. Without it they are looked for in the directories of
    /// `PATH`, then in /usr/lib/postgresql/*/bin, the newest first.
    #[arg(long, env = "PGBIN", value_name = "DIRECTORY")]
    pub postgres_bin: Option<PathBuf>,
}

impl ServeSettings {
    /// Settings for this database and this address, for health and metrics on a port that is free, and to stop at once;
    /// all others as the environment has them, or as they are by default.
    pub fn for_demo(url: &DatabaseUrl, listen: SocketAddr) -> Result<Self, clap::Error> {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            serve: ServeSettings,
        }
        let listen = listen.to_string();
        let flags = ["--database-url", url.reveal(), "--listen", &listen, "--admin-listen", "127.0.0.1:0"];
        let no_balancer = ["--drain-delay", "0s"];
        Flags::try_parse_from(["petstore"].iter().chain(&flags).chain(&no_balancer)).map(|flags| flags.serve)
    }
}

/// The directories in which the system looks for programs.
#[must_use]
pub fn search_path() -> Vec<PathBuf> {
    env::var_os("PATH").iter().flat_map(env::split_paths).collect()
}

/// The directory for what is gone afterwards.
#[must_use]
pub fn temporary_directory() -> PathBuf {
    env::temp_dir()
}

/// What an operator may change of the interface as clients see it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Interface")]
pub struct InterfaceSettings {
    /// The production address that clients use, ending in /v1. Links are relative to the host without it.
    #[arg(long, env = "PETSTORE_PUBLIC_BASE_URL", value_name = "URL")]
    pub public_base_url: Option<BaseUrl>,

    /// The staging address, ending in /v1, for the interface document.
    #[arg(long, env = "PETSTORE_STAGING_BASE_URL", value_name = "URL", requires = "public_base_url")]
    pub staging_base_url: Option<BaseUrl>,

    /// An origin whose browser pages may call the service, such as `https://shop.example`; repeatable, or
    /// separated by commas. None may without it.
    #[arg(long = "cors-origin", env = "PETSTORE_CORS_ORIGINS", value_delimiter = ',', value_name = "ORIGIN",
        value_parser = origin)]
    pub cors_origins: Vec<String>,

    /// Postpones the removal of getPet, announced for 2030-12-05, to this day.
    #[arg(long, env = "PETSTORE_GET_PET_REMOVAL", value_name = "DATE", value_parser = postponed_removal)]
    pub get_pet_removal: Option<Date>,
}

/// How long clients may take.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Timeouts")]
pub struct TimeoutSettings {
    /// How long a client may take to send a request's head, and so how long an idle connection is kept.
    /// Behind a balancer, make it longer than the balancer's own (75s, say).
    #[arg(long, env = "PETSTORE_HEADER_TIMEOUT", default_value = "10s", value_name = "TIME",
        value_parser = positive_duration)]
    pub header_timeout: Duration,

    /// How long a client may take to send a request's body before it is answered with 408, or to take any
    /// more of an answer before it is cut off.
    #[arg(long, env = "PETSTORE_BODY_TIMEOUT", default_value = "10s", value_name = "TIME",
        value_parser = positive_duration)]
    pub body_timeout: Duration,

    /// How long the service goes on after SIGTERM or SIGINT, while /readyz says that it is about to stop. Make it longer
    /// than balancers take to hear of that; 0s without one.
    #[arg(long, env = "PETSTORE_DRAIN_DELAY", default_value = "5s", value_name = "TIME",
        value_parser = duration)]
    pub drain_delay: Duration,

    /// How long requests under way may then take to finish. A second signal ends them, and the service, at once.
    #[arg(long, env = "PETSTORE_DRAIN_TIMEOUT", default_value = "10s", value_name = "TIME",
        value_parser = positive_duration)]
    pub drain_timeout: Duration,
}

/// How much clients may ask of this node.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitSettings {
    /// How often each key without a limit of its own may ask of this node: so many requests a second, minute or
    /// hour, such as `100/s`, `600/m` or `10000/h`. As often as it likes without it.
    #[arg(long, env = "PETSTORE_DEFAULT_RATE_LIMIT", value_name = "LIMIT")]
    pub default_rate_limit: Option<RateLimit>,

    /// The most requests in progress at once, and the most whose body is still arriving, of which one key may have a
    /// quarter. Another is answered with 503 at once.
    #[arg(long, env = "PETSTORE_MAX_REQUESTS", default_value_t = 2_000, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub max_requests: u32,

    /// The most connections of clients at once. Another is answered with 503 and closed.
    #[arg(long, env = "PETSTORE_MAX_CONNECTIONS", default_value_t = 10_000, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub max_connections: u32,

    /// The most of them from one address (for IPv6, from one network of 64 bits).
    #[arg(long, env = "PETSTORE_MAX_CONNECTIONS_PER_ADDRESS", default_value_t = 1_000, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections_per_address: u32,

    /// An address or network of balancers and proxies, such as `10.0.0.0/24`, whose connections are those of many
    /// clients and not bound by address; repeatable, or separated by commas.
    #[arg(long = "trusted-proxy", env = "PETSTORE_TRUSTED_PROXIES", value_delimiter = ',', value_name = "NETWORK",
        default_value = "127.0.0.0/8,::1", value_parser = network)]
    pub trusted_proxies: Vec<IpNet>,
}

#[cfg(test)]
impl Default for LimitSettings {
    /// What they are without any flag.
    fn default() -> Self {
        #[derive(Parser)]
        struct NoFlags {
            #[command(flatten)]
            limits: LimitSettings,
        }
        <NoFlags as Parser>::parse_from(["petstore"]).limits
    }
}

/// What is logged if nothing else is asked for.
const DEFAULT_LOG: &str = "warn,petstore=info";

/// Settings of every command.
#[derive(Debug, Clone, Args)]
pub struct LogSettings {
    /// What is logged to standard error: a level (`error`, `warn`, `info`, `debug`, `trace`), or a list of
    /// `module=level`. Coloured text on a terminal, JSON lines otherwise.
    #[arg(
        long,
        env = "PETSTORE_LOG",
        default_value = DEFAULT_LOG,
        global = true,
        value_name = "FILTER"
    )]
    pub log: String,
}

impl LogSettings {
    /// The same for a command whose output people read: warnings only, if nothing else was asked for.
    #[must_use]
    pub fn for_people(self) -> Self {
        if self.log == DEFAULT_LOG { Self { log: "warn".to_owned() } } else { self }
    }
}

/// A database's address. It may hold a password, so `Debug` does not show it.
#[derive(Clone)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The address with its password. Only for connecting.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DatabaseUrl(REDACTED)")
    }
}

/// An address that the interface's paths are appended to: `http://` or `https://`, ending in `/v1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl(String);

impl BaseUrl {
    /// The address, without a slash at the end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The scheme, host and port of it.
    #[must_use]
    pub fn origin(&self) -> &str {
        let host = self.0.find("://").map_or(0, |scheme| scheme + "://".len());
        let path = self.0[host..].find('/').map_or(self.0.len(), |path| host + path);
        &self.0[..path]
    }
}

impl FromStr for BaseUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let host = without_scheme(text)?.strip_suffix("/v1").ok_or("must end in /v1")?;
        if host.is_empty() || !host.chars().all(|character| is_url_character(character, "/")) {
            return Err("must be an address such as https://api.example.com/v1");
        }
        Ok(Self(text.to_owned()))
    }
}

fn without_scheme(text: &str) -> Result<&str, &'static str> {
    text.strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or("must begin with https:// or http://")
}

fn is_url_character(character: char, besides: &str) -> bool {
    character.is_ascii_alphanumeric() || "-._~:[]".contains(character) || besides.contains(character)
}

fn origin(text: &str) -> Result<String, &'static str> {
    let host = without_scheme(text)?;
    if host.is_empty() || !host.chars().all(|character| is_url_character(character, "")) {
        return Err("must be a scheme and a host, such as https://shop.example, without a path");
    }
    Ok(text.to_owned())
}

fn postponed_removal(text: &str) -> Result<Date, String> {
    let day: Date = text.parse().map_err(|_| "must be a day such as 2031-06-30".to_owned())?;
    if day < GET_PET_REMOVAL {
        return Err(format!("must not be before the announced day, {GET_PET_REMOVAL}"));
    }
    Ok(day)
}

/// A network, or an address as a network of itself.
fn network(text: &str) -> Result<IpNet, &'static str> {
    text.parse()
        .or_else(|_| text.parse().map(|address: IpAddr| address.into()))
        .map_err(|_| "must be an address such as 10.0.0.1, or a network such as 10.0.0.0/24")
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or("must be a time such as 500ms, 10s or 2m")
}

fn positive_duration(text: &str) -> Result<Duration, &'static str> {
    duration(text).and_then(|duration| {
        if duration.is_zero() {
            Err("must be a time such as 500ms, 10s or 2m, and not 0")
        } else {
            Ok(duration)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_ends_in_v1() {
        for good in ["https://api.example.com/v1", "http://localhost:8080/v1", "https://example.com/pets/v1"]
        {
            assert_eq!(good.parse::<BaseUrl>().unwrap().as_str(), good);
        }
        for bad in ["", "/v1", "https:///v1", "https://example.com", "https://example.com/v1/", "ftp://a/v1"]
        {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_origin_of_a_base_url_is_what_stands_before_its_path() {
        for (url, origin) in [
            ("https://api.example.com/v1", "https://api.example.com"),
            ("http://localhost:8080/v1", "http://localhost:8080"),
            ("https://example.com/pets/v1", "https://example.com"),
        ] {
            assert_eq!(url.parse::<BaseUrl>().unwrap().origin(), origin);
        }
    }

    #[test]
    fn an_origin_has_no_path() {
        assert!(origin("https://shop.example:8443").is_ok());
        for bad in ["*", "null", "shop.example", "https://", "https://shop.example/", "https://a b"] {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_removal_can_only_be_postponed() {
        assert_eq!(postponed_removal("2031-06-30"), Ok(date(2031, 6, 30)));
        for bad in ["2030-12-04", "tomorrow", ""] {
            assert!(postponed_removal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_timeout_is_positive() {
        assert_eq!(positive_duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["0s", "-1s", "10", "soon"] {
            assert!(positive_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_delay_may_be_none() {
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for bad in ["-1s", "10", "soon"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn debug_does_not_show_the_database_password() {
        let url = DatabaseUrl::from("postgresql://shop:secret@db/petstore".to_owned());
        assert_eq!(format!("{url:?}"), "DatabaseUrl(REDACTED)");
    }
}

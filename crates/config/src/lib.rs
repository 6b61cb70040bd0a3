//! Typed settings, each from a flag or an environment variable. `--help` is their reference.
//!
//! **Guarantees:** the only reader of the environment, except for systemd's variables. A setting that is parsed is valid.
//!
//! **Must not know** what the settings are for: the crates that use them take the struct that they need.

pub mod version;

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, ValueEnum};
use ipnet::IpNet;
use jiff::SignedDuration;
use jiff::civil::{Date, date};
use petstore_domain::order::HoldDuration;
use petstore_domain::rate_limit::RateLimit;

/// The date on which getPet will be removed, as announced with version 1.0.0.
pub const GET_PET_REMOVAL: Date = date(2030, 12, 5);

/// The database.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct DatabaseSettings {
    /// The PostgreSQL database, such as `postgresql://user:password@host/petstore?sslmode=verify-full`.
    ///
    /// For a cluster, list all servers, separated by commas (`@one:5432,two:5432/petstore`). The service finds the
    /// primary. With synchronous replication, reads continue from standbys while there is no primary.
    ///
    /// `sslmode` is `disable`, `prefer` (the default), `require` or `verify-full`. Only `verify-full` checks the server's
    /// certificate and name. It trusts the system's certificate authorities, or the authorities in the file
    /// `sslrootcert=…`. The files `sslcert=…` and `sslkey=…` contain a client certificate and its key, and the file
    /// `passfile=…` contains passwords.
    ///
    /// Parts that are missing from the URL are read from PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE, PGSSLMODE,
    /// PGSSLROOTCERT, PGSSLCERT and PGSSLKEY, as in psql.
    #[arg(
        long,
        env = "DATABASE_URL",
        hide_env_values = true,
        value_name = "URL",
        required_unless_present = "database_url_file",
        conflicts_with = "database_url_file"
    )]
    pub database_url: Option<DatabaseUrl>,

    /// A file that contains the database URL, as an alternative to --database-url. The file is read again for each new
    /// connection, so you can change the password without a restart.
    #[arg(long, env = "DATABASE_URL_FILE", value_name = "FILE", value_parser = url_in_file)]
    pub database_url_file: Option<DatabaseUrl>,

    /// PostgreSQL's password file, with lines `host:port:database:user:password`, for a URL without a password. The file
    /// is read again for each new connection.
    #[arg(long, env = "PGPASSFILE", value_name = "FILE")]
    pub database_passfile: Option<PathBuf>,
}

impl DatabaseSettings {
    /// The database, and where its password comes from.
    #[must_use]
    pub fn url(&self) -> DatabaseUrl {
        let url = self.database_url_file.as_ref().or(self.database_url.as_ref());
        let Some(url) = url.cloned() else { unreachable!("one of the two is required") };
        DatabaseUrl { passfile: self.database_passfile.clone(), libpq: libpq_variables(), ..url }
    }
}

/// The settings of `petstore migrate`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct MigrateSettings {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseSettings,

    /// How long to retry while other transactions hold locks that a migration needs.
    #[arg(long, env = "PETSTORE_MIGRATE_PATIENCE", default_value = "30s", value_name = "DURATION",
        value_parser = duration)]
    pub patience: Duration,
}

/// The database connection pool.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct PoolSettings {
    /// The maximum number of connections from this node to each database server. Keep the sum over all nodes below the
    /// server's `max_connections`.
    #[arg(long, env = "PETSTORE_DATABASE_CONNECTIONS", default_value_t = 16, value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub database_connections: u16,

    /// How long a statement may take before the service answers its request with 503.
    #[arg(long, env = "PETSTORE_DATABASE_TIMEOUT", default_value = "5s", value_name = "DURATION",
        value_parser = positive_duration)]
    pub database_timeout: Duration,

    /// Which servers of a cluster serve reads. With synchronous replication, every read contains all acknowledged writes,
    /// whichever value you choose. With `quorum`, a read may also contain a write that is not acknowledged yet, and that a
    /// failover can undo.
    #[arg(long, env = "PETSTORE_READS", value_enum, default_value_t, value_name = "SERVERS")]
    pub reads: ReadFrom,
}

/// Which servers of a cluster serve reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ReadFrom {
    /// The primary, and standbys only while there is no primary.
    #[default]
    Primary,
    /// Standbys, and the primary only if the standbys do not suffice.
    Quorum,
}

/// The settings of `petstore serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeSettings {
    /// The address of the public listener. The default accepts connections only from this machine.
    #[arg(long, env = "PETSTORE_LISTEN", default_value = "127.0.0.1:8080", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// The address of the private listener, for health checks and metrics. Do not expose this listener to clients, because
    /// it does not require an API key.
    #[arg(long, env = "PETSTORE_ADMIN_LISTEN", default_value = "127.0.0.1:9090", value_name = "ADDRESS")]
    pub admin_listen: SocketAddr,

    /// The database.
    #[command(flatten)]
    pub database: DatabaseSettings,

    /// The connection pool.
    #[command(flatten)]
    pub pool: PoolSettings,

    /// The interface.
    #[command(flatten)]
    pub interface: InterfaceSettings,

    /// The timeouts.
    #[command(flatten)]
    pub timeouts: TimeoutSettings,

    /// The limits.
    #[command(flatten)]
    pub limits: LimitSettings,

    /// The shop.
    #[command(flatten)]
    pub shop: ShopSettings,

    /// The traces.
    #[command(flatten)]
    pub traces: TraceSettings,

    /// Whether the database is meant to have a single server. `petstore doctor` then does not warn that it has no standby.
    #[arg(long, env = "PETSTORE_SINGLE_SERVER", default_value_t = false, action = ArgAction::Set,
        value_name = "BOOLEAN", help_heading = "Database")]
    pub single_server: bool,

    /// Whether the log contains the client's address for each request. If a --trusted-proxy forwards the request, this is
    /// the address in `Forwarded` or `X-Forwarded-For`.
    #[arg(long, env = "PETSTORE_LOG_CLIENT_ADDRESSES", default_value_t = true, action = ArgAction::Set,
        value_name = "BOOLEAN", help_heading = "Log")]
    pub log_client_addresses: bool,

    /// Records no metrics. Only for measuring what they cost.
    #[arg(long, hide = true)]
    pub without_metrics: bool,
}

/// The rules of the shop, which should be the same on all nodes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Shop")]
pub struct ShopSettings {
    /// How many days the service keeps events (at most 60). A program that stops reading events for longer must read all
    /// pets and orders again.
    #[arg(long, env = "PETSTORE_EVENT_RETENTION", default_value_t = 30, value_name = "DAYS",
        value_parser = clap::value_parser!(u32).range(1..=60))]
    pub event_retention: u32,

    /// How long an order reserves its pet, such as `15m` (at most 168h). The order then expires, and the pet becomes
    /// available again. With `holdSeconds`, a client may ask for a shorter hold; a longer one is rejected. Without this setting, orders do not
    /// expire, and `holdSeconds` is rejected. Set this only after all nodes are upgraded. Once an order has expired, you
    /// cannot roll back to version 1.0.0, because that version cannot read expired orders.
    #[arg(long, env = "PETSTORE_ORDER_HOLD", value_name = "DURATION", value_parser = order_hold)]
    pub order_hold: Option<HoldDuration>,
}

/// The export of traces.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceSettings {
    /// An OpenTelemetry collector that accepts OTLP over HTTP, such as `http://127.0.0.1:4318`. By default, tracing is off.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

/// The settings of `petstore demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoSettings {
    /// The address to listen on. The default is 127.0.0.1:8080, or the next free port.
    #[arg(long, env = "PETSTORE_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,

    /// An empty PostgreSQL database to use. The pets stay in it. By default, the demo starts a temporary PostgreSQL.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: Option<DatabaseUrl>,

    /// The directory of PostgreSQL's `initdb` and `postgres`. By default, the demo searches `PATH`, then
    /// /usr/lib/postgresql/*/bin, newest version first.
    #[arg(long, env = "PGBIN", value_name = "DIRECTORY")]
    pub postgres_bin: Option<PathBuf>,
}

/// How long an order of the demo waits to be completed, unless the environment says otherwise.
const DEMO_ORDER_HOLD: &str = "15m";

impl ServeSettings {
    /// Settings for the demo: this database and address, any free port for the private listener, and no drain delay. The
    /// others come from the environment or are the defaults, except that orders expire.
    pub fn for_demo(url: &DatabaseUrl, listen: SocketAddr) -> Result<Self, clap::Error> {
        #[derive(Parser)]
        struct ServeCommand {
            #[command(flatten)]
            serve: ServeSettings,
        }
        let listen = listen.to_string();
        let flags = ["--database-url", url.reveal(), "--listen", &listen, "--admin-listen", "127.0.0.1:0"];
        let no_drain = ["--drain-delay", "0s"];
        // The database is this one, whatever the environment says.
        let command = ServeCommand::command()
            .mut_arg("database_url_file", |file| file.env(None::<&str>))
            .mut_arg("order_hold", |hold| hold.default_value(DEMO_ORDER_HOLD));
        let matches = command.try_get_matches_from(["petstore"].iter().chain(&flags).chain(&no_drain))?;
        ServeCommand::from_arg_matches(&matches).map(|command| command.serve)
    }
}

/// How the variables of this program start.
pub const PREFIX: &str = "PETSTORE_";

/// The names of the environment variables that start like those of this program.
#[must_use]
pub fn variables() -> Vec<String> {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// The environment variables of PostgreSQL's own clients that are set and not empty.
fn libpq_variables() -> Vec<(String, String)> {
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let set = env::vars_os().filter_map(text);
    set.filter(|(name, value)| name.starts_with("PG") && !value.is_empty()).collect()
}

/// The directories in `PATH`.
#[must_use]
pub fn search_path() -> Vec<PathBuf> {
    env::var_os("PATH").iter().flat_map(env::split_paths).collect()
}

/// The directory for temporary files.
#[must_use]
pub fn temporary_directory() -> PathBuf {
    env::temp_dir()
}

/// The interface as clients see it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Interface")]
pub struct InterfaceSettings {
    /// The base URL that clients use in production, ending in /v1, for links and the OpenAPI document. By default, links
    /// are relative to the host.
    #[arg(long, env = "PETSTORE_PUBLIC_BASE_URL", value_name = "URL")]
    pub public_base_url: Option<BaseUrl>,

    /// The base URL of the staging environment, ending in /v1, for the OpenAPI document.
    #[arg(long, env = "PETSTORE_STAGING_BASE_URL", value_name = "URL", requires = "public_base_url")]
    pub staging_base_url: Option<BaseUrl>,

    /// An origin from which web pages may call the service, such as `https://shop.example`; repeat the flag, or separate
    /// several origins with commas. By default, no origin is allowed.
    #[arg(long = "cors-origin", env = "PETSTORE_CORS_ORIGINS", value_delimiter = ',', value_name = "ORIGIN",
        value_parser = origin)]
    pub cors_origins: Vec<String>,

    /// A later date for the removal of getPet, if 2030-12-05 (the announced date) is too early.
    #[arg(long, env = "PETSTORE_GET_PET_REMOVAL", value_name = "DATE", value_parser = postponed_removal)]
    pub get_pet_removal: Option<Date>,
}

/// How long clients may take, and how long the service takes to stop.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Timeouts")]
pub struct TimeoutSettings {
    /// How long a client may take to send a request's headers, and how long an idle connection stays open. Behind a load
    /// balancer, set this longer than the load balancer's idle timeout (for example, 75s).
    #[arg(long, env = "PETSTORE_HEADER_TIMEOUT", default_value = "10s", value_name = "DURATION",
        value_parser = positive_duration)]
    pub header_timeout: Duration,

    /// How long a client may take to send a request's body, and how long it may pause while it reads a response. If the
    /// body takes longer, the client gets 408. If the pause is longer, the service closes the connection.
    #[arg(long, env = "PETSTORE_BODY_TIMEOUT", default_value = "10s", value_name = "DURATION",
        value_parser = positive_duration)]
    pub body_timeout: Duration,

    /// How long the service keeps serving requests after SIGTERM or SIGINT, while /readyz answers 503. With a load
    /// balancer, set this to more than the time that the load balancer takes to notice the 503. Without a load balancer,
    /// set this to 0s.
    #[arg(long, env = "PETSTORE_DRAIN_DELAY", default_value = "5s", value_name = "DURATION",
        value_parser = duration)]
    pub drain_delay: Duration,

    /// How long the service waits, after --drain-delay, for requests in flight to finish. A second SIGTERM or SIGINT stops
    /// the service immediately.
    #[arg(long, env = "PETSTORE_DRAIN_TIMEOUT", default_value = "10s", value_name = "DURATION",
        value_parser = positive_duration)]
    pub drain_timeout: Duration,
}

/// The limits of this node.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitSettings {
    /// The rate limit on this node for keys without their own limit, in requests per second, minute or hour: `100/s`,
    /// `600/m` or `10000/h`. By default, these keys are not limited.
    #[arg(long, env = "PETSTORE_DEFAULT_RATE_LIMIT", value_name = "LIMIT")]
    pub default_rate_limit: Option<RateLimit>,

    /// The maximum number of requests in flight on this node. The same maximum also applies, separately, to requests whose
    /// body is still arriving, and to requests that wait for an event. Of these two kinds, each key may have at most a
    /// quarter of the maximum. Further requests get 503 immediately.
    #[arg(long, env = "PETSTORE_MAX_REQUESTS", default_value_t = 2_000, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub max_requests: u32,

    /// The maximum number of client connections to this node. Further connections get 503 and are closed.
    #[arg(long, env = "PETSTORE_MAX_CONNECTIONS", default_value_t = 10_000, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..1_000_000))]
    pub max_connections: u32,

    /// The maximum number of connections from one client address (for IPv6, from one /64 network).
    #[arg(long, env = "PETSTORE_MAX_CONNECTIONS_PER_ADDRESS", default_value_t = 1_000, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections_per_address: u32,

    /// The address or network of a load balancer or proxy, such as `10.0.0.0/24`; repeat the flag, or separate several
    /// addresses with commas. --max-connections-per-address does not apply to these addresses, because each of them
    /// connects on behalf of many clients. For requests from these addresses, the log shows the client's address from
    /// `Forwarded` or `X-Forwarded-For`.
    #[arg(long = "trusted-proxy", env = "PETSTORE_TRUSTED_PROXIES", value_delimiter = ',', value_name = "NETWORK",
        default_value = "127.0.0.0/8,::1", value_parser = network)]
    pub trusted_proxies: Vec<IpNet>,
}

const DEFAULT_LOG_FILTER: &str = "warn,petstore=info";

/// Settings of every command.
#[derive(Debug, Clone, Args)]
pub struct LogSettings {
    /// What to log to standard error: a level (`error`, `warn`, `info`, `debug`, `trace`), or a comma-separated list of
    /// `module=level`. The log is coloured text on a terminal, and JSON lines otherwise.
    #[arg(
        long,
        env = "PETSTORE_LOG",
        default_value = DEFAULT_LOG_FILTER,
        global = true,
        value_name = "FILTER"
    )]
    pub log: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { log: DEFAULT_LOG_FILTER.to_owned() }
    }
}

impl LogSettings {
    /// Logs only warnings unless another filter is set: for a command whose output people read.
    #[must_use]
    pub fn quiet_by_default(self) -> Self {
        if self.log == DEFAULT_LOG_FILTER { Self { log: "warn".to_owned() } } else { self }
    }
}

/// The URL of a database. It may contain a password, so `Debug` does not show it.
#[derive(Clone)]
pub struct DatabaseUrl {
    text: String,
    file: Option<PathBuf>,
    passfile: Option<PathBuf>,
    libpq: Vec<(String, String)>,
}

impl DatabaseUrl {
    /// The URL with its password. Only for connecting.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The file that contains the URL, if it is from a file.
    #[must_use]
    pub fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }

    /// The password file, if there is one.
    #[must_use]
    pub fn passfile(&self) -> Option<&PathBuf> {
        self.passfile.as_ref()
    }

    /// libpq's environment variables, which stand in for what the URL does not say.
    #[must_use]
    pub fn libpq(&self) -> &[(String, String)] {
        &self.libpq
    }
}

impl From<String> for DatabaseUrl {
    fn from(text: String) -> Self {
        Self { text, file: None, passfile: None, libpq: Vec::new() }
    }
}

fn url_in_file(path: &str) -> Result<DatabaseUrl, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    Ok(DatabaseUrl { file: Some(path.into()), ..DatabaseUrl::from(text.trim().to_owned()) })
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DatabaseUrl(REDACTED)")
    }
}

/// A base URL that paths are appended to: `http://` or `https://`, ending in `/v1`.
///
/// Checked against an allow-list rather than with a URL parser: it becomes part of the `Content-Security-Policy` header,
/// which a `;` or `,` would split, and both are valid in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl(String);

impl BaseUrl {
    /// The URL, without a trailing slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its scheme, host and port.
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
            return Err("must be a URL such as https://api.example.com/v1");
        }
        Ok(Self(text.to_owned()))
    }
}

fn without_scheme(text: &str) -> Result<&str, &'static str> {
    text.strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"))
        .ok_or("must start with https:// or http://")
}

fn is_url_character(character: char, extra: &str) -> bool {
    character.is_ascii_alphanumeric() || "-._~:[]".contains(character) || extra.contains(character)
}

fn origin(text: &str) -> Result<String, &'static str> {
    let host = without_scheme(text)?;
    if host.is_empty() || !host.chars().all(|character| is_url_character(character, "")) {
        return Err("must be a scheme and a host, such as https://shop.example, without a path");
    }
    Ok(text.to_owned())
}

fn postponed_removal(text: &str) -> Result<Date, String> {
    let day: Date = text.parse().map_err(|_| "must be a date such as 2031-06-30".to_owned())?;
    if day < GET_PET_REMOVAL {
        return Err(format!("must not be before the announced date, {GET_PET_REMOVAL}"));
    }
    Ok(day)
}

/// Parses a network, or an address as a network of one.
fn network(text: &str) -> Result<IpNet, &'static str> {
    text.parse()
        .or_else(|_| text.parse().map(|address: IpAddr| address.into()))
        .map_err(|_| "must be an address such as 10.0.0.1, or a network such as 10.0.0.0/24")
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or("must be a duration such as 500ms, 10s or 2m")
}

fn order_hold(text: &str) -> Result<HoldDuration, &'static str> {
    let hold = duration(text).ok().and_then(|duration| duration.try_into().ok());
    hold.ok_or("must be a duration from 1s to 168h, such as 15m")
}

fn positive_duration(text: &str) -> Result<Duration, &'static str> {
    let positive = duration(text).ok().filter(|duration| !duration.is_zero());
    positive.ok_or("must be a duration greater than 0, such as 500ms, 10s or 2m")
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
    fn the_origin_of_a_base_url_is_everything_before_its_path() {
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
    fn a_delay_may_be_zero() {
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

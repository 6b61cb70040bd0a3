//! Opens connections: finds the primary among several servers, and sets up the session.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::try_join;
use futures_util::stream::{FuturesUnordered, poll_fn};
use petstore_config::DatabaseUrl;
use petstore_config::version;
use thiserror::Error;
use tokio::select;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{self, Host, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::credentials::{PasswordSource, PasswordSourceError};
use super::database_url::{self, DEFAULT_PORT, DatabaseUrlError, SslMode};

/// How long opening a connection may take, including authentication and reading the schema version.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one server may take to accept a connection and to report whether it accepts writes.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long to try only the last known primary before trying the other servers as well.
const HEAD_START: Duration = Duration::from_millis(250);
/// How long a server may be unreachable before its connections are closed.
const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no connection was opened.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No server accepted the connection and accepts writes. The source is the last server's error.
    #[error("cannot connect to the database")]
    Refused(#[from] tokio_postgres::Error),
    /// No server answered in time.
    #[error("no response from the database within {SERVER_TIMEOUT:?}")]
    Timeout,
    /// There is no password.
    #[error(transparent)]
    PasswordSource(#[from] PasswordSourceError),
    /// The server closed the connection.
    #[error("the database closed the connection")]
    Closed,
    /// A session setting was lost between two statements.
    #[error("the session setting {setting} is lost between two statements: {NO_POOLER}")]
    SettingLost {
        /// Its name.
        setting: &'static str,
    },
}

/// What to do if a connection is not a session.
pub(crate) const NO_POOLER: &str = "a connection pooler is in between that does not keep sessions, such as \
    PgBouncer in transaction mode. Connect directly to PostgreSQL (a node needs few connections), or set pool_mode = session";

/// Where a connection leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// To a server that accepts writes; to any server, if the connector includes standbys.
    Writable,
    /// To the server with this index, whatever its role.
    Server(usize),
}

/// A server of the database URL.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

type RawConnection = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Opens connections to one database on one or several servers. Cheap to clone.
///
/// The driver can find the primary itself, but a server that accepts connections and never responds would block its
/// search indefinitely.
#[derive(Clone)]
pub struct Connector {
    /// One configuration per server.
    servers: Arc<[Config]>,
    credentials: PasswordSource,
    tls: MakeRustlsConnect,
    /// The settings of each session.
    session: Arc<[(&'static str, String)]>,
    /// The index of the last known primary.
    last_primary: Arc<AtomicUsize>,
    /// Whether the certificates of servers are checked.
    verifies_servers: bool,
}

impl Connector {
    /// Parses the URL, and reads the certificates that it names.
    pub fn new(url: &DatabaseUrl) -> Result<Self, DatabaseUrlError> {
        let (mut config, parameters) = database_url::parse(url.reveal(), url.libpq())?;
        config.ssl_mode(match parameters.mode {
            SslMode::Disable => config::SslMode::Disable,
            SslMode::Prefer => config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyFull => config::SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name(version::APPLICATION_NAME);
        }
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        let servers: Arc<[Config]> = (0..count).map(|index| server_config(&config, index)).collect();
        if servers.is_empty() {
            return Err(DatabaseUrlError::NoServer);
        }
        // It wins over the URL, the role and the database: an acknowledged write is on a standby's disk, too.
        let session = Arc::new([("synchronous_commit", "on".to_owned())]);
        let tls = MakeRustlsConnect::new(parameters.client_config()?);
        let passfile = parameters.passfile.or(url.passfile().cloned());
        let credentials = match (url.file(), passfile) {
            (Some(file), _) => PasswordSource::UrlFile(file.clone()),
            (None, Some(file)) => PasswordSource::PassFile(file),
            (None, None) => PasswordSource::Fixed,
        };
        let verifies_servers = parameters.mode == SslMode::VerifyFull;
        Ok(Self { servers, credentials, tls, session, last_primary: Arc::default(), verifies_servers })
    }

    /// The same servers, with the session settings for requests:
    /// - the server itself ends a statement after `limit`, and a transaction whose next statement does not arrive for a second, as
    ///   when its node is cut off or stands still: it may hold locks, and it holds up whoever reads in the order of transactions;
    /// - plans are generic. A statement on arrays looks cheaper once the arrays are known, so the planner would plan every
    ///   execution again, which takes longer than the execution;
    /// - no plan is a sequential scan: it looks best while a table is empty, and the plan is kept when the table grows;
    /// - no statement is worth JIT compilation.
    #[must_use]
    pub fn for_requests(&self, limit: Duration) -> Self {
        let milliseconds = |time: Duration| time.as_millis().to_string();
        let settings = [
            ("statement_timeout", milliseconds(limit)),
            ("idle_in_transaction_session_timeout", milliseconds(limit.min(Duration::from_secs(1)))),
            ("plan_cache_mode", "force_generic_plan".to_owned()),
            ("enable_seqscan", "off".to_owned()),
            ("jit", "off".to_owned()),
        ];
        Self { session: self.session.iter().cloned().chain(settings).collect(), ..self.clone() }
    }

    /// The same servers, with another name for the sessions.
    #[must_use]
    pub fn named(&self, application: &str) -> Self {
        let mut servers = self.servers.to_vec();
        for server in &mut servers {
            server.application_name(application);
        }
        Self { servers: servers.into(), ..self.clone() }
    }

    /// The same servers, standbys included.
    #[must_use]
    pub fn including_standbys(&self) -> Self {
        let mut servers = self.servers.to_vec();
        for server in &mut servers {
            server.target_session_attrs(TargetSessionAttrs::Any);
        }
        Self { servers: servers.into(), ..self.clone() }
    }

    /// The address of each server, in the order of the URL.
    pub fn addresses(&self) -> impl Iterator<Item = ServerAddress> {
        self.servers.iter().map(|server| {
            let host = match (server.get_hosts().first(), server.get_hostaddrs().first()) {
                (Some(Host::Tcp(name)), _) => name.clone(),
                (Some(Host::Unix(path)), _) => path.display().to_string(),
                (None, Some(address)) => address.to_string(),
                (None, None) => String::new(),
            };
            ServerAddress { host, port: *server.get_ports().first().unwrap_or(&DEFAULT_PORT) }
        })
    }

    /// Whether the certificates of servers are checked.
    #[must_use]
    pub fn verifies_servers(&self) -> bool {
        self.verifies_servers
    }

    /// The addresses of all servers, separated by commas.
    #[must_use]
    pub(crate) fn addresses_text(&self) -> String {
        self.addresses().map(|address| address.to_string()).collect::<Vec<_>>().join(",")
    }

    async fn connect_to(&self, server: usize) -> Result<(Client, RawConnection), ConnectError> {
        let connecting = async {
            let mut config = self.servers[server].clone();
            self.credentials.apply(&mut config).await?;
            let (client, mut connection) = config.connect(self.tls.clone()).await?;
            self.set_up(&client, &mut connection).await?;
            Ok((client, connection))
        };
        timeout(SERVER_TIMEOUT, connecting).await.unwrap_or(Err(ConnectError::Timeout))
    }

    /// Sets up a session, and checks in another statement that its settings have stayed. (With statements and not with the
    /// startup packet, of which poolers refuse or ignore most.)
    async fn set_up(&self, client: &Client, connection: &mut RawConnection) -> Result<(), ConnectError> {
        let select = |each: fn(&(&str, String)) -> String| {
            format!("SELECT {}", self.session.iter().map(each).collect::<Vec<_>>().join(", "))
        };
        let set = select(|(name, value)| format!("set_config('{name}', '{value}', false)"));
        let get = select(|(name, _)| format!("current_setting('{name}')"));
        // Both are sent at once.
        let statements = try_join(client.simple_query(&set), client.simple_query(&get));
        let (set, found) = select! {
            rows = statements => rows?,
            ended = connection => return Err(ended.map_or_else(ConnectError::Refused, |()| ConnectError::Closed)),
        };
        for (index, (setting, _)) in self.session.iter().enumerate() {
            if value_at(&set, index) != value_at(&found, index) {
                return Err(ConnectError::SettingLost { setting });
            }
        }
        Ok(())
    }

    async fn connect(&self, target: Target) -> Result<(Client, RawConnection), ConnectError> {
        match target {
            Target::Writable => self.connect_to_primary().await,
            Target::Server(server) => self.connect_to(server).await,
        }
    }

    /// Connects to the server that accepts writes: tries the last known primary, and after [`HEAD_START`] or an error all
    /// others at the same time, each for at most [`SERVER_TIMEOUT`].
    async fn connect_to_primary(&self) -> Result<(Client, RawConnection), ConnectError> {
        let attempt = |index: usize| async move { Ok((index, self.connect_to(index).await?)) };
        let last_primary = self.last_primary.load(Ordering::Relaxed);
        let mut others = (0..self.servers.len()).filter(|index| *index != last_primary).peekable();
        let mut attempts = FuturesUnordered::from_iter([attempt(last_primary)]);
        let mut head_start = pin!(sleep(HEAD_START));
        let mut last_error = ConnectError::Timeout;
        loop {
            select! {
                outcome = attempts.next() => match outcome {
                    Some(Ok((index, connected))) => {
                        self.last_primary.store(index, Ordering::Relaxed);
                        return Ok(connected);
                    }
                    Some(Err(ConnectError::Timeout)) => {}
                    Some(Err(error)) => last_error = error,
                    None => return Err(last_error),
                },
                // Only while servers are left to try: an elapsed sleep stays ready.
                () = &mut head_start, if others.peek().is_some() => {}
            }
            attempts.extend(others.by_ref().map(attempt));
        }
    }

    /// Opens one connection outside of any pool.
    pub async fn open(&self) -> Result<Client, ConnectError> {
        let (client, connection) = self.connect(Target::Writable).await?;
        tokio::spawn(run(connection));
        Ok(client)
    }

    /// Opens one connection to one server.
    pub async fn open_server(&self, server: usize) -> Result<Client, ConnectError> {
        let (client, connection) = self.connect(Target::Server(server)).await?;
        tokio::spawn(run(connection));
        Ok(client)
    }

    /// Opens one connection that closes as soon as the server sends a warning.
    pub(crate) async fn open_closing_on_warning(
        &self,
        target: Target,
    ) -> Result<(Client, JoinHandle<()>), ConnectError> {
        let (client, mut connection) = self.connect(target).await?;
        let mut messages = poll_fn(move |cx| connection.poll_message(cx));
        let task = tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) if notice.severity() == "WARNING" => {
                        let (warning, code) = (notice.message(), notice.code().code());
                        // A server that shuts down is no reason to warn: requests report it.
                        if code.starts_with("57P") {
                            tracing::debug!(warning, code, "database server is shutting down");
                        } else {
                            tracing::warn!(
                                warning,
                                code,
                                "database server sent a warning: connection closed"
                            );
                        }
                        return;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "database connection lost");
                        return;
                    }
                }
            }
        });
        Ok((client, task))
    }
}

/// A value in the only row of an answer.
fn value_at(answer: &[SimpleQueryMessage], column: usize) -> Option<&str> {
    answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(column),
        _ => None,
    })
}

async fn run(connection: RawConnection) {
    if let Err(error) = connection.await {
        // The client gets only "connection closed"; this is the reason.
        tracing::debug!(%error, "database connection lost");
    }
}

/// The configuration of one server. Built field by field, because the driver cannot remove hosts from a `Config`.
fn server_config(all: &Config, index: usize) -> Config {
    let mut one = Config::new();
    if let Some(Host::Tcp(name)) = all.get_hosts().get(index) {
        one.host(name);
    }
    if let Some(Host::Unix(path)) = all.get_hosts().get(index) {
        one.host_path(path);
    }
    if let Some(address) = all.get_hostaddrs().get(index) {
        one.hostaddr(*address);
    }
    if let Some(port) = all.get_ports().get(index).or_else(|| all.get_ports().first()) {
        one.port(*port);
    }
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(name) = all.get_dbname() {
        one.dbname(name);
    }
    if let Some(options) = all.get_options() {
        one.options(options);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    one.ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .channel_binding(all.get_channel_binding())
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        // A server that is cut off does not even close its connections.
        .tcp_user_timeout(DEAD_PEER_TIMEOUT)
        .keepalives_idle(DEAD_PEER_TIMEOUT)
        .keepalives_interval(Duration::from_secs(1))
        .keepalives_retries(3);
    one
}

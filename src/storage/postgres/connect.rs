//! Opening a connection: the database's address, the right one of several servers, and TLS as `sslmode` asks for it.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{FuturesUnordered, Stream, poll_fn};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::select;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::DatabaseUrl;

/// How long opening a connection may take, authentication and the look at the schema included.
pub(in crate::storage) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one server may take to let us in and to say whether it takes writes.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long the server that was the right one the last time is asked alone.
const HEAD_START: Duration = Duration::from_millis(250);
/// How long a server may say nothing at all before its connections are given up.
const CUT_OFF: Duration = Duration::from_secs(5);

/// The database's address cannot be used. The address itself is not repeated: it may hold a password.
#[derive(Debug, Error)]
pub enum DatabaseUrlError {
    /// Not a URL.
    #[error("the database URL must begin with postgresql://")]
    NotAUrl,
    /// The driver does not understand it.
    #[error("the database URL is not valid")]
    Invalid(#[source] tokio_postgres::Error),
    /// Not a mode that is supported here.
    #[error("sslmode must be disable, prefer, require or verify-full")]
    SslMode,
    /// A file of certificate authorities was asked for, but has none.
    #[error("no certificate authority could be read from {0}")]
    NoAuthorities(String),
    /// TLS could not be set up.
    #[error("TLS could not be set up")]
    Tls(#[from] rustls::Error),
    /// It names nobody.
    #[error("the database URL names no server")]
    NoServer,
    /// The pool could not be set up.
    #[error("the pool of database connections could not be set up")]
    Pool,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// No server could be reached that let us in and takes writes. This is what the last of them said.
    #[error("the database cannot be reached, or refused")]
    Refused(#[from] tokio_postgres::Error),
    /// No server answered.
    #[error("the database did not answer within {SERVER_TIMEOUT:?}")]
    Silence,
}

type RawConnection = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Opens connections to one database, which several servers may have. Cheap to clone.
///
/// The driver can look for the right one of several servers by itself, but one of them that takes connections and never
/// answers would hold it up for ever.
#[derive(Clone)]
pub(in crate::storage) struct Connector {
    /// One for each server.
    servers: Arc<[Config]>,
    tls: MakeRustlsConnect,
    /// The server that was the right one the last time.
    last: Arc<AtomicUsize>,
}

impl Connector {
    pub(in crate::storage) fn new(url: &DatabaseUrl) -> Result<Self, DatabaseUrlError> {
        let (url, tls) = split_tls(url.reveal())?;
        let mut config: Config = url.parse().map_err(DatabaseUrlError::Invalid)?;
        config.ssl_mode(match tls.mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyFull => SslMode::Require,
        });
        if config.get_application_name().is_none() {
            config.application_name("petstore");
        }
        let count = config.get_hosts().len().max(config.get_hostaddrs().len());
        let servers: Arc<[Config]> = (0..count).map(|place| one_server(&config, place)).collect();
        if servers.is_empty() {
            return Err(DatabaseUrlError::NoServer);
        }
        Ok(Self { servers, tls: MakeRustlsConnect::new(tls.client_config()?), last: Arc::default() })
    }

    /// The same database, for connections whose statements the server itself ends after `limit`, and likewise a
    /// transaction whose next statement does not come, as when the node that began it is cut off.
    ///
    /// Their plans are made once: a statement on arrays looks cheaper to the planner with every array that it
    /// sees, so it would plan each execution anew, which takes longer than the execution. And none of them is made
    /// for a table that is still empty: scanning it looks best then, and the plan outlives the emptiness. None is
    /// worth compiling.
    pub(in crate::storage) fn for_requests(&self, limit: Duration) -> Self {
        let limit = limit.as_millis();
        let with_options = |server: &Config| {
            let mut server = server.clone();
            let options = server.get_options().unwrap_or_default();
            server.options(format!(
                "{options} -c statement_timeout={limit} -c idle_in_transaction_session_timeout={limit} \
                 -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off"
            ));
            server
        };
        Self { servers: self.servers.iter().map(with_options).collect(), ..self.clone() }
    }

    /// The same database, with servers that take no writes.
    pub(in crate::storage) fn including_standbys(&self) -> Self {
        let any = |server: &Config| {
            let mut server = server.clone();
            server.target_session_attrs(TargetSessionAttrs::Any);
            server
        };
        Self { servers: self.servers.iter().map(any).collect(), ..self.clone() }
    }

    /// Finds the server that takes writes: asks the one that was it the last time, and soon all others too, each for
    /// [`SERVER_TIMEOUT`] at most.
    async fn connect(&self) -> Result<(Client, RawConnection), ConnectError> {
        let ask = |place: usize| async move {
            let connecting = self.servers[place].connect(self.tls.clone());
            match timeout(SERVER_TIMEOUT, connecting).await {
                Ok(Ok(connected)) => Ok((place, connected)),
                Ok(Err(refusal)) => Err(ConnectError::Refused(refusal)),
                Err(_) => Err(ConnectError::Silence),
            }
        };
        let last = self.last.load(Ordering::Relaxed);
        let others: Vec<usize> = (0..self.servers.len()).filter(|place| *place != last).collect();
        let mut others = others.into_iter();
        let mut asked = FuturesUnordered::from_iter([ask(last)]);
        let mut head_start = pin!(sleep(HEAD_START));
        let mut failure = ConnectError::Silence;
        loop {
            select! {
                answer = asked.next() => match answer {
                    Some(Ok((place, connected))) => {
                        self.last.store(place, Ordering::Relaxed);
                        return Ok(connected);
                    }
                    Some(Err(ConnectError::Silence)) => {}
                    Some(Err(refusal)) => failure = refusal,
                    None => return Err(failure),
                },
                // Once: a time that is over stays so.
                () = &mut head_start, if others.len() > 0 => {}
            }
            // After the head start, or after a refusal.
            asked.extend(others.by_ref().map(ask));
        }
    }

    /// Opens one connection outside of any pool.
    pub(in crate::storage) async fn open(&self) -> Result<Client, ConnectError> {
        let (client, connection) = self.connect().await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                // Whoever uses the connection gets an error of its own; this names the reason.
                tracing::debug!(%error, "a database connection ended");
            }
        });
        Ok(client)
    }

    /// Opens one connection that ends as soon as the server warns.
    pub(in crate::storage) async fn open_guarded(&self) -> Result<(Client, JoinHandle<()>), ConnectError> {
        let (client, mut messages) = self.open_listening().await?;
        let task = tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) if notice.severity() == "WARNING" => {
                        let (warning, code) = (notice.message(), notice.code().code());
                        // A server that goes away says so, and is nothing to warn of: requests will tell.
                        if code.starts_with("57P") {
                            tracing::debug!(warning, code, "the database ends its connections");
                        } else {
                            tracing::warn!(warning, code, "the database warned: its connection is closed");
                        }
                        return;
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a database connection ended");
                        return;
                    }
                }
            }
        });
        Ok((client, task))
    }

    /// Opens one connection outside of any pool, and hands on what the server says unasked. It works only while
    /// that stream is read.
    pub(in crate::storage) async fn open_listening(
        &self,
    ) -> Result<
        (Client, impl Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Unpin + use<>),
        ConnectError,
    > {
        let (client, mut connection) = self.connect().await?;
        Ok((client, poll_fn(move |cx| connection.poll_message(cx))))
    }
}

/// The settings for one of the servers, as the driver has no way to take the others out.
fn one_server(all: &Config, place: usize) -> Config {
    let mut one = Config::new();
    if let Some(Host::Tcp(name)) = all.get_hosts().get(place) {
        one.host(name);
    }
    if let Some(Host::Unix(path)) = all.get_hosts().get(place) {
        one.host_path(path);
    }
    if let Some(address) = all.get_hostaddrs().get(place) {
        one.hostaddr(*address);
    }
    if let Some(port) = all.get_ports().get(place).or_else(|| all.get_ports().first()) {
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
        // A server that is cut off sends nothing, not even an end.
        .tcp_user_timeout(CUT_OFF)
        .keepalives_idle(CUT_OFF)
        .keepalives_interval(Duration::from_secs(1))
        .keepalives_retries(3);
    one
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

#[derive(Debug, PartialEq, Eq)]
struct Tls {
    mode: Mode,
    authorities: Option<PathBuf>,
}

/// Takes `sslmode` and `sslrootcert` out of the URL: the driver knows neither `verify-full` nor the file.
fn split_tls(url: &str) -> Result<(String, Tls), DatabaseUrlError> {
    if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
        return Err(DatabaseUrlError::NotAUrl);
    }
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let mut tls = Tls { mode: Mode::Prefer, authorities: None };
    let mut rest = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("sslmode", "disable") => tls.mode = Mode::Disable,
            ("sslmode", "prefer") => tls.mode = Mode::Prefer,
            ("sslmode", "require") => tls.mode = Mode::Require,
            ("sslmode", "verify-full") => tls.mode = Mode::VerifyFull,
            ("sslmode", _) => return Err(DatabaseUrlError::SslMode),
            ("sslrootcert", path) => tls.authorities = Some(path.into()),
            _ => drop(rest.append_pair(&name, &value)),
        }
    }
    // The driver reads `+` as itself, not as a space.
    Ok((format!("{address}?{}", rest.finish().replace('+', "%20")), tls))
}

impl Tls {
    fn client_config(&self) -> Result<ClientConfig, DatabaseUrlError> {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        if self.mode != Mode::VerifyFull {
            let verifier = Arc::new(EncryptOnly(provider));
            return Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth());
        }
        let found = match &self.authorities {
            Some(file) => rustls_native_certs::load_certs_from_paths(Some(file), None),
            None => rustls_native_certs::load_native_certs(),
        };
        let mut authorities = RootCertStore::empty();
        let (added, _) = authorities.add_parsable_certificates(found.certs);
        if added == 0 {
            let place =
                self.authorities.as_ref().map_or("the system".into(), |file| file.display().to_string());
            return Err(DatabaseUrlError::NoAuthorities(place));
        }
        Ok(builder.with_root_certificates(authorities).with_no_client_auth())
    }
}

/// `prefer` and `require` mean, here as in PostgreSQL's own client: encrypted, but whoever answers is believed.
#[derive(Debug)]
struct EncryptOnly(Arc<CryptoProvider>);

impl ServerCertVerifier for EncryptOnly {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(url: &str) -> (String, Mode, Option<PathBuf>) {
        let (url, tls) = split_tls(url).unwrap();
        (url, tls.mode, tls.authorities)
    }

    #[test]
    fn tls_settings_are_taken_out_of_the_url() {
        assert_eq!(
            split("postgresql://u:p@db/shop?sslmode=verify-full&sslrootcert=/etc/ca.pem&connect_timeout=3"),
            (
                "postgresql://u:p@db/shop?connect_timeout=3".into(),
                Mode::VerifyFull,
                Some("/etc/ca.pem".into())
            ),
        );
        assert_eq!(
            split("postgres://db/shop?application_name=my%20shop"),
            ("postgres://db/shop?application_name=my%20shop".into(), Mode::Prefer, None),
        );
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        assert!(matches!(split_tls("host=db"), Err(DatabaseUrlError::NotAUrl)));
        for mode in ["verify-ca", "allow", ""] {
            let url = format!("postgresql://db/shop?sslmode={mode}");
            assert!(matches!(split_tls(&url), Err(DatabaseUrlError::SslMode)), "{mode}");
        }
    }

    #[test]
    fn a_file_without_authorities_is_refused() {
        let url = DatabaseUrl::from("postgresql://db/x?sslmode=verify-full&sslrootcert=/dev/null".to_owned());
        assert!(matches!(Connector::new(&url), Err(DatabaseUrlError::NoAuthorities(_))));
    }
}

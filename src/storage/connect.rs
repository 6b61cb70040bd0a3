//! Opening a connection: the database's address, and TLS as its `sslmode` asks for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Connect;
use futures_util::stream::{Stream, poll_fn};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::CONNECT_TIMEOUT;
use crate::config::DatabaseUrl;

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
    /// The pool could not be set up.
    #[error("the pool of database connections could not be set up")]
    Pool,
}

/// Opens connections to one database.
#[derive(Clone)]
pub(super) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Connector {
    pub(super) fn new(url: &DatabaseUrl) -> Result<Self, DatabaseUrlError> {
        let (url, tls) = split_tls(url.reveal())?;
        let mut config: Config = url.parse().map_err(DatabaseUrlError::Invalid)?;
        config.ssl_mode(match tls.mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyFull => SslMode::Require,
        });
        config.connect_timeout(CONNECT_TIMEOUT);
        if config.get_application_name().is_none() {
            config.application_name("petstore");
        }
        Ok(Self { config, tls: MakeRustlsConnect::new(tls.client_config()?) })
    }

    /// The same database, for connections whose statements the server itself ends after `limit`.
    ///
    /// Their plans are made once: a statement on arrays looks cheaper to the planner with every array that it
    /// sees, so it would plan each execution anew, which takes longer than the execution. And none of them is made
    /// for a table that is still empty: scanning it looks best then, and the plan outlives the emptiness. None is
    /// worth compiling.
    pub(super) fn pooled_config(&self, limit: Duration) -> Config {
        let mut config = self.config.clone();
        let options = config.get_options().unwrap_or_default();
        let limit = limit.as_millis();
        config.options(format!(
            "{options} -c statement_timeout={limit} -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
             -c jit=off"
        ));
        config
    }

    /// Opens one connection outside of any pool.
    pub(super) async fn open(&self) -> Result<Client, tokio_postgres::Error> {
        open(&self.config, self.tls.clone()).await.map(|(client, _)| client)
    }

    /// Opens one connection outside of any pool, and hands on what the server says unasked. It works only while
    /// that stream is read.
    pub(super) async fn open_listening(
        &self,
    ) -> Result<
        (Client, impl Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + use<>),
        tokio_postgres::Error,
    > {
        let (client, mut connection) = self.config.connect(self.tls.clone()).await?;
        Ok((client, poll_fn(move |cx| connection.poll_message(cx))))
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        config: &Config,
    ) -> std::pin::Pin<
        Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + '_>,
    > {
        let (config, tls) = (config.clone(), self.tls.clone());
        Box::pin(async move { open(&config, tls).await })
    }
}

async fn open(
    config: &Config,
    tls: MakeRustlsConnect,
) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
    let (client, connection) = config.connect(tls).await?;
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            // Whoever uses the connection gets an error of its own; this names the reason.
            tracing::debug!(%error, "a database connection ended");
        }
    });
    Ok((client, task))
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

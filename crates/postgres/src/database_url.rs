//! The database URL: the parameters that the driver does not support, and TLS.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

pub(super) const DEFAULT_PORT: u16 = 5432;

/// Why a database URL is invalid. The URL itself is not repeated: it may contain a password.
#[derive(Debug, Error)]
pub enum DatabaseUrlError {
    /// The scheme is missing or unknown.
    #[error("the database URL must start with postgresql://")]
    NotAUrl,
    /// The driver cannot parse it.
    #[error("invalid database URL")]
    Invalid(#[source] tokio_postgres::Error),
    /// The `sslmode` is unknown or unsupported.
    #[error("sslmode in the database URL, or PGSSLMODE, must be disable, prefer, require or verify-full")]
    SslMode,
    /// Certificate authorities are given, but the `sslmode` would not ask them.
    #[error(
        "sslrootcert in the database URL, or PGSSLROOTCERT, needs sslmode=verify-full: otherwise no certificate is checked"
    )]
    UncheckedAuthorities,
    /// A variable of the environment asks for what is not supported.
    #[error(
        "the environment variable {0} is not supported: unset it, and say in the database URL what you need"
    )]
    Variable(String),
    /// The file of certificate authorities, or the system's store, is empty or unreadable.
    #[error("cannot read any CA certificate from {0}")]
    NoAuthorities(String),
    /// The client's certificate or its key is missing or unreadable.
    #[error("sslcert and sslkey in the database URL must be PEM files with a certificate and its key: {0}")]
    ClientCertificate(String),
    /// TLS could not be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] rustls::Error),
    /// It names no server.
    #[error("neither the database URL nor PGHOST names a server")]
    NoServer,
    /// The pool could not be set up.
    #[error("cannot set up the connection pool")]
    Pool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

/// The parameters that the driver does not support.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UrlParameters {
    pub(super) mode: SslMode,
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    pub(super) passfile: Option<PathBuf>,
}

/// libpq's variables that name another server, or ask for more security than the URL can: ignoring them would give less than the
/// operator asked for.
const UNSUPPORTED: [&str; 13] = [
    "PGSERVICE",
    "PGHOSTADDR",
    "PGREQUIRESSL",
    "PGREQUIREAUTH",
    "PGREQUIREPEER",
    "PGSSLCRL",
    "PGSSLCRLDIR",
    "PGSSLCERTMODE",
    "PGSSLMINPROTOCOLVERSION",
    "PGSSLMAXPROTOCOLVERSION",
    "PGSSLNEGOTIATION",
    "PGCHANNELBINDING",
    "PGGSSENCMODE",
];

/// Parses the URL. What it leaves out is taken from libpq's variables, as libpq itself does. (`PGPORT` only with `PGHOST`: a server
/// that the URL names without a port has the default one.)
pub(super) fn parse(
    url: &str,
    variables: &[(String, String)],
) -> Result<(Config, UrlParameters), DatabaseUrlError> {
    if let Some((name, _)) = variables.iter().find(|(name, _)| UNSUPPORTED.contains(&&**name)) {
        return Err(DatabaseUrlError::Variable(name.clone()));
    }
    let get = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let mut own = form_urlencoded::Serializer::new(query.to_owned());
    for (parameter, variable) in [
        ("sslmode", "PGSSLMODE"),
        ("sslrootcert", "PGSSLROOTCERT"),
        ("sslcert", "PGSSLCERT"),
        ("sslkey", "PGSSLKEY"),
    ] {
        let is_given = form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == parameter);
        own.extend_pairs(get(variable).filter(|_| !is_given).map(|value| (parameter, value)));
    }
    let address = url.split('?').next().unwrap_or_default();
    let (driver_url, parameters) = UrlParameters::extract(&format!("{address}?{}", own.finish()))?;
    let mut config: Config = driver_url.parse().map_err(DatabaseUrlError::Invalid)?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        for host in get("PGHOST").iter().flat_map(|hosts| hosts.split(',')) {
            config.host(host);
        }
        for port in get("PGPORT").iter().flat_map(|ports| ports.split(',')) {
            config.port(port.parse().map_err(|_| DatabaseUrlError::Variable("PGPORT".to_owned()))?);
        }
    }
    if let (None, Some(user)) = (config.get_user(), get("PGUSER")) {
        config.user(user);
    }
    if let (None, Some(password)) = (config.get_password(), get("PGPASSWORD")) {
        config.password(password);
    }
    if let (None, Some(database)) = (config.get_dbname(), get("PGDATABASE")) {
        config.dbname(database);
    }
    Ok((config, parameters))
}

/// The parameters of a URL that are shown.
const SHOWN: [&str; 8] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "passfile",
    "options",
    "application_name",
    "connect_timeout",
];

/// A URL with `***` instead of its password. None if it is invalid or ambiguous, because then nobody knows where its password is.
#[must_use]
pub fn without_password(url: &str) -> Option<String> {
    let (config, _) = parse(url, &[]).ok()?;
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let mut shown = String::from("postgresql://");
    let password = config.get_password().map_or("", |_| ":***");
    if let Some(user) = config.get_user() {
        let _ = write!(shown, "{}{password}@", encoded(user));
    }
    let ports = config.get_ports();
    for (index, host) in config.get_hosts().iter().enumerate() {
        let host = match host {
            Host::Tcp(address) if address.contains(':') => format!("[{address}]"),
            Host::Tcp(host) => host.clone(),
            Host::Unix(directory) => encoded(&directory.to_string_lossy()),
        };
        // The driver takes the first `@` for the end of the password.
        if host.contains('@') {
            return None;
        }
        let separator = if index == 0 { "" } else { "," };
        let _ = write!(shown, "{separator}{host}");
        if let Some(port) = ports.get(index).or(ports.first()) {
            let _ = write!(shown, ":{port}");
        }
    }
    if let Some(database) = config.get_dbname() {
        let _ = write!(shown, "/{}", encoded(database));
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let parameters = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| SHOWN.contains(&&**name));
    for (index, (name, value)) in parameters.enumerate() {
        let separator = if index == 0 { "?" } else { "&" };
        let _ = write!(shown, "{separator}{name}={}", encoded(&value));
    }
    Some(shown)
}

impl UrlParameters {
    /// Takes the parameters out of a URL.
    pub(super) fn extract(url: &str) -> Result<(String, Self), DatabaseUrlError> {
        if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
            return Err(DatabaseUrlError::NotAUrl);
        }
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut found =
            Self { mode: SslMode::Prefer, authorities: None, certificate: None, key: None, passfile: None };
        let mut rest = form_urlencoded::Serializer::new(String::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("sslmode", "disable") => found.mode = SslMode::Disable,
                ("sslmode", "prefer") => found.mode = SslMode::Prefer,
                ("sslmode", "require") => found.mode = SslMode::Require,
                ("sslmode", "verify-full") => found.mode = SslMode::VerifyFull,
                ("sslmode", _) => return Err(DatabaseUrlError::SslMode),
                ("sslrootcert", path) => found.authorities = Some(path.into()),
                ("sslcert", path) => found.certificate = Some(path.into()),
                ("sslkey", path) => found.key = Some(path.into()),
                ("passfile", path) => found.passfile = Some(path.into()),
                _ => drop(rest.append_pair(&name, &value)),
            }
        }
        // The driver reads `+` as itself, not as a space.
        Ok((format!("{address}?{}", rest.finish().replace('+', "%20")), found))
    }

    pub(super) fn client_config(&self) -> Result<ClientConfig, DatabaseUrlError> {
        // Whoever names authorities wants certificates to be checked. (libpq does so with `require`, too.)
        if self.authorities.is_some() && self.mode != SslMode::VerifyFull {
            return Err(DatabaseUrlError::UncheckedAuthorities);
        }
        let provider = Arc::new(ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = if self.mode == SslMode::VerifyFull {
            builder.with_root_certificates(self.authorities()?)
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(EncryptOnly(provider)))
        };
        match self.client_certificate()? {
            Some((chain, key)) => Ok(builder.with_client_auth_cert(chain, key)?),
            None => Ok(builder.with_no_client_auth()),
        }
    }

    fn authorities(&self) -> Result<RootCertStore, DatabaseUrlError> {
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
        Ok(authorities)
    }

    fn client_certificate(&self) -> Result<Option<ClientCertificate>, DatabaseUrlError> {
        let unreadable =
            |file: &Path, error| DatabaseUrlError::ClientCertificate(format!("{}: {error}", file.display()));
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => {
                let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
                let chain = chain.map_err(|error| unreadable(certificate, error))?;
                Ok(Some((chain, PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?)))
            }
            _ => Err(DatabaseUrlError::ClientCertificate("one of them is missing".into())),
        }
    }
}

type ClientCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// `prefer` and `require` encrypt without verifying the server's certificate, as in libpq.
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

    #[test]
    fn own_parameters_are_taken_out_of_the_url() {
        let (url, found) = UrlParameters::extract(
            "postgresql://u:p@db/shop?sslmode=verify-full&sslrootcert=/etc/ca.pem&connect_timeout=3&sslcert=/c&sslkey=/k\
             &passfile=/p",
        )
        .unwrap();
        assert_eq!(url, "postgresql://u:p@db/shop?connect_timeout=3");
        let expected = UrlParameters {
            mode: SslMode::VerifyFull,
            authorities: Some("/etc/ca.pem".into()),
            certificate: Some("/c".into()),
            key: Some("/k".into()),
            passfile: Some("/p".into()),
        };
        assert_eq!(found, expected);
        let (url, found) = UrlParameters::extract("postgres://db/shop?application_name=my%20shop").unwrap();
        assert_eq!((&*url, found.mode), ("postgres://db/shop?application_name=my%20shop", SslMode::Prefer));
    }

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (url, shown) in [
            ("postgresql://shop:secret@db/petstore", "postgresql://shop:***@db:5432/petstore"),
            (
                "postgresql://shop:s%40cret@a,b:5433/p?sslmode=require",
                "postgresql://shop:***@a:5432,b:5433/p?sslmode=require",
            ),
            ("postgresql://db/petstore?user=shop&password=secret", "postgresql://shop:***@db:5432/petstore"),
            (
                "postgres://shop%40tenant@[::1]:5433/petstore",
                "postgresql://shop%40tenant@[::1]:5433/petstore",
            ),
            ("postgresql:///petstore?host=/run/postgresql", "postgresql://%2Frun%2Fpostgresql/petstore"),
            ("postgresql://", "postgresql://"),
        ] {
            assert_eq!(without_password(url).as_deref(), Some(shown), "{url}");
        }
    }

    #[test]
    fn a_url_whose_password_may_be_anywhere_is_not_shown() {
        for url in [
            "host=db user=shop password=secret",
            "shop:secret@db/petstore",
            "mysql://shop:secret@db/petstore",
            "postgresql://shop:se@secret@db/petstore",
            "postgresql://db/petstore?pass=secret",
            "postgresql://shop:secret@db:port/petstore",
            "postgresql://shop:secret@db/petstore?sslmode=verify",
            "postgresql://shop:%ZZsecret@db/%ff",
            "",
        ] {
            assert_eq!(without_password(url), None, "{url}");
        }
    }

    #[test]
    fn variables_of_libpq_stand_in_for_what_the_url_leaves_out() {
        let variables = |text: &str| -> Vec<(String, String)> {
            let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let all = variables(
            "PGHOST=one,two PGPORT=5433 PGUSER=shop PGPASSWORD=a+b PGDATABASE=pets PGSSLMODE=verify-full \
             PGSSLROOTCERT=/ca PGSSLCERT=/c PGSSLKEY=/k PGTZ=UTC",
        );
        let (config, found) = parse("postgresql://", &all).unwrap();
        assert_eq!((config.get_hosts().len(), config.get_ports()), (2, &[5433][..]));
        assert_eq!((config.get_user(), config.get_dbname()), (Some("shop"), Some("pets")));
        assert_eq!(config.get_password(), Some(&b"a+b"[..]));
        assert_eq!(
            (found.mode, found.authorities, found.key),
            (SslMode::VerifyFull, Some("/ca".into()), Some("/k".into()))
        );
        // The URL wins.
        let url = "postgresql://eve:x@db/shop?sslmode=disable&sslcert=/own&sslkey=/own";
        let (config, found) = parse(url, &all).unwrap();
        assert_eq!((config.get_hosts().len(), config.get_ports()), (1, &[5432][..]));
        assert_eq!((config.get_user(), config.get_dbname()), (Some("eve"), Some("shop")));
        assert_eq!((found.mode, found.key), (SslMode::Disable, Some("/own".into())));
        for name in UNSUPPORTED {
            let error = parse("postgresql://db", &variables(&format!("{name}=x"))).unwrap_err();
            assert!(matches!(error, DatabaseUrlError::Variable(named) if named == name));
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        assert!(matches!(UrlParameters::extract("host=db"), Err(DatabaseUrlError::NotAUrl)));
        for mode in ["verify-ca", "allow", ""] {
            let url = format!("postgresql://db/shop?sslmode={mode}");
            assert!(matches!(UrlParameters::extract(&url), Err(DatabaseUrlError::SslMode)), "{mode}");
        }
    }

    #[test]
    fn files_without_certificates_are_refused() {
        let refused = |parameters: &str| {
            let (_, found) = UrlParameters::extract(&format!("postgresql://db/x?{parameters}")).unwrap();
            found.client_config().unwrap_err()
        };
        let error = refused("sslmode=verify-full&sslrootcert=/dev/null");
        assert!(matches!(error, DatabaseUrlError::NoAuthorities(_)), "{error}");
        for mode in ["", "&sslmode=prefer", "&sslmode=require", "&sslmode=disable"] {
            let error = refused(&format!("sslrootcert=/ca{mode}"));
            assert!(matches!(error, DatabaseUrlError::UncheckedAuthorities), "{mode}: {error}");
        }
        for parameters in ["sslcert=/dev/null", "sslkey=/dev/null", "sslcert=/dev/null&sslkey=/none"] {
            let error = refused(parameters);
            assert!(matches!(error, DatabaseUrlError::ClientCertificate(_)), "{parameters}: {error}");
        }
    }
}

//! The database URL: the parameters that the driver does not support, and TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;

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
    #[error("sslmode in the database URL must be disable, prefer, require or verify-full")]
    SslMode,
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
    #[error("the database URL names no server")]
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
        for parameters in ["sslcert=/dev/null", "sslkey=/dev/null", "sslcert=/dev/null&sslkey=/none"] {
            let error = refused(parameters);
            assert!(matches!(error, DatabaseUrlError::ClientCertificate(_)), "{parameters}: {error}");
        }
    }
}

//! PEM files: certificates of trusted authorities, and a certificate with its private key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Files of a client. They are read at each connection, so renewed files need no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificates of the authorities that are trusted, instead of the system's list.
    pub ca: Option<PathBuf>,
    /// The certificate that is shown to servers which ask for one.
    pub identity: Option<IdentityFiles>,
}

/// Files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate, followed by those of the authorities between it and a trusted one.
    pub certificate: PathBuf,
    /// Its private key, without a password.
    pub key: PathBuf,
}

/// Contents of [`IdentityFiles`].
#[derive(Clone, PartialEq, Eq)]
pub struct IdentityPem {
    /// Text of the certificate's file.
    pub certificate: Vec<u8>,
    /// Text of the key's file.
    pub key: Vec<u8>,
}

impl ClientFiles {
    /// Reports whether no file is named: the system's list counts, and no certificate is shown.
    pub fn is_empty(&self) -> bool {
        self.ca.is_none() && self.identity.is_none()
    }

    /// Reads every file, and reports the first that cannot be used.
    pub fn check(&self) -> Result<(), String> {
        if self.ca.is_some() {
            self.authorities()?;
        }
        self.certified_key().map(drop)
    }

    /// The text of the authorities' file, if one is named.
    pub fn ca_pem(&self) -> Result<Option<Vec<u8>>, String> {
        self.ca.as_deref().map(read).transpose()
    }

    /// Certificates of the authorities that are trusted: those of `ca`, or else the system's.
    pub fn authority_certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        match &self.ca {
            Some(ca) => certificates(ca, &read(ca)?),
            None => system_authorities(),
        }
    }

    /// The authorities that are trusted.
    pub fn authorities(&self) -> Result<RootCertStore, String> {
        let mut store = RootCertStore::empty();
        let (_, unusable) = store.add_parsable_certificates(self.authority_certificates()?);
        match &self.ca {
            Some(ca) if unusable > 0 => Err(format!(
                "{} holds a certificate that cannot be used",
                ca.display()
            )),
            // The system's list may hold certificates that this library cannot read.
            _ => Ok(store),
        }
    }

    /// Configuration of a client that trusts these authorities, and shows this certificate.
    pub fn client_config(&self) -> Result<ClientConfig, String> {
        let builder = client_builder()?.with_root_certificates(self.authorities()?);
        Ok(match self.certified_key()? {
            Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))),
            None => builder.with_no_client_auth(),
        })
    }

    /// Configuration of an HTTP client that trusts these authorities.
    pub fn http_config(&self) -> Result<TlsConfig, String> {
        let authorities = self.authority_certificates()?;
        let authorities: Vec<_> = authorities
            .iter()
            .map(|der| Certificate::from_der(der).to_owned())
            .collect();
        let config = TlsConfig::builder();
        Ok(config
            .root_certs(RootCerts::new_with_certs(&authorities))
            .build())
    }

    /// The certificate that is shown, with its key.
    pub fn certified_key(&self) -> Result<Option<Arc<CertifiedKey>>, String> {
        self.identity.as_ref().map(IdentityFiles::load).transpose()
    }
}

impl IdentityFiles {
    /// Reads both files.
    pub fn read(&self) -> Result<IdentityPem, String> {
        Ok(IdentityPem {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
        })
    }

    /// Parses what was read of these files. Fails if the key is not that of the certificate.
    pub fn parse(&self, pem: &IdentityPem) -> Result<Arc<CertifiedKey>, String> {
        let certificate = self.certificate.display();
        let key = self.key.display();
        let chain = certificates(&self.certificate, &pem.certificate)?;
        let private_key = PrivateKeyDer::from_pem_slice(&pem.key)
            .map_err(|_| format!("{key} holds no private key as PEM, or one with a password"))?;
        match CertifiedKey::from_der(chain, private_key, &default_provider()) {
            Ok(pair) => Ok(Arc::new(pair)),
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(format!("{key} is not the key of {certificate}"))
            }
            Err(error) => Err(format!("{certificate} and {key} cannot be used: {error}")),
        }
    }

    /// Reads and parses both files.
    pub fn load(&self) -> Result<Arc<CertifiedKey>, String> {
        self.parse(&self.read()?)
    }
}

/// The beginning of a client's configuration.
pub(super) fn client_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())
}

/// The system's list of authorities, or the certificates of `SSL_CERT_FILE`.
fn system_authorities() -> Result<Vec<CertificateDer<'static>>, String> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        // A file that holds no certificate is passed over among others, one that cannot be read is not.
        if found.certs.is_empty() || matches!(error.kind, rustls_native_certs::ErrorKind::Io { .. })
        {
            return Err(format!(
                "the list of trusted authorities, SSL_CERT_FILE, cannot be read: {error}"
            ));
        }
    }
    Ok(found.certs)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// The certificates of a file, at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{} holds no certificate as PEM", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> ClientFiles {
        let identity = IdentityFiles {
            certificate: folder.join("certificate"),
            key: folder.join("key"),
        };
        ClientFiles {
            ca: Some(folder.join("ca")),
            identity: Some(identity),
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_without_its_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        let missing = files.check().expect_err("missing");
        assert!(
            missing.contains("ca cannot be read: No such file"),
            "{missing}"
        );
        for (file, said) in [
            ("ca", "ca holds no certificate as PEM"),
            ("certificate", "certificate holds no"),
        ] {
            std::fs::write(folder.path().join(file), "hunter2").expect("written");
            std::fs::write(folder.path().join("key"), "hunter2").expect("written");
            let only = match file {
                "ca" => ClientFiles {
                    identity: None,
                    ..files.clone()
                },
                _ => ClientFiles {
                    ca: None,
                    ..files.clone()
                },
            };
            let refused = only.check().expect_err("no certificate");
            assert!(
                refused.contains(said) && !refused.contains("hunter2"),
                "{refused}"
            );
        }
        assert_eq!(ClientFiles::default().check(), Ok(()), "nothing is named");
    }
}

//! How to connect to one server, and why that failed.

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, TlsCertificates,
};

use crate::credential::Credential;
use crate::store::Config;
use crate::store::config::{Address, Login};
use crate::tls::{ClientFiles, Expected, IdentityFiles, KeyHints, examine};

/// Longest wait for a small answer on an idle connection. A large answer may take longer, see
/// [`super::deadline`]. Redis's own slow scripts are bounded far below this.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a connection to be made.
pub(in crate::store) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Address, login and certificates of one server. The files, passwords in files too, are read at each connection.
#[derive(Clone)]
pub(crate) struct RedisClient {
    server: RedisServer,
    files: ClientFiles,
    hints: KeyHints,
}

/// The address of a server, and the login to it.
#[derive(Clone)]
pub(crate) enum RedisServer {
    /// The URL has both.
    Url(Credential),
    Node(Address, Login),
}

/// Why a connection cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectFault {
    text: String,
    cause: FaultCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultCause {
    /// The server and this client do not agree on TLS, or on certificates.
    Tls,
    /// The server does not answer in time.
    Silence,
    Other,
}

impl ConnectFault {
    /// The fault of a server that does not answer in time.
    pub(in crate::store) fn silence(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            cause: FaultCause::Silence,
        }
    }

    /// The same fault, told of a server by its address.
    pub(in crate::store) fn at(&self, address: impl std::fmt::Display) -> Self {
        Self {
            text: format!("{address}: {}", self.text),
            cause: self.cause,
        }
    }

    /// Reports whether TLS is the reason.
    pub(in crate::store) fn is_tls(&self) -> bool {
        self.cause == FaultCause::Tls
    }

    fn is_silence(&self) -> bool {
        self.cause == FaultCause::Silence
    }
}

impl std::fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<String> for ConnectFault {
    fn from(text: String) -> Self {
        Self {
            text,
            cause: FaultCause::Other,
        }
    }
}

impl From<ConnectFault> for String {
    fn from(fault: ConnectFault) -> Self {
        fault.text
    }
}

impl RedisServer {
    /// The address and the login as they are now.
    fn info(&self) -> Result<ConnectionInfo, ConnectFault> {
        let refused = |error: RedisError| error.to_string();
        let info = match self {
            Self::Url(url) => {
                let url = url.current()?;
                url.expose().into_connection_info().map_err(refused)?
            }
            Self::Node(address, login) => {
                let address = node_address(address, login);
                let info = address.into_connection_info().map_err(refused)?;
                info.set_redis_settings(credentials(login)?)
            }
        };
        // Nagle's algorithm and the other side's delayed acknowledgement together would add up to 40 ms. A peer that is
        // gone without a word is noticed by the probe's deadline or by the user timeout.
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_user_timeout(RESPONSE_TIMEOUT + CONNECT_TIMEOUT);
        Ok(info.set_tcp_settings(tcp))
    }
}

fn node_address(address: &Address, login: &Login) -> ConnectionAddr {
    let Address { host, port } = address.clone();
    if login.tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// The user and the password as they are now.
fn credentials(login: &Login) -> Result<RedisConnectionInfo, String> {
    let mut settings = RedisConnectionInfo::default();
    if let Some(username) = &login.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password.current()?.expose());
    }
    Ok(settings)
}

impl RedisClient {
    pub(in crate::store) fn new(server: RedisServer, config: &Config) -> Self {
        Self::with_files(server, config.tls.clone(), config.tls_hints())
    }

    /// A client of a server that is no part of the store.
    pub(crate) fn with_files(server: RedisServer, files: ClientFiles, hints: KeyHints) -> Self {
        Self {
            server,
            files,
            hints,
        }
    }

    /// The client library's client, with the password and the certificates that the files hold now.
    pub(in crate::store) fn open(&self) -> Result<Client, ConnectFault> {
        let info = self.server.info()?;
        if self.files.is_empty() {
            return Client::open(info).map_err(|error| error.to_string().into());
        }
        let unusable = |text| ConnectFault {
            text,
            cause: FaultCause::Tls,
        };
        let root_cert = self.files.ca_pem().map_err(unusable)?;
        let identity = self
            .files
            .identity
            .as_ref()
            .map(IdentityFiles::read)
            .transpose()
            .map_err(unusable)?;
        let client_tls = identity.map(|pem| ClientTlsConfig {
            client_cert: pem.certificate,
            client_key: pem.key,
        });
        let certificates = TlsCertificates {
            client_tls,
            root_cert,
        };
        Client::build_with_tls(info, certificates).map_err(|error| unusable(error.to_string()))
    }

    /// The fault with the sentence of its cause, if TLS is the cause. Connects once more to find out.
    pub(crate) async fn explain(&self, fault: ConnectFault) -> ConnectFault {
        let Ok(info) = self.server.info() else {
            return fault;
        };
        let (host, port, expected) = match info.addr() {
            ConnectionAddr::Tcp(host, port) => (host, *port, Expected::Plain),
            ConnectionAddr::TcpTls { host, port, .. } => (host, *port, Expected::Tls(&self.files)),
            _ => return fault,
        };
        match examine(host, port, expected).await {
            Some(trouble) => {
                let text = format!("{} ({fault})", trouble.sentence(&self.hints));
                ConnectFault {
                    text,
                    cause: FaultCause::Tls,
                }
            }
            None => fault,
        }
    }

    /// The same for a server that does not answer: it may wait for the end of a line that TLS never sends. For the
    /// start only, since it takes time of its own.
    pub(crate) async fn explain_silence(&self, fault: ConnectFault) -> ConnectFault {
        if fault.is_silence() {
            self.explain(fault).await
        } else {
            fault
        }
    }
}

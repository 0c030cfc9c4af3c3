//! Examines a server to which a client library could not connect, by a connection of our own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::files::client_builder;
use super::{ClientFiles, TlsTrouble};

/// Longest wait for a server's first byte.
const PROBE_DEADLINE: Duration = Duration::from_millis(700);
/// Longest wait for a handshake, and for what a server says of this client's certificate after it.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(1);

/// A line. A Redis that speaks no TLS answers lines alone, and waits for the end of one in a ClientHello.
const LINE: &[u8] = b"PING\r\n";
/// First byte of an alert.
const ALERT_RECORD: u8 = 21;
/// First byte of a message of a handshake.
const HANDSHAKE_RECORD: u8 = 22;

/// What a server was expected to speak.
#[derive(Clone, Copy, Debug)]
pub enum Expected<'a> {
    /// No TLS.
    Plain,
    /// TLS. Its certificate is not judged here.
    AnyTls,
    /// TLS, with a certificate that is trusted by these files.
    Tls(&'a ClientFiles),
}

/// What a server answers to the beginning of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstAnswer {
    Tls,
    Plain,
    /// The end of the connection.
    End,
    /// Nothing in time.
    Silence,
    /// No connection.
    Away,
}

/// Connects to a server once more, and names the reason why nobody could, if TLS is the reason. Takes three seconds at
/// most.
pub async fn examine(host: &str, port: u16, expected: Expected<'_>) -> Option<TlsTrouble> {
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let answer = match first_answer(host, port, &client_hello(&name)?).await {
        FirstAnswer::Silence => first_answer(host, port, LINE).await,
        answer => answer,
    };
    match (answer, expected) {
        (FirstAnswer::Tls, Expected::Plain) => Some(TlsTrouble::SpeaksTls),
        (FirstAnswer::Plain, Expected::AnyTls | Expected::Tls(_)) => Some(TlsTrouble::SpeaksPlain),
        (FirstAnswer::End, Expected::AnyTls) => Some(TlsTrouble::HandshakeCut),
        (FirstAnswer::Tls | FirstAnswer::End, Expected::Tls(files)) => {
            handshake(host, port, name, files).await
        }
        (_, Expected::Plain)
        | (FirstAnswer::Tls, Expected::AnyTls)
        | (FirstAnswer::Silence | FirstAnswer::Away, _) => None,
    }
}

/// The first message of a handshake, with the name of the server in it: some answer no other.
fn client_hello(name: &ServerName<'static>) -> Option<Vec<u8>> {
    let config = client_builder()
        .ok()?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let mut hello = Vec::new();
    let mut connection = ClientConnection::new(Arc::new(config), name.clone()).ok()?;
    connection.write_tls(&mut hello).ok()?;
    Some(hello)
}

async fn first_answer(host: &str, port: u16, question: &[u8]) -> FirstAnswer {
    let asked = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(question).await?;
        let mut first = [0];
        let read = stream.read(&mut first).await?;
        io::Result::Ok((read > 0).then_some(first[0]))
    };
    match timeout(PROBE_DEADLINE, asked).await {
        Ok(Ok(Some(ALERT_RECORD | HANDSHAKE_RECORD))) => FirstAnswer::Tls,
        Ok(Ok(Some(_))) => FirstAnswer::Plain,
        Ok(Ok(None)) => FirstAnswer::End,
        Ok(Err(error)) if is_end(&error) => FirstAnswer::End,
        Ok(Err(_)) => FirstAnswer::Away,
        Err(_) => FirstAnswer::Silence,
    }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), ConnectionReset | BrokenPipe | UnexpectedEof)
}

async fn handshake(
    host: &str,
    port: u16,
    name: ServerName<'static>,
    files: &ClientFiles,
) -> Option<TlsTrouble> {
    let (config, identity) = match client_config(files) {
        Ok(made) => made,
        Err(why) => return Some(TlsTrouble::Files(why)),
    };
    let connector = TlsConnector::from(Arc::new(config));
    let attempt = async {
        let stream = TcpStream::connect((host, port)).await?;
        let mut stream = connector.connect(name, stream).await?;
        if identity.was_asked() {
            // A server judges the certificate of its client after the client's last message of the handshake.
            stream.read_u8().await?;
        }
        io::Result::Ok(())
    };
    match timeout(HANDSHAKE_DEADLINE, attempt).await {
        Ok(Err(error)) => identity.judge(&error),
        Ok(Ok(())) | Err(_) => None,
    }
}

fn client_config(files: &ClientFiles) -> Result<(ClientConfig, Arc<ShownIdentity>), String> {
    let identity = Arc::new(ShownIdentity {
        pair: files.certified_key()?,
        is_asked: AtomicBool::new(false),
    });
    let config = client_builder()?
        .with_root_certificates(files.authorities()?)
        .with_client_cert_resolver(identity.clone());
    Ok((config, identity))
}

/// The certificate of this client, and whether the server has asked for one.
#[derive(Debug)]
struct ShownIdentity {
    pair: Option<Arc<CertifiedKey>>,
    is_asked: AtomicBool,
}

impl ShownIdentity {
    fn was_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// The cause of a failed handshake. A server that has asked for a certificate may refuse by any alert, or without one.
    fn judge(&self, error: &io::Error) -> Option<TlsTrouble> {
        let rustls_error = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match rustls_error {
            Some(rustls::Error::AlertReceived(alert)) if self.was_asked() => {
                Some(match &self.pair {
                    Some(_) => TlsTrouble::CertificateRefused(format!("{alert:?}")),
                    None => TlsTrouble::CertificateWanted,
                })
            }
            Some(other) => Some(TlsTrouble::of(other)),
            None if !is_end(error) => None,
            None if self.was_asked() && self.pair.is_none() => Some(TlsTrouble::CertificateWanted),
            None => Some(TlsTrouble::HandshakeCut),
        }
    }
}

impl ResolvesClientCert for ShownIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.is_asked.store(true, Ordering::Relaxed);
        self.pair.clone()
    }

    fn has_certs(&self) -> bool {
        self.pair.is_some()
    }
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;
    use rustls::server::Acceptor;
    use tokio::net::TcpListener;

    use super::*;

    /// Accepts one connection, answers these bytes to its first byte, and ends it.
    async fn server(answer: &'static [u8]) -> (u16, impl Future<Output = ()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let serving = async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut buffer = [0; 1024];
            let read = stream.read(&mut buffer).await.expect("bytes");
            assert!(read > 0);
            stream.write_all(answer).await.expect("answered");
        };
        (port, serving)
    }

    #[test]
    fn the_hello_names_the_server_and_both_versions() {
        for (host, sent) in [
            ("redis.example", Some("redis.example")),
            ("redis_1", Some("redis_1")),
            ("127.0.0.1", None),
            ("::1", None),
        ] {
            let name = ServerName::try_from(host.to_owned()).expect("a name");
            let hello = client_hello(&name).expect("a hello");
            let mut acceptor = Acceptor::default();
            acceptor.read_tls(&mut &*hello).expect("read");
            let accepted = acceptor.accept().expect("a hello").expect("a whole one");
            let hello = accepted.client_hello();
            assert_eq!(hello.server_name(), sent, "{host}");
            let suites: Vec<_> = hello.cipher_suites().to_vec();
            for suite in [
                CipherSuite::TLS13_AES_128_GCM_SHA256,
                CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            ] {
                assert!(suites.contains(&suite), "{host}: {suites:?}");
            }
        }
    }

    #[tokio::test]
    async fn the_first_byte_tells_what_a_server_speaks() {
        let alert: &'static [u8] = &[21, 3, 3, 0, 2, 2, 40];
        let error: &'static [u8] = b"-ERR";
        let end: &'static [u8] = &[];
        let files = ClientFiles::default();
        for (answer, expected, found) in [
            (alert, Expected::Plain, Some(TlsTrouble::SpeaksTls)),
            (alert, Expected::AnyTls, None),
            (error, Expected::Plain, None),
            (error, Expected::AnyTls, Some(TlsTrouble::SpeaksPlain)),
            (error, Expected::Tls(&files), Some(TlsTrouble::SpeaksPlain)),
            (end, Expected::AnyTls, Some(TlsTrouble::HandshakeCut)),
            (end, Expected::Plain, None),
        ] {
            let (port, serving) = server(answer).await;
            let (trouble, ()) = tokio::join!(examine("127.0.0.1", port, expected), serving);
            assert_eq!(trouble, found, "{answer:?} {expected:?}");
        }
    }

    /// As a Redis that speaks no TLS does it.
    #[tokio::test]
    async fn a_server_that_answers_lines_alone_is_asked_a_line() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let serving = async move {
            let (_silent, _) = listener.accept().await.expect("a client");
            let (mut stream, _) = listener.accept().await.expect("another");
            let mut line = [0; LINE.len()];
            stream.read_exact(&mut line).await.expect("a line");
            assert_eq!(line, LINE);
            stream.write_all(b"+PONG\r\n").await.expect("answered");
        };
        let (trouble, ()) = tokio::join!(examine("127.0.0.1", port, Expected::AnyTls), serving);
        assert_eq!(trouble, Some(TlsTrouble::SpeaksPlain));
    }

    #[tokio::test]
    async fn a_server_that_is_away_has_no_trouble_with_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        for expected in [
            Expected::Plain,
            Expected::AnyTls,
            Expected::Tls(&ClientFiles::default()),
        ] {
            assert_eq!(examine("127.0.0.1", port, expected).await, None);
        }
    }
}

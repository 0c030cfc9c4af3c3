//! TLS of the listener: the certificate that it shows, handshakes under a deadline, and clients that speak no TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::TrackedStream;

/// Longest wait for a client's part of the handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// Longest wait for a client without TLS to read its refusal.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(1);
/// Most bytes that are read of such a client.
const MAX_REFUSED_BYTES: u64 = 64 << 10;
/// First byte of a handshake.
const HANDSHAKE_RECORD: u8 = 22;
/// The answer to a client that speaks HTTP without TLS.
const PLAIN_REFUSAL: &str = "{\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\
                             \"detail\":\"this address speaks TLS; take https:// instead of http://\"}";

/// The certificate that new connections are shown. Open connections keep theirs.
#[derive(Debug)]
pub(super) struct ShownCertificate(RwLock<Arc<CertifiedKey>>);

impl ShownCertificate {
    pub(super) fn new(pair: Arc<CertifiedKey>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(pair)))
    }

    pub(super) fn replace(&self, pair: Arc<CertifiedKey>) {
        *self.0.write() = pair;
    }

    /// An acceptor of connections that shows this certificate.
    pub(super) fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder
            .with_safe_default_protocol_versions()?
            .with_no_client_auth();
        let mut config = builder.with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for ShownCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

/// The end of a client's attempt to begin TLS.
pub(super) enum TlsBegin {
    /// TLS is spoken.
    Done(Box<TlsStream<TrackedStream>>),
    /// The client left before it said anything: it looked whether the port is open.
    Left,
    /// The client speaks no TLS.
    Plain(TrackedStream),
    /// The client does not agree on TLS.
    Failed(io::Error),
}

/// Shakes hands with a client.
pub(super) async fn begin(acceptor: &TlsAcceptor, stream: TrackedStream) -> TlsBegin {
    let Ok(Ok(Some(first))) = timeout(HANDSHAKE_DEADLINE, stream.peek_first()).await else {
        return TlsBegin::Left;
    };
    if first != HANDSHAKE_RECORD {
        return TlsBegin::Plain(stream);
    }
    match timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => TlsBegin::Done(Box::new(stream)),
        Ok(Err(error)) => TlsBegin::Failed(error),
        Err(late) => TlsBegin::Failed(late.into()),
    }
}

/// Tells a client without TLS, in HTTP, that TLS is spoken here. Waits [`REFUSAL_DEADLINE`] at most for it to read that.
pub(super) async fn refuse_plain(mut stream: TrackedStream) -> io::Result<()> {
    timeout(REFUSAL_DEADLINE, answer_plain(&mut stream))
        .await
        .unwrap_or(Ok(()))
}

/// Answers 400, and reads what the client has sent: a connection that is closed over unread bytes is reset, and the
/// answer may be lost.
async fn answer_plain(stream: &mut TrackedStream) -> io::Result<()> {
    let length = PLAIN_REFUSAL.len();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{PLAIN_REFUSAL}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_REFUSED_BYTES), &mut tokio::io::sink())
        .await
        .map(drop)
}

//! Opens a connection of the client library over a [`FrameGuard`].

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::Stream;
use lapin::ConnectionProperties;
use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream, RustlsConnector, TLSConfig};
use lapin::uri::AMQPUri;
use tokio_util::sync::CancellationToken;

use super::frame_guard::FrameGuard;
use super::guarded_channels::GuardedChannels;
use crate::tls::ClientFiles;

/// A TCP stream of tokio, with or without TLS.
type TokioStream = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// Connects to a broker. Its certificate must be from an authority that `files` name, or else from one of the system's,
/// or of `SSL_CERT_FILE`. Also returns what the guard counts and takes on each channel of the connection. Where nobody waits
/// any more, the socket is closed: the client library's thread would wait for the broker's first word for ever.
pub(super) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
    files: &ClientFiles,
) -> lapin::Result<(lapin::Connection, GuardedChannels)> {
    let channels = GuardedChannels::default();
    let guard_channels = channels.clone();
    let given_up = CancellationToken::new();
    let gives_up = given_up.clone().drop_guard();
    let tokio = Tokio::current();
    let runtime = Runtime::new(RuntimeParts::new(
        tokio.clone(),
        GuardedReactor(tokio.clone(), given_up.clone(), channels.clone()),
    ));
    let tokio = Runtime::new(tokio);
    let connector = if files.is_empty() {
        None
    } else {
        Some(tls_connector(files)?)
    };
    let open = async move |uri: AMQPUri, _| {
        let connecting = async {
            match &connector {
                None => {
                    uri.connect_with_config_async(TLSConfig::default(), &tokio)
                        .await
                }
                Some(connector) => {
                    let host = uri.authority.host.clone();
                    let addresses = tokio.to_socket_addrs((host, uri.authority.port));
                    let stream = AsyncTcpStream::connect(&tokio, addresses).await?;
                    stream.into_rustls(connector, &uri.authority.host).await
                }
            }
        };
        let stream = tokio::select! {
            biased;
            () = given_up.cancelled() => Err(io::ErrorKind::ConnectionAborted.into()),
            stream = connecting => stream,
        };
        Ok(AsyncTcpStream::Plain(FrameGuard::new(
            stream?,
            given_up.clone(),
            guard_channels.clone(),
        )))
    };
    let connection = lapin::Connection::connector(uri, runtime, open, properties).await?;
    gives_up.disarm();
    Ok((connection, channels))
}

/// TLS by the files as they are now.
fn tls_connector(files: &ClientFiles) -> io::Result<RustlsConnector> {
    Ok(RustlsConnector::from(
        files.client_config().map_err(io::Error::other)?,
    ))
}

/// Tokio's reactor, with streams behind a [`FrameGuard`] of these channels.
#[derive(Clone, Debug)]
struct GuardedReactor(Tokio, CancellationToken, GuardedChannels);

impl Reactor for GuardedReactor {
    type TcpStream = FrameGuard<TokioStream>;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// Fails: the client library registers no handles.
    fn register<H: Read + Write + Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Self::TcpStream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(time)
    }

    /// Connects without TLS.
    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        let given_up = self.1.clone();
        let channels = self.2.clone();
        async move {
            Ok(FrameGuard::new(
                AsyncTcpStream::Plain(connecting.await?),
                given_up,
                channels,
            ))
        }
    }
}

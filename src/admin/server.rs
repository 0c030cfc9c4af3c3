//! The listener: on a thread and a runtime of its own, so that neither the API's work slows the relay, nor the relay's
//! the probes. It bounds the number of connections and every wait, and ends in order. Clients that neither read nor write
//! cannot take the places of others: see [`super::connection`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{info, trace, warn};

use super::audit::PeerAddress;
use super::auth::{AccessTokens, needed_role};
use super::connection::{ConnectionBounds, ConnectionPlace, OpenConnections, TrackedStream};
use super::context::Admin;
use super::pulse::{Pulse, beat};
use super::refusals::{ProbesOnly, RefusalReason, Refusals};
use super::reload::{WatchedCertificate, WatchedFiles};
use super::router::{probe_router, router};
use super::tls::{self, TlsBegin};
use super::{AdminState, Config, ListenError};
use crate::lifecycle::{Shutdown, Tasks};

/// Time for open requests to end once draining has begun.
pub const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for a request's head, and longest idle time of a connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Most bytes of a request's head, and of what is read ahead.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause after a failed `accept` (no file descriptors left, say) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Addresses that a started server listens on, with their actual ports.
#[derive(Clone, Copy, Debug)]
pub struct ListenAddresses {
    /// The API, metrics and probes.
    pub admin: SocketAddr,
    /// The probes alone, if configured.
    pub probes: Option<SocketAddr>,
}

/// Starts listening, on a thread of its own with its own runtime, and returns the addresses. The thread is named `admin`
/// and its tasks `admin:connection`; they end once `shutdown` drains, at most [`DRAIN_GRACE`] later.
pub async fn start(
    config: &Config,
    state: AdminState,
    tasks: &Tasks,
    shutdown: Shutdown,
) -> Result<ListenAddresses, ListenError> {
    let runtime = OwnRuntime::new().map_err(ListenError::Thread)?;
    let own_tasks = tasks.on(&runtime.handle);
    let pulse = Pulse::new(state.clock);
    let bound =
        BoundServer::bind(config, state, &own_tasks, shutdown.clone(), pulse.clone()).await?;
    let addresses = bound.addresses;
    let thread = own_tasks.clone();
    thread
        .thread("admin", move || runtime.run(bound.serve(own_tasks)))
        .map_err(ListenError::Thread)?;
    tasks.spawn("admin:pulse", beat(pulse, shutdown));
    Ok(addresses)
}

/// The runtime of the listener's thread. It may be dropped anywhere, on another runtime too.
struct OwnRuntime {
    handle: Handle,
    /// `None` once it runs.
    runtime: Option<Runtime>,
}

impl OwnRuntime {
    fn new() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Runs a future to its end on this thread.
    fn run(mut self, future: impl Future<Output = ()>) {
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(future);
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A server whose addresses are bound.
pub(super) struct BoundServer {
    pub(super) addresses: ListenAddresses,
    listeners: Vec<BoundListener>,
    files: WatchedFiles,
    shutdown: Shutdown,
    /// Cancelled once nothing of the server is left: no connection, and no audit entry to be stored.
    ended: CancellationToken,
}

impl BoundServer {
    /// Binds the addresses. `tasks` are those of the runtime that will serve.
    pub(super) async fn bind(
        config: &Config,
        state: AdminState,
        tasks: &Tasks,
        shutdown: Shutdown,
        pulse: Pulse,
    ) -> Result<Self, ListenError> {
        let tokens = Arc::new(AccessTokens::new(config));
        if tokens.is_open() && !config.listen.ip().is_loopback() {
            return Err(ListenError::Unprotected(config.listen));
        }
        let (certificate, acceptor) = load_tls(config)?;
        let files = WatchedFiles::new(certificate, config, &tokens, &state.health);
        let clock = state.clock;
        let refusals = Refusals::new(state.metrics.clone(), state.bursts.clone());
        let main = bind("admin.listen", config.listen).await?;
        let probes = match config.probe_listen {
            Some(address) => Some(bind("admin.probe_listen", address).await?),
            None => None,
        };
        let addresses = ListenAddresses {
            admin: main.1,
            probes: probes.as_ref().map(|(_, address)| *address),
        };
        let ended = CancellationToken::new();
        let gone = ended.clone().drop_guard();
        let admin = Admin::new(
            state,
            tokens,
            refusals.clone(),
            pulse,
            gone,
            tasks.clone(),
            shutdown.clone(),
        );
        let listener = |listener, app, tls, bounds| BoundListener {
            listener,
            app,
            tls,
            connections: OpenConnections::new(clock, bounds),
            refusals: refusals.clone(),
        };
        let mut listeners = Vec::new();
        if let Some((socket, address)) = probes {
            let app = probe_router(Arc::clone(&admin));
            listeners.push(listener(socket, app, None, ConnectionBounds::PROBES));
            info!(%address, "admin listens for probes");
        }
        let is_tls = acceptor.is_some();
        let app = router(admin);
        listeners.push(listener(main.0, app, acceptor, ConnectionBounds::ADMIN));
        info!(address = %addresses.admin, tls = is_tls, "admin listens");
        Ok(Self {
            addresses,
            listeners,
            files,
            shutdown,
            ended,
        })
    }

    /// The connections of the main address.
    #[cfg(test)]
    pub(super) fn connections(&self) -> Arc<OpenConnections> {
        self.listeners
            .last()
            .expect("the main one")
            .connections
            .clone()
    }

    /// Serves until `shutdown` drains and every connection has ended. `tasks` are those of this runtime.
    pub(super) async fn serve(self, tasks: Tasks) {
        if !self.files.is_empty() {
            tasks.spawn("admin:files", self.files.watch(self.shutdown.clone()));
        }
        for listener in self.listeners {
            tasks.spawn(
                "admin:accept",
                listener.accept(tasks.clone(), self.shutdown.clone()),
            );
        }
        self.ended.cancelled().await;
    }
}

/// The certificate of the main address, and its acceptor; nothing if it speaks no TLS.
fn load_tls(
    config: &Config,
) -> Result<(Option<WatchedCertificate>, Option<TlsAcceptor>), ListenError> {
    let Some(files) = &config.tls else {
        return Ok((None, None));
    };
    let (certificate, shown) = WatchedCertificate::load(files).map_err(ListenError::Certificate)?;
    let acceptor = shown
        .acceptor()
        .map_err(|error| ListenError::Certificate(error.to_string()))?;
    Ok((Some(certificate), Some(acceptor)))
}

/// Binds an address. The listener is of no runtime yet: the one that accepts waits for it.
async fn bind(
    key: &'static str,
    address: SocketAddr,
) -> Result<(std::net::TcpListener, SocketAddr), ListenError> {
    let refused = |why| ListenError::Bind { key, address, why };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let listener = listener.into_std().map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    Ok((listener, address))
}

/// A bound address, and what answers there.
struct BoundListener {
    listener: std::net::TcpListener,
    app: Router,
    /// `None`: it speaks no TLS.
    tls: Option<TlsAcceptor>,
    connections: Arc<OpenConnections>,
    refusals: Refusals,
}

impl BoundListener {
    async fn accept(self, tasks: Tasks, shutdown: Shutdown) {
        let Self {
            listener,
            app,
            tls,
            connections,
            refusals,
        } = self;
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                warn!(%error, "admin cannot accept connections");
                return;
            }
        };
        loop {
            let accepted = tokio::select! {
                () = shutdown.draining() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let peer = canonical(peer);
                    let place = tokio::select! {
                        () = shutdown.draining() => return,
                        place = connections.place(peer, &refusals) => place,
                    };
                    let tls = tls.clone().map(|acceptor| (acceptor, refusals.clone()));
                    let connection = AcceptedConnection {
                        stream,
                        peer,
                        tls,
                        place,
                    };
                    let task = serve(connection, app.clone(), shutdown.clone());
                    tasks.spawn("admin:connection", task);
                }
                Err(error) => {
                    warn!(%error, "admin cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// The address as its client knows it: a listener of both families is told `::ffff:10.1.2.3` for `10.1.2.3`.
fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

/// An accepted connection.
struct AcceptedConnection {
    stream: TcpStream,
    peer: SocketAddr,
    /// Where TLS is spoken: how, and where clients without it are noted.
    tls: Option<(TlsAcceptor, Refusals)>,
    place: ConnectionPlace,
}

async fn serve(connection: AcceptedConnection, app: Router, shutdown: Shutdown) {
    let AcceptedConnection {
        stream,
        peer,
        tls,
        place,
    } = connection;
    let progress = &place.progress;
    let request_progress = progress.clone();
    let app = app
        .layer(axum::Extension(PeerAddress(peer)))
        .layer(axum::Extension(ProbesOnly(place.probes_only)))
        .layer(from_fn(move |request: Request, next: Next| {
            let progress = request_progress.clone();
            // What is open to everybody is answered at once: it keeps no place from others.
            let guard =
                needed_role(request.method(), request.uri().path()).map(|_| progress.handle());
            async move {
                let response = next.run(request).await;
                drop(guard);
                progress.responds();
                response
            }
        }));
    let stream = TrackedStream::new(stream, progress.clone());
    let served = async {
        match tls {
            None => run_connection(stream, app, &shutdown).await,
            Some((acceptor, refusals)) => match begin_tls(&acceptor, stream, &shutdown).await {
                TlsBegin::Done(stream) => run_connection(stream, app, &shutdown).await,
                TlsBegin::Left => {}
                TlsBegin::Plain(stream) => {
                    refusals.note(RefusalReason::Tls, peer);
                    if let Err(error) = tls::refuse_plain(stream).await {
                        trace!(%peer, %error, "an admin connection without TLS has failed");
                    }
                }
                TlsBegin::Failed(error) => {
                    refusals.note(RefusalReason::Tls, peer);
                    trace!(%peer, %error, "an admin connection does not agree on TLS");
                }
            },
        }
    };
    tokio::select! {
        () = served => {}
        () = progress.ended() => trace!(%peer, "an admin connection was closed: no progress, or its place was needed"),
    }
}

/// Shakes hands, unless draining begins.
async fn begin_tls(acceptor: &TlsAcceptor, stream: TrackedStream, shutdown: &Shutdown) -> TlsBegin {
    tokio::select! {
        begin = tls::begin(acceptor, stream) => begin,
        () = shutdown.draining() => TlsBegin::Left,
    }
}

/// Runs the HTTP of a connection to its end; once draining has begun, an open request gets [`DRAIN_GRACE`].
async fn run_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    shutdown: &Shutdown,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.draining() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                served = connection.as_mut() => served,
                () = tokio::time::sleep(DRAIN_GRACE) => return,
                () = shutdown.forced() => return,
            }
        }
    };
    if let Err(error) = served {
        trace!(%error, "an admin connection failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_the_address_that_it_knows_itself_by() {
        for (seen, known) in [
            ("[::ffff:10.1.2.3]:7", "10.1.2.3:7"),
            ("10.1.2.3:7", "10.1.2.3:7"),
            ("[::1]:7", "[::1]:7"),
            ("[2001:db8::1]:7", "[2001:db8::1]:7"),
        ] {
            let peer = canonical(seen.parse().expect("an address"));
            assert_eq!(peer.to_string(), known);
        }
    }
}

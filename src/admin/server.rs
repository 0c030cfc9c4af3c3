//! The listener: it bounds the number of connections and every wait, and ends in order. Clients that neither read nor
//! write cannot take the places of others: see [`super::connection`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, trace, warn};

use super::audit::PeerAddress;
use super::auth::AccessTokens;
use super::connection::{ConnectionProgress, OpenConnections, TrackedStream};
use super::context::Admin;
use super::router::router;
use super::{AdminState, Config, ListenError};
use crate::lifecycle::{Shutdown, Tasks};

/// Time for open requests to end once draining has begun.
pub const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for a request's head, and longest idle time of a connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Most connections at once; one more takes the place of the idlest.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Pause between two attempts to find a place while all are taken.
const FULL_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a failed `accept` (no file descriptors left, say) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Starts listening, and returns the address with its actual port. The tasks are named `admin` and
/// `admin:connection`; they end once `shutdown` drains, at most [`DRAIN_GRACE`] later.
pub async fn start(
    config: &Config,
    state: AdminState,
    tasks: &Tasks,
    shutdown: Shutdown,
) -> Result<SocketAddr, ListenError> {
    let tokens = AccessTokens::new(config);
    if tokens.is_empty() && !config.listen.ip().is_loopback() {
        return Err(ListenError::Unprotected(config.listen));
    }
    let refused = |why| ListenError::Bind { address: config.listen, why };
    let listener = TcpListener::bind(config.listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let connections = Arc::new(OpenConnections::new(state.clock));
    let app = router(Admin::new(state, tokens, tasks.clone(), shutdown.clone()));
    tasks.spawn("admin", accept(listener, app, connections, tasks.clone(), shutdown));
    info!(%address, "admin listens");
    Ok(address)
}

async fn accept(
    listener: TcpListener,
    app: Router,
    connections: Arc<OpenConnections>,
    tasks: Tasks,
    shutdown: Shutdown,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = shutdown.draining() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let place = tokio::select! {
                    () = shutdown.draining() => return,
                    place = free_place(&places, &connections) => place,
                };
                let progress = connections.open();
                let connection = AcceptedConnection { stream, peer, progress, place };
                let task = serve(connection, app.clone(), connections.clone(), shutdown.clone());
                tasks.spawn("admin:connection", task);
            }
            Err(error) => {
                warn!(%error, "admin cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Waits for a place for a new connection. While all are taken, idle connections are closed.
async fn free_place(places: &Arc<Semaphore>, connections: &OpenConnections) -> OwnedSemaphorePermit {
    loop {
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return place;
        }
        connections.close_idlest();
        if let Ok(Ok(place)) =
            tokio::time::timeout(FULL_RETRY_PAUSE, Arc::clone(places).acquire_owned()).await
        {
            return place;
        }
    }
}

/// An accepted connection.
struct AcceptedConnection {
    stream: TcpStream,
    peer: SocketAddr,
    progress: Arc<ConnectionProgress>,
    /// Its place among [`MAX_CONNECTIONS`], returned when the connection ends.
    place: OwnedSemaphorePermit,
}

async fn serve(
    connection: AcceptedConnection,
    app: Router,
    connections: Arc<OpenConnections>,
    shutdown: Shutdown,
) {
    let AcceptedConnection { stream, peer, progress, place } = connection;
    let request_progress = progress.clone();
    let app =
        app.layer(axum::Extension(PeerAddress(peer))).layer(from_fn(move |request: Request, next: Next| {
            let guard = request_progress.handle();
            async move {
                let response = next.run(request).await;
                drop(guard);
                response
            }
        }));
    let served =
        http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).serve_connection(
            TokioIo::new(TrackedStream::new(stream, progress.clone())),
            TowerToHyperService::new(app),
        );
    tokio::select! {
        () = run_connection(served, &shutdown) => {}
        () = progress.ended() => trace!(%peer, "an admin connection made no progress"),
    }
    connections.closed(&progress);
    drop(place);
}

/// The HTTP side of a connection.
type HttpConnection = http1::Connection<TokioIo<TrackedStream>, TowerToHyperService<Router>>;

/// Runs a connection to its end; once draining has begun, an open request gets [`DRAIN_GRACE`].
async fn run_connection(connection: HttpConnection, shutdown: &Shutdown) {
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

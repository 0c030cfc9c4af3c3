//! The listener: bounded connections, bounded waits, an orderly end. Clients that neither read nor write cannot take
//! the places of others: see [`super::connection`].

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

use super::audit::Peer;
use super::auth::Tokens;
use super::connection::{Connections, Progress, TrackedStream};
use super::router::{Admin, router};
use super::{Config, Error, State};
use crate::lifecycle::{Shutdown, Tasks};

/// What open requests are given to end once draining has begun.
pub const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for a request's head, and longest idle time of a connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Most connections at once; one more takes the place of the idlest.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Between two looks for an idle connection while every place is taken.
const ROOM_PAUSE: Duration = Duration::from_millis(100);
/// Wait after a failed `accept` (no file descriptors left, say) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Starts listening, and returns the address with its actual port. The tasks are named `admin` and
/// `admin:connection`; they end once `shutdown` drains, at most [`GRACE`] later.
pub async fn start(
    config: &Config,
    state: State,
    tasks: &Tasks,
    shutdown: Shutdown,
) -> Result<SocketAddr, Error> {
    let tokens = Tokens::new(config);
    if tokens.is_empty() && !config.listen.ip().is_loopback() {
        return Err(Error::Unprotected(config.listen));
    }
    let refused = |why| Error::Bind { address: config.listen, why };
    let listener = TcpListener::bind(config.listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let connections = Arc::new(Connections::new(state.clock));
    let app = router(Admin::new(state, tokens, tasks.clone(), shutdown.clone()));
    tasks.spawn("admin", accept(listener, app, connections, tasks.clone(), shutdown));
    info!(%address, "admin listens");
    Ok(address)
}

async fn accept(
    listener: TcpListener,
    app: Router,
    connections: Arc<Connections>,
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
                let connection = Connection { stream, peer, progress, place };
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

/// A place for a new connection; while there is none, idle ones are closed.
async fn free_place(places: &Arc<Semaphore>, connections: &Connections) -> OwnedSemaphorePermit {
    loop {
        if let Ok(place) = Arc::clone(places).try_acquire_owned() {
            return place;
        }
        connections.close_idlest();
        if let Ok(Ok(place)) = tokio::time::timeout(ROOM_PAUSE, Arc::clone(places).acquire_owned()).await {
            return place;
        }
    }
}

/// An accepted connection.
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    progress: Arc<Progress>,
    /// Its place among [`MAX_CONNECTIONS`], given back when it ends.
    place: OwnedSemaphorePermit,
}

async fn serve(connection: Connection, app: Router, connections: Arc<Connections>, shutdown: Shutdown) {
    let Connection { stream, peer, progress, place } = connection;
    let marked = progress.clone();
    let app = app.layer(axum::Extension(Peer(peer))).layer(from_fn(move |request: Request, next: Next| {
        let handling = marked.handle();
        async move {
            let response = next.run(request).await;
            drop(handling);
            response
        }
    }));
    let served =
        http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE).serve_connection(
            TokioIo::new(TrackedStream::new(stream, progress.clone())),
            TowerToHyperService::new(app),
        );
    tokio::select! {
        () = drained(served, &shutdown) => {}
        () = progress.ended() => trace!(%peer, "an admin connection made no progress"),
    }
    connections.closed(&progress);
    drop(place);
}

/// The HTTP side of a connection.
type Served = http1::Connection<TokioIo<TrackedStream>, TowerToHyperService<Router>>;

/// Runs a connection to its end; once draining has begun, an open request gets [`GRACE`].
async fn drained(connection: Served, shutdown: &Shutdown) {
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shutdown.draining() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                served = connection.as_mut() => served,
                () = tokio::time::sleep(GRACE) => return,
                () = shutdown.forced() => return,
            }
        }
    };
    if let Err(error) = served {
        trace!(%error, "an admin connection ended badly");
    }
}

//! The listener: bounded connections, bounded waits, an orderly end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{info, trace, warn};

use super::audit::Peer;
use super::auth::Tokens;
use super::router::{Admin, router};
use super::{Config, Error, State};
use crate::lifecycle::{Shutdown, Tasks};

/// What open requests are given to end once draining has begun.
pub const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for a request's head, and longest idle time of a connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// Most connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 256;
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
    let app = router(Admin::new(state, tokens, shutdown.clone()));
    tasks.spawn("admin", accept(listener, app, tasks.clone(), shutdown));
    info!(%address, "admin listens");
    Ok(address)
}

async fn accept(listener: TcpListener, app: Router, tasks: Tasks, shutdown: Shutdown) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let next = async || {
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        Some((listener.accept().await, place))
    };
    loop {
        let accepted = tokio::select! {
            () = shutdown.draining() => return,
            accepted = next() => accepted,
        };
        match accepted {
            Some((Ok((stream, peer)), place)) => {
                let app = app.clone().layer(axum::Extension(Peer(peer)));
                tasks.spawn("admin:connection", serve(stream, app, shutdown.clone(), place));
            }
            Some((Err(error), _)) => {
                warn!(%error, "admin cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            // The semaphore is never closed.
            None => return,
        }
    }
}

async fn serve(stream: TcpStream, app: Router, shutdown: Shutdown, _place: OwnedSemaphorePermit) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
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

//! Progress of connections: when a connection's bytes last moved, and whether a request of it is being handled. The
//! listener closes a connection without progress. When all places are taken it closes the one that is idle longest.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::domain::Clock;

/// Longest time without progress: no byte came or went, and no request is being handled.
const IDLE_DEADLINE: Duration = Duration::from_secs(10);

/// The progress of one connection: shared by its stream, its requests and the listener.
#[derive(Debug)]
pub(super) struct ConnectionProgress {
    clock: Clock,
    moved_us: AtomicI64,
    /// Requests that a handler has not answered yet.
    handling: AtomicUsize,
    close: CancellationToken,
}

/// Marks a request as being handled until it is dropped.
pub(super) struct RequestGuard(Arc<ConnectionProgress>);

impl ConnectionProgress {
    fn new(clock: Clock) -> Self {
        Self {
            clock,
            moved_us: clock.mono_us().into(),
            handling: AtomicUsize::new(0),
            close: CancellationToken::new(),
        }
    }

    fn moved(&self) {
        self.moved_us.store(self.clock.mono_us(), Ordering::Relaxed);
    }

    /// Microseconds since bytes moved; `None` while a request is being handled, for then the client waits for us.
    fn idle_us(&self) -> Option<i64> {
        let idle = self.handling.load(Ordering::Relaxed) == 0;
        idle.then(|| self.clock.mono_us() - self.moved_us.load(Ordering::Relaxed))
    }

    /// Notes that a request is being handled.
    pub(super) fn handle(self: &Arc<Self>) -> RequestGuard {
        self.handling.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(self))
    }

    /// Waits until the connection is to be closed: its client has stopped reading and writing, or its place is needed.
    /// Cancel-safe.
    pub(super) async fn ended(&self) {
        loop {
            let idle = Duration::from_micros(self.idle_us().unwrap_or(0).max(0) as u64);
            let Some(left) = IDLE_DEADLINE.checked_sub(idle).filter(|left| !left.is_zero()) else { return };
            tokio::select! {
                () = self.close.cancelled() => return,
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.moved();
        self.0.handling.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All open connections of a listener.
#[derive(Debug)]
pub(super) struct OpenConnections {
    clock: Clock,
    open: Mutex<Vec<Arc<ConnectionProgress>>>,
}

impl OpenConnections {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, open: Mutex::default() }
    }

    /// Adds a new connection.
    pub(super) fn open(&self) -> Arc<ConnectionProgress> {
        let progress = Arc::new(ConnectionProgress::new(self.clock));
        self.open.lock().push(Arc::clone(&progress));
        progress
    }

    /// Removes a connection that has ended.
    pub(super) fn closed(&self, progress: &Arc<ConnectionProgress>) {
        self.open.lock().retain(|other| !Arc::ptr_eq(other, progress));
    }

    /// Closes the connection whose client has been idle longest. A connection whose request is being handled stays.
    pub(super) fn close_idlest(&self) {
        let open = self.open.lock();
        let idle = open.iter().filter(|progress| !progress.close.is_cancelled());
        let idle = idle.filter_map(|progress| Some((progress.idle_us()?, progress)));
        if let Some((_, progress)) = idle.max_by_key(|(idle_us, _)| *idle_us) {
            progress.close.cancel();
        }
    }
}

/// A TCP stream that notes when bytes move.
#[derive(Debug)]
pub(super) struct TrackedStream {
    stream: TcpStream,
    progress: Arc<ConnectionProgress>,
}

impl TrackedStream {
    pub(super) fn new(stream: TcpStream, progress: Arc<ConnectionProgress>) -> Self {
        Self { stream, progress }
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.progress.moved();
        }
        read
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.progress.moved();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        if written.is_ready() {
            self.progress.moved();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idlest_connection_makes_way_and_one_that_is_served_stays() {
        let connections = OpenConnections::new(Clock::start());
        let served = connections.open();
        let handling = served.handle();
        let idle = connections.open();
        let newer = connections.open();
        newer.moved_us.fetch_add(1_000_000, Ordering::Relaxed);
        let closed = || [&served, &idle, &newer].map(|progress| progress.close.is_cancelled());
        connections.close_idlest();
        assert_eq!(closed(), [false, true, false]);
        connections.close_idlest();
        assert_eq!(closed(), [false, true, true], "one that is on its way out is not counted again");
        connections.close_idlest();
        assert_eq!(closed(), [false, true, true]);
        drop(handling);
        connections.close_idlest();
        assert_eq!(closed(), [true; 3]);
        connections.closed(&idle);
        assert_eq!(connections.open.lock().len(), 2);
    }
}

//! Progress of connections: when a connection's bytes last moved, and whether a call of it is being handled. The
//! listener closes a connection without progress. When all places are taken it closes the one that is idle longest; when
//! one address has too many of them, the idlest of that address.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
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

/// Longest time from an answer's first byte to its last. A client that reads a byte now and then makes progress for ever.
const RESPONSE_DEADLINE: Duration = Duration::from_secs(60);
/// Value of `responding_us` while no answer is under way.
const NO_RESPONSE: i64 = i64::MAX;

/// The network that a connection comes from: an IPv4 address, or the /64 that one IPv6 host may choose its addresses
/// from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerNetwork(IpAddr);

impl From<IpAddr> for PeerNetwork {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => Self(address),
        }
    }
}

/// The progress of one connection: shared by its stream, its requests and the listener.
#[derive(Debug)]
pub(super) struct ConnectionProgress {
    clock: Clock,
    peer: PeerNetwork,
    moved_us: AtomicI64,
    /// Since when an answer is being written, monotonic microseconds.
    responding_us: AtomicI64,
    /// Calls that a handler has not answered yet.
    handling: AtomicUsize,
    close: CancellationToken,
}

/// Marks a call as being handled until it is dropped.
pub(super) struct CallGuard(Arc<ConnectionProgress>);

impl ConnectionProgress {
    fn new(clock: Clock, peer: PeerNetwork) -> Self {
        Self {
            clock,
            peer,
            moved_us: clock.mono_us().into(),
            responding_us: NO_RESPONSE.into(),
            handling: AtomicUsize::new(0),
            close: CancellationToken::new(),
        }
    }

    fn moved(&self) {
        self.moved_us.store(self.clock.mono_us(), Ordering::Relaxed);
    }

    /// Notes that an answer is ready to be written.
    pub(super) fn responds(&self) {
        // An answer before it on the same connection may still be under way.
        if !self.is_responding() {
            self.responding_us
                .store(self.clock.mono_us(), Ordering::Relaxed);
        }
    }

    /// Reports whether an answer is under way.
    pub(super) fn is_responding(&self) -> bool {
        self.responding_us.load(Ordering::Relaxed) != NO_RESPONSE
    }

    /// Notes that every byte so far is written.
    fn flushed(&self) {
        self.responding_us.store(NO_RESPONSE, Ordering::Relaxed);
    }

    /// Microseconds since bytes moved; `None` while a call is being handled, for then the client waits for us.
    fn idle_us(&self) -> Option<i64> {
        let idle = self.handling.load(Ordering::Relaxed) == 0;
        idle.then(|| self.clock.mono_us() - self.moved_us.load(Ordering::Relaxed))
    }

    /// Time until the first of the two deadlines, if nothing happens; `None` once one is over.
    fn time_left(&self) -> Option<Duration> {
        let left = |deadline: Duration, since_us: i64| {
            let left = deadline.checked_sub(Duration::from_micros(since_us.max(0) as u64));
            left.filter(|left| !left.is_zero())
        };
        let responding = self.responding_us.load(Ordering::Relaxed);
        let to_progress = left(IDLE_DEADLINE, self.idle_us().unwrap_or(0))?;
        let to_end = left(
            RESPONSE_DEADLINE,
            self.clock.mono_us().saturating_sub(responding),
        )?;
        Some(to_progress.min(to_end))
    }

    /// Notes that a call is being handled.
    pub(super) fn handle(self: &Arc<Self>) -> CallGuard {
        self.handling.fetch_add(1, Ordering::Relaxed);
        CallGuard(Arc::clone(self))
    }

    /// Waits until the connection is to be closed: its client has stopped reading and writing, takes too long to read an
    /// answer, or its place is needed. Cancel-safe.
    pub(super) async fn ended(&self) {
        while let Some(left) = self.time_left() {
            tokio::select! {
                () = self.close.cancelled() => return,
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

impl Drop for CallGuard {
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
        Self {
            clock,
            open: Mutex::default(),
        }
    }

    /// Reports of each connection whether an answer is under way.
    #[cfg(test)]
    pub(super) fn responding(&self) -> Vec<bool> {
        self.open
            .lock()
            .iter()
            .map(|progress| progress.is_responding())
            .collect()
    }

    /// Adds a new connection.
    pub(super) fn open(&self, peer: PeerNetwork) -> Arc<ConnectionProgress> {
        let progress = Arc::new(ConnectionProgress::new(self.clock, peer));
        self.open.lock().push(Arc::clone(&progress));
        progress
    }

    /// Removes a connection that has ended.
    pub(super) fn closed(&self, progress: &Arc<ConnectionProgress>) {
        self.open
            .lock()
            .retain(|other| !Arc::ptr_eq(other, progress));
    }

    /// The number of open connections, and of those of one network. Connections that are being closed do not count.
    pub(super) fn counts(&self, peer: PeerNetwork) -> (usize, usize) {
        let open = self.open.lock();
        let staying = open
            .iter()
            .filter(|progress| !progress.close.is_cancelled());
        staying.fold((0, 0), |(all, own), progress| {
            (all + 1, own + usize::from(progress.peer == peer))
        })
    }

    /// Closes the connection whose client has been idle longest, of this network if one is given. A connection whose call
    /// is being handled stays. Returns false if there is none to close.
    pub(super) fn close_idlest(&self, of: Option<PeerNetwork>) -> bool {
        let open = self.open.lock();
        let idle = open
            .iter()
            .filter(|progress| !progress.close.is_cancelled());
        let idle = idle.filter(|progress| of.is_none_or(|peer| progress.peer == peer));
        let idle = idle.filter_map(|progress| Some((progress.idle_us()?, progress)));
        let idlest = idle.max_by_key(|(idle_us, _)| *idle_us);
        if let Some((_, progress)) = idlest {
            progress.close.cancel();
        }
        idlest.is_some()
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

    /// Waits for the client's first byte, and leaves it to be read. `None` if the client sends none. Cancel-safe.
    pub(super) async fn peek_first(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let seen = self.stream.peek(&mut first).await?;
        Ok((seen > 0).then_some(first[0]))
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
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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
        // The HTTP side flushes once it has written all that it has.
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.progress.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str) -> PeerNetwork {
        address.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn the_idlest_connection_makes_way_and_one_that_is_served_stays() {
        let connections = OpenConnections::new(Clock::start());
        let one = network("10.0.0.1");
        let served = connections.open(one);
        let handling = served.handle();
        let idle = connections.open(one);
        let newer = connections.open(one);
        newer.moved_us.fetch_add(1_000_000, Ordering::Relaxed);
        let closed = || [&served, &idle, &newer].map(|progress| progress.close.is_cancelled());
        assert!(
            !connections.close_idlest(Some(network("10.0.0.2"))),
            "another's"
        );
        assert!(connections.close_idlest(Some(one)));
        assert_eq!(closed(), [false, true, false]);
        assert_eq!(connections.counts(one), (2, 2));
        assert!(connections.close_idlest(None));
        assert_eq!(
            closed(),
            [false, true, true],
            "one that is on its way out is not counted again"
        );
        assert!(!connections.close_idlest(None));
        assert_eq!(closed(), [false, true, true]);
        drop(handling);
        assert!(connections.close_idlest(None));
        assert_eq!(closed(), [true; 3]);
        connections.closed(&idle);
        assert_eq!(connections.open.lock().len(), 2);
    }

    #[test]
    fn one_host_is_one_network() {
        assert_eq!(network("10.0.0.1"), network("::ffff:10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
    }

    #[test]
    fn an_answer_that_is_read_too_slowly_ends_although_bytes_move() {
        let clock = Clock::start();
        let progress = ConnectionProgress::new(clock, network("10.0.0.1"));
        progress.responds();
        assert!(progress.time_left().is_some());
        let long_ago = clock.mono_us() - RESPONSE_DEADLINE.as_micros() as i64;
        progress.responding_us.store(long_ago, Ordering::Relaxed);
        progress.moved();
        progress.responds();
        assert_eq!(
            progress.time_left(),
            None,
            "a second answer does not lengthen the time of the first"
        );
        progress.flushed();
        assert!(progress.time_left().is_some());
    }
}

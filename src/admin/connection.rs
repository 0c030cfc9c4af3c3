//! The open connections of a listener: the places that they take, and their progress, which is when their bytes last moved
//! and whether a call is being handled. A connection without progress is closed. When all places are taken, the one that
//! is idle longest is closed; when one network has too many of them, the idlest of that network.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::refusals::{RefusalReason, Refusals};
use crate::domain::Clock;

/// Pause between two attempts to find a place while all are taken.
const FULL_RETRY_PAUSE: Duration = Duration::from_millis(100);
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

/// Most connections of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionBounds {
    /// At once; one more takes the place of the idlest.
    pub(super) places: usize,
    /// Of one network, while more than half of all places are taken. One more takes the place of its idlest.
    pub(super) of_one_network: usize,
}

impl ConnectionBounds {
    pub(super) const ADMIN: Self = Self {
        places: 256,
        of_one_network: 32,
    };
    pub(super) const PROBES: Self = Self {
        places: 32,
        of_one_network: 32,
    };
}

/// All open connections of a listener.
#[derive(Debug)]
pub(super) struct OpenConnections {
    clock: Clock,
    bounds: ConnectionBounds,
    places: Arc<Semaphore>,
    open: Mutex<Vec<Arc<ConnectionProgress>>>,
}

/// The place of an open connection: free again once this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    pub(super) progress: Arc<ConnectionProgress>,
    /// True for a network that has too many connections, each with a call that is being handled: it is answered probes and
    /// metrics.
    pub(super) probes_only: bool,
    connections: Arc<OpenConnections>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.retain(|other| !Arc::ptr_eq(other, &self.progress));
    }
}

impl OpenConnections {
    pub(super) fn new(clock: Clock, bounds: ConnectionBounds) -> Arc<Self> {
        Arc::new(Self {
            clock,
            bounds,
            places: Arc::new(Semaphore::new(bounds.places)),
            open: Mutex::default(),
        })
    }

    /// Waits for a place for a new connection. While all are taken, idle connections are closed. Cancel-safe.
    pub(super) async fn place(
        self: &Arc<Self>,
        peer: SocketAddr,
        refusals: &Refusals,
    ) -> ConnectionPlace {
        let network = PeerNetwork::from(peer.ip());
        let mut probes_only = false;
        if self.is_over_bound(network) {
            probes_only = !self.close_idlest(Some(network));
            if !probes_only {
                refusals.note(RefusalReason::Address, peer);
            }
        }
        let permit = loop {
            if let Ok(permit) = self.places.clone().try_acquire_owned() {
                break permit;
            }
            if self.close_idlest(None) {
                refusals.note(RefusalReason::Full, peer);
            }
            let freed = tokio::time::timeout(FULL_RETRY_PAUSE, self.places.clone().acquire_owned());
            if let Ok(Ok(permit)) = freed.await {
                break permit;
            }
        };
        ConnectionPlace {
            progress: self.open(network),
            probes_only,
            connections: self.clone(),
            _permit: permit,
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

    fn open(&self, peer: PeerNetwork) -> Arc<ConnectionProgress> {
        let progress = Arc::new(ConnectionProgress::new(self.clock, peer));
        self.open.lock().push(Arc::clone(&progress));
        progress
    }

    /// Reports whether a network has as many connections as it may have. Connections that are being closed do not count.
    fn is_over_bound(&self, peer: PeerNetwork) -> bool {
        let open = self.open.lock();
        let staying = open
            .iter()
            .filter(|progress| !progress.close.is_cancelled());
        let (all, own) = staying.fold((0, 0), |(all, own), progress| {
            (all + 1, own + usize::from(progress.peer == peer))
        });
        all * 2 > self.bounds.places && own >= self.bounds.of_one_network
    }

    /// Closes the connection whose client has been idle longest, of this network if one is given. A connection whose call
    /// is being handled stays. Returns false if there is none to close.
    fn close_idlest(&self, of: Option<PeerNetwork>) -> bool {
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
        let bounds = ConnectionBounds {
            places: 3,
            of_one_network: 2,
        };
        let connections = OpenConnections::new(Clock::start(), bounds);
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
        assert!(connections.is_over_bound(one));
        assert!(!connections.is_over_bound(network("10.0.0.2")));
        assert!(connections.close_idlest(None));
        assert_eq!(
            closed(),
            [false, true, true],
            "one that is on its way out is not counted again"
        );
        assert!(!connections.is_over_bound(one));
        assert!(!connections.close_idlest(None));
        assert_eq!(closed(), [false, true, true]);
        drop(handling);
        assert!(connections.close_idlest(None));
        assert_eq!(closed(), [true; 3]);
    }

    #[tokio::test]
    async fn a_place_is_free_again_once_its_connection_is_dropped() {
        let bounds = ConnectionBounds {
            places: 1,
            of_one_network: 1,
        };
        let connections = OpenConnections::new(Clock::start(), bounds);
        let (state, _) = super::super::testing::state();
        let refusals = Refusals::new(state.metrics, state.bursts);
        let peer = SocketAddr::from(([10, 0, 0, 1], 7));
        let first = connections.place(peer, &refusals).await;
        assert!(!first.probes_only);
        let handling = first.progress.handle();
        let mut second = std::pin::pin!(connections.place(peer, &refusals));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        drop((handling, first));
        assert!(second.await.probes_only, "all of its network were busy");
        assert_eq!(connections.open.lock().len(), 0);
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

//! A TCP proxy before a server, on which a link's faults are played: resets, replies cut in the middle,
//! half-open silence, trickles, delay, refused connections.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use super::ports;

/// A link of a limited rate makes up for so much time in which it carried nothing: timers are a millisecond late, and
/// on a busy machine many. Without it the link would be slower than it says.
const MADE_UP: Duration = Duration::from_millis(100);

/// How the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As if it were not there.
    Pass,
    /// Connections stay open, and nothing comes through in either direction until the mode changes: what a
    /// dropped network looks like from both sides.
    Hole,
    /// One byte a second in each direction.
    Trickle,
    /// Everything arrives this much later.
    Delay(Duration),
    /// All connections share so many bytes a second in each direction.
    Rate(u64),
    /// Both: everything arrives `by` later, and all connections share `rate` bytes a second in each direction.
    Slow { by: Duration, rate: u64 },
    /// New connections are reset; those that stand are left alone.
    Refuse,
}

/// Fault that is done to all open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stroke {
    Reset,
    Close,
    MidReply,
}

#[derive(Debug)]
struct State {
    /// The port of the server that new connections go to.
    server: AtomicU16,
    mode: watch::Sender<Mode>,
    stroke: broadcast::Sender<Stroke>,
    /// Connections that were quiet for so many ms are forgotten; 0: none is.
    forgets_ms: AtomicU64,
    hits: AtomicU64,
    standing: AtomicU64,
    /// When a link of a limited rate is free again: towards the server, and from it.
    free: [tokio::sync::Mutex<Instant>; 2],
}

/// The proxy; it ends with the process.
#[derive(Clone, Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

/// Bytes that were read, and when they may be written.
type Chunk = (Instant, Vec<u8>);

impl Proxy {
    /// Listens on a port of its own before `port`. That one may be opened later.
    pub async fn before(port: u16) -> Self {
        let own = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", own))
            .await
            .expect("a free port");
        let state = Arc::new(State {
            server: AtomicU16::new(port),
            mode: watch::Sender::new(Mode::Pass),
            stroke: broadcast::Sender::new(16),
            forgets_ms: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            standing: AtomicU64::new(0),
            free: [(); 2].map(|()| tokio::sync::Mutex::new(Instant::now())),
        });
        let shared = state.clone();
        tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    continue;
                };
                let server = shared.server.load(Ordering::SeqCst);
                tokio::spawn(carry(client, server, shared.clone()));
            }
        });
        Self { port: own, state }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Has new connections go to another server. Those that stand stay where they are.
    pub fn lead_to(&self, port: u16) {
        self.state.server.store(port, Ordering::SeqCst);
    }

    /// Changes the link, for connections that stand and new ones.
    pub fn set(&self, mode: Mode) {
        self.state.mode.send_replace(mode);
    }

    /// Resets (RST) all connections that stand.
    pub fn reset(&self) {
        self.strike(Stroke::Reset);
    }

    /// Closes (FIN) all connections that stand.
    pub fn close(&self) {
        self.strike(Stroke::Close);
    }

    /// Cuts each connection that stands in the middle of its next reply.
    pub fn cut_replies(&self) {
        self.strike(Stroke::MidReply);
    }

    /// Forgets connections that were quiet for so long, as a firewall does: they stay open, and nothing comes
    /// through any more.
    pub fn forget_after(&self, quiet: Duration) {
        self.state
            .forgets_ms
            .store(quiet.as_millis() as u64, Ordering::SeqCst);
    }

    /// How often a fault met something: a connection that was ended or refused, bytes that were held back.
    pub fn hits(&self) -> u64 {
        self.state.hits.load(Ordering::SeqCst)
    }

    /// Connections that stand.
    pub fn standing(&self) -> u64 {
        self.state.standing.load(Ordering::SeqCst)
    }

    fn strike(&self, stroke: Stroke) {
        // Fails if no connection stands, and then there is nothing to strike.
        drop(self.state.stroke.send(stroke));
    }
}

async fn carry(mut client: TcpStream, port: u16, state: Arc<State>) {
    if *state.mode.borrow() == Mode::Refuse {
        state.hits.fetch_add(1, Ordering::SeqCst);
        drop(client.set_zero_linger());
        return;
    }
    let mut strokes = state.stroke.subscribe();
    // A server that is away refuses its clients so.
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
        drop(client.set_zero_linger());
        return;
    };
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    state.standing.fetch_add(1, Ordering::SeqCst);
    let cutting = AtomicBool::new(false);
    let active = Mutex::new(Instant::now());
    let reset = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            _ = pump(from_client, to_server, &state, &active, None) => false,
            _ = pump(from_server, to_client, &state, &active, Some(&cutting)) => false,
            stroke = ending(&mut strokes, &cutting) => {
                state.hits.fetch_add(1, Ordering::SeqCst);
                stroke == Stroke::Reset
            }
        }
    };
    if reset {
        drop((client.set_zero_linger(), server.set_zero_linger()));
    }
    state.standing.fetch_sub(1, Ordering::SeqCst);
}

/// Waits for the stroke that ends the connection here and now.
async fn ending(strokes: &mut broadcast::Receiver<Stroke>, cutting: &AtomicBool) -> Stroke {
    loop {
        match strokes.recv().await {
            Ok(Stroke::MidReply) => cutting.store(true, Ordering::SeqCst),
            Ok(stroke) => return stroke,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return Stroke::Close,
        }
    }
}

/// One direction, until either end closes or the reply is cut. Reading runs ahead of writing by as much as a
/// delayed link holds.
async fn pump(
    mut from: tokio::net::tcp::ReadHalf<'_>,
    mut to: tokio::net::tcp::WriteHalf<'_>,
    state: &State,
    active: &Mutex<Instant>,
    cutting: Option<&AtomicBool>,
) -> Option<()> {
    let (send, mut queue) = mpsc::channel::<Chunk>(256);
    let reading = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let Ok(n @ 1..) = from.read(&mut buffer).await else {
                return;
            };
            let wait = match *state.mode.borrow() {
                Mode::Delay(by) | Mode::Slow { by, .. } => {
                    state.hits.fetch_add(1, Ordering::SeqCst);
                    by
                }
                _ => Duration::ZERO,
            };
            if send
                .send((Instant::now() + wait, buffer[..n].to_vec()))
                .await
                .is_err()
            {
                return;
            }
        }
    };
    let writing = async {
        while let Some((at, bytes)) = queue.recv().await {
            tokio::time::sleep_until(at).await;
            let quiet =
                std::mem::replace(&mut *active.lock().expect("a moment"), Instant::now()).elapsed();
            let forgets = Duration::from_millis(state.forgets_ms.load(Ordering::SeqCst));
            if !forgets.is_zero() && quiet > forgets {
                state.hits.fetch_add(1, Ordering::SeqCst);
                // Until the connection is given up at its other end.
                std::future::pending::<()>().await;
            }
            if cutting.is_some_and(|cutting| cutting.load(Ordering::SeqCst)) {
                state.hits.fetch_add(1, Ordering::SeqCst);
                to.write_all(&bytes[..bytes.len() / 2]).await.ok()?;
                return to.shutdown().await.ok();
            }
            write(&mut to, &bytes, state, usize::from(cutting.is_some())).await?;
        }
        to.shutdown().await.ok()
    };
    tokio::pin!(writing);
    tokio::select! {
        done = &mut writing => return done,
        () = reading => {}
    }
    // What was read before the end still goes out.
    drop(send);
    writing.await
}

/// Writes as the mode of the moment lets it.
async fn write(
    to: &mut tokio::net::tcp::WriteHalf<'_>,
    bytes: &[u8],
    state: &State,
    direction: usize,
) -> Option<()> {
    let mut mode = state.mode.subscribe();
    let mut written = 0;
    while written < bytes.len() {
        let now = *mode.borrow_and_update();
        match now {
            Mode::Pass | Mode::Refuse | Mode::Delay(_) => {
                to.write_all(&bytes[written..]).await.ok()?;
                written = bytes.len();
            }
            Mode::Rate(rate) | Mode::Slow { rate, .. } => {
                state.hits.fetch_add(1, Ordering::SeqCst);
                let end = bytes.len().min(written + (16 << 10));
                let at = {
                    let mut free = state.free[direction].lock().await;
                    let at = (*free).max(Instant::now() - MADE_UP);
                    *free = at + Duration::from_secs_f64((end - written) as f64 / rate as f64);
                    *free
                };
                tokio::time::sleep_until(at).await;
                to.write_all(&bytes[written..end]).await.ok()?;
                written = end;
            }
            Mode::Hole => {
                state.hits.fetch_add(1, Ordering::SeqCst);
                mode.changed().await.ok()?;
            }
            Mode::Trickle => {
                state.hits.fetch_add(1, Ordering::SeqCst);
                to.write_all(&bytes[written..=written]).await.ok()?;
                written += 1;
                // Either the second is over or the mode has changed.
                drop(tokio::time::timeout(Duration::from_secs(1), mode.changed()).await);
            }
        }
    }
    Some(())
}

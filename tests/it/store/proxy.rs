//! A wire between a store and its Redis that can be cut, held and listened to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::fixture::{StoreFixture, config};
use crate::support::{Redis, names};

/// Treatment of the next script call that passes. What a new connection tries its rights with is none: it comes when
/// it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trick {
    /// It runs, and its reply is lost with the connection.
    LoseReply,
    /// It does not arrive; the connection is lost, and what was sent can be delivered later.
    Withhold,
    /// It waits until it is let go.
    Hold,
    /// The same of the next read of a sorted set.
    HoldRange,
    /// Not a script call but the next read of blobs: the connection is lost before it.
    CutAtGet,
}

#[derive(Default)]
struct State {
    trick: Mutex<Option<Trick>>,
    /// Script calls that passed, newest last, each as it was sent.
    seen: Mutex<Vec<Vec<u8>>>,
    withheld: Mutex<Vec<Vec<u8>>>,
    played: AtomicU64,
    go: Notify,
    changed: Notify,
}

pub struct Proxy {
    redis_port: u16,
    port: u16,
    state: Arc<State>,
}

impl Proxy {
    pub async fn before(redis: &Redis) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let state = Arc::new(State::default());
        let redis_port = redis.port();
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, redis_port, shared.clone()));
            }
        });
        Self {
            redis_port,
            port,
            state,
        }
    }

    /// A store behind it, all of its scripts known to the server.
    pub async fn fixture(&self, redis: &Redis) -> StoreFixture {
        self.fixture_with(redis, 0).await
    }

    /// The same, with a route that remembers what it delivered for so many ms.
    pub async fn fixture_with(&self, redis: &Redis, dedupe_ms: i64) -> StoreFixture {
        StoreFixture::with(
            redis,
            &format!("redis://127.0.0.1:{}", self.port),
            1,
            dedupe_ms,
        )
        .await
    }

    /// A store behind it, with a route whose keys leave in order.
    pub async fn ordered_fixture(&self, redis: &Redis) -> StoreFixture {
        let url = format!("redis://127.0.0.1:{}", self.port);
        StoreFixture::ordered_of(config(&url, &names::unique("store"), 1), redis).await
    }

    pub fn lose_next_reply(&self) {
        *self.state.trick.lock() = Some(Trick::LoseReply);
    }

    pub fn withhold_next(&self) {
        *self.state.trick.lock() = Some(Trick::Withhold);
    }

    pub fn hold_next(&self) {
        *self.state.trick.lock() = Some(Trick::Hold);
    }

    pub fn hold_next_range(&self) {
        *self.state.trick.lock() = Some(Trick::HoldRange);
    }

    pub fn let_go(&self) {
        self.state.go.notify_one();
    }

    pub fn cut_at_next_get(&self) {
        *self.state.trick.lock() = Some(Trick::CutAtGet);
    }

    /// How many tricks have been played.
    pub fn played(&self) -> u64 {
        self.state.played.load(Ordering::SeqCst)
    }

    /// Waits until a trick has been played on a call.
    pub async fn until_played(&self) {
        while self.state.trick.lock().is_some() {
            self.state.changed.notified().await;
        }
    }

    /// The last script call that was sent, byte for byte.
    pub fn last_call(&self) -> Vec<u8> {
        self.state.seen.lock().last().expect("a call").clone()
    }

    /// The call that was withheld last.
    pub fn withheld(&self) -> Vec<u8> {
        self.state.withheld.lock().last().expect("a call").clone()
    }

    /// Sends a call again, past the store; its raw answer.
    pub async fn send_again(&self, call: &[u8]) -> String {
        let mut wire = TcpStream::connect(("127.0.0.1", self.redis_port))
            .await
            .expect("connected");
        wire.write_all(call).await.expect("sent");
        wire.write_all(b"PING\r\n").await.expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"+PONG\r\n") {
            assert!(
                wire.read_buf(&mut answer).await.expect("read") > 0,
                "it was answered"
            );
        }
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn holds(chunk: &[u8], word: &[u8]) -> bool {
    chunk.windows(word.len()).any(|w| w == word)
}

async fn carry(mut client: TcpStream, redis_port: u16, state: Arc<State>) {
    let Ok(mut redis) = TcpStream::connect(("127.0.0.1", redis_port)).await else {
        return;
    };
    let mut sent = vec![0; 1 << 20];
    let mut answered = vec![0; 1 << 20];
    let mut losing = false;
    loop {
        tokio::select! {
            n = client.read(&mut sent) => {
                let Ok(n @ 1..) = n else { return };
                let chunk = &sent[..n];
                let is_call = holds(chunk, b"EVALSHA") && !holds(chunk, b":rights:");
                if is_call {
                    state.seen.lock().push(chunk.to_vec());
                }
                let is_meant = match *state.trick.lock() {
                    Some(Trick::CutAtGet) => holds(chunk, b"GETRANGE"),
                    Some(Trick::HoldRange) => holds(chunk, b"ZRANGE"),
                    _ => is_call,
                };
                if is_meant {
                    let trick = state.trick.lock().take();
                    if trick.is_some() {
                        state.played.fetch_add(1, Ordering::SeqCst);
                        state.changed.notify_one();
                    }
                    match trick {
                        Some(Trick::CutAtGet) => return,
                        Some(Trick::Withhold) => {
                            state.withheld.lock().push(chunk.to_vec());
                            return;
                        }
                        Some(Trick::Hold | Trick::HoldRange) => state.go.notified().await,
                        Some(Trick::LoseReply) => losing = true,
                        None => {}
                    }
                }
                if redis.write_all(chunk).await.is_err() {
                    return;
                }
            }
            n = redis.read(&mut answered) => {
                let Ok(n @ 1..) = n else { return };
                if losing || client.write_all(&answered[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}

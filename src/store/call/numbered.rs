//! Call lanes: every call of one kind is numbered per partition, one outstanding at a time, and sent again
//! under the same number until it is answered, so that it is applied once however often it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use redis::{Cmd, RedisResult, Script, Value};
use tokio::sync::{Mutex, MutexGuard};
use tracing::{error, warn};

use super::keys::Keys;
use super::reply::Reply;
use crate::backoff::Backoff;
use crate::domain::{Partition, Partitions, StoreClock};
use crate::store::StoreError;
use crate::store::connection::deadline::Wire;
use crate::store::connection::link::{Connected, Link};
use crate::telemetry::Metrics;

/// Seconds that a blob lives if the script after it never runs.
const ORPHAN_SECONDS: u64 = 120;
/// A lane that was quiet for this long (microseconds) no longer insists that the store remembers it: the audit
/// forgets lanes after a day.
const INSISTS_US: i64 = 12 * 3600 * 1_000_000;
/// The store's going back is said at most once in this time (microseconds).
const SAID_AGAIN_US: i64 = 60 * 1_000_000;

/// A script call, ready to be sent as often as it takes.
pub(in crate::store) struct Call {
    pub(in crate::store) script: &'static Script,
    pub(in crate::store) op: &'static str,
    pub(in crate::store) keys: Vec<String>,
    pub(in crate::store) args: Vec<Arg>,
    /// Blobs that must be there when the script runs.
    pub(in crate::store) blobs: Vec<(String, Bytes)>,
}

/// An argument: text or a blob.
pub(in crate::store) enum Arg {
    Text(String),
    Blob(Bytes),
}

impl From<String> for Arg {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

macro_rules! arg_from_number {
    ($($t:ty),+) => {$(
        impl From<$t> for Arg {
            fn from(n: $t) -> Self {
                Self::Text(n.to_string())
            }
        }
    )+};
}
arg_from_number!(i64, u64, u32, usize);

/// A caller's numbering on one partition.
#[derive(Debug, Default)]
pub(in crate::store) struct Numbers {
    next: u64,
    answered: u64,
    answered_us: i64,
}

/// Whether the store was seen to have gone back: shared by all lanes.
#[derive(Debug)]
pub(in crate::store) struct WentBack {
    times: AtomicU64,
    said_us: AtomicI64,
}

impl WentBack {
    pub(in crate::store) fn new() -> Self {
        Self { times: AtomicU64::new(0), said_us: AtomicI64::new(i64::MIN) }
    }

    pub(in crate::store) fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    fn saw(&self, p: Partition, now_us: i64) {
        self.times.fetch_add(1, Ordering::Relaxed);
        let said = self.said_us.load(Ordering::Relaxed);
        if now_us >= said.saturating_add(SAID_AGAIN_US) {
            self.said_us.store(now_us, Ordering::Relaxed);
            error!(
                partition = p.0,
                "the store went back or was wiped: it no longer knows calls that it had answered; \
                 see docs/guarantees.md for what its tier may lose"
            );
        }
    }
}

pub(in crate::store) struct CallLane {
    name: String,
    link: Link,
    numbers: Vec<Mutex<Numbers>>,
    clock: Arc<StoreClock>,
    metrics: Arc<Metrics>,
    went_back: Arc<WentBack>,
    /// Calls that have failed and are being made again.
    waiting: AtomicU64,
    /// Why the last of them failed.
    why: parking_lot::Mutex<String>,
}

/// The right to make the next call on one partition: nobody else's comes between.
pub(in crate::store) struct Turn<'a> {
    lane: &'a CallLane,
    numbers: MutexGuard<'a, Numbers>,
}

impl CallLane {
    pub(in crate::store) fn new(
        name: String,
        link: Link,
        partitions: Partitions,
        clock: &Arc<StoreClock>,
        metrics: &Arc<Metrics>,
        went_back: &Arc<WentBack>,
    ) -> Self {
        let numbers = partitions.all().map(|_| Mutex::default()).collect();
        let (clock, metrics, went_back) = (clock.clone(), metrics.clone(), went_back.clone());
        Self {
            name,
            link,
            numbers,
            clock,
            metrics,
            went_back,
            waiting: AtomicU64::new(0),
            why: parking_lot::Mutex::default(),
        }
    }

    pub(in crate::store) async fn turn(&self, p: Partition) -> Turn<'_> {
        Turn { lane: self, numbers: self.numbers[usize::from(p.0)].lock().await }
    }

    pub(in crate::store) fn link(&self) -> &Link {
        &self.link
    }

    /// Makes one call, sent again under its number until it is answered. Dropped in the middle, it may or
    /// may not have been applied; a later call of this lane overtakes it.
    pub(in crate::store) async fn run(&self, p: Partition, call: Call) -> Result<Value, StoreError> {
        self.turn(p).await.run(p, call).await
    }

    /// Sends a call that needs no number: running it twice does what running it once does.
    pub(in crate::store) async fn run_unnumbered(
        &self,
        p: Partition,
        call: &Call,
    ) -> Result<Value, StoreError> {
        let connected = self.link.reach(Keys::slot(p)).await?;
        self.once(&connected, p, call, &[]).await.map(|reply| reply.answer)
    }

    async fn attempt(&self, p: Partition, call: &Call, head: &[Arg]) -> Result<Reply, StoreError> {
        let connected = self.link.to(Keys::slot(p)).await?;
        let reply = self.once(&connected, p, call, head).await?;
        self.link.confirm(&connected).await?;
        self.link.still_counts(&connected)?;
        Ok(reply)
    }

    /// Why a call has failed, if one is being made again.
    pub(in crate::store) fn waits_for(&self) -> Option<String> {
        (self.waiting.load(Ordering::Relaxed) > 0).then(|| self.why.lock().clone())
    }

    async fn once(
        &self,
        connected: &Connected,
        p: Partition,
        call: &Call,
        head: &[Arg],
    ) -> Result<Reply, StoreError> {
        let sent = self.clock.sending(connected.clock);
        let started = self.clock.local().mono_us();
        let value = send(connected, call, head).await.map_err(|e| self.link.judge(connected, &e))?;
        // A master that was replaced while it was away may answer for a while.
        self.link.still_counts(connected)?;
        let reply = Reply::read(value)?;
        if self.clock.observe(reply.time_us, sent) {
            warn!(partition = p.0, "the clock of redis stepped back");
        }
        let seconds = (self.clock.local().mono_us() - started) as f64 / 1e6;
        self.metrics.store_op(call.op, seconds);
        Ok(reply)
    }
}

/// Counts a call that waits for the store, for as long as it does.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turn<'_> {
    pub(in crate::store) async fn run(&mut self, p: Partition, call: Call) -> Result<Value, StoreError> {
        self.numbers.next += 1;
        let quiet_us = self.lane.clock.local().mono_us() - self.numbers.answered_us;
        let answered = if quiet_us < INSISTS_US { self.numbers.answered } else { 0 };
        let head: [Arg; 3] = [self.lane.name.clone().into(), self.numbers.next.into(), answered.into()];
        let mut failures = 0;
        let mut waiting = None;
        loop {
            match self.lane.attempt(p, &call, &head).await {
                Ok(reply) => {
                    let now_us = self.lane.clock.local().mono_us();
                    if reply.went_back {
                        self.lane.went_back.saw(p, now_us);
                    }
                    return match &reply.answer {
                        Value::BulkString(text) if text.as_slice() == b"OVERTAKEN" => {
                            Err(StoreError::Overtaken)
                        }
                        _ => {
                            self.numbers.answered = self.numbers.next;
                            self.numbers.answered_us = now_us;
                            Ok(reply.answer)
                        }
                    };
                }
                Err(error @ (StoreError::Unavailable(_) | StoreError::Full(_))) => {
                    failures += 1;
                    *self.lane.why.lock() = error.to_string();
                    waiting.get_or_insert_with(|| Waiting::new(&self.lane.waiting));
                    if failures == 1 && matches!(error, StoreError::Full(_)) {
                        warn!(op = call.op, "redis is at maxmemory; ingress waits until there is room");
                    }
                    tracing::debug!(partition = p.0, op = call.op, %error, failures, "a call to the store failed");
                    tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends a call once: alone, or behind its blobs in one transaction. A server that has not the script
/// (new, promoted, flushed) gets it and is asked again.
async fn send(connected: &Connected, call: &Call, head: &[Arg]) -> RedisResult<Value> {
    let mut connection = connected.connection.clone();
    let evalsha = evalsha(call, head);
    let value = transact(&mut connection, call, &evalsha).await;
    match value {
        Err(error) if error.code() == Some("NOSCRIPT") => {
            call.script.prepare_invoke().load_async(&mut connection).await?;
            transact(&mut connection, call, &evalsha).await
        }
        other => other,
    }
}

async fn transact(connection: &mut Wire, call: &Call, evalsha: &Cmd) -> RedisResult<Value> {
    if call.blobs.is_empty() {
        return evalsha.query_async(connection).await;
    }
    let mut pipe = redis::Pipeline::with_capacity(call.blobs.len() + 1);
    pipe.atomic().ignore_errors();
    for (key, blob) in &call.blobs {
        pipe.cmd("SET").arg(key).arg(&blob[..]).arg("NX").arg("EX").arg(ORPHAN_SECONDS);
    }
    pipe.add_command(evalsha.clone());
    // The script's own element is the answer; EXEC succeeds whatever it says.
    let mut answers: Vec<Value> = pipe.query_async(connection).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

fn evalsha(call: &Call, head: &[Arg]) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(call.script.get_hash()).arg(call.keys.len());
    for key in &call.keys {
        cmd.arg(key);
    }
    for arg in head.iter().chain(&call.args) {
        match arg {
            Arg::Text(text) => cmd.arg(text),
            Arg::Blob(blob) => cmd.arg(&blob[..]),
        };
    }
    cmd
}

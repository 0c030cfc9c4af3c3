//! Numbered calls. Each caller numbers its calls of a partition and has one outstanding at a time. It sends a
//! call again under the same number until it is answered, so the call is applied once however often it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use redis::{Cmd, RedisResult, Script, Value};
use tokio::sync::{Mutex, MutexGuard};
use tracing::{error, warn};

use super::keys::Keys;
use super::reply::ScriptReply;
use crate::backoff::Backoff;
use crate::domain::{Partition, Partitions, StoreClock};
use crate::store::StoreError;
use crate::store::connection::deadline::RedisWire;
use crate::store::connection::link::{Connected, StoreLink};
use crate::telemetry::Metrics;

/// Time to live of a blob whose script never runs, seconds.
const ORPHAN_SECONDS: u64 = 120;
/// Quiet time (microseconds) after which a caller no longer insists that the store remembers its calls: a scrub
/// forgets callers after a day.
const INSIST_US: i64 = 12 * 3600 * 1_000_000;
/// Minimum time between two log lines about a rollback (microseconds).
const ROLLBACK_LOG_US: i64 = 60 * 1_000_000;

/// A call of a script, ready to be sent as often as necessary.
pub(in crate::store) struct ScriptCall {
    pub(in crate::store) script: &'static Script,
    pub(in crate::store) op: &'static str,
    pub(in crate::store) keys: Vec<String>,
    pub(in crate::store) args: Vec<ScriptArg>,
    /// Blobs that must be in the store when the script runs.
    pub(in crate::store) blobs: Vec<(String, Bytes)>,
}

/// An argument of a script: a text or a blob.
pub(in crate::store) enum ScriptArg {
    Text(String),
    Blob(Bytes),
}

impl From<String> for ScriptArg {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for ScriptArg {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

macro_rules! arg_from_number {
    ($($t:ty),+) => {$(
        impl From<$t> for ScriptArg {
            fn from(n: $t) -> Self {
                Self::Text(n.to_string())
            }
        }
    )+};
}
arg_from_number!(i64, u64, u32, usize);

/// One caller's numbering of its calls on one partition.
#[derive(Debug, Default)]
pub(in crate::store) struct CallNumbers {
    next: u64,
    answered: u64,
    answered_us: i64,
}

/// Counts how often the store was seen to have rolled back. All callers share it.
#[derive(Debug)]
pub(in crate::store) struct Rollbacks {
    times: AtomicU64,
    logged_us: AtomicI64,
}

impl Rollbacks {
    pub(in crate::store) fn new() -> Self {
        Self {
            times: AtomicU64::new(0),
            logged_us: AtomicI64::new(i64::MIN),
        }
    }

    pub(in crate::store) fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    fn note(&self, p: Partition, now_us: i64) {
        self.times.fetch_add(1, Ordering::Relaxed);
        let logged = self.logged_us.load(Ordering::Relaxed);
        if now_us >= logged.saturating_add(ROLLBACK_LOG_US) {
            self.logged_us.store(now_us, Ordering::Relaxed);
            error!(
                partition = p.0,
                "the store rolled back or was wiped: it no longer knows calls that it had answered; \
                 see docs/guarantees.md for what its tier may lose"
            );
        }
    }
}

pub(in crate::store) struct NumberedCalls {
    name: String,
    link: StoreLink,
    numbers: Vec<Mutex<CallNumbers>>,
    clock: Arc<StoreClock>,
    metrics: Arc<Metrics>,
    rollbacks: Arc<Rollbacks>,
    /// Calls that have failed and are being retried.
    waiting: AtomicU64,
    /// Why the last of them failed.
    last_failure: parking_lot::Mutex<String>,
}

/// The right to make the next call on one partition. No other call of this caller comes between.
pub(in crate::store) struct CallTurn<'a> {
    calls: &'a NumberedCalls,
    numbers: MutexGuard<'a, CallNumbers>,
    /// Whether a call is sent again while the store is full, and not answered [`StoreError::Full`].
    pub(in crate::store) waits_for_room: bool,
}

impl NumberedCalls {
    pub(in crate::store) fn new(
        name: String,
        link: StoreLink,
        partitions: Partitions,
        clock: &Arc<StoreClock>,
        metrics: &Arc<Metrics>,
        rollbacks: &Arc<Rollbacks>,
    ) -> Self {
        let numbers = partitions.all().map(|_| Mutex::default()).collect();
        let clock = clock.clone();
        let metrics = metrics.clone();
        let rollbacks = rollbacks.clone();
        Self {
            name,
            link,
            numbers,
            clock,
            metrics,
            rollbacks,
            waiting: AtomicU64::new(0),
            last_failure: parking_lot::Mutex::default(),
        }
    }

    pub(in crate::store) async fn turn(&self, p: Partition) -> CallTurn<'_> {
        CallTurn {
            calls: self,
            numbers: self.numbers[usize::from(p.0)].lock().await,
            waits_for_room: true,
        }
    }

    pub(in crate::store) fn link(&self) -> &StoreLink {
        &self.link
    }

    /// Makes one call and sends it again under its number until it is answered. A call dropped in the middle
    /// may or may not have been applied. A later call of this caller overtakes it.
    pub(in crate::store) async fn run(
        &self,
        p: Partition,
        call: ScriptCall,
    ) -> Result<Value, StoreError> {
        self.turn(p).await.run(p, call).await
    }

    /// Sends a call that needs no number, because running it twice does the same as running it once.
    pub(in crate::store) async fn run_unnumbered(
        &self,
        p: Partition,
        call: &ScriptCall,
    ) -> Result<Value, StoreError> {
        let connected = self.link.reach(Keys::slot(p)).await?;
        self.once(&connected, p, call, &[])
            .await
            .map(|reply| reply.answer)
    }

    async fn attempt(
        &self,
        p: Partition,
        call: &ScriptCall,
        head: &[ScriptArg],
    ) -> Result<ScriptReply, StoreError> {
        let connected = self.link.to(Keys::slot(p)).await?;
        let reply = self.once(&connected, p, call, head).await?;
        self.link.taken();
        self.link.await_durable(&connected).await?;
        self.link.still_counts(&connected)?;
        Ok(reply)
    }

    /// Why a call has failed, if one is being retried.
    pub(in crate::store) fn failure(&self) -> Option<String> {
        (self.waiting.load(Ordering::Relaxed) > 0).then(|| self.last_failure.lock().clone())
    }

    async fn once(
        &self,
        connected: &Connected,
        p: Partition,
        call: &ScriptCall,
        head: &[ScriptArg],
    ) -> Result<ScriptReply, StoreError> {
        let sent = self.clock.sending(connected.clock);
        let started = self.clock.local().mono_us();
        let value = send(connected, call, head)
            .await
            .map_err(|e| self.link.judge(connected, &e))?;
        // A master that was replaced while it was away may answer for a while.
        self.link.still_counts(connected)?;
        let reply = ScriptReply::read(value)?;
        if self.clock.observe(reply.time_us, sent) {
            warn!(partition = p.0, "the clock of redis stepped back");
        }
        let seconds = (self.clock.local().mono_us() - started) as f64 / 1e6;
        self.metrics.store_op(call.op, seconds);
        Ok(reply)
    }
}

/// Counts one call that waits for the store, for as long as this value lives.
struct WaitingCall<'a>(&'a AtomicU64);

impl<'a> WaitingCall<'a> {
    fn new(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CallTurn<'_> {
    pub(in crate::store) async fn run(
        &mut self,
        p: Partition,
        call: ScriptCall,
    ) -> Result<Value, StoreError> {
        self.numbers.next += 1;
        let quiet_us = self.calls.clock.local().mono_us() - self.numbers.answered_us;
        let answered = if quiet_us < INSIST_US {
            self.numbers.answered
        } else {
            0
        };
        let head: [ScriptArg; 3] = [
            self.calls.name.clone().into(),
            self.numbers.next.into(),
            answered.into(),
        ];
        let mut failures = 0;
        let mut waiting = None;
        loop {
            match self.calls.attempt(p, &call, &head).await {
                Ok(reply) => {
                    let now_us = self.calls.clock.local().mono_us();
                    if reply.rolled_back {
                        self.calls.rollbacks.note(p, now_us);
                    }
                    if let Some(last) = overtaken_by(&reply.answer) {
                        // No later call was made: the number was damaged. The next call goes on behind it.
                        self.numbers.next = self.numbers.next.max(last);
                        return Err(StoreError::Overtaken);
                    }
                    self.numbers.answered = self.numbers.next;
                    self.numbers.answered_us = now_us;
                    return Ok(reply.answer);
                }
                // An attempt before this one may have been applied.
                Err(full @ StoreError::Full(_)) if failures == 0 && !self.waits_for_room => {
                    return Err(full);
                }
                Err(error @ (StoreError::Unavailable(_) | StoreError::Full(_))) => {
                    failures += 1;
                    *self.calls.last_failure.lock() = error.to_string();
                    waiting.get_or_insert_with(|| WaitingCall::new(&self.calls.waiting));
                    tracing::debug!(partition = p.0, op = call.op, %error, failures, "a call to the store failed; retrying");
                    tokio::time::sleep(Backoff::CLIENT.wait(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The number that overtook a call, if this answer says that one did. 0 for a call whose answer was forgotten.
fn overtaken_by(answer: &Value) -> Option<u64> {
    let Value::BulkString(text) = answer else {
        return None;
    };
    let last = text.strip_prefix(b"OVERTAKEN")?;
    let last = std::str::from_utf8(last).ok().map(str::trim);
    Some(last.and_then(|last| last.parse().ok()).unwrap_or(0))
}

/// Sends a call once: alone, or behind its blobs in one transaction. A server that lacks the script (new,
/// promoted, or flushed) gets it and is asked again.
async fn send(connected: &Connected, call: &ScriptCall, head: &[ScriptArg]) -> RedisResult<Value> {
    let mut connection = connected.connection.clone();
    let evalsha = evalsha(call, head);
    let value = transact(&mut connection, call, &evalsha).await;
    match value {
        Err(error) if error.code() == Some("NOSCRIPT") => {
            call.script
                .prepare_invoke()
                .load_async(&mut connection)
                .await?;
            transact(&mut connection, call, &evalsha).await
        }
        other => other,
    }
}

async fn transact(
    connection: &mut RedisWire,
    call: &ScriptCall,
    evalsha: &Cmd,
) -> RedisResult<Value> {
    if call.blobs.is_empty() {
        return evalsha.query_async(connection).await;
    }
    let mut pipe = redis::Pipeline::with_capacity(call.blobs.len() + 1);
    pipe.atomic().ignore_errors();
    for (key, blob) in &call.blobs {
        pipe.cmd("SET")
            .arg(key)
            .arg(&blob[..])
            .arg("NX")
            .arg("EX")
            .arg(ORPHAN_SECONDS);
    }
    pipe.add_command(evalsha.clone());
    // The last element is the script's own answer. EXEC succeeds whatever the script says.
    let mut answers: Vec<Value> = pipe.query_async(connection).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

fn evalsha(call: &ScriptCall, head: &[ScriptArg]) -> Cmd {
    let mut cmd = redis::cmd("EVALSHA");
    cmd.arg(call.script.get_hash()).arg(call.keys.len());
    for key in &call.keys {
        cmd.arg(key);
    }
    for arg in head.iter().chain(&call.args) {
        match arg {
            ScriptArg::Text(text) => cmd.arg(text),
            ScriptArg::Blob(blob) => cmd.arg(&blob[..]),
        };
    }
    cmd
}

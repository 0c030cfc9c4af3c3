//! A connection whose calls have deadlines that grow with their bytes.
//!
//! One connection carries all calls of a role and answers them in order. A call therefore waits for its own
//! bytes and for those of the calls before it: [`WireTraffic`] counts both. Probes and small calls behind a
//! large answer are given its time too. A connection is dead when nothing is answered on it for as long as the
//! oldest call alone may take, however much is queued.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Arg, Cmd, Pipeline, RedisError, RedisFuture, RedisResult, Value};
use tokio::time::Instant;

use crate::mutants::{self, Mutant};

/// Slowest link that is not given up, bytes a second. A call may take this long for its bytes and for those
/// before it, on top of the time of a small call.
pub(in crate::store) const FLOOR_RATE: u64 = 1 << 20;
/// How often a waiting large call checks whether the connection has gone silent.
const SILENCE_CHECK: Duration = Duration::from_millis(250);
/// Bytes of the protocol around an argument.
const FRAME_BYTES: usize = 16;

/// A connection to one server. Cheap to clone. Clones share their traffic.
#[derive(Clone)]
pub(crate) struct RedisWire {
    connection: MultiplexedConnection,
    traffic: Arc<WireTraffic>,
    /// Longest wait for the answer to a small call on an idle connection.
    response: Duration,
    /// Bytes that the answers to this clone's next calls may have.
    asked: u64,
}

/// Bytes on a connection, both ways, in the order of its calls.
#[derive(Debug, Default)]
struct WireTraffic {
    /// Bytes that were ever sent or asked for.
    begun: AtomicU64,
    /// How many of these bytes are answered. Answers come in the order of the calls.
    answered: AtomicU64,
}

impl fmt::Debug for RedisWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("traffic", &self.traffic)
            .finish_non_exhaustive()
    }
}

impl RedisWire {
    /// Wraps a connection, which must have no response timeout of its own.
    pub(in crate::store) fn new(connection: MultiplexedConnection, response: Duration) -> Self {
        Self {
            connection,
            traffic: Arc::default(),
            response,
            asked: 0,
        }
    }

    /// The same connection, for calls whose answers may have this many bytes.
    pub(crate) fn asking(&self, bytes: u64) -> Self {
        Self {
            asked: bytes,
            ..self.clone()
        }
    }
}

impl WireTraffic {
    /// Waits for the answer to a call of this many bytes, as long as it may take.
    async fn carry<T>(
        &self,
        bytes: u64,
        response: Duration,
        call: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let end = self.begun.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut deadline =
            CallDeadline::new(end, bytes, self.answered.load(Ordering::Relaxed), response);
        let mut call = pin!(call);
        loop {
            match tokio::time::timeout_at(deadline.next(), &mut call).await {
                Ok(answer) => {
                    self.answered.fetch_max(end, Ordering::Relaxed);
                    return answer;
                }
                Err(_) if deadline.is_over(self.answered.load(Ordering::Relaxed)) => {
                    return Err(RedisError::from(std::io::Error::from(
                        std::io::ErrorKind::TimedOut,
                    )));
                }
                Err(_) => {}
            }
        }
    }
}

/// The deadline of one call.
struct CallDeadline {
    /// Where the call's bytes begin in its connection's traffic.
    begin: u64,
    /// Where they end.
    end: u64,
    response: Duration,
    /// The hard limit, whatever is answered meanwhile.
    latest: Instant,
    /// The bytes that were answered when last seen, and since when.
    answered: u64,
    since: Instant,
}

impl CallDeadline {
    fn new(end: u64, bytes: u64, answered: u64, response: Duration) -> Self {
        let since = Instant::now();
        let mut deadline = Self {
            begin: end - bytes,
            end,
            response,
            latest: since,
            answered,
            since,
        };
        deadline.latest = since + response + deadline.remaining_time();
        deadline
    }

    /// The time of the call's own bytes and of those before it that are not answered. A call whose bytes take long to
    /// write is overtaken by one that was counted behind it: that one's answer tells nothing of the call's own bytes.
    fn remaining_time(&self) -> Duration {
        time_of(self.end, self.answered.min(self.begin))
    }

    /// The moment at which the connection is dead, if nothing more is answered until then.
    fn silent_at(&self) -> Instant {
        self.since + self.response + self.remaining_time()
    }

    /// The next moment to check.
    fn next(&self) -> Instant {
        let due = self.latest.min(self.silent_at());
        if self.remaining_time() > SILENCE_CHECK {
            due.min(Instant::now() + SILENCE_CHECK)
        } else {
            due
        }
    }

    fn is_over(&mut self, answered: u64) -> bool {
        let now = Instant::now();
        if answered > self.answered {
            self.answered = answered;
            self.since = now;
        }
        now >= self.latest.min(self.silent_at())
    }
}

/// How long the bytes between the answered ones and the end of a call may take.
fn time_of(end: u64, answered: u64) -> Duration {
    if mutants::is(Mutant::FixedDeadlines) {
        return Duration::ZERO;
    }
    Duration::from_micros(end.saturating_sub(answered).saturating_mul(1_000_000) / FLOOR_RATE)
}

/// The bytes of a command on the wire.
fn size(command: &Cmd) -> u64 {
    let mut size = 0;
    for arg in command.args_iter() {
        size += FRAME_BYTES;
        if let Arg::Simple(bytes) = arg {
            size += bytes.len();
        }
    }
    size as u64
}

impl ConnectionLike for RedisWire {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let bytes = size(cmd) + self.asked;
        let call = self.connection.req_packed_command(cmd);
        Box::pin(self.traffic.carry(bytes, self.response, call))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let bytes = pipeline.cmd_iter().map(size).sum::<u64>() + self.asked;
        let call = self.connection.req_packed_commands(pipeline, offset, count);
        Box::pin(self.traffic.carry(bytes, self.response, call))
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
    const MIB: u64 = 1 << 20;

    /// Seconds after which a call of this many bytes gives up if it is never answered.
    async fn gives_up(traffic: &WireTraffic, bytes: u64) -> f64 {
        let start = Instant::now();
        let error = traffic
            .carry(bytes, RESPONSE_TIMEOUT, pending::<RedisResult<()>>())
            .await
            .unwrap_err();
        assert!(error.is_timeout(), "{error}");
        start.elapsed().as_secs_f64()
    }

    async fn answers(traffic: &WireTraffic, bytes: u64, seconds: f64) -> RedisResult<()> {
        let call = async {
            sleep(Duration::from_secs_f64(seconds)).await;
            Ok(())
        };
        traffic.carry(bytes, RESPONSE_TIMEOUT, call).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_call_waits_as_long_as_ever() {
        let waited = gives_up(&WireTraffic::default(), 100).await;
        assert!((2.0..2.1).contains(&waited), "{waited}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_its_bytes_at_the_floor_rate() {
        for mib in [1, 4, 64, 256] {
            answers(&WireTraffic::default(), mib * MIB, mib as f64 + 1.9)
                .await
                .expect("in time");
            let waited = gives_up(&WireTraffic::default(), mib * MIB).await;
            assert!(
                (mib as f64 + 2.0..mib as f64 + 2.3).contains(&waited),
                "{mib} MiB: {waited}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_waits_for_what_is_before_it_and_not_for_what_is_answered() {
        let traffic = WireTraffic::default();
        let (large, probe) =
            tokio::join!(answers(&traffic, 8 * MIB, 9.0), answers(&traffic, 10, 9.5));
        large.and(probe).expect("in time");
        let waited = gives_up(&traffic, 10).await;
        assert!(waited < 2.1, "{waited}: all of it was answered");
    }

    /// A large call takes a while to be written, and a small one of another thread goes out before it.
    #[tokio::test(start_paused = true)]
    async fn a_large_call_that_is_overtaken_has_the_time_of_its_own_bytes() {
        for (mib, overtaken_at) in [(12, 0.1), (12, 1.9), (64, 0.0), (2, 3.0)] {
            let traffic = WireTraffic::default();
            let large = answers(&traffic, mib * MIB, mib as f64 + 1.5);
            let (large, small) = tokio::join!(large, answers(&traffic, 100, overtaken_at));
            large.and(small).unwrap_or_else(|error| {
                panic!("{mib} MiB, overtaken at {overtaken_at} s: {error}")
            });
        }
        // It still ends: by its own bytes, from the last answer on.
        let traffic = WireTraffic::default();
        let (waited, small) =
            tokio::join!(gives_up(&traffic, 4 * MIB), answers(&traffic, 100, 1.0));
        small.expect("in time");
        assert!((6.0..6.3).contains(&waited), "{waited}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_connection_is_noticed_by_its_oldest_call_however_much_is_queued() {
        let traffic = WireTraffic::default();
        let oldest = gives_up(&traffic, MIB);
        let behind = gives_up(&traffic, 200 * MIB);
        tokio::pin!(behind);
        let first = tokio::select! {
            // Calls are sent in the order in which they are first polled.
            biased;
            waited = oldest => waited,
            waited = &mut behind => waited,
        };
        assert!((3.0..3.3).contains(&first), "{first}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fell_silent_is_noticed_before_the_whole_queue_had_its_time() {
        let traffic = WireTraffic::default();
        let calls =
            async { tokio::join!(answers(&traffic, 100 * MIB, 1.0), gives_up(&traffic, MIB)).1 };
        let waited = calls.await;
        assert!(
            (4.0..4.6).contains(&waited),
            "{waited}: answered up to it after 1 s, then silence"
        );
    }
}

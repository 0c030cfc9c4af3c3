//! Writes the trails: appends what was recorded to Redis, twice a second.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::RouteTrail;
use super::record::TakenEvents;
use crate::domain::Partition;
use crate::lifecycle::{Shutdown, tick};
use crate::store::call::keys::Keys;
use crate::store::call::scripts;
use crate::store::model::codec::TrailPack;
use crate::store::{ScrubReport, Store, StoreError};

/// Time between two rounds.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time of a round. Events that are not written by then are lost.
const ROUND_TIMEOUT: Duration = Duration::from_secs(2);
/// The same of the last round, which a shutdown waits for.
const LAST_ROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time from an event until whoever asks Redis finds it, unless it is lost: the rest of a round, the time between
/// two rounds, and a round of its own, with half a second to spare.
pub const TRAIL_DELAY: Duration = Duration::from_secs(5);
/// Routes that are written to at once.
const ROUTES_AT_ONCE: usize = 8;
/// Packs of one call: a mebibyte of them at most, and mostly one small pack.
const CALL_PACKS: usize = 16;
/// Most bytes that an event may take in Redis, on average.
const EVENT_BYTES: u64 = 128;
/// Bytes that a trail may take in Redis whatever its number of events.
const BASE_BYTES: u64 = 128 << 10;
/// Rounds without a loss after which the next loss is told anew.
const QUIET_ROUNDS: u32 = 20;

/// State of a route's losses, as its log tells them.
#[derive(Clone, Copy, Default)]
struct LossWatch {
    /// Rounds since the last loss, while a loss is told.
    quiet: Option<u32>,
}

/// A turn in a route's losses.
#[derive(Debug, PartialEq, Eq)]
enum LossTurn {
    Begins,
    Ends,
}

impl LossWatch {
    /// Takes the losses of one round.
    fn note(&mut self, lost: u64) -> Option<LossTurn> {
        match (self.quiet, lost) {
            (None, 0) => None,
            (None, _) => {
                self.quiet = Some(0);
                Some(LossTurn::Begins)
            }
            (Some(QUIET_ROUNDS..), 0) => {
                self.quiet = None;
                Some(LossTurn::Ends)
            }
            (Some(quiet), 0) => {
                self.quiet = Some(quiet + 1);
                None
            }
            (Some(_), _) => {
                self.quiet = Some(0);
                None
            }
        }
    }
}

impl Store {
    /// Writes the trails of all routes until `shutdown` drains, and then once more. A Redis that is away costs events,
    /// and a shutdown never more than a second.
    pub async fn write_trails(&self, shutdown: &Shutdown) {
        let trails: Vec<Arc<RouteTrail>> = self.0.trails.0.values().cloned().collect();
        let mut watches = vec![LossWatch::default(); trails.len()];
        if trails.is_empty() {
            return;
        }
        let mut ends = false;
        while !ends {
            tokio::select! {
                () = shutdown.draining() => ends = true,
                () = tick(WRITE_INTERVAL) => {}
            }
            let limit = if ends {
                LAST_ROUND_TIMEOUT
            } else {
                ROUND_TIMEOUT
            };
            tokio::select! {
                () = shutdown.forced() => return,
                () = self.write_round(&trails, &mut watches, limit) => {}
            }
        }
    }

    async fn write_round(
        &self,
        trails: &[Arc<RouteTrail>],
        watches: &mut [LossWatch],
        limit: Duration,
    ) {
        let deadline = Instant::now() + limit;
        let routes: Vec<_> = (0..)
            .zip(trails)
            .map(|(at, trail)| self.write_route(at, trail.clone(), deadline))
            .collect();
        let mut written = stream::iter(routes).buffer_unordered(ROUTES_AT_ONCE);
        while let Some((at, lost, why)) = written.next().await {
            let RouteTrail { route, metrics, .. } = &*trails[at];
            if let Some(metrics) = metrics.as_ref().filter(|_| lost > 0) {
                metrics.trail_lost.inc_by(lost);
            }
            match watches[at].note(lost) {
                Some(LossTurn::Begins) => {
                    warn!(%route, lost, %why, "events of the trail are lost; messages are not concerned");
                }
                Some(LossTurn::Ends) => {
                    info!(%route, "no event of the trail was lost for ten seconds");
                }
                None => {}
            }
        }
    }

    /// Writes what one route has. Answers its place, how many events were lost, and why.
    async fn write_route(
        &self,
        at: usize,
        trail: Arc<RouteTrail>,
        deadline: Instant,
    ) -> (usize, u64, Cow<'static, str>) {
        let TakenEvents { packs, lost } = trail.take();
        let written = self.write_packs(&trail, &packs, deadline).await;
        trail.written();
        match written {
            Ok(()) => (at, lost, "more came than may wait in memory".into()),
            Err((unwritten, why)) => (at, lost + unwritten, why.into()),
        }
    }

    /// Appends packs. `Err`: how many events were not written, and why.
    async fn write_packs(
        &self,
        trail: &RouteTrail,
        packs: &[Arc<TrailPack>],
        deadline: Instant,
    ) -> Result<(), (u64, String)> {
        let mut left = packs;
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(CALL_PACKS));
            let written = tokio::time::timeout_at(deadline, self.append_to_trail(trail, now)).await;
            let why = match written {
                Ok(Ok(())) => {
                    left = later;
                    continue;
                }
                Ok(Err(why)) => why.to_string(),
                Err(_) => "Redis did not answer in time".to_owned(),
            };
            // The call may have been applied, so the count is an upper bound.
            return Err((left.iter().map(|pack| pack.count() as u64).sum(), why));
        }
        Ok(())
    }

    async fn append_to_trail(
        &self,
        trail: &RouteTrail,
        packs: &[Arc<TrailPack>],
    ) -> Result<(), StoreError> {
        let mut blobs: Vec<(usize, Bytes)> = Vec::with_capacity(packs.len());
        for pack in packs {
            blobs.push((pack.count(), pack.encode()));
            // Compressing takes some hundred microseconds a pack.
            tokio::task::yield_now().await;
        }
        let p = self.home_of(&trail.route, "");
        let connected = self.0.browse.reach(Keys::slot(p)).await?;
        let limits = trail.limits;
        let mut call = scripts::TRAIL.prepare_invoke();
        call.key(self.0.keys.trail(p, &trail.route))
            .arg(self.0.clock.now().0)
            .arg(limits.keep_ms);
        call.arg(limits.max_events)
            .arg(limits.max_events.saturating_mul(EVENT_BYTES) + BASE_BYTES);
        for (count, blob) in &blobs {
            call.arg(*count).arg(&blob[..]);
        }
        let answer: redis::RedisResult<i64> =
            call.invoke_async(&mut connected.connection.clone()).await;
        let answer = answer.map_err(|error| self.0.browse.judge(&connected, &error));
        self.mend_trail(p, trail, answer).await.map(drop)
    }

    /// Passes an answer on. An answer that speaks of damage has the trail's key checked first, so that the next call
    /// finds it right.
    pub(in crate::store) async fn mend_trail<T>(
        &self,
        p: Partition,
        trail: &RouteTrail,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Err(StoreError::Damaged(_)) = &answer {
            let mut report = ScrubReport::default();
            let key = Keys::trail_name(&trail.route);
            self.quarantine(p, &[(key, "list")], &mut report).await?;
            for key in report.quarantined {
                error!(
                    partition = p.0,
                    key, "a key of a wrong type was quarantined; its content is lost"
                );
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_when_it_begins_and_when_it_has_ended() {
        let mut watch = LossWatch::default();
        assert_eq!(
            (watch.note(0), watch.note(5), watch.note(7)),
            (None, Some(LossTurn::Begins), None)
        );
        for _ in 0..QUIET_ROUNDS {
            assert_eq!(watch.note(0), None);
        }
        assert_eq!((watch.note(1), watch.note(0)), (None, None), "it goes on");
        let turns: Vec<_> = (0..2 * QUIET_ROUNDS)
            .filter_map(|_| watch.note(0))
            .collect();
        assert_eq!(turns, [LossTurn::Ends]);
        assert_eq!(watch.note(1), Some(LossTurn::Begins));
    }
}

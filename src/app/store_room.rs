//! The store's capacity to take messages in, as the part `store:room` shows it and the log tells it. One look at the store
//! gives both, so the log says when each state that the part shows began and ended. Commands that store messages have the
//! log alone.

use std::collections::BTreeSet;

use tracing::{info, warn};

use crate::ingress::ALL_WAIT_SHARE;
use crate::store::{RedisMemory, Store};
use crate::telemetry::Metrics;

/// Findings of one look at the store.
#[derive(Clone, Debug, Default)]
struct StoreLook {
    /// Why the store's messages could not be counted, if the last count failed.
    count_failure: Option<String>,
    /// Why a write failed, if one is being tried again.
    write_failure: Option<String>,
    /// Why writes or claims do not count yet. The connection that waits for it logs when that begins and ends.
    not_durable: Option<String>,
    /// The memory of the fullest master.
    memory: RedisMemory,
}

/// A trouble of the store. The log has a line when it begins and one when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StoreTrouble {
    /// The store does not answer a count.
    Unanswered,
    /// The store answers, and refuses writes.
    RefusesWrites,
    /// Redis has used most of its memory.
    NearlyFull,
}

/// A trouble that began, or ended, with a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomChange {
    Begins(StoreTrouble),
    Ends(StoreTrouble),
}

/// The troubles of the store that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct StoreRoom {
    troubles: BTreeSet<StoreTrouble>,
}

impl StoreRoom {
    /// Looks at the store, and logs what has begun or ended since the last look. Returns why the store takes nothing in;
    /// `None` if it takes messages in, as far as is known.
    pub(super) fn look(&mut self, store: Option<&Store>, metrics: &Metrics) -> Option<String> {
        let bytes = |gauge: i64| gauge.max(0) as u64;
        let look = StoreLook {
            count_failure: metrics.count_failure(),
            write_failure: store.and_then(Store::write_failure),
            not_durable: store.and_then(Store::not_durable),
            memory: RedisMemory {
                used: bytes(metrics.store_memory.get()),
                limit: bytes(metrics.store_memory_limit.get()),
            },
        };
        for change in self.update(&look) {
            change.log(&look);
        }
        look.why()
    }

    /// Takes in what a look found. Returns what has begun and ended with it.
    fn update(&mut self, look: &StoreLook) -> Vec<RoomChange> {
        let is_unanswered = look.count_failure.is_some();
        // A store that does not answer a count does not answer a write either: one line says both.
        let refuses_writes = look.write_failure.is_some()
            && (!is_unanswered || self.troubles.contains(&StoreTrouble::RefusesWrites));
        let found = [
            (StoreTrouble::Unanswered, is_unanswered),
            (StoreTrouble::RefusesWrites, refuses_writes),
            (
                StoreTrouble::NearlyFull,
                look.memory.share() >= ALL_WAIT_SHARE,
            ),
        ];
        let changes = found.into_iter().filter_map(|(trouble, lasts)| {
            if lasts {
                self.troubles
                    .insert(trouble)
                    .then_some(RoomChange::Begins(trouble))
            } else {
                self.troubles
                    .remove(&trouble)
                    .then_some(RoomChange::Ends(trouble))
            }
        });
        changes.collect()
    }
}

impl StoreLook {
    fn why(&self) -> Option<String> {
        let unanswered = self
            .count_failure
            .as_ref()
            .map(|why| format!("the store does not answer: {why}"));
        let refused = || {
            self.write_failure
                .as_ref()
                .map(|why| format!("the store takes nothing in: {why}"))
        };
        let not_durable = || {
            self.not_durable
                .as_ref()
                .map(|why| format!("writes and claims are not confirmed: {why}"))
        };
        let share = self.memory.share();
        let percent = (share * 100.0) as u64;
        let nearly_full = || {
            (share >= ALL_WAIT_SHARE)
                .then(|| format!("redis uses {percent} % of maxmemory, ingress waits"))
        };
        unanswered
            .or_else(refused)
            .or_else(not_durable)
            .or_else(nearly_full)
    }
}

impl RoomChange {
    /// Logs the change.
    fn log(self, look: &StoreLook) {
        let RedisMemory { used, limit } = look.memory;
        match self {
            Self::Begins(StoreTrouble::Unanswered) => {
                warn!(
                    error = look.count_failure,
                    "the store does not answer; ingress waits for it"
                );
            }
            Self::Ends(StoreTrouble::Unanswered) => {
                info!("the store answers again; ingress goes on");
            }
            Self::Begins(StoreTrouble::RefusesWrites) => {
                warn!(
                    error = look.write_failure,
                    "the store takes nothing in; ingress waits"
                );
            }
            Self::Ends(StoreTrouble::RefusesWrites) => info!("the store takes messages in again"),
            Self::Begins(StoreTrouble::NearlyFull) => {
                warn!(used, limit, "redis is nearly full; ingress waits");
            }
            Self::Ends(StoreTrouble::NearlyFull) => info!(used, limit, "redis has room again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every look there can be, as far as the part and the log are concerned.
    fn looks() -> impl Iterator<Item = StoreLook> + Clone {
        (0..16).map(|bits| {
            let why = |bit: u32, why: &str| (bits & bit != 0).then(|| why.to_owned());
            StoreLook {
                count_failure: why(1, "no answer in time"),
                write_failure: why(2, "broken pipe"),
                not_durable: why(4, "too few replicas"),
                memory: RedisMemory {
                    used: if bits & 8 == 0 { 10 } else { 90 },
                    limit: 100,
                },
            }
        })
    }

    #[test]
    fn whatever_the_part_shows_the_log_has_begun_and_not_ended() {
        for first in looks() {
            for second in looks() {
                for third in looks() {
                    let history = [&first, &second, &third];
                    let mut room = StoreRoom::default();
                    let mut begun = BTreeSet::new();
                    for look in history {
                        for change in room.update(look) {
                            let is_new = match change {
                                RoomChange::Begins(trouble) => begun.insert(trouble),
                                RoomChange::Ends(trouble) => begun.remove(&trouble),
                            };
                            assert!(is_new, "{change:?} twice: {history:?}");
                        }
                        let is_told = !begun.is_empty() || look.not_durable.is_some();
                        assert_eq!(look.why().is_some(), is_told, "{begun:?}: {history:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_store_that_is_away_is_told_once_and_what_it_refuses_then_is_told_after_it() {
        let away = StoreLook {
            count_failure: Some("no answer in time".to_owned()),
            write_failure: Some("no answer in time".to_owned()),
            ..StoreLook::default()
        };
        let refuses = StoreLook {
            write_failure: Some("MISCONF".to_owned()),
            ..StoreLook::default()
        };
        let mut room = StoreRoom::default();
        assert_eq!(
            room.update(&away),
            [RoomChange::Begins(StoreTrouble::Unanswered)]
        );
        let now_refuses = [
            RoomChange::Ends(StoreTrouble::Unanswered),
            RoomChange::Begins(StoreTrouble::RefusesWrites),
        ];
        assert_eq!(room.update(&refuses), now_refuses);
        assert_eq!(
            room.update(&away),
            [RoomChange::Begins(StoreTrouble::Unanswered)]
        );
        let both_end = [
            RoomChange::Ends(StoreTrouble::Unanswered),
            RoomChange::Ends(StoreTrouble::RefusesWrites),
        ];
        assert_eq!(room.update(&StoreLook::default()), both_end);
        assert_eq!(room.update(&StoreLook::default()), []);
    }
}

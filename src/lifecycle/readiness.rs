//! Readiness: does the process take work, and if not, why not.
//!
//! A process is ready once Redis is reached and every broker of a route has been reached once. A broker or target that
//! is lost later shows as degraded and the process stays ready: one dead broker must not take all replicas out. The
//! process is no longer ready when it drains, or while Redis is away.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::domain::{Clock, UnixMs};

/// The reason of a part that begins once the store is there.
pub const WAITS_FOR_STORE: &str = "waits for the store";
/// The trouble of a part whose server was not reached yet, and did not fail yet either.
pub const NOT_REACHED: &str = "not reached yet";

/// State of one part of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadinessState {
    /// Never reached yet, with the reason in a sentence. The process is not ready.
    Waiting(String),
    /// Works.
    Up,
    /// Reached before and in trouble now, with the reason in a sentence.
    Degraded(String),
}

#[derive(Debug, Default)]
struct PartTable {
    parts: BTreeMap<String, PartReport>,
    draining: bool,
}

#[derive(Debug)]
struct PartReport {
    state: ReadinessState,
    essential: bool,
    since: UnixMs,
}

/// All parts of the process that report their state. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<PartTable>>);

/// Handle of one part. The owner of the part reports its state through it.
#[derive(Clone, Debug)]
pub struct ReadinessPart {
    name: String,
    essential: bool,
    readiness: Readiness,
}

impl Readiness {
    /// Announces a part, as waiting. An *essential* part (Redis) must be up for the process to be ready. Any other part
    /// must have been up once.
    pub fn part(&self, name: impl Into<String>, essential: bool) -> ReadinessPart {
        let part = ReadinessPart {
            name: name.into(),
            essential,
            readiness: self.clone(),
        };
        part.set(ReadinessState::Waiting(NOT_REACHED.to_owned()));
        part
    }

    /// Ends readiness for good: the process drains.
    pub fn drain(&self) {
        self.0.write().draining = true;
    }

    /// Reports whether the process takes work.
    pub fn is_ready(&self) -> bool {
        let inner = self.0.read();
        !inner.draining
            && inner.parts.values().all(
                |PartReport {
                     state, essential, ..
                 }| match state {
                    ReadinessState::Up => true,
                    ReadinessState::Degraded(_) => !essential,
                    ReadinessState::Waiting(_) => false,
                },
            )
    }

    /// Reports whether the process drains.
    pub fn is_draining(&self) -> bool {
        self.0.read().draining
    }

    /// The name and state of each part.
    pub fn parts(&self) -> Vec<(String, ReadinessState)> {
        self.0
            .read()
            .parts
            .iter()
            .map(|(name, known)| (name.clone(), known.state.clone()))
            .collect()
    }

    /// The moment since which each part has its state, by the clock of this machine.
    pub fn since(&self) -> BTreeMap<String, UnixMs> {
        self.0
            .read()
            .parts
            .iter()
            .map(|(name, known)| (name.clone(), known.since))
            .collect()
    }

    /// Announces a part on which readiness does not wait. The part is up until its owner reports otherwise.
    pub fn side_part(&self, name: impl Into<String>) -> ReadinessPart {
        let part = ReadinessPart {
            name: name.into(),
            essential: false,
            readiness: self.clone(),
        };
        part.up();
        part
    }
}

impl ReadinessPart {
    /// Reports the part as up. Returns true if it was not up before.
    pub fn up(&self) -> bool {
        self.set(ReadinessState::Up)
    }

    /// Reports the part as in trouble: as waiting if it was never up, else as degraded. Returns true if that is new.
    pub fn down(&self, why: impl Into<String>) -> bool {
        let was_waiting = self
            .readiness
            .0
            .read()
            .parts
            .get(&self.name)
            .is_none_or(|k| matches!(k.state, ReadinessState::Waiting(_)));
        let why = why.into();
        self.set(if was_waiting {
            ReadinessState::Waiting(why)
        } else {
            ReadinessState::Degraded(why)
        })
    }

    /// Reports whether the part is up.
    pub fn is_up(&self) -> bool {
        self.readiness
            .0
            .read()
            .parts
            .get(&self.name)
            .is_some_and(|known| known.state == ReadinessState::Up)
    }

    /// The name of the part.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn set(&self, state: ReadinessState) -> bool {
        let kind = std::mem::discriminant(&state);
        let mut inner = self.readiness.0.write();
        let old = inner.parts.get(&self.name);
        let same = old
            .filter(|old| std::mem::discriminant(&old.state) == kind)
            .map(|old| old.since);
        let since = same.unwrap_or_else(|| Clock::start().wall());
        inner.parts.insert(
            self.name.clone(),
            PartReport {
                state,
                essential: self.essential,
                since,
            },
        );
        same.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_lost_later_degrades_but_redis_lost_closes() {
        let readiness = Readiness::default();
        let redis = readiness.part("redis", true);
        let kafka = readiness.part("kafka:main", false);
        assert!(!readiness.is_ready());
        redis.up();
        kafka.up();
        assert!(readiness.is_ready());
        kafka.down("connection refused");
        assert!(readiness.is_ready());
        redis.down("connection refused");
        assert!(!readiness.is_ready());
        redis.up();
        readiness.drain();
        assert!(!readiness.is_ready());
    }
}

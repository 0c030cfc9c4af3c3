//! Whether the process is willing to take work, and if not, why not.
//!
//! Ready means: Redis is there, and every broker that a route uses has been reached once. A broker or
//! target lost later shows as degraded while ready stays: one dead broker must not take all replicas
//! out. Draining, or Redis away, closes it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::domain::{Clock, UnixMs};

/// How one part of the service stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Never reached yet; holds back readiness. Why, in a sentence.
    Waiting(String),
    /// All is well.
    Up,
    /// Was reached before, is in trouble now. Why, in a sentence.
    Degraded(String),
}

#[derive(Debug, Default)]
struct Inner {
    parts: BTreeMap<String, Known>,
    draining: bool,
}

#[derive(Debug)]
struct Known {
    state: State,
    essential: bool,
    since: UnixMs,
}

/// All parts. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<Inner>>);

/// One part's handle: only its owner reports on it.
#[derive(Clone, Debug)]
pub struct Part {
    name: String,
    essential: bool,
    readiness: Readiness,
}

impl Readiness {
    /// Announces a part, as waiting. An *essential* one (Redis) closes readiness whenever it is not up;
    /// any other only until it was first up.
    pub fn part(&self, name: impl Into<String>, essential: bool) -> Part {
        let part = Part { name: name.into(), essential, readiness: self.clone() };
        part.set(State::Waiting("not reached yet".to_owned()));
        part
    }

    /// Closes it for good: the process drains.
    pub fn drain(&self) {
        self.0.write().draining = true;
    }

    /// Whether the process is willing to take work.
    pub fn is_ready(&self) -> bool {
        let inner = self.0.read();
        !inner.draining
            && inner.parts.values().all(|Known { state, essential, .. }| match state {
                State::Up => true,
                State::Degraded(_) => !essential,
                State::Waiting(_) => false,
            })
    }

    /// Whether it drains.
    pub fn is_draining(&self) -> bool {
        self.0.read().draining
    }

    /// Each part and how it stands.
    pub fn parts(&self) -> Vec<(String, State)> {
        self.0.read().parts.iter().map(|(name, known)| (name.clone(), known.state.clone())).collect()
    }

    /// Since when each part stands as it does, by this machine's clock.
    pub fn since(&self) -> BTreeMap<String, UnixMs> {
        self.0.read().parts.iter().map(|(name, known)| (name.clone(), known.since)).collect()
    }

    /// Announces a part that holds back nothing: it is up until somebody says otherwise.
    pub fn side_part(&self, name: impl Into<String>) -> Part {
        let part = Part { name: name.into(), essential: false, readiness: self.clone() };
        part.up();
        part
    }
}

impl Part {
    /// All is well. Returns whether it was not before.
    pub fn up(&self) -> bool {
        self.set(State::Up)
    }

    /// It is in trouble: waiting if it was never up, else degraded. Returns whether that is news.
    pub fn down(&self, why: impl Into<String>) -> bool {
        let was_waiting = self
            .readiness
            .0
            .read()
            .parts
            .get(&self.name)
            .is_none_or(|k| matches!(k.state, State::Waiting(_)));
        let why = why.into();
        self.set(if was_waiting { State::Waiting(why) } else { State::Degraded(why) })
    }

    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.readiness.0.read().parts.get(&self.name).is_some_and(|known| known.state == State::Up)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn set(&self, state: State) -> bool {
        let kind = std::mem::discriminant(&state);
        let mut inner = self.readiness.0.write();
        let old = inner.parts.get(&self.name);
        let same = old.filter(|old| std::mem::discriminant(&old.state) == kind).map(|old| old.since);
        let since = same.unwrap_or_else(|| Clock::start().wall());
        inner.parts.insert(self.name.clone(), Known { state, essential: self.essential, since });
        same.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_lost_later_degrades_but_redis_lost_closes() {
        let readiness = Readiness::default();
        let (redis, kafka) = (readiness.part("redis", true), readiness.part("kafka:main", false));
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

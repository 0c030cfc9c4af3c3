//! Parts of the process, and whether it takes work.
//!
//! A process is *ready* once Redis is reached and every broker of a route has been reached once. A broker or target that
//! is lost later shows as degraded and the process stays ready: one dead broker must not take all replicas out. The
//! process is no longer ready when it drains, or while Redis is away.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Health;
use super::troubles::{PartTrouble, TroubleKind, Troubles};
use crate::domain::{Clock, UnixMs};

/// The reason of a part that begins once the store is there.
pub const WAITS_FOR_STORE: &str = "waits for the store";
/// The trouble of a part whose server was not reached yet, and did not fail yet either.
pub const NOT_REACHED: &str = "not reached yet";

/// State of one part of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartState {
    /// Never reached yet, with the reason in a sentence. The process is not ready.
    Waiting(String),
    /// Works.
    Up,
    /// Reached before and in trouble now, with the reason in a sentence.
    Degraded(String),
}

#[derive(Debug, Default)]
pub(super) struct PartTable {
    parts: BTreeMap<String, PartReport>,
    draining: bool,
    /// The number of changes so far.
    version: u64,
    /// What follows from the parts, until one of them changes.
    troubles: Option<Arc<Troubles>>,
}

#[derive(Debug)]
struct PartReport {
    state: PartState,
    essential: bool,
    since: UnixMs,
    /// The part that it waits for, if it is not up and waits for one.
    because: Option<String>,
    /// The part without which it cannot be up.
    needs: Option<String>,
    /// What is known of the cause of its trouble.
    kind: TroubleKind,
}

/// The state of the process at one moment.
#[derive(Clone, Debug)]
pub struct HealthLook {
    /// The process takes work.
    pub ready: bool,
    /// The process drains.
    pub draining: bool,
    /// All parts, by name.
    pub parts: Vec<LookedPart>,
    /// The causes behind those that are not up.
    pub troubles: Arc<Troubles>,
}

/// A part at one moment.
#[derive(Clone, Debug)]
pub struct LookedPart {
    /// Its name.
    pub name: String,
    /// It has been reached before.
    pub was_up: bool,
    /// Its trouble; `None` while it is up.
    pub trouble: Option<PartTrouble>,
}

/// Handle of one part. The owner of the part reports its state through it.
#[derive(Clone, Debug)]
pub struct Part {
    name: String,
    essential: bool,
    /// The part without which this one cannot be up.
    needs: Option<String>,
    health: Health,
}

impl Health {
    /// Announces a part, as waiting. An *essential* part (Redis) must be up for the process to be ready. Any other part
    /// must have been up once.
    pub fn part(&self, name: impl Into<String>, essential: bool) -> Part {
        self.new_part(name.into(), essential, None)
    }

    /// An essential part that cannot be up while another one is not.
    pub fn part_of(&self, name: impl Into<String>, needs: &str) -> Part {
        self.new_part(name.into(), true, Some(needs.to_owned()))
    }

    fn new_part(&self, name: String, essential: bool, needs: Option<String>) -> Part {
        let part = Part {
            name,
            essential,
            needs,
            health: self.clone(),
        };
        part.set(
            PartState::Waiting(NOT_REACHED.to_owned()),
            None,
            TroubleKind::Known,
        );
        part
    }

    /// Ends readiness for good: the process drains.
    pub fn drain(&self) {
        self.0.parts.write().draining = true;
    }

    /// Reports whether the process takes work.
    pub fn is_ready(&self) -> bool {
        self.0.parts.read().is_ready()
    }

    /// The state of the process at one moment: what is told of it together agrees with itself.
    pub fn look(&self) -> HealthLook {
        let table = self.0.parts.read();
        let parts = table.parts.iter().map(|(name, report)| LookedPart {
            name: name.clone(),
            was_up: !matches!(report.state, PartState::Waiting(_)),
            trouble: table.trouble(report),
        });
        HealthLook {
            ready: table.is_ready(),
            draining: table.draining,
            parts: parts.collect(),
            troubles: match &table.troubles {
                Some(troubles) => troubles.clone(),
                None => Arc::new(Troubles::behind(&table.not_up())),
            },
        }
    }

    /// Waits until the process takes work. Cancel-safe.
    pub async fn until_ready(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.is_ready() {
                return;
            }
            changed.await;
        }
    }

    /// Reports whether the process drains.
    pub fn is_draining(&self) -> bool {
        self.0.parts.read().draining
    }

    /// The name and state of each part. One that needs a part that is not up is not up either.
    pub fn parts(&self) -> Vec<(String, PartState)> {
        let table = self.0.parts.read();
        let state = |report: &PartReport| match (&report.state, table.trouble(report)) {
            (PartState::Up, Some(trouble)) => PartState::Degraded(trouble.why),
            (state, _) => state.clone(),
        };
        let parts = table.parts.iter();
        parts
            .map(|(name, report)| (name.clone(), state(report)))
            .collect()
    }

    /// The parts that are not up.
    pub fn not_up(&self) -> BTreeMap<String, PartTrouble> {
        self.0.parts.read().not_up()
    }

    /// The troubles behind the parts that are not up: one for each cause.
    pub fn troubles(&self) -> Arc<Troubles> {
        if let Some(troubles) = &self.0.parts.read().troubles {
            return troubles.clone();
        }
        let (not_up, version) = {
            let table = self.0.parts.read();
            (table.not_up(), table.version)
        };
        let troubles = Arc::new(Troubles::behind(&not_up));
        let table = &mut *self.0.parts.write();
        if table.version == version {
            table.troubles = Some(troubles.clone());
        }
        troubles
    }

    /// Announces a part on which readiness does not wait. The part is up until its owner reports otherwise.
    pub fn side_part(&self, name: impl Into<String>) -> Part {
        self.new_side_part(name.into(), None)
    }

    /// The same for a part that cannot be up while another one is not.
    pub fn side_part_of(&self, name: impl Into<String>, needs: String) -> Part {
        self.new_side_part(name.into(), Some(needs))
    }

    fn new_side_part(&self, name: String, needs: Option<String>) -> Part {
        let part = Part {
            name,
            essential: false,
            needs,
            health: self.clone(),
        };
        part.up();
        part
    }
}

impl PartReport {
    /// Reports whether the process may work with the part in this state.
    fn may_work(&self) -> bool {
        match self.state {
            PartState::Up => true,
            PartState::Degraded(_) => !self.essential,
            PartState::Waiting(_) => false,
        }
    }
}

impl PartTable {
    fn is_ready(&self) -> bool {
        !self.draining && self.parts.values().all(PartReport::may_work)
    }

    /// The parts that are not up.
    fn not_up(&self) -> BTreeMap<String, PartTrouble> {
        let parts = self.parts.iter();
        parts
            .filter_map(|(name, report)| Some((name.clone(), self.trouble(report)?)))
            .collect()
    }

    /// The trouble of a part: its own, or that of the part without which it cannot be up.
    fn trouble(&self, report: &PartReport) -> Option<PartTrouble> {
        let Some(why) = report.state.why() else {
            let needed = report.needs.as_ref()?;
            let cause = self.parts.get(needed)?;
            return Some(PartTrouble {
                why: format!("{needed}: {}", cause.state.why()?),
                because: Some(needed.clone()),
                since: cause.since,
                kind: TroubleKind::Known,
                needs: report.needs.clone(),
            });
        };
        Some(PartTrouble {
            why: why.to_owned(),
            because: self.cause_of(report, why),
            since: report.since,
            kind: report.kind,
            needs: report.needs.clone(),
        })
    }

    /// The part that another one waits for, which is not up for this reason itself.
    fn cause_of(&self, report: &PartReport, why: &str) -> Option<String> {
        let is_down = |part: &&String| self.why(part).is_some();
        let named = report.because.as_ref();
        if let Some(cause) = named.filter(is_down) {
            return Some(cause.clone());
        }
        // A connection may be lost after what needs it was looked at.
        if let Some(cause) = report.needs.as_ref().filter(is_down) {
            return Some(cause.clone());
        }
        if let Some(cause) = named {
            return Some(cause.clone());
        }
        if !why.contains(WAITS_FOR_STORE) {
            return None;
        }
        ["redis", "store"]
            .map(str::to_owned)
            .into_iter()
            .find(|part| is_down(&part))
    }

    /// Why a part is not up, as its owner says.
    fn why(&self, part: &str) -> Option<&str> {
        self.parts.get(part)?.state.why()
    }
}

impl PartState {
    /// The reason of a part that is not up.
    fn why(&self) -> Option<&str> {
        match self {
            Self::Up => None,
            Self::Waiting(why) | Self::Degraded(why) => Some(why),
        }
    }
}

impl Part {
    /// Reports the part as up. Returns true if it was not up before.
    pub fn up(&self) -> bool {
        self.set(PartState::Up, None, TroubleKind::Known)
    }

    /// Reports the part as in trouble: as waiting if it was never up, else as degraded. Returns true if that is new.
    pub fn down(&self, why: impl Into<String>) -> bool {
        self.down_because(why, None)
    }

    /// The same, and names the part that this one waits for.
    pub fn down_because(&self, why: impl Into<String>, because: Option<String>) -> bool {
        self.is_down(why.into(), because, TroubleKind::Known)
    }

    /// The same, where the reason tells only what is seen: no cause of it is known.
    pub fn down_unexplained(&self, why: impl Into<String>) -> bool {
        self.is_down(why.into(), None, TroubleKind::Unknown)
    }

    /// The same, where a server does not answer.
    pub fn down_unanswered(&self, why: impl Into<String>) -> bool {
        self.is_down(why.into(), None, TroubleKind::Unanswered)
    }

    /// Reports the part as up if there is no reason why it is not.
    pub fn report(&self, why: Option<String>, because: Option<String>) {
        match why {
            None => self.up(),
            Some(why) => self.down_because(why, because),
        };
    }

    /// Says that the trouble of a part that is not up has lasted since this moment at least.
    pub fn lasts_since(&self, at: UnixMs) {
        let table = &mut *self.health.0.parts.write();
        let Some(report) = table.parts.get_mut(&self.name) else {
            return;
        };
        if report.state != PartState::Up && at < report.since {
            report.since = at;
            table.version += 1;
            table.troubles = None;
        }
    }

    fn is_down(&self, why: String, because: Option<String>, kind: TroubleKind) -> bool {
        let was_waiting = self
            .health
            .0
            .parts
            .read()
            .parts
            .get(&self.name)
            .is_none_or(|k| matches!(k.state, PartState::Waiting(_)));
        let state = if was_waiting {
            PartState::Waiting(why)
        } else {
            PartState::Degraded(why)
        };
        self.set(state, because, kind)
    }

    /// Reports whether the part is up.
    pub fn is_up(&self) -> bool {
        self.health
            .0
            .parts
            .read()
            .parts
            .get(&self.name)
            .is_some_and(|known| known.state == PartState::Up)
    }

    /// The name of the part.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn set(&self, state: PartState, because: Option<String>, kind: TroubleKind) -> bool {
        let variant = std::mem::discriminant(&state);
        let mut inner = self.health.0.parts.write();
        let old = inner.parts.get(&self.name);
        let same = old
            .filter(|old| std::mem::discriminant(&old.state) == variant)
            .map(|old| old.since);
        let is_unchanged = old.is_some_and(|old| {
            old.state == state
                && old.because == because
                && old.kind == kind
                && old.needs == self.needs
        });
        if is_unchanged {
            return false;
        }
        let since = same.unwrap_or_else(|| Clock::start().wall());
        inner.version += 1;
        inner.troubles = None;
        inner.parts.insert(
            self.name.clone(),
            PartReport {
                state,
                essential: self.essential,
                since,
                because,
                needs: self.needs.clone(),
                kind,
            },
        );
        drop(inner);
        self.health.0.changed.notify_waiters();
        same.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_needs_a_connection_follows_from_it_at_the_moment_it_is_lost() {
        let health = Health::default();
        let kafka = health.part("kafka:main", false);
        kafka.up();
        let target = health.side_part_of("target:main:x", "kafka:main".to_owned());
        let troubles = || {
            let troubles = health.troubles();
            let told = troubles.all().iter();
            told.map(|trouble| (trouble.part.clone(), trouble.follows.clone()))
                .collect::<Vec<_>>()
        };
        target.down("no answer");
        assert_eq!(troubles(), [("target:main:x".to_owned(), vec![])]);
        kafka.down("refused");
        let follows = vec!["target:main:x".to_owned()];
        assert_eq!(troubles(), [("kafka:main".to_owned(), follows)]);
        kafka.up();
        assert_eq!(troubles(), [("target:main:x".to_owned(), vec![])]);
        // Nor is it up because nothing was wrong with it when it was looked at last.
        target.up();
        assert_eq!(troubles(), []);
        kafka.down("refused");
        let follows = vec!["target:main:x".to_owned()];
        assert_eq!(troubles(), [("kafka:main".to_owned(), follows)]);
        let why = |text: &str| PartState::Degraded(text.to_owned());
        let expected = [
            ("kafka:main".to_owned(), why("refused")),
            ("target:main:x".to_owned(), why("kafka:main: refused")),
        ];
        assert_eq!(health.parts(), expected);
    }

    #[test]
    fn a_trouble_that_is_older_than_this_process_says_since_when_it_lasts() {
        let health = Health::default();
        let part = health.side_part("route:orders");
        part.lasts_since(UnixMs(7));
        part.down("late");
        for at in [9, 8, 9] {
            part.lasts_since(UnixMs(at));
        }
        part.down("later");
        assert_eq!(health.troubles().all()[0].since, UnixMs(8));
    }

    #[tokio::test]
    async fn who_waits_until_it_is_ready_is_woken_by_the_last_part() {
        let health = Health::default();
        let [redis, kafka] = ["redis", "kafka:main"].map(|name| health.part(name, true));
        let mut ready = pin!(health.until_ready());
        redis.up();
        assert!(ready.as_mut().now_or_never().is_none());
        tokio::join!(ready, async { kafka.up() });
    }

    #[test]
    fn a_broker_lost_later_degrades_but_redis_lost_closes() {
        let health = Health::default();
        let redis = health.part("redis", true);
        let kafka = health.part("kafka:main", false);
        redis.up();
        kafka.up();
        assert!(health.is_ready());
        kafka.down("connection refused");
        assert!(health.is_ready());
        redis.down("connection refused");
        assert!(!health.is_ready());
        redis.up();
        health.drain();
        assert!(!health.is_ready());
    }
}

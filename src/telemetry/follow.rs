//! Following one message, by (route, id), from the moment it is sent to its end, whichever replica sees that.
//!
//! For `send --wait` and nothing else: a handful of followers at most. Whoever ends messages reports each end; while
//! nobody follows, that costs one relaxed load. Replicas tell each other with their heartbeats what they follow, what
//! they look out for on behalf of the others, and how it ended ([`FollowNews`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};

use crate::domain::{RouteName, UnixMs};

/// Most messages that callers of one replica follow at once, over all routes.
pub const MAX_FOLLOWERS: usize = 64;
/// Most messages that a replica looks out for on behalf of the others.
const MAX_REMOTE: usize = 1024;

/// How a followed message ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Its target confirmed it.
    Published {
        /// When the confirm came.
        #[serde(with = "unix_ms")]
        published_at: UnixMs,
        /// When it was due.
        #[serde(with = "unix_ms")]
        due: UnixMs,
        /// Confirm minus due time, ms, finer than the two above.
        lateness_ms: f64,
        /// Which hand-out it was; the first is 1.
        attempt: u32,
    },
    /// It was kept as a dead letter, or dropped by policy.
    Dead {
        /// The contract's reason.
        reason: String,
    },
}

/// A moment as a number of milliseconds.
mod unix_ms {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::domain::UnixMs;

    // serde passes a field by reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(super) fn serialize<S: Serializer>(moment: &UnixMs, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(moment.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<UnixMs, D::Error> {
        i64::deserialize(from).map(UnixMs)
    }
}

/// A followed message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Followed {
    /// Its route.
    pub route: String,
    /// Its id within the route.
    pub id: String,
}

impl Followed {
    fn new(route: &RouteName, id: &str) -> Self {
        Self { route: route.to_string(), id: id.to_owned() }
    }
}

/// What a replica tells the others of followed messages with each heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowNews {
    /// Messages that its own callers follow.
    pub follows: Vec<Followed>,
    /// Messages that the others follow and that it looks out for.
    pub watches: Vec<Followed>,
    /// The ends that it saw of what the others follow, as long as they do.
    pub ended: Vec<(Followed, Outcome)>,
}

impl FollowNews {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.follows.is_empty() && self.watches.is_empty() && self.ended.is_empty()
    }
}

/// Who follows what.
#[derive(Debug, Default)]
pub struct Watch {
    /// Messages that are followed here or by another replica.
    count: AtomicUsize,
    table: Mutex<Table>,
    /// Told whenever the other replicas were heard.
    heard: Notify,
}

#[derive(Debug, Default)]
struct Table {
    last_ticket: u64,
    followers: HashMap<Followed, Vec<(u64, oneshot::Sender<Outcome>)>>,
    /// Followers that were not dropped yet.
    places: usize,
    /// What the other replicas follow, and how it ended if it did.
    remote: HashMap<Followed, Option<Outcome>>,
    /// What each of the other replicas looks out for.
    watched_by_others: Vec<HashSet<Followed>>,
}

/// Follows one message. Dropped, it no longer does.
#[derive(Debug)]
pub struct Follower {
    watch: Arc<Watch>,
    key: Followed,
    ticket: u64,
    receiver: oneshot::Receiver<Outcome>,
}

impl Watch {
    /// Follows a message, which must not be sent before this returns. `None` if [`MAX_FOLLOWERS`] are
    /// there already.
    pub fn follow(self: &Arc<Self>, route: &RouteName, id: &str) -> Option<Follower> {
        let mut table = self.table.lock();
        if table.places >= MAX_FOLLOWERS {
            return None;
        }
        table.places += 1;
        table.last_ticket += 1;
        let ticket = table.last_ticket;
        let (sender, receiver) = oneshot::channel();
        let key = Followed::new(route, id);
        table.followers.entry(key.clone()).or_default().push((ticket, sender));
        self.recount(&table);
        Some(Follower { watch: Arc::clone(self), key, ticket, receiver })
    }

    /// Reports the end of a message. The outcome is only made if somebody follows this very message.
    pub fn report(&self, route: &RouteName, id: &str, outcome: impl FnOnce() -> Outcome) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let key = Followed::new(route, id);
        let mut table = self.table.lock();
        if !table.followers.contains_key(&key) && !table.remote.contains_key(&key) {
            return;
        }
        let outcome = outcome();
        if let Some(end) = table.remote.get_mut(&key) {
            end.get_or_insert_with(|| outcome.clone());
        }
        table.tell(&key, &outcome);
        self.recount(&table);
    }

    /// What the other replicas are to know.
    pub fn news(&self) -> FollowNews {
        let table = self.table.lock();
        let ended = |(key, end): (&Followed, &Option<Outcome>)| Some((key.clone(), end.clone()?));
        FollowNews {
            follows: table.followers.keys().cloned().collect(),
            watches: table.remote.keys().cloned().collect(),
            ended: table.remote.iter().filter_map(ended).collect(),
        }
    }

    /// Takes what all other replicas that live told last.
    pub fn hear<'a>(&self, others: impl Iterator<Item = &'a FollowNews>) {
        let mut table = self.table.lock();
        let mut remote = HashMap::new();
        let mut watched = Vec::new();
        for news in others {
            for key in news.follows.iter().take(MAX_REMOTE.saturating_sub(remote.len())) {
                let end = table.remote.get(key).cloned().flatten();
                remote.insert(key.clone(), end);
            }
            for (key, outcome) in &news.ended {
                table.tell(key, outcome);
            }
            watched.push(news.watches.iter().cloned().collect());
        }
        table.remote = remote;
        table.watched_by_others = watched;
        self.recount(&table);
        drop(table);
        self.heard.notify_waiters();
    }

    fn recount(&self, table: &Table) {
        self.count.store(table.followers.len() + table.remote.len(), Ordering::Relaxed);
    }
}

impl Table {
    /// Tells the followers here of a message's end.
    fn tell(&mut self, key: &Followed, outcome: &Outcome) {
        for (_, sender) in self.followers.remove(key).into_iter().flatten() {
            // Refused when its follower is being dropped: nobody is left to be told.
            drop(sender.send(outcome.clone()));
        }
    }
}

impl Follower {
    /// Waits until every other replica looks out for the message too: whichever publishes it then tells. At once
    /// where there is no other. Cancel-safe.
    pub async fn watched_everywhere(&self) {
        loop {
            let mut heard = std::pin::pin!(self.watch.heard.notified());
            heard.as_mut().enable();
            if self.watch.table.lock().watched_by_others.iter().all(|watched| watched.contains(&self.key)) {
                return;
            }
            heard.await;
        }
    }

    /// Waits for the message's end. Cancel-safe; to be called until it has answered, once.
    pub async fn outcome(&mut self) -> Outcome {
        match (&mut self.receiver).await {
            Ok(outcome) => outcome,
            // The sender lives in the watch that this holds, until it has sent: only a second call
            // finds it gone.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut table = self.watch.table.lock();
        if let Some(same) = table.followers.get_mut(&self.key) {
            same.retain(|(ticket, _)| *ticket != self.ticket);
            if same.is_empty() {
                table.followers.remove(&self.key);
            }
        }
        table.places -= 1;
        self.watch.recount(&table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead() -> Outcome {
        Outcome::Dead { reason: "attempts".to_owned() }
    }

    fn route(name: &str) -> RouteName {
        RouteName::new(name).expect("a name")
    }

    #[tokio::test]
    async fn all_followers_of_a_message_hear_of_its_end_and_no_other() {
        let watch = Arc::new(Watch::default());
        let mut one = watch.follow(&route("a"), "1").expect("room");
        let mut two = watch.follow(&route("a"), "1").expect("room");
        let mut other = watch.follow(&route("b"), "1").expect("room");
        watch.report(&route("a"), "2", || panic!("nobody follows it"));
        watch.report(&route("a"), "1", dead);
        assert_eq!((one.outcome().await, two.outcome().await), (dead(), dead()));
        assert!(other.receiver.try_recv().is_err());
        let published =
            Outcome::Published { published_at: UnixMs(7), due: UnixMs(5), lateness_ms: 2.25, attempt: 1 };
        watch.report(&route("b"), "1", || published.clone());
        assert_eq!(other.outcome().await, published);
    }

    #[test]
    fn a_dropped_follower_leaves_nothing_behind() {
        let watch = Arc::new(Watch::default());
        let one = watch.follow(&route("a"), "1");
        let two = watch.follow(&route("a"), "1");
        drop(one);
        assert_eq!(watch.table.lock().followers.len(), 1);
        drop(two);
        assert_eq!(watch.table.lock().followers.len(), 0);
        assert_eq!(watch.count.load(Ordering::Relaxed), 0);
        watch.report(&route("a"), "1", || panic!("nobody follows"));
    }

    #[test]
    fn followers_are_bounded_and_a_place_is_free_again() {
        let watch = Arc::new(Watch::default());
        let mut all: Vec<_> =
            (0..MAX_FOLLOWERS).map(|i| watch.follow(&route("a"), &i.to_string()).expect("room")).collect();
        assert!(watch.follow(&route("a"), "one more").is_none());
        watch.report(&route("a"), "0", dead);
        assert!(
            watch.follow(&route("a"), "one more").is_none(),
            "an end not yet taken still holds its place"
        );
        all.swap_remove(0);
        assert!(watch.follow(&route("a"), "one more").is_some());
    }

    /// One heartbeat of each, in order.
    fn beat(replicas: &[&Arc<Watch>]) {
        for (at, one) in replicas.iter().enumerate() {
            let news: Vec<_> = replicas
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, w)| w.news())
                .collect();
            one.hear(news.iter());
        }
    }

    #[tokio::test]
    async fn the_replica_that_publishes_tells_the_one_that_follows() {
        let [asks, publishes, idle] = [(); 3].map(|()| Arc::new(Watch::default()));
        let all = [&asks, &publishes, &idle];
        beat(&all);
        let mut follower = asks.follow(&route("a"), "1").expect("room");
        let watched = follower.watched_everywhere();
        let mut watched = Box::pin(watched);
        tokio::select! {
            biased;
            () = &mut watched => panic!("nobody was told yet"),
            () = std::future::ready(()) => {}
        }
        beat(&all);
        beat(&all);
        watched.await;
        publishes.report(&route("a"), "2", || panic!("nobody follows it"));
        publishes.report(&route("a"), "1", dead);
        beat(&all);
        assert_eq!(follower.outcome().await, dead());
        drop(follower);
        beat(&all);
        beat(&all);
        assert!(all.iter().all(|w| w.news().is_empty() && w.count.load(Ordering::Relaxed) == 0));
    }
}

//! Follows single messages, by route and id, from their sending to their end, whichever replica sees that end.
//!
//! `send --wait` is the only user, so there are few followers. Code that ends a message reports the end to the
//! [`FollowRegistry`]; while no message is followed, a report costs one relaxed load. Replicas exchange [`FollowNews`]
//! with their heartbeats: the messages that they follow, those that they watch for other replicas, and the ends they
//! saw.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};

use crate::domain::{RouteName, UnixMs};

/// Most messages that callers of one replica follow at once, over all routes.
pub const MAX_FOLLOWERS: usize = 64;
/// Most messages that a replica watches for other replicas.
const MAX_REMOTE: usize = 1024;

/// End of a followed message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MessageEnd {
    /// The target confirmed it.
    Published {
        /// Moment of the confirm.
        #[serde(with = "unix_ms")]
        published_at: UnixMs,
        /// Due time.
        #[serde(with = "unix_ms")]
        due: UnixMs,
        /// Confirm minus due time, ms, with fractions.
        lateness_ms: f64,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// The message became a dead letter, or was dropped by policy.
    Dead {
        /// The label of the reason.
        reason: String,
    },
}

/// Writes a moment as a number of milliseconds.
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

/// Name of a followed message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FollowedMessage {
    /// The route of the message.
    pub route: String,
    /// The id of the message within its route.
    pub id: String,
}

impl FollowedMessage {
    fn new(route: &RouteName, id: &str) -> Self {
        Self {
            route: route.to_string(),
            id: id.to_owned(),
        }
    }
}

/// News of followed messages, which a replica publishes with each heartbeat. Its form is part of the heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowNews {
    /// Messages that callers of this replica follow.
    pub follows: Vec<FollowedMessage>,
    /// Messages that other replicas follow and that this one watches for them.
    pub watches: Vec<FollowedMessage>,
    /// Ends that this replica saw of messages that other replicas still follow.
    pub ended: Vec<(FollowedMessage, MessageEnd)>,
}

impl FollowNews {
    /// Reports whether there is nothing to publish.
    pub fn is_empty(&self) -> bool {
        self.follows.is_empty() && self.watches.is_empty() && self.ended.is_empty()
    }
}

/// Registry of followed messages: follows one message to its end for `send --wait`.
#[derive(Debug, Default)]
pub struct FollowRegistry {
    /// Messages that are followed here or by another replica. Read before the table is locked.
    count: AtomicUsize,
    table: Mutex<FollowTable>,
    /// Notified whenever news of the other replicas came.
    heard: Notify,
}

#[derive(Debug, Default)]
struct FollowTable {
    last_ticket: u64,
    followers: HashMap<FollowedMessage, Vec<(u64, oneshot::Sender<MessageEnd>)>>,
    /// Followers here that were not dropped yet.
    follower_count: usize,
    /// Messages that other replicas follow, each with its end if this replica saw it.
    remote: HashMap<FollowedMessage, Option<MessageEnd>>,
    /// Messages that each of the other replicas watches.
    watched_by_others: Vec<HashSet<FollowedMessage>>,
}

/// Follower of one message, until it is dropped.
#[derive(Debug)]
pub struct MessageFollower {
    registry: Arc<FollowRegistry>,
    key: FollowedMessage,
    ticket: u64,
    receiver: oneshot::Receiver<MessageEnd>,
}

impl FollowRegistry {
    /// Follows a message, which must not be sent before this returns. `None` if there are [`MAX_FOLLOWERS`] already.
    pub fn follow(self: &Arc<Self>, route: &RouteName, id: &str) -> Option<MessageFollower> {
        let mut table = self.table.lock();
        if table.follower_count >= MAX_FOLLOWERS {
            return None;
        }
        table.follower_count += 1;
        table.last_ticket += 1;
        let ticket = table.last_ticket;
        let (sender, receiver) = oneshot::channel();
        let key = FollowedMessage::new(route, id);
        table
            .followers
            .entry(key.clone())
            .or_default()
            .push((ticket, sender));
        self.recount(&table);
        Some(MessageFollower {
            registry: Arc::clone(self),
            key,
            ticket,
            receiver,
        })
    }

    /// Reports the end of a message. Calls `end` only if somebody follows this very message.
    pub fn report(&self, route: &RouteName, id: &str, end: impl FnOnce() -> MessageEnd) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let key = FollowedMessage::new(route, id);
        let mut table = self.table.lock();
        if !table.followers.contains_key(&key) && !table.remote.contains_key(&key) {
            return;
        }
        let end = end();
        if let Some(known) = table.remote.get_mut(&key) {
            known.get_or_insert_with(|| end.clone());
        }
        table.tell(&key, &end);
        self.recount(&table);
    }

    /// The news that this replica has for the others.
    pub fn news(&self) -> FollowNews {
        let table = self.table.lock();
        let ended =
            |(key, end): (&FollowedMessage, &Option<MessageEnd>)| Some((key.clone(), end.clone()?));
        FollowNews {
            follows: table.followers.keys().cloned().collect(),
            watches: table.remote.keys().cloned().collect(),
            ended: table.remote.iter().filter_map(ended).collect(),
        }
    }

    /// Takes the latest news of all other live replicas.
    pub fn hear<'a>(&self, others: impl Iterator<Item = &'a FollowNews>) {
        let mut table = self.table.lock();
        let mut remote = HashMap::new();
        let mut watched = Vec::new();
        for news in others {
            for key in news
                .follows
                .iter()
                .take(MAX_REMOTE.saturating_sub(remote.len()))
            {
                let end = table.remote.get(key).cloned().flatten();
                remote.insert(key.clone(), end);
            }
            for (key, end) in &news.ended {
                table.tell(key, end);
            }
            watched.push(news.watches.iter().cloned().collect());
        }
        table.remote = remote;
        table.watched_by_others = watched;
        self.recount(&table);
        drop(table);
        self.heard.notify_waiters();
    }

    fn recount(&self, table: &FollowTable) {
        self.count.store(
            table.followers.len() + table.remote.len(),
            Ordering::Relaxed,
        );
    }
}

impl FollowTable {
    /// Sends the end of a message to its followers here.
    fn tell(&mut self, key: &FollowedMessage, end: &MessageEnd) {
        for (_, sender) in self.followers.remove(key).into_iter().flatten() {
            // An error means that the follower is being dropped.
            drop(sender.send(end.clone()));
        }
    }
}

impl MessageFollower {
    /// Waits until every other replica watches the message too, so that whichever publishes it reports its end. Returns
    /// at once if there is no other replica. Cancel-safe.
    pub async fn watched_everywhere(&self) {
        loop {
            let mut heard = std::pin::pin!(self.registry.heard.notified());
            heard.as_mut().enable();
            if self
                .registry
                .table
                .lock()
                .watched_by_others
                .iter()
                .all(|watched| watched.contains(&self.key))
            {
                return;
            }
            heard.await;
        }
    }

    /// Waits for the end of the message. Cancel-safe until it has returned; a second call never returns.
    pub async fn end(&mut self) -> MessageEnd {
        match (&mut self.receiver).await {
            Ok(end) => end,
            // The registry keeps the sender until it has sent, so only a second call finds it gone.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for MessageFollower {
    fn drop(&mut self) {
        let mut table = self.registry.table.lock();
        if let Some(same) = table.followers.get_mut(&self.key) {
            same.retain(|(ticket, _)| *ticket != self.ticket);
            if same.is_empty() {
                table.followers.remove(&self.key);
            }
        }
        table.follower_count -= 1;
        self.registry.recount(&table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead() -> MessageEnd {
        MessageEnd::Dead {
            reason: "attempts".to_owned(),
        }
    }

    fn route(name: &str) -> RouteName {
        RouteName::new(name).expect("a name")
    }

    #[tokio::test]
    async fn all_followers_of_a_message_hear_of_its_end_and_no_other() {
        let registry = Arc::new(FollowRegistry::default());
        let mut one = registry.follow(&route("a"), "1").expect("room");
        let mut two = registry.follow(&route("a"), "1").expect("room");
        let mut other = registry.follow(&route("b"), "1").expect("room");
        registry.report(&route("a"), "2", || panic!("nobody follows it"));
        registry.report(&route("a"), "1", dead);
        assert_eq!((one.end().await, two.end().await), (dead(), dead()));
        assert!(other.receiver.try_recv().is_err());
        let published = MessageEnd::Published {
            published_at: UnixMs(7),
            due: UnixMs(5),
            lateness_ms: 2.25,
            attempt: 1,
        };
        registry.report(&route("b"), "1", || published.clone());
        assert_eq!(other.end().await, published);
    }

    #[test]
    fn a_dropped_follower_leaves_nothing_behind() {
        let registry = Arc::new(FollowRegistry::default());
        let one = registry.follow(&route("a"), "1");
        let two = registry.follow(&route("a"), "1");
        drop(one);
        assert_eq!(registry.table.lock().followers.len(), 1);
        drop(two);
        assert_eq!(registry.table.lock().followers.len(), 0);
        assert_eq!(registry.count.load(Ordering::Relaxed), 0);
        registry.report(&route("a"), "1", || panic!("nobody follows"));
    }

    #[test]
    fn followers_are_bounded_and_a_place_is_free_again() {
        let registry = Arc::new(FollowRegistry::default());
        let mut all: Vec<_> = (0..MAX_FOLLOWERS)
            .map(|i| registry.follow(&route("a"), &i.to_string()).expect("room"))
            .collect();
        assert!(registry.follow(&route("a"), "one more").is_none());
        registry.report(&route("a"), "0", dead);
        assert!(
            registry.follow(&route("a"), "one more").is_none(),
            "an end not yet taken still holds its place"
        );
        all.swap_remove(0);
        assert!(registry.follow(&route("a"), "one more").is_some());
    }

    /// One heartbeat of each, in order.
    fn beat(replicas: &[&Arc<FollowRegistry>]) {
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
        let [asks, publishes, idle] = [(); 3].map(|()| Arc::new(FollowRegistry::default()));
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
        assert_eq!(follower.end().await, dead());
        drop(follower);
        beat(&all);
        beat(&all);
        assert!(
            all.iter()
                .all(|w| w.news().is_empty() && w.count.load(Ordering::Relaxed) == 0)
        );
    }
}

//! Following one message, by (route, id), from the moment it is sent to its end.
//!
//! For `send --wait` and nothing else: a handful of followers at most. Whoever ends messages reports
//! each end; while nobody follows, that costs one relaxed load.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::domain::{RouteName, UnixMs};

/// Most messages followed at once, over all routes.
pub const MAX_FOLLOWERS: usize = 64;

/// How a followed message ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its target confirmed it.
    Published {
        /// When the confirm came.
        published_at: UnixMs,
        /// When it was due.
        due: UnixMs,
        /// Confirm minus due time, ms, finer than the two above.
        lateness_ms: f64,
        /// Which hand-out it was; the first is 1.
        attempt: u32,
    },
    /// It was kept as a dead letter, or dropped by policy.
    Dead {
        /// The contract's reason.
        reason: &'static str,
    },
}

type Key = (RouteName, String);
type Followers = HashMap<Key, Vec<(u64, oneshot::Sender<Outcome>)>>;

/// Who follows what.
#[derive(Debug, Default)]
pub struct Watch {
    count: AtomicUsize,
    followers: Mutex<(u64, Followers)>,
}

/// Follows one message. Dropped, it no longer does.
#[derive(Debug)]
pub struct Follower {
    watch: Arc<Watch>,
    key: Key,
    ticket: u64,
    receiver: oneshot::Receiver<Outcome>,
}

impl Watch {
    /// Follows a message, which must not be sent before this returns. `None` if [`MAX_FOLLOWERS`] are
    /// there already.
    pub fn follow(self: &Arc<Self>, route: &RouteName, id: &str) -> Option<Follower> {
        let mut guard = self.followers.lock();
        let (last_ticket, followers) = &mut *guard;
        if self.count.load(Ordering::Relaxed) >= MAX_FOLLOWERS {
            return None;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        *last_ticket += 1;
        let (sender, receiver) = oneshot::channel();
        let key = (route.clone(), id.to_owned());
        followers.entry(key.clone()).or_default().push((*last_ticket, sender));
        Some(Follower { watch: Arc::clone(self), key, ticket: *last_ticket, receiver })
    }

    /// Reports the end of a message. The outcome is only made if somebody follows this very message.
    pub fn report(&self, route: &RouteName, id: &str, outcome: impl FnOnce() -> Outcome) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let found = self.followers.lock().1.remove(&(route.clone(), id.to_owned()));
        let Some(found) = found else { return };
        let outcome = outcome();
        for (_, sender) in found {
            // Refused when its follower is being dropped: nobody is left to be told.
            drop(sender.send(outcome.clone()));
        }
    }
}

impl Follower {
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
        let mut guard = self.watch.followers.lock();
        if let Some(same) = guard.1.get_mut(&self.key) {
            same.retain(|(ticket, _)| *ticket != self.ticket);
            if same.is_empty() {
                guard.1.remove(&self.key);
            }
        }
        self.watch.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: Outcome = Outcome::Dead { reason: "attempts" };

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
        watch.report(&route("a"), "1", || DEAD);
        assert_eq!((one.outcome().await, two.outcome().await), (DEAD, DEAD));
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
        assert_eq!(watch.followers.lock().1.len(), 1);
        drop(two);
        assert_eq!(watch.followers.lock().1.len(), 0);
        assert_eq!(watch.count.load(Ordering::Relaxed), 0);
        watch.report(&route("a"), "1", || panic!("nobody follows"));
    }

    #[test]
    fn followers_are_bounded_and_a_place_is_free_again() {
        let watch = Arc::new(Watch::default());
        let mut all: Vec<_> =
            (0..MAX_FOLLOWERS).map(|i| watch.follow(&route("a"), &i.to_string()).expect("room")).collect();
        assert!(watch.follow(&route("a"), "one more").is_none());
        watch.report(&route("a"), "0", || DEAD);
        assert!(
            watch.follow(&route("a"), "one more").is_none(),
            "an end not yet taken still holds its place"
        );
        all.swap_remove(0);
        assert!(watch.follow(&route("a"), "one more").is_some());
    }
}

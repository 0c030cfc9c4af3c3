//! A source's jitter: each message's due time put off by its own share of the route's `jitter`.

use std::sync::Arc;

use crate::domain::{KafkaPosition, Route, Text, UnixMs, jitter};

/// One source's.
pub(super) struct Jitter {
    route: Arc<Route>,
    source: String,
    /// Messages with neither a name nor a place so far.
    nameless: u64,
}

impl Jitter {
    pub(super) fn new(route: &Arc<Route>, source: &str) -> Self {
        Self { route: route.clone(), source: source.to_owned(), nameless: 0 }
    }

    /// A due time with its share: by the message's name or its place in Kafka, so that one that is read again
    /// falls on the same moment; from RabbitMQ, one after another.
    pub(super) fn put_off(
        &mut self,
        due: UnixMs,
        id: Option<&Text>,
        position: Option<KafkaPosition>,
    ) -> UnixMs {
        let (most_ms, source) = (self.route.policy.jitter_ms, self.source.as_bytes());
        if most_ms == 0 {
            return due;
        }
        due.plus(match (id, position) {
            (Some(id), _) => jitter::of(most_ms, self.route.name.as_str().as_bytes(), id.as_str().as_bytes()),
            (None, Some(position)) => jitter::of(most_ms, source, &position.offset.to_be_bytes()),
            (None, None) => {
                self.nameless += 1;
                jitter::of(most_ms, source, &self.nameless.to_be_bytes())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::testing;

    #[test]
    fn a_name_or_a_place_always_falls_on_the_same_moment() {
        let mut route = (*testing::route()).clone();
        let due = UnixMs(1_790_000_000_000);
        assert_eq!(Jitter::new(&Arc::new(route.clone()), "s").put_off(due, None, None), due);
        route.policy.jitter_ms = 30_000;
        let route = Arc::new(route);
        let (mut once, mut again) = (Jitter::new(&route, "a"), Jitter::new(&route, "a"));
        let name = Text::from("order-7");
        let mut nameless = std::collections::BTreeSet::new();
        for offset in 0..100 {
            let place = Some(KafkaPosition { partition: 3, offset });
            let at = once.put_off(due, None, place);
            assert!((0..=30_000).contains(&at.since(due)));
            assert_eq!(at, again.put_off(due, None, place));
            assert_eq!(once.put_off(due, Some(&name), place), again.put_off(due, Some(&name), None));
            nameless.insert(once.put_off(due, None, None));
        }
        assert!(nameless.len() > 90, "one after another, each elsewhere");
    }
}

//! A source's jitter: adds to each message's due time its own share of the route's `jitter`.

use std::sync::Arc;

use crate::domain::{KafkaPosition, Route, Text, UnixMs, jitter};

/// The jitter of one source.
pub(super) struct SourceJitter {
    route: Arc<Route>,
    source: String,
    /// Messages so far with neither a name nor a Kafka position.
    nameless: u64,
}

impl SourceJitter {
    pub(super) fn new(route: &Arc<Route>, source: &str) -> Self {
        Self {
            route: route.clone(),
            source: source.to_owned(),
            nameless: 0,
        }
    }

    /// Adds a message's share of the route's jitter, and of `spread_ms` beside it, to its due time. The name or the Kafka
    /// position decides the share, so that a message that is read again falls on the same due time. RabbitMQ messages
    /// without a name are counted instead.
    pub(super) fn apply(
        &mut self,
        due: UnixMs,
        spread_ms: i64,
        id: Option<&Text>,
        position: Option<KafkaPosition>,
    ) -> UnixMs {
        let most_ms = self.route.policy.jitter_ms.saturating_add(spread_ms);
        let source = self.source.as_bytes();
        if most_ms == 0 {
            return due;
        }
        due.plus(match (id, position) {
            (Some(id), _) => jitter::of(
                most_ms,
                self.route.name.as_str().as_bytes(),
                id.as_str().as_bytes(),
            ),
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
        assert_eq!(
            SourceJitter::new(&Arc::new(route.clone()), "s").apply(due, 0, None, None),
            due
        );
        route.policy.jitter_ms = 30_000;
        let route = Arc::new(route);
        let mut once = SourceJitter::new(&route, "a");
        let mut again = SourceJitter::new(&route, "a");
        let name = Text::from("order-7");
        let mut nameless = std::collections::BTreeSet::new();
        for offset in 0..100 {
            let place = Some(KafkaPosition {
                partition: 3,
                offset,
            });
            let at = once.apply(due, 0, None, place);
            assert!((0..=30_000).contains(&at.since(due)));
            assert_eq!(at, again.apply(due, 0, None, place));
            assert_eq!(
                once.apply(due, 0, Some(&name), place),
                again.apply(due, 0, Some(&name), None)
            );
            nameless.insert(once.apply(due, 0, None, None));
        }
        assert!(nameless.len() > 90, "one after another, each elsewhere");
    }
}

//! A source's jitter: adds to each message's due time its own share of the route's `jitter`.

use std::sync::Arc;

use super::admit::AskedTime;
use crate::domain::{DelayRequest, KafkaPosition, Route, Text, UnixMs, jitter};

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

    /// When a message is due, and its request as it is then: a time for which it is wanted counts from the new due time.
    /// A message is not put off beyond the moment until which it is wanted.
    pub(super) fn apply(
        &mut self,
        asked: AskedTime,
        id: Option<&Text>,
        position: Option<KafkaPosition>,
    ) -> (UnixMs, DelayRequest) {
        let AskedTime {
            due,
            request,
            spread_ms,
        } = asked;
        let put_off = self.put_off(due, spread_ms, id, position);
        match request.moved_to(put_off) {
            Some(moved) => (put_off, moved),
            None => (due, request),
        }
    }

    /// Adds a message's share of the route's jitter, and of `spread_ms` beside it, to its due time. The name or the Kafka
    /// position decides the share, so that a message that is read again falls on the same due time. RabbitMQ messages
    /// without a name are counted instead.
    fn put_off(
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
    use crate::domain::{Expiry, RequestedTime, testing};

    #[test]
    fn a_name_or_a_place_always_falls_on_the_same_moment() {
        let mut route = (*testing::route()).clone();
        let due = UnixMs(1_790_000_000_000);
        assert_eq!(
            SourceJitter::new(&Arc::new(route.clone()), "s").put_off(due, 0, None, None),
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
            let at = once.put_off(due, 0, None, place);
            assert!((0..=30_000).contains(&at.since(due)));
            assert_eq!(at, again.put_off(due, 0, None, place));
            assert_eq!(
                once.put_off(due, 0, Some(&name), place),
                again.put_off(due, 0, Some(&name), None)
            );
            nameless.insert(once.put_off(due, 0, None, None));
        }
        assert!(nameless.len() > 90, "one after another, each elsewhere");
    }

    /// Whatever puts a message off, it is wanted when it is due.
    #[test]
    fn no_share_takes_a_message_beyond_the_time_for_which_it_is_wanted() {
        let due = UnixMs(1_790_000_000_000);
        let moment = |ms| Expiry {
            last: due.plus(ms),
            after_ms: None,
        };
        for (jitter_ms, spread_ms) in [(0, 0), (600_000, 0), (0, 162_000), (600_000, 162_000)] {
            let mut route = (*testing::route()).clone();
            route.policy.jitter_ms = jitter_ms;
            let mut jitter = SourceJitter::new(&Arc::new(route), "s");
            for expires in [None, Some(Expiry::after(due, 10_000)), Some(moment(60_000))] {
                let asked = AskedTime {
                    due,
                    request: DelayRequest {
                        received: due,
                        time: RequestedTime::At(due),
                        expires,
                        given_back: 0,
                    },
                    spread_ms,
                };
                for n in 0..100 {
                    let id = Text::from(format!("order-{n}"));
                    let (at, request) = jitter.apply(asked, Some(&id), None);
                    assert!((0..=jitter_ms + spread_ms).contains(&at.since(due)));
                    let wanted = request.expires.map(|expires| expires.last);
                    assert!(wanted.is_none_or(|last| last > at), "{expires:?}: {at:?}");
                    if expires.is_some_and(|expires| expires.after_ms.is_some()) {
                        assert_eq!(wanted, Some(at.plus(10_000)));
                    }
                }
            }
        }
    }
}

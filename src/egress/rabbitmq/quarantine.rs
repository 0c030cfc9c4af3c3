//! Messages that were outstanding when one of them made the broker close the channel.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use crate::egress::Publication;

/// Most suspects remembered; beyond, any of them goes and takes its neighbours with it once more.
const MOST: usize = 8192;

/// Connections that a message may end while it is alone on its channel. Messages of other exchanges share the
/// connection, and its end names none of them: once or twice it may have been another one.
const STRIKES: u8 = 3;

/// Fingerprints of suspects: a message comes again under another ticket and attempt, with the same
/// key, body and id. To each, how often it was alone when the whole connection was closed.
#[derive(Debug, Default)]
pub(super) struct Suspects(BTreeMap<u64, u8>);

impl Suspects {
    pub(super) fn add(&mut self, publication: &Publication) {
        self.enter(fingerprint(publication));
    }

    /// It was alone when the broker closed the connection. Answers whether that is its doing.
    pub(super) fn strike(&mut self, publication: &Publication) -> bool {
        let strikes = self.enter(fingerprint(publication));
        *strikes += 1;
        *strikes >= STRIKES
    }

    fn enter(&mut self, fingerprint: u64) -> &mut u8 {
        if self.0.len() >= MOST && !self.0.contains_key(&fingerprint) {
            self.0.pop_first();
        }
        self.0.entry(fingerprint).or_default()
    }

    pub(super) fn holds(&self, publication: &Publication) -> bool {
        !self.0.is_empty() && self.0.contains_key(&fingerprint(publication))
    }

    /// The broker has spoken about it alone.
    pub(super) fn clear(&mut self, publication: &Publication) {
        if !self.0.is_empty() {
            self.0.remove(&fingerprint(publication));
        }
    }
}

fn fingerprint(publication: &Publication) -> u64 {
    let message = &publication.entry().message;
    let id = publication.stamp().map(|stamp| stamp.id.bytes());
    let mut hash = Xxh3::new();
    for part in [message.key.as_ref(), message.body.as_ref(), id].into_iter().flatten() {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.digest()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::{RoutingKey, Target, UnixMs, testing};

    fn publication(body: &'static [u8], ticket: u64) -> Publication {
        let (connection, exchange) = (String::new(), String::new());
        let target = Arc::new(Target::Rabbitmq { connection, exchange, routing_key: RoutingKey::Key });
        Publication::alone(testing::entry(UnixMs(0), body), target, ticket, &Arc::default(), 0)
    }

    #[test]
    fn the_third_connection_that_ends_while_it_is_alone_is_its_doing() {
        let mut suspects = Suspects::default();
        suspects.add(&publication(b"poison", 1));
        assert!(suspects.holds(&publication(b"poison", 2)) && !suspects.holds(&publication(b"good", 2)));
        assert!(!suspects.strike(&publication(b"poison", 2)));
        assert!(
            !suspects.strike(&publication(b"innocent", 3)),
            "another exchange's poison ended its connection"
        );
        suspects.add(&publication(b"poison", 4));
        assert!(!suspects.strike(&publication(b"poison", 5)));
        suspects.clear(&publication(b"innocent", 6));
        assert!(suspects.strike(&publication(b"poison", 7)));
        assert!(!suspects.strike(&publication(b"innocent", 8)), "it was taken in between: it begins anew");
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut suspects = Suspects::default();
        for n in 0..2 * MOST as u64 {
            suspects.enter(n);
        }
        assert_eq!(suspects.0.len(), MOST);
    }
}

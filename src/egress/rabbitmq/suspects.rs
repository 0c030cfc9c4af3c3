//! Suspects: messages that were outstanding when one of them made the broker close the channel.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use crate::egress::Publication;

/// Most suspects that are remembered. Beyond, any one is forgotten, and may harm its neighbours once more.
const MAX_SUSPECTS: usize = 8192;

/// Lost connections, with a message alone on its channel, after which the message counts as their cause. Messages of
/// other exchanges share the connection, and its end names none of them: once or twice it may have been another
/// message.
const MAX_STRIKES: u8 = 3;

/// Fingerprints of suspects, each with the number of times it was alone when the whole connection was closed. A suspect
/// comes again under another ticket and attempt, with the same key, body and id.
#[derive(Debug, Default)]
pub(super) struct SuspectFingerprints(BTreeMap<u64, u8>);

impl SuspectFingerprints {
    pub(super) fn add(&mut self, publication: &Publication) {
        self.enter(fingerprint(publication));
    }

    /// Counts a lost connection with this message alone on its channel. Returns true if the message counts as the
    /// cause.
    pub(super) fn strike(&mut self, publication: &Publication) -> bool {
        let strikes = self.enter(fingerprint(publication));
        *strikes += 1;
        *strikes >= MAX_STRIKES
    }

    fn enter(&mut self, fingerprint: u64) -> &mut u8 {
        if self.0.len() >= MAX_SUSPECTS && !self.0.contains_key(&fingerprint) {
            self.0.pop_first();
        }
        self.0.entry(fingerprint).or_default()
    }

    pub(super) fn contains(&self, publication: &Publication) -> bool {
        !self.0.is_empty() && self.0.contains_key(&fingerprint(publication))
    }

    /// Forgets a message, because the broker has answered for it.
    pub(super) fn clear(&mut self, publication: &Publication) {
        if !self.0.is_empty() {
            self.0.remove(&fingerprint(publication));
        }
    }
}

fn fingerprint(publication: &Publication) -> u64 {
    let message = &publication.entry().message;
    let id = publication
        .delay_headers()
        .map(|delay_headers| delay_headers.id.bytes());
    let mut hash = Xxh3::new();
    for part in [message.key.as_ref(), message.body.as_ref(), id]
        .into_iter()
        .flatten()
    {
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
        let target = Arc::new(Target::Rabbitmq {
            connection: String::new(),
            exchange: String::new(),
            routing_key: RoutingKey::Key,
        });
        Publication::alone(
            testing::entry(UnixMs(0), body),
            target,
            ticket,
            &Arc::default(),
            0,
        )
    }

    #[test]
    fn the_third_connection_that_ends_while_it_is_alone_is_its_doing() {
        let mut suspects = SuspectFingerprints::default();
        suspects.add(&publication(b"poison", 1));
        assert!(
            suspects.contains(&publication(b"poison", 2))
                && !suspects.contains(&publication(b"good", 2))
        );
        assert!(!suspects.strike(&publication(b"poison", 2)));
        assert!(
            !suspects.strike(&publication(b"innocent", 3)),
            "another exchange's poison ended its connection"
        );
        suspects.add(&publication(b"poison", 4));
        assert!(!suspects.strike(&publication(b"poison", 5)));
        suspects.clear(&publication(b"innocent", 6));
        assert!(suspects.strike(&publication(b"poison", 7)));
        assert!(
            !suspects.strike(&publication(b"innocent", 8)),
            "it was taken in between: it begins anew"
        );
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut suspects = SuspectFingerprints::default();
        for n in 0..2 * MAX_SUSPECTS as u64 {
            suspects.enter(n);
        }
        assert_eq!(suspects.0.len(), MAX_SUSPECTS);
    }
}

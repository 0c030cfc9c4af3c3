//! Messages that were outstanding when one of them made the broker close the channel.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::Xxh3;

use crate::egress::Publication;

/// Most suspects remembered; beyond, any of them goes and takes its neighbours with it once more.
const MOST: usize = 8192;

/// Fingerprints of suspects: a message comes again under another ticket and attempt, with the same
/// key, body and id.
#[derive(Debug, Default)]
pub(super) struct Suspects(BTreeSet<u64>);

impl Suspects {
    pub(super) fn add(&mut self, publication: &Publication) {
        self.0.insert(fingerprint(publication));
        if self.0.len() > MOST {
            self.0.pop_first();
        }
    }

    pub(super) fn holds(&self, publication: &Publication) -> bool {
        !self.0.is_empty() && self.0.contains(&fingerprint(publication))
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

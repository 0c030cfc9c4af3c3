//! Which messages left their lanes.

use std::collections::BTreeMap;
use std::sync::Mutex;

use postdate::egress::{PublishBatch, SendListener};

/// Counts the messages that were given to the client library of their broker, by the number of their batch.
#[derive(Debug, Default)]
pub struct SentCounts(Mutex<BTreeMap<u64, usize>>);

impl SentCounts {
    /// How often messages of this batch were sent.
    pub fn of(&self, batch: u64) -> usize {
        let counts = self.0.lock().expect("no test panicked here");
        counts.get(&batch).copied().unwrap_or_default()
    }
}

impl SendListener for SentCounts {
    fn sent(&self, batch: &PublishBatch, _: u32) {
        let mut counts = self.0.lock().expect("no test panicked here");
        *counts.entry(batch.number).or_default() += 1;
    }
}

//! Counters of the messages that a broker returned, by channel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Counters of one connection. They are at most as many as its channel numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct ReturnCounters(Arc<Mutex<BTreeMap<u16, ReturnCounter>>>);

/// Number of messages that the broker returned on one channel.
#[derive(Clone, Debug, Default)]
pub struct ReturnCounter(Arc<AtomicU64>);

impl ReturnCounters {
    /// A new counter for a channel that was just opened. An earlier channel of this number has another one.
    pub(super) fn start(&self, channel: u16) -> ReturnCounter {
        let counter = ReturnCounter::default();
        self.0.lock().insert(channel, counter.clone());
        counter
    }

    /// Counts a message that was returned on a channel.
    pub(super) fn count(&self, channel: u16) {
        if let Some(counter) = self.0.lock().get(&channel) {
            counter.0.fetch_add(1, Ordering::Release);
        }
    }
}

impl ReturnCounter {
    /// The number of messages returned so far. Once the answer to a publication is known, all returns that the broker
    /// sent before that answer are counted.
    pub fn seen(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

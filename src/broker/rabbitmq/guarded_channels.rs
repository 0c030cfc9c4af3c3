//! A connection as its `FrameGuard` sees it: its broker's version, how many messages the broker returned on each channel,
//! and the largest body that each channel takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The channels of one connection by their numbers. A new channel may have the number of an earlier one.
#[derive(Clone, Debug, Default)]
pub(super) struct GuardedChannels(Arc<Mutex<ChannelEntries>>);

#[derive(Debug, Default)]
struct ChannelEntries {
    returns: BTreeMap<u16, ReturnCounter>,
    largest_bodies: BTreeMap<u16, u64>,
    is_rabbitmq_3: bool,
}

/// Number of messages that the broker returned on one channel.
#[derive(Clone, Debug, Default)]
pub struct ReturnCounter(Arc<AtomicU64>);

impl GuardedChannels {
    /// Notes that the broker says it is RabbitMQ 3.
    pub(super) fn note_rabbitmq_3(&self) {
        self.0.lock().is_rabbitmq_3 = true;
    }

    /// Reports whether the broker has said that it is RabbitMQ 3.
    pub(super) fn is_rabbitmq_3(&self) -> bool {
        self.0.lock().is_rabbitmq_3
    }

    /// A new counter for a channel that was just opened. An earlier channel of this number has another one.
    pub(super) fn count_returns(&self, channel: u16) -> ReturnCounter {
        let counter = ReturnCounter::default();
        self.0.lock().returns.insert(channel, counter.clone());
        counter
    }

    /// Counts a message that was returned on a channel.
    pub(super) fn count_return(&self, channel: u16) {
        if let Some(counter) = self.0.lock().returns.get(&channel) {
            counter.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Sets the size of the largest body that a channel takes, which was just opened.
    pub(super) fn set_largest_body(&self, channel: u16, bytes: u64) {
        self.0.lock().largest_bodies.insert(channel, bytes);
    }

    /// The size of the largest body that a channel takes. A channel for which none was set takes any.
    pub(super) fn largest_body(&self, channel: u16) -> u64 {
        let largest = self.0.lock().largest_bodies.get(&channel).copied();
        largest.unwrap_or(u64::MAX)
    }
}

impl ReturnCounter {
    /// The number of messages returned so far. Once the answer to a publication is known, all returns that the broker
    /// sent before that answer are counted.
    pub fn seen(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

//! Intake: from a batch of deliveries to stored bundles, direct publishes and resolved receipts.

use std::sync::Arc;

use super::Delivery;
use crate::domain::Route;

/// What both technologies' consumers hand their batches to.
#[derive(Debug)]
pub struct Intake {}

/// One source of a route in order of delivery: a Kafka partition under one assignment, or a queue's
/// channel. Its batches are taken one after another.
#[derive(Debug)]
pub struct Source {}

impl Intake {
    /// Opens a source. `name` identifies it for good: `kafka/<connection>/<group>/<topic>/<partition>`, or
    /// `rabbitmq/<connection>/<queue>`. Waits for the store (it reads how far the source was ever read).
    pub async fn open(self: &Arc<Self>, _route: &Arc<Route>, _name: String) -> Source {
        Source {}
    }
}

impl Source {
    /// Takes a batch in order of delivery. Returns once the next batch may come; receipts are resolved
    /// then or later. Not cancel-safe: a caller that gives up drops the source and its ledger with it.
    pub async fn take(&mut self, _batch: Vec<Delivery>) {}
}

//! Read-only queries for people and metrics: one message, its trail, pages of messages, counts, histograms, overdue
//! messages.

pub(super) mod browse;
mod contents;
pub(super) mod counts;
pub(super) mod find;
mod growing;
pub(super) mod histogram;
mod in_flight;
pub(super) mod overdue;
mod retries;
pub(super) mod scan;
pub(super) mod search_bound;
mod trail;

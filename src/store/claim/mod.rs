//! Calls of the timers: finding due bundles, claiming and reading them, and settling them once verdicts are in.

pub(super) mod blobs;
pub(super) mod claims;
pub(super) mod dedupe;
pub(super) mod heads;
pub(super) mod key_order;
pub(super) mod rate_tokens;
pub(super) mod settle;
pub(super) mod spread;

//! Dead letters: how many a route may keep, and listing, redriving and dropping them.

pub(super) mod queue;
pub(super) mod quota;

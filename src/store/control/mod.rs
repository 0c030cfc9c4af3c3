//! Data that replicas share through the store: who is alive, what is paused, who did what, and whether the
//! store is still the one it was.

pub(super) mod activity;
pub(super) mod audit_log;
pub(super) mod identity;
pub(super) mod pauses;
pub(super) mod placement;
pub(super) mod registry;
pub(super) mod shared_keys;
pub(super) mod wake;

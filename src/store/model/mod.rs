//! The store's words: bundles and their encoding, the requests of calls and their answers. No Redis in here.

pub(super) mod bundle;
pub(super) mod claim;
pub(super) mod codec;
pub(super) mod condition;
pub(super) mod dead_letter;
pub(super) mod error;
pub(super) mod heads;
pub(super) mod key_order;
pub(super) mod members;
pub(super) mod scrub_report;
pub(super) mod trail;
pub(super) mod unopened;
pub(super) mod view;
pub(super) mod write_op;

//! One call to Redis: the names of its keys and of messages, unique ids, its script, the number that makes it harmless to repeat,
//! and its reply.

pub(super) mod ids;
pub(super) mod keys;
pub(super) mod names;
pub(super) mod numbered;
pub(super) mod reply;
pub(super) mod scripts;

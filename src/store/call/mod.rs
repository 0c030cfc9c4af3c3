//! One call to Redis: the names of its keys, its script, the number that makes it harmless to repeat, and its reply.

pub(super) mod keys;
pub(super) mod numbered;
pub(super) mod reply;
pub(super) mod scripts;

//! Delay queues that other programs keep in a Redis of theirs, as `postdate import` reads and empties them: Redisson's
//! `RDelayedQueue`, and sorted sets with or without a hash of bodies.
//!
//! This is no part of the store: [`ForeignQueue`] speaks to a server that the user names, on one connection, in bounded
//! calls. Reading changes nothing. Removing needs the queue's lock, and leaves an entry alone that has changed since it
//! was read. The lock is checked by the script that removes, so an import that lost its lock removes nothing.

mod queue;
mod redisson;

pub use self::queue::{
    BatchMark, EntryProblem, ForeignEntry, ForeignError, ForeignKeys, ForeignPhase, ForeignQueue,
    ForeignServer, QueueSize,
};
pub use self::redisson::{RedissonEntry, unpack};

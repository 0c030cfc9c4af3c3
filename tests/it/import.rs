//! `postdate import` from real delay queues: Redisson's own, and sorted sets, while they are written and emptied.

mod cut_off;
mod fixture;
mod queue;
mod redisson;
mod zset;

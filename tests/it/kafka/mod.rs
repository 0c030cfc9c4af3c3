//! Kafka in and out, on real Kafka.

mod assignments;
mod egress;
mod expanding;
pub(crate) mod fixture;
mod groups;
mod ingress;
mod leaderless;
mod login;
mod outage;
mod placement;
pub(crate) mod raw;
mod reading_mode;
mod silence;
mod tokens;
mod topics;
mod undecodable;
mod undecodable_skip;

//! Kafka in and out, on real Kafka.

mod assignments;
mod egress;
mod ingress;
mod outage;
mod raw;
pub(crate) mod rig;

//! Kafka in and out, on real Kafka.
#![allow(clippy::disallowed_methods, reason = "tests read clocks and spawn as their users do")]
#![allow(clippy::expect_used, reason = "a test that cannot go on panics")]

mod egress;
mod ingress;
mod outage;
mod raw;
mod rig;

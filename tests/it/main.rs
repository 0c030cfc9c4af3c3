//! Tests on real servers, one binary so that they share them.
#![allow(clippy::expect_used, reason = "a test that cannot go on panics")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and the environment as their users do"
)]

#[path = "../support/mod.rs"]
mod support;

mod accounting;
mod activity;
mod api;
mod bench;
mod causes;
mod check;
mod cluster;
mod compose;
mod console;
mod credentials;
mod credit;
mod fixture;
mod flow;
// The longest: tests begin in the order of their names, and nothing should be left to wait for these.
mod gates;
mod guides;
mod hostile;
mod import;
mod kafka;
mod kubernetes;
mod observer;
mod order;
mod outage;
mod prometheus;
mod promises;
mod purge;
mod rabbitmq;
mod races;
mod readers;
mod replay;
mod scale;
mod send;
mod servers;
mod service_manager;
mod store;
mod tls;
mod topology;
mod traces;
mod trail;

//! Real servers, the relay itself and the accounting, for tests and for the quickstart.
//!
//! Included with `#[path = "../support/mod.rs"] mod support;`. Every server is a real child process on
//! free ports of 127.0.0.1 with a folder of its own, ready when a round trip has succeeded. All of them
//! die with the process that started them, however it ends, and their folders go with them.
//!
//! `Redis::shared()`, `Rabbitmq::shared()`, `Kafka::shared()` are started once per test binary; each test
//! takes topics, queues and key prefixes of its own from [`names`]. A test that kills, stops or fills
//! a server calls `start()` and has one to itself.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test binary uses its own part of this"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and the environment as their users do"
)]
#![allow(clippy::print_stdout, reason = "shown when the test fails")]
#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics"
)]

pub mod accounting;
pub mod browser;
pub mod cluster;
pub mod collectors;
pub mod eventually;
pub mod folders;
pub mod kafka;
pub mod memory_limit;
pub mod names;
pub mod not_tested;
pub mod observer;
pub mod pod;
pub mod ports;
pub mod process;
pub mod producers;
pub mod prometheus;
pub mod proxy;
pub mod rabbitmq;
pub mod redis;
pub mod redisson;
pub mod relay;
mod report;
pub mod run;
pub mod sent;
pub mod sentinel;
pub mod tls;

pub use browser::Browser;
pub use cluster::Cluster;
pub use eventually::eventually;
pub use kafka::Kafka;
pub use memory_limit::MemoryLimit;
pub use observer::Observer;
pub use proxy::Proxy;
pub use rabbitmq::{QueueKind, Rabbitmq};
pub use redis::Redis;
pub use relay::{Config, Relay};
pub use run::{Run, When};
pub use sentinel::Sentinel;
pub use tls::Tls;

//! Postdate: delayed delivery for Kafka and RabbitMQ.
//!
//! ```text
//! topic or queue -> ingress -> store (Redis) -> timer -> egress -> topic or exchange
//! ```
//!
//! A message is in the store until its target broker has confirmed it. Its source is acknowledged once the store has
//! it, not before. `ARCHITECTURE.md` is the map of the modules below.

pub mod admin;
pub mod api;
pub mod app;
pub mod backoff;
pub mod bench;
pub mod broker;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod credential;
pub mod domain;
pub mod egress;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod health;
pub mod import;
pub mod ingress;
pub mod lifecycle;
pub mod mutants;
pub mod plan;
pub mod publishing;
pub mod replay;
pub mod sizing;
pub mod store;
pub mod telemetry;
pub mod timer;
pub mod tls;

//! Logs, metrics and traces of the process: what it tells. What it knows of its state is in [`crate::health`].
//!
//! The registry is an argument, never a global. Handles of routes are made once, from the configuration, so no label
//! ever comes from a message.

pub mod burst;
pub mod config;
pub mod flow;
pub mod follow;
pub mod kafka_clients;
pub mod logging;
pub mod metrics;
pub mod process;
pub mod traces;

pub use burst::BurstLog;
pub use config::{Config, LogFormat};
pub use flow::{FlowHistory, FlowSampler, FlowStep, RouteFlow, RouteFlows};
pub use follow::{FollowNews, FollowRegistry, MAX_FOLLOWERS, MessageEnd, MessageFollower};
pub use kafka_clients::KafkaClients;
pub use logging::{LogError, init};
pub use metrics::{Metrics, RouteMetrics};
pub use process::ProcessFigures;
pub use traces::{AdmissionSpan, DeliveryFacts, DeliverySpan, SpanExporter, SpanLosses, Tracer};

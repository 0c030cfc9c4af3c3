//! The cluster: the living replicas, and the partitions of this one.
//!
//! Each replica sends heartbeats to one registry in the store, and the answers tell it about the others. Each
//! computes the same assignment of partitions ([`assignment`]) from the latest heartbeats ([`view`]). A replica that
//! was silent for three heartbeats counts as dead, one that drains leaves at once, and the others take over.
//! Heartbeats also tell whether the store was replaced or rolled back ([`store_identity`]) and how far the clocks
//! differ ([`skew`]).
//!
//! Guarantees: none that a message depends on. Two owners of one partition are harmless, because a claim is atomic. A
//! partition without an owner is served by any replica once its head is overdue. Ownership only saves work.

mod assignment;
pub mod config;
mod heartbeat;
mod membership;
mod owned;
#[cfg(feature = "test-util")]
pub mod simulation;
mod skew;
mod store_identity;
mod view;

pub use config::Config;
pub use heartbeat::{ClusterDependencies, ClusterError, start};
pub use membership::Cluster;
pub use owned::OwnedPartitions;
pub use view::NameRefusal;

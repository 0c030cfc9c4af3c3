//! The timer: store -> egress, at the due time.
//!
//! A replica runs a pool of shards. Each shard serves some of the partitions that [`Cluster`](crate::cluster::Cluster)
//! assigns to the replica. Its *claimer* ([`claimer`], [`partition_claim`]) polls the heads of all its partitions at once, claims what is due within the
//! lookahead, and hands it to the wheel. The *wheel* ([`wheel`]) is one precise thread for all shards. It gives each
//! message to its target's lane at its own millisecond, never early; a message of a limited route also needs a token
//! ([`rate_limit`]). The *settler* ([`settler`]) collects the brokers' verdicts and answers the store: it settles
//! confirmed bundles in batches, sends failures back, makes dead letters of hopeless messages, splits off hanging
//! ones, and extends claims. *Maintenance* ([`maintenance`]) returns expired claims and scrubs the store.
//!
//! Guarantees. A message leaves the store only after its broker's confirm. Nothing is published whose claim may have
//! passed to another replica: each hand-over checks a monotonic deadline that was taken before the claim was sent. A
//! wake-up only shortens a wait. Messages that are claimed but not published go back to the store on a clean stop.

mod accept;
mod claim_scope;
mod claim_table;
mod claimed;
mod claimer;
pub mod config;
mod credit;
mod key_order;
mod maintenance;
mod partition_claim;
mod polling;
mod rate_limit;
mod read_claimed;
mod resolve;
mod settler;
mod shard;
#[cfg(feature = "test-util")]
pub mod simulation;
mod start;
mod wheel;

pub use config::Config;
pub use start::{TimerDependencies, start};

use self::shard::{ServedRoute, Shard};

//! Redis behind sentinels and as a cluster, and what each tier of durability waits for.

mod cluster;
mod flow;
mod ordered;
mod refusing;
mod sentinel;
mod servers;
mod tiers;
mod tls;

use std::time::Duration;

use postdate::store::config::{Durability, ReplicaWait};

/// `replicated`: so many replicas, waited for this long.
fn replicated(replicas: u32, millis: u64) -> Durability {
    Durability::Replicated(ReplicaWait {
        replicas,
        timeout: Duration::from_millis(millis),
    })
}

/// `fsynced`, likewise.
fn fsynced(replicas: u32, millis: u64) -> Durability {
    Durability::Fsynced(ReplicaWait {
        replicas,
        timeout: Duration::from_millis(millis),
    })
}

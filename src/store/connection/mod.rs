//! Connections to Redis: which node serves what, keeping a connection up, how long a call may take, waiting for
//! replicas and disks, and the checks before the first use.

pub(super) mod client;
pub(super) mod deadline;
pub(super) mod durability;
pub(super) mod health;
pub(super) mod link;
pub(super) mod node;
pub(super) mod open;
pub(super) mod preflight;
pub(super) mod refusals;
pub(super) mod rights;
pub(super) mod slot_map;
pub(super) mod topology;

//! The assignment without a registry, for `benches/`.

use super::assignment::{self, ReplicaCandidate};
use crate::domain::{Partition, Partitions};

/// The owner of each partition, as an index into `replicas`: name and held partitions of each.
pub fn assign(partitions: Partitions, replicas: &[(&str, &[Partition])]) -> Vec<usize> {
    let candidates: Vec<_> = replicas
        .iter()
        .map(|&(id, held)| ReplicaCandidate { id, held })
        .collect();
    assignment::assign(partitions, &candidates)
}

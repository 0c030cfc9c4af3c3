//! The assignment without a registry: for `benches/`.

use super::assignment::{self, Candidate};
use crate::domain::{Partition, Partitions};

/// The owner of each partition, as a place in `replicas`: each one's name and what it holds.
pub fn assign(partitions: Partitions, replicas: &[(&str, &[Partition])]) -> Vec<usize> {
    let candidates: Vec<_> = replicas.iter().map(|&(id, held)| Candidate { id, held }).collect();
    assignment::assign(partitions, &candidates)
}

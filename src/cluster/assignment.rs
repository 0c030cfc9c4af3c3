//! Assigns partitions to replicas. Pure, and the same on every replica that sees the same members.
//!
//! Rendezvous hashing with bounded load: each pair of a partition and a candidate has a score, and the highest scores
//! win as long as their candidate has space. A candidate keeps the partitions that it already holds, up to its share,
//! so nothing moves without need. See ADR 0023.

use crate::domain::{Partition, Partitions};

/// A replica that may serve partitions.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaCandidate<'a> {
    /// Unique among the candidates.
    pub(super) id: &'a str,
    /// The partitions that it serves now, by its own word.
    pub(super) held: &'a [Partition],
}

/// The owner of each partition, as an index into `candidates`; empty if there are none. Whatever the candidates hold,
/// each partition has one owner, and no two loads differ by more than one. Where each partition has one holder, as
/// few as possible move.
pub(super) fn assign(partitions: Partitions, candidates: &[ReplicaCandidate<'_>]) -> Vec<usize> {
    let count = usize::from(partitions.count());
    if candidates.is_empty() {
        return Vec::new();
    }
    let mut owners = holders(count, candidates);
    let mut space = shares(&owners, candidates);
    for (c, space) in space.iter_mut().enumerate() {
        let mut kept: Vec<usize> = (0..count).filter(|&p| owners[p] == Some(c)).collect();
        kept.sort_by_cached_key(|&p| std::cmp::Reverse(score(p, candidates[c].id)));
        for &p in kept.iter().skip(*space) {
            owners[p] = None;
        }
        *space = space.saturating_sub(kept.len());
    }
    let free = (0..count).filter(|&p| owners[p].is_none());
    let mut pairs: Vec<(u64, usize, &str, usize)> = free
        .flat_map(|p| {
            let open = candidates.iter().enumerate().filter(|(c, _)| space[*c] > 0);
            open.map(move |(c, candidate)| (score(p, candidate.id), p, candidate.id, c))
        })
        .collect();
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    for (_, p, _, c) in pairs {
        if owners[p].is_none() && space[c] > 0 {
            owners[p] = Some(c);
            space[c] -= 1;
        }
    }
    // The shares add up to all partitions, so none is left.
    owners.into_iter().flatten().collect()
}

/// The holder of each partition. Among several, the one with the highest score.
fn holders(count: usize, candidates: &[ReplicaCandidate<'_>]) -> Vec<Option<usize>> {
    let mut owners: Vec<Option<usize>> = vec![None; count];
    for (c, candidate) in candidates.iter().enumerate() {
        for p in candidate
            .held
            .iter()
            .map(|p| usize::from(p.0))
            .filter(|&p| p < count)
        {
            let is_better = match owners[p] {
                Some(o) => {
                    let other = candidates[o].id;
                    (score(p, other), other) < (score(p, candidate.id), candidate.id)
                }
                None => true,
            };
            if is_better {
                owners[p] = Some(c);
            }
        }
    }
    owners
}

/// The number of partitions for each candidate: the same for all, and one more for as many candidates as there are
/// partitions left over. The extra ones go to the candidates that hold the most, so that fewer partitions move.
/// Partitions held beyond that do not count, so that the choice is stable while they are given up.
fn shares(owners: &[Option<usize>], candidates: &[ReplicaCandidate<'_>]) -> Vec<usize> {
    let base = owners.len() / candidates.len();
    let over = owners.len() % candidates.len();
    let mut holds = vec![0; candidates.len()];
    for &c in owners.iter().flatten() {
        holds[c] += 1;
    }
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_cached_key(|&c| {
        let id = candidates[c].id;
        (
            std::cmp::Reverse(holds[c].min(base + 1)),
            score(usize::MAX, id),
            id,
        )
    });
    let mut shares = vec![base; candidates.len()];
    for c in order.into_iter().take(over) {
        shares[c] += 1;
    }
    shares
}

fn score(p: usize, id: &str) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(id.as_bytes());
    hash.update(&[0]);
    hash.update(&(p as u64).to_be_bytes());
    hash.digest()
}

#[cfg(test)]
mod tests;

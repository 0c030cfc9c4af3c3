//! Who serves which partition: pure, and the same on every replica that sees the same others.
//!
//! Rendezvous hashing with bounded load: each pair of a partition and a candidate has a score, and the highest
//! scores win as long as their candidate has room. What a candidate holds already it keeps as far as its share
//! goes, so nothing moves that need not. See ADR 0023.

use crate::domain::{Partition, Partitions};

/// A replica that may serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// Unique among the candidates.
    pub(super) id: &'a str,
    /// What it says that it serves now.
    pub(super) held: &'a [Partition],
}

/// The owner of each partition, as a place in `candidates`; nothing if there are none. Whatever is held: each
/// partition has one owner, and no two candidates' loads differ by more than one. Where what is held has one
/// holder each, as few as possible move.
pub(super) fn assign(partitions: Partitions, candidates: &[Candidate<'_>]) -> Vec<usize> {
    let count = usize::from(partitions.count());
    if candidates.is_empty() {
        return Vec::new();
    }
    let mut owners = holders(count, candidates);
    let mut room = shares(&owners, candidates);
    for (c, room) in room.iter_mut().enumerate() {
        let mut kept: Vec<usize> = (0..count).filter(|&p| owners[p] == Some(c)).collect();
        kept.sort_by_cached_key(|&p| std::cmp::Reverse(score(p, candidates[c].id)));
        for &p in kept.iter().skip(*room) {
            owners[p] = None;
        }
        *room = room.saturating_sub(kept.len());
    }
    let free = (0..count).filter(|&p| owners[p].is_none());
    let mut pairs: Vec<(u64, usize, &str, usize)> = free
        .flat_map(|p| {
            let open = candidates.iter().enumerate().filter(|(c, _)| room[*c] > 0);
            open.map(move |(c, candidate)| (score(p, candidate.id), p, candidate.id, c))
        })
        .collect();
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    for (_, p, _, c) in pairs {
        if owners[p].is_none() && room[c] > 0 {
            owners[p] = Some(c);
            room[c] -= 1;
        }
    }
    // The shares add up to all partitions, so none is left.
    owners.into_iter().flatten().collect()
}

/// Who holds each partition; of several the one with the highest score.
fn holders(count: usize, candidates: &[Candidate<'_>]) -> Vec<Option<usize>> {
    let mut owners: Vec<Option<usize>> = vec![None; count];
    for (c, candidate) in candidates.iter().enumerate() {
        for p in candidate.held.iter().map(|p| usize::from(p.0)).filter(|&p| p < count) {
            let better = |&o: &usize| (score(p, candidates[o].id), candidates[o].id);
            if owners[p].as_ref().is_none_or(|o| better(o) < (score(p, candidate.id), candidate.id)) {
                owners[p] = Some(c);
            }
        }
    }
    owners
}

/// How many each candidate gets: the same for all, and one more for as many as there are partitions over. Those
/// are the ones that hold the most, so that fewer move; what they hold beyond it does not count, so that the
/// choice stays the same while they give it up.
fn shares(owners: &[Option<usize>], candidates: &[Candidate<'_>]) -> Vec<usize> {
    let (base, over) = (owners.len() / candidates.len(), owners.len() % candidates.len());
    let mut holds = vec![0; candidates.len()];
    for &c in owners.iter().flatten() {
        holds[c] += 1;
    }
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_cached_key(|&c| {
        let id = candidates[c].id;
        (std::cmp::Reverse(holds[c].min(base + 1)), score(usize::MAX, id), id)
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

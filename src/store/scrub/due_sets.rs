//! The due sets of a partition: the indexes against the sorted sets, and their entries page by page.

use std::collections::BTreeMap;

use redis::{Pipeline, Value};

use super::findings::{Findings, KeyKind};
use super::{PAGE_ENTRIES, SetPosition};
use crate::domain::Partition;
use crate::store::call::reply::{integer, text};
use crate::store::connection::link::read;
use crate::store::{ScrubReport, Store, StoreError};

/// A due set, and how many entries it had when it was read.
#[derive(Clone, Debug)]
pub(super) struct DueSet {
    pub(super) name: String,
    pub(super) bundles: usize,
}

impl DueSet {
    pub(super) fn is_of(&self, route: &str) -> bool {
        self.name
            .strip_prefix(route)
            .is_some_and(|rest| rest.starts_with('/'))
    }
}

/// Entries of one due set: the place of the due set, the first entry, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueSetRange {
    due_set: usize,
    first: usize,
    count: usize,
}

/// The entries of these due sets from a position on, in pages of at most `size`. However many due sets they lie
/// in, one trip reads a page.
pub(super) fn pages(due_sets: &[DueSet], from: &SetPosition, size: usize) -> Vec<Vec<DueSetRange>> {
    let mut pages: Vec<Vec<DueSetRange>> = Vec::new();
    let mut room = 0;
    for (at, due_set) in due_sets
        .iter()
        .enumerate()
        .filter(|(_, due_set)| due_set.name >= from.name)
    {
        let mut first = if due_set.name == from.name {
            from.skip
        } else {
            0
        };
        while first < due_set.bundles {
            if room == 0 {
                pages.push(Vec::new());
                room = size;
            }
            let count = room.min(due_set.bundles - first);
            if let Some(page) = pages.last_mut() {
                page.push(DueSetRange {
                    due_set: at,
                    first,
                    count,
                });
            }
            first += count;
            room -= count;
        }
    }
    pages
}

/// The position at which a page begins.
pub(super) fn start_of(due_sets: &[DueSet], page: &[DueSetRange]) -> SetPosition {
    let start = page.first().and_then(|range| {
        let name = due_sets.get(range.due_set)?.name.clone();
        Some(SetPosition {
            name,
            skip: range.first,
        })
    });
    start.unwrap_or_default()
}

impl Store {
    /// All due sets that an index lists, by name. Notes where an index is wrong.
    pub(super) async fn survey(
        &self,
        p: Partition,
        findings: &mut Findings,
        report: &mut ScrubReport,
    ) -> Result<Vec<DueSet>, StoreError> {
        let indexes = self.indexes(p).await?;
        let disagreement = indexes.disagreement();
        // A due set that only another index lists may exist all the same.
        let mut said: BTreeMap<String, Option<f64>> = disagreement
            .due_sets
            .iter()
            .map(|name| (name.clone(), None))
            .collect();
        said.extend(indexes.idx.into_iter().map(|(name, due)| (name, Some(due))));
        findings.due_sets.extend(disagreement.due_sets);
        findings.places.extend(disagreement.places);
        findings
            .junk
            .extend(disagreement.junk.into_iter().map(|place| (place, None)));
        let heads: Vec<(String, Option<f64>)> = said.into_iter().collect();
        let mut due_sets = Vec::with_capacity(heads.len());
        for heads in heads.chunks(PAGE_ENTRIES) {
            let mut pipe = Pipeline::with_capacity(heads.len() * 3);
            for (name, _) in heads {
                let due = self.0.keys.due(p, name);
                pipe.cmd("TYPE").arg(&due).cmd("ZCARD").arg(&due);
                pipe.cmd("ZRANGE").arg(&due).arg(0).arg(0).arg("WITHSCORES");
            }
            pipe.ignore_errors();
            let found: Vec<Value> = self.ask(p, &pipe).await?;
            let mut wrong: Vec<KeyKind> = Vec::new();
            for ((name, said), answers) in heads.iter().zip(found.chunks(3)) {
                let kind = text(&answers[0])?;
                if kind != "zset" {
                    // A missing due set, or one that is moved out of the way, has no head.
                    wrong.extend((kind != "none").then(|| (format!("due:{name}"), "zset")));
                    findings.due_sets.insert(name.clone());
                    continue;
                }
                if head_of(&answers[2]) != *said {
                    findings.due_sets.insert(name.clone());
                }
                due_sets.push(DueSet {
                    name: name.clone(),
                    bundles: integer(&answers[1])?.max(0) as usize,
                });
            }
            self.quarantine(p, &wrong, report).await?;
        }
        Ok(due_sets)
    }

    /// The members of a page, by due set.
    pub(super) async fn page<'a>(
        &self,
        p: Partition,
        due_sets: &'a [DueSet],
        page: &[DueSetRange],
    ) -> Result<Vec<(&'a DueSet, Vec<String>)>, StoreError> {
        let mut pipe = Pipeline::with_capacity(page.len());
        for range in page {
            let due = self.0.keys.due(p, &due_sets[range.due_set].name);
            pipe.cmd("ZRANGE")
                .arg(due)
                .arg(range.first)
                .arg(range.first + range.count - 1);
        }
        let members: Vec<Vec<String>> = self.ask(p, &pipe).await?;
        Ok(page
            .iter()
            .map(|range| &due_sets[range.due_set])
            .zip(members)
            .collect())
    }
}

/// The score of the only entry of an answer.
pub(super) fn head_of(answer: &Value) -> Option<f64> {
    let head: Vec<(String, f64)> = read(answer.clone()).ok()?;
    head.first().map(|(_, score)| *score)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_sets(sizes: &[usize]) -> Vec<DueSet> {
        let due_set = |(at, &bundles): (usize, &usize)| DueSet {
            name: format!("r/{at:04}"),
            bundles,
        };
        sizes.iter().enumerate().map(due_set).collect()
    }

    #[test]
    fn every_entry_is_on_one_page_whatever_the_sizes_and_wherever_one_stops() {
        for sizes in [
            vec![1; 1000],
            vec![450],
            vec![0, 3, 0, 999, 1, 0, 200, 200],
            vec![],
        ] {
            let due_sets = due_sets(&sizes);
            let total: usize = sizes.iter().sum();
            for size in [1, 7, 200, 5000] {
                // Two pages at a time, from where the last ones ended.
                let mut place = SetPosition::default();
                let mut seen = Vec::new();
                let mut rounds = 0;
                loop {
                    let all = pages(&due_sets, &place, size);
                    for range in all.iter().take(2).flatten() {
                        seen.extend(
                            (range.first..range.first + range.count).map(|at| (range.due_set, at)),
                        );
                    }
                    assert!(
                        all.iter().all(|page| page.iter().map(|range| range.count).sum::<usize>() <= size)
                    );
                    rounds += 1;
                    let Some(next) = all.get(2) else { break };
                    place = start_of(&due_sets, next);
                }
                let expected = sizes
                    .iter()
                    .enumerate()
                    .flat_map(|(due_set, &n)| (0..n).map(move |at| (due_set, at)));
                assert_eq!(seen, expected.collect::<Vec<_>>());
                assert_eq!(
                    rounds,
                    total.div_ceil(2 * size).max(1),
                    "as few trips as can be: {sizes:?}"
                );
            }
        }
    }

    #[test]
    fn a_shelf_that_has_gone_meanwhile_is_passed_by() {
        let due_sets = due_sets(&[2, 2, 2]);
        let place = SetPosition {
            name: "r/0000x".to_owned(),
            skip: 1,
        };
        let all: Vec<DueSetRange> = pages(&due_sets, &place, 10).concat();
        assert_eq!(
            all.iter()
                .map(|range| (range.due_set, range.first))
                .collect::<Vec<_>>(),
            [(1, 0), (2, 0)]
        );
    }
}

//! The shelves of a partition: the indexes against the due zsets, and their entries page by page.

use std::collections::BTreeMap;

use redis::{Pipeline, Value};

use super::corrupt::Kind;
use super::findings::Finds;
use super::{PAGE, Place};
use crate::domain::Partition;
use crate::store::call::reply::{integer, text};
use crate::store::connection::link::read;
use crate::store::{AuditReport, Store, StoreError};

/// A due zset, and how many entries it had when it was looked at.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    pub(super) name: String,
    pub(super) bundles: usize,
}

impl Shelf {
    pub(super) fn is_of(&self, route: &str) -> bool {
        self.name.strip_prefix(route).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// Entries of one due zset: the shelf's place, the first of them, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    shelf: usize,
    first: usize,
    count: usize,
}

/// The entries of these shelves from a place on, in pages of so many at most: however many shelves they lie on, one
/// trip reads a page.
pub(super) fn pages(shelves: &[Shelf], (from, skip): &Place, size: usize) -> Vec<Vec<Range>> {
    let mut pages: Vec<Vec<Range>> = Vec::new();
    let mut room = 0;
    for (at, shelf) in shelves.iter().enumerate().filter(|(_, shelf)| shelf.name >= *from) {
        let mut first = if shelf.name == *from { *skip } else { 0 };
        while first < shelf.bundles {
            if room == 0 {
                pages.push(Vec::new());
                room = size;
            }
            let count = room.min(shelf.bundles - first);
            if let Some(page) = pages.last_mut() {
                page.push(Range { shelf: at, first, count });
            }
            (first, room) = (first + count, room - count);
        }
    }
    pages
}

/// Where a page begins.
pub(super) fn start_of(shelves: &[Shelf], page: &[Range]) -> Place {
    let start = page.first().and_then(|range| Some((shelves.get(range.shelf)?.name.clone(), range.first)));
    start.unwrap_or_default()
}

impl Store {
    /// All shelves that an index tells of, by name. Notes where one is wrong.
    pub(super) async fn survey(
        &self,
        p: Partition,
        finds: &mut Finds,
        report: &mut AuditReport,
    ) -> Result<Vec<Shelf>, StoreError> {
        let indexes = self.indexes(p).await?;
        let disagreement = indexes.disagreement();
        // What only another index tells of may have a due zset all the same.
        let mut said: BTreeMap<String, Option<f64>> =
            disagreement.shelves.iter().map(|name| (name.clone(), None)).collect();
        said.extend(indexes.idx.into_iter().map(|(name, due)| (name, Some(due))));
        finds.shelves.extend(disagreement.shelves);
        finds.junk.extend(disagreement.junk.into_iter().map(|place| (place, None)));
        let heads: Vec<(String, Option<f64>)> = said.into_iter().collect();
        let mut shelves = Vec::with_capacity(heads.len());
        for heads in heads.chunks(PAGE) {
            let mut pipe = Pipeline::with_capacity(heads.len() * 3);
            for (name, _) in heads {
                let due = self.0.keys.due(p, name);
                pipe.cmd("TYPE").arg(&due).cmd("ZCARD").arg(&due);
                pipe.cmd("ZRANGE").arg(&due).arg(0).arg(0).arg("WITHSCORES");
            }
            pipe.ignore_errors();
            let found: Vec<Value> = self.ask(p, &pipe).await?;
            let mut wrong: Vec<Kind> = Vec::new();
            for ((name, said), answers) in heads.iter().zip(found.chunks(3)) {
                let kind = text(&answers[0])?;
                if kind != "zset" {
                    // What is away, or gets out of the way, has no head.
                    wrong.extend((kind != "none").then(|| (format!("due:{name}"), "zset")));
                    finds.shelves.insert(name.clone());
                    continue;
                }
                if head_of(&answers[2]) != *said {
                    finds.shelves.insert(name.clone());
                }
                shelves.push(Shelf { name: name.clone(), bundles: integer(&answers[1])?.max(0) as usize });
            }
            self.quarantine(p, &wrong, report).await?;
        }
        Ok(shelves)
    }

    /// The members of a page, by shelf.
    pub(super) async fn page<'a>(
        &self,
        p: Partition,
        shelves: &'a [Shelf],
        page: &[Range],
    ) -> Result<Vec<(&'a Shelf, Vec<String>)>, StoreError> {
        let mut pipe = Pipeline::with_capacity(page.len());
        for range in page {
            let due = self.0.keys.due(p, &shelves[range.shelf].name);
            pipe.cmd("ZRANGE").arg(due).arg(range.first).arg(range.first + range.count - 1);
        }
        let members: Vec<Vec<String>> = self.ask(p, &pipe).await?;
        Ok(page.iter().map(|range| &shelves[range.shelf]).zip(members).collect())
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

    fn shelves(sizes: &[usize]) -> Vec<Shelf> {
        let shelf = |(at, &bundles): (usize, &usize)| Shelf { name: format!("r/{at:04}"), bundles };
        sizes.iter().enumerate().map(shelf).collect()
    }

    #[test]
    fn every_entry_is_on_one_page_whatever_the_sizes_and_wherever_one_stops() {
        for sizes in [vec![1; 1000], vec![450], vec![0, 3, 0, 999, 1, 0, 200, 200], vec![]] {
            let shelves = shelves(&sizes);
            let total: usize = sizes.iter().sum();
            for size in [1, 7, 200, 5000] {
                // Two pages at a time, from where the last ones ended.
                let (mut place, mut seen, mut rounds) = (Place::default(), Vec::new(), 0);
                loop {
                    let all = pages(&shelves, &place, size);
                    for range in all.iter().take(2).flatten() {
                        seen.extend((range.first..range.first + range.count).map(|at| (range.shelf, at)));
                    }
                    assert!(
                        all.iter().all(|page| page.iter().map(|range| range.count).sum::<usize>() <= size)
                    );
                    rounds += 1;
                    let Some(next) = all.get(2) else { break };
                    place = start_of(&shelves, next);
                }
                let expected =
                    sizes.iter().enumerate().flat_map(|(shelf, &n)| (0..n).map(move |at| (shelf, at)));
                assert_eq!(seen, expected.collect::<Vec<_>>());
                assert_eq!(rounds, total.div_ceil(2 * size).max(1), "as few trips as can be: {sizes:?}");
            }
        }
    }

    #[test]
    fn a_shelf_that_has_gone_meanwhile_is_passed_by() {
        let shelves = shelves(&[2, 2, 2]);
        let place = ("r/0000x".to_owned(), 1);
        let all: Vec<Range> = pages(&shelves, &place, 10).concat();
        assert_eq!(all.iter().map(|range| (range.shelf, range.first)).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    }
}

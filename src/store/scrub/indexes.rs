//! Compares the three indexes of a partition's due sets: `idx` says when each is due, `shelves` orders those of
//! a route, `heads` has the first of each route.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::Partition;
use crate::store::model::bundle::{due_set_at, is_of_growing, place_of};
use crate::store::{Store, StoreError};

/// Entries of an index that one trip reads.
const INDEX_PAGE: usize = 2000;

/// Members and scores of the indexes, as they stand in Redis.
#[derive(Debug, Default)]
pub(super) struct DueIndexes {
    pub(super) idx: BTreeMap<String, f64>,
    heads: BTreeMap<String, f64>,
    due_sets: BTreeMap<String, f64>,
}

/// Differences between the indexes. They are not read in one moment, so each find has to be judged again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Disagreement {
    /// Due sets about which the indexes differ.
    pub(super) due_sets: BTreeSet<String>,
    /// Entries of `shelves` that `idx` does not say, each behind its due set.
    pub(super) places: Vec<(String, String)>,
    /// Entries of `shelves` that name no due set.
    pub(super) junk: Vec<String>,
}

impl DueIndexes {
    /// Compares `heads` and `shelves` with `idx`.
    pub(super) fn disagreement(&self) -> Disagreement {
        let mut found = Disagreement::default();
        let mut first_places: BTreeMap<&str, (String, &str)> = BTreeMap::new();
        // Those of growing bundles are in `idx` alone.
        let published = self
            .idx
            .iter()
            .filter(|(due_set, _)| !is_of_growing(due_set));
        for (due_set, due) in published {
            let place = place_of(due_set, *due);
            if self.due_sets.get(&place) != Some(&0.0) {
                found.due_sets.insert(due_set.clone());
            }
            let own = (place, due_set.as_str());
            match first_places.get_mut(route_of(due_set)) {
                Some(first) if *first <= own => {}
                Some(first) => *first = own,
                None => drop(first_places.insert(route_of(due_set), own)),
            }
        }
        let firsts: BTreeSet<&str> = first_places
            .into_values()
            .map(|(_, due_set)| due_set)
            .collect();
        let is_head = |due_set: &str| {
            self.heads
                .get(due_set)
                .is_some_and(|due| self.idx.get(due_set) == Some(due))
        };
        let missing = firsts.iter().copied().filter(|&due_set| !is_head(due_set));
        let false_heads = self
            .heads
            .keys()
            .map(String::as_str)
            .filter(|&due_set| !is_head(due_set) || !firsts.contains(due_set));
        found
            .due_sets
            .extend(missing.chain(false_heads).map(str::to_owned));
        for place in self.due_sets.keys() {
            let Some((due_set, _)) = due_set_at(place) else {
                found.junk.push(place.clone());
                continue;
            };
            let due = self.idx.get(&due_set);
            let is_right = due.is_some_and(|due| place_of(&due_set, *due) == *place);
            if is_of_growing(&due_set) || !is_right {
                found.due_sets.insert(due_set.clone());
                found.places.push((due_set, place.clone()));
            }
        }
        found
    }
}

fn route_of(due_set: &str) -> &str {
    due_set.split('/').next().unwrap_or_default()
}

impl Store {
    pub(super) async fn indexes(&self, p: Partition) -> Result<DueIndexes, StoreError> {
        let idx = self.listed(p, "idx").await?;
        let heads = self.listed(p, "heads").await?;
        Ok(DueIndexes {
            idx,
            heads,
            due_sets: self.listed(p, "shelves").await?,
        })
    }

    /// All of an index, page by page.
    async fn listed(&self, p: Partition, index: &str) -> Result<BTreeMap<String, f64>, StoreError> {
        let mut all = BTreeMap::new();
        for first in (0..).step_by(INDEX_PAGE) {
            let mut pipe = redis::pipe();
            let last = first + INDEX_PAGE - 1;
            pipe.cmd("ZRANGE")
                .arg(self.0.keys.of(p, index))
                .arg(first)
                .arg(last)
                .arg("WITHSCORES");
            let (listed,): (Vec<(String, f64)>,) = self.ask(p, &pipe).await?;
            let whole = listed.len() < INDEX_PAGE;
            all.extend(listed);
            if whole {
                break;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right() -> DueIndexes {
        let idx: BTreeMap<String, f64> = [
            ("a/2", 20.0),
            ("a/1", 10.0),
            ("b/1", 15.0),
            ("a-b/1", 5.0),
            ("b/0", 15.0),
        ]
        .map(|(due_set, due)| (due_set.to_owned(), due))
        .into();
        let due_sets = idx
            .iter()
            .map(|(due_set, due)| (place_of(due_set, *due), 0.0))
            .collect();
        let heads = [("a/1", 10.0), ("b/0", 15.0), ("a-b/1", 5.0)];
        DueIndexes {
            idx,
            due_sets,
            heads: heads.map(|(due_set, due)| (due_set.to_owned(), due)).into(),
        }
    }

    fn put(index: &mut BTreeMap<String, f64>, member: &str, score: f64) {
        index.insert(member.to_owned(), score);
    }

    fn wrong(damage: impl Fn(&mut DueIndexes)) -> (Vec<String>, Vec<String>) {
        let mut indexes = right();
        damage(&mut indexes);
        let found = indexes.disagreement();
        (found.due_sets.into_iter().collect(), found.junk)
    }

    #[test]
    fn a_shelf_is_named_wherever_one_index_says_something_else() {
        assert_eq!(right().disagreement(), Disagreement::default());
        let none: &[String] = &[];
        let (all, junk) = wrong(|at| at.idx.clear());
        assert_eq!(
            (all.len(), &junk[..]),
            (5, none),
            "what the others know is looked at"
        );
        assert_eq!(wrong(|at| at.heads.clear()).0, ["a-b/1", "a/1", "b/0"]);
        assert_eq!(
            wrong(|at| at.due_sets.clear()).0,
            ["a-b/1", "a/1", "a/2", "b/0", "b/1"]
        );
        assert_eq!(
            wrong(|at| put(&mut at.heads, "a/2", 20.0)).0,
            ["a/2"],
            "not the first"
        );
        assert_eq!(wrong(|at| put(&mut at.heads, "a/1", 11.0)).0, ["a/1"]);
        assert_eq!(wrong(|at| put(&mut at.heads, "gone", 1.0)).0, ["gone"]);
        assert_eq!(wrong(|at| put(&mut at.idx, "a/2", 1.0)).0, ["a/1", "a/2"]);
        let place = place_of("b/1", 15.0);
        assert_eq!(
            wrong(|at| at.due_sets.retain(|one, _| *one != place)).0,
            ["b/1"]
        );
        assert_eq!(
            wrong(|at| put(&mut at.due_sets, &place, 7.0)).0,
            ["b/1"],
            "out of order"
        );
        assert_eq!(
            wrong(|at| put(&mut at.due_sets, &place_of("b/1", 3.0), 0.0)).0,
            ["b/1"]
        );
        assert_eq!(
            wrong(|at| put(&mut at.due_sets, "junk", 0.0)),
            (vec![], vec!["junk".to_owned()])
        );
        let mut stale = right();
        let place = place_of("b/1", 99.0);
        put(&mut stale.due_sets, &place, 0.0);
        assert_eq!(stale.disagreement().places, [("b/1".to_owned(), place)]);
    }
}

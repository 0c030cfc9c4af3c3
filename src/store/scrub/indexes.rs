//! The three indexes of a partition's shelves, held against each other: `idx` says when each is due, `shelves` puts
//! those of a route in order, `heads` has the first of each route.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::Partition;
use crate::store::model::bundle::{place_of, shelf_at};
use crate::store::{Store, StoreError};

/// Entries of an index that one trip reads.
const LISTED: usize = 2000;

/// Members and scores, as they stand in Redis.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    pub(super) idx: BTreeMap<String, f64>,
    heads: BTreeMap<String, f64>,
    shelves: BTreeMap<String, f64>,
}

/// Where the indexes differ. They are not read in one moment: each find has to be judged again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Disagreement {
    /// Shelves that one of them says something else about.
    pub(super) shelves: BTreeSet<String>,
    /// Entries of `shelves` that stand for no shelf.
    pub(super) junk: Vec<String>,
}

impl Indexes {
    /// Compares `heads` and `shelves` with what `idx` says.
    pub(super) fn disagreement(&self) -> Disagreement {
        let mut found = Disagreement::default();
        let mut first_places: BTreeMap<&str, (String, &str)> = BTreeMap::new();
        for (shelf, due) in &self.idx {
            let place = place_of(shelf, *due);
            if self.shelves.get(&place) != Some(&0.0) {
                found.shelves.insert(shelf.clone());
            }
            let own = (place, shelf.as_str());
            match first_places.get_mut(route_of(shelf)) {
                Some(first) if *first <= own => {}
                Some(first) => *first = own,
                None => drop(first_places.insert(route_of(shelf), own)),
            }
        }
        let firsts: BTreeSet<&str> = first_places.into_values().map(|(_, shelf)| shelf).collect();
        let is_head = |shelf: &str| self.heads.get(shelf).is_some_and(|due| self.idx.get(shelf) == Some(due));
        let missing = firsts.iter().copied().filter(|&shelf| !is_head(shelf));
        let false_heads =
            self.heads.keys().map(String::as_str).filter(|&shelf| !is_head(shelf) || !firsts.contains(shelf));
        found.shelves.extend(missing.chain(false_heads).map(str::to_owned));
        for place in self.shelves.keys() {
            let Some((shelf, _)) = shelf_at(place) else {
                found.junk.push(place.clone());
                continue;
            };
            if self.idx.get(&shelf).is_none_or(|due| place_of(&shelf, *due) != *place) {
                found.shelves.insert(shelf);
            }
        }
        found
    }
}

fn route_of(shelf: &str) -> &str {
    shelf.split('/').next().unwrap_or_default()
}

impl Store {
    pub(super) async fn indexes(&self, p: Partition) -> Result<Indexes, StoreError> {
        let (idx, heads) = (self.listed(p, "idx").await?, self.listed(p, "heads").await?);
        Ok(Indexes { idx, heads, shelves: self.listed(p, "shelves").await? })
    }

    /// All of an index, page by page.
    async fn listed(&self, p: Partition, index: &str) -> Result<BTreeMap<String, f64>, StoreError> {
        let mut all = BTreeMap::new();
        for first in (0..).step_by(LISTED) {
            let mut pipe = redis::pipe();
            let last = first + LISTED - 1;
            pipe.cmd("ZRANGE").arg(self.0.keys.of(p, index)).arg(first).arg(last).arg("WITHSCORES");
            let (listed,): (Vec<(String, f64)>,) = self.ask(p, &pipe).await?;
            let whole = listed.len() < LISTED;
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

    fn right() -> Indexes {
        let idx: BTreeMap<String, f64> =
            [("a/2", 20.0), ("a/1", 10.0), ("b/1", 15.0), ("a-b/1", 5.0), ("b/0", 15.0)]
                .map(|(shelf, due)| (shelf.to_owned(), due))
                .into();
        let shelves = idx.iter().map(|(shelf, due)| (place_of(shelf, *due), 0.0)).collect();
        let heads = [("a/1", 10.0), ("b/0", 15.0), ("a-b/1", 5.0)];
        Indexes { idx, shelves, heads: heads.map(|(shelf, due)| (shelf.to_owned(), due)).into() }
    }

    fn put(index: &mut BTreeMap<String, f64>, member: &str, score: f64) {
        index.insert(member.to_owned(), score);
    }

    fn wrong(damage: impl Fn(&mut Indexes)) -> (Vec<String>, Vec<String>) {
        let mut indexes = right();
        damage(&mut indexes);
        let found = indexes.disagreement();
        (found.shelves.into_iter().collect(), found.junk)
    }

    #[test]
    fn a_shelf_is_named_wherever_one_index_says_something_else() {
        assert_eq!(right().disagreement(), Disagreement::default());
        let none: &[String] = &[];
        let (all, junk) = wrong(|at| at.idx.clear());
        assert_eq!((all.len(), &junk[..]), (5, none), "what the others know is looked at");
        assert_eq!(wrong(|at| at.heads.clear()).0, ["a-b/1", "a/1", "b/0"]);
        assert_eq!(wrong(|at| at.shelves.clear()).0, ["a-b/1", "a/1", "a/2", "b/0", "b/1"]);
        assert_eq!(wrong(|at| put(&mut at.heads, "a/2", 20.0)).0, ["a/2"], "not the first");
        assert_eq!(wrong(|at| put(&mut at.heads, "a/1", 11.0)).0, ["a/1"]);
        assert_eq!(wrong(|at| put(&mut at.heads, "gone", 1.0)).0, ["gone"]);
        assert_eq!(wrong(|at| put(&mut at.idx, "a/2", 1.0)).0, ["a/1", "a/2"]);
        let place = place_of("b/1", 15.0);
        assert_eq!(wrong(|at| at.shelves.retain(|one, _| *one != place)).0, ["b/1"]);
        assert_eq!(wrong(|at| put(&mut at.shelves, &place, 7.0)).0, ["b/1"], "out of order");
        assert_eq!(wrong(|at| put(&mut at.shelves, &place_of("b/1", 3.0), 0.0)).0, ["b/1"]);
        assert_eq!(wrong(|at| put(&mut at.shelves, "junk", 0.0)), (vec![], vec!["junk".to_owned()]));
    }
}

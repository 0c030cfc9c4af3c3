//! Properties of every assignment.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Held = BTreeMap<String, Vec<Partition>>;

fn partitions(count: u16) -> Partitions {
    Partitions::new(count).expect("some")
}

fn owners(count: u16, held: &Held) -> Vec<String> {
    let candidates: Vec<ReplicaCandidate<'_>> = held
        .iter()
        .map(|(id, held)| ReplicaCandidate { id, held })
        .collect();
    assign(partitions(count), &candidates)
        .into_iter()
        .map(|c| candidates[c].id.to_owned())
        .collect()
}

/// The partitions of each candidate after an assignment.
fn settled(count: u16, held: &Held) -> Held {
    let mut after: Held = held.keys().map(|id| (id.clone(), Vec::new())).collect();
    for (p, owner) in owners(count, held).into_iter().enumerate() {
        after
            .get_mut(&owner)
            .expect("a candidate")
            .push(Partition(p as u16));
    }
    after
}

fn moved(before: &[String], after: &[String]) -> usize {
    before.iter().zip(after).filter(|(a, b)| a != b).count()
}

fn spread(held: &Held) -> usize {
    let loads = || held.values().map(Vec::len);
    loads().max().unwrap_or(0) - loads().min().unwrap_or(0)
}

fn ids() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_set("[a-z0-9]{1,6}", 1..9).prop_map(|ids| ids.into_iter().collect())
}

fn fresh(ids: &[String]) -> Held {
    ids.iter().map(|id| (id.clone(), Vec::new())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any held partitions: overlaps, gaps and unknown partitions included.
    #[test]
    fn every_partition_has_one_owner_and_loads_differ_by_one_at_most(
        count in 1_u16..200,
        held in prop::collection::btree_map("[a-z0-9]{1,6}", prop::collection::vec(0_u16..220, 0..90), 1..9),
    ) {
        let held: Held = held.into_iter().map(|(id, p)| (id, p.into_iter().map(Partition).collect())).collect();
        prop_assert_eq!(owners(count, &held).len(), usize::from(count));
        let after = settled(count, &held);
        prop_assert!(spread(&after) <= 1, "{:?}", after);
        prop_assert_eq!(settled(count, &after), after, "what is settled stays");
    }

    #[test]
    fn the_order_of_the_candidates_means_nothing(count in 1_u16..100, ids in ids(), by in 0_usize..8) {
        let held = settled(count, &fresh(&ids));
        let mut candidates: Vec<ReplicaCandidate<'_>> = held.iter().map(|(id, held)| ReplicaCandidate { id, held }).collect();
        let by = by % candidates.len();
        candidates.rotate_left(by);
        let named: Vec<&str> =
            assign(partitions(count), &candidates).into_iter().map(|c| candidates[c].id).collect();
        prop_assert_eq!(named, owners(count, &held));
    }

    #[test]
    fn a_join_moves_the_joiners_share_and_nothing_else(count in 1_u16..200, ids in ids()) {
        let before = settled(count, &fresh(&ids));
        let mut joined = before.clone();
        joined.insert("joiner".to_owned(), Vec::new());
        let old = owners(count, &before);
        let new = owners(count, &joined);
        let share = new.iter().filter(|owner| *owner == "joiner").count();
        prop_assert!(share >= usize::from(count) / joined.len());
        prop_assert_eq!(moved(&old, &new), share);
    }

    #[test]
    fn a_leave_or_a_death_moves_what_the_leaver_had_and_nothing_else(count in 1_u16..200, ids in ids(), who in 0_usize..9) {
        prop_assume!(ids.len() > 1);
        let before = settled(count, &fresh(&ids));
        let leaver = &ids[who % ids.len()];
        let mut left = before.clone();
        left.remove(leaver);
        prop_assert_eq!(moved(&owners(count, &before), &owners(count, &left)), before[leaver].len());
    }

    /// Each replica acts on what the others last said, in any order, while some come and go. Once nobody does any
    /// more, all agree after four heartbeats each.
    #[test]
    fn replicas_that_hear_of_each_other_late_agree_in_the_end(
        count in 1_u16..80,
        ids in ids(),
        turns in prop::collection::vec((0_usize..9, 0_u8..12), 0..60),
    ) {
        let mut said: Held = BTreeMap::new();
        let beat = |said: &mut Held, id: &String| {
            said.entry(id.clone()).or_default();
            let after = settled(count, said).remove(id).expect("a candidate");
            said.insert(id.clone(), after);
        };
        for (who, what) in turns {
            let id = &ids[who % ids.len()];
            if what == 0 {
                said.remove(id);
            } else {
                beat(&mut said, id);
            }
        }
        for _ in 0..4 {
            for id in &ids {
                beat(&mut said, id);
            }
        }
        let mut all: Vec<Partition> = said.values().flatten().copied().collect();
        all.sort_unstable();
        prop_assert_eq!(all, partitions(count).all().collect::<Vec<_>>(), "each is held once");
        prop_assert!(spread(&said) <= 1);
        prop_assert_eq!(settled(count, &said), said, "all see the same");
    }
}

#[test]
fn nobody_owns_anything_where_nobody_is() {
    assert!(assign(partitions(4), &[]).is_empty());
}

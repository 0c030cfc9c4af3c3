//! The answer to a read of due sets, and the heads that need not be read again each time.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::{Partition, UnixMs};

/// The due sets that a read of some partitions found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadsSeen {
    /// The earliest due set of each route and partition, and for open routes the following due sets.
    pub heads: Vec<Head>,
    /// The partitions that answered.
    pub partitions: BTreeSet<Partition>,
    /// By partition and route, the time from which more is due than `heads` shows.
    pub beyond: BTreeMap<(Partition, String), UnixMs>,
}

/// The earliest bundle of one route in one time slice of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The partition of the store.
    pub partition: Partition,
    /// The due set: `route/slice`.
    pub due_set: String,
    /// The first due time of the due set.
    pub due: UnixMs,
}

impl Head {
    /// The route, as text.
    pub fn route(&self) -> &str {
        self.due_set.split('/').next().unwrap_or_default()
    }

    /// The partition and the route.
    pub fn partition_route(&self) -> (Partition, String) {
        (self.partition, self.route().to_owned())
    }
}

/// With fewer unserved heads than this in a partition, every read shows them all.
const MIN_UNSERVED: usize = 16;

/// Heads of routes that a caller does not serve. While nothing changes among them, a read leaves them out: it
/// asks how many heads are due before some moment, and reads the later ones. If that number has changed, or a
/// served head among the earlier ones has left, it reads all heads of the partition.
///
/// One change is not seen: between two reads an unserved head leaves and a served one of another route comes,
/// both due before that moment. A caller therefore forgets what it knows every few seconds.
#[derive(Debug, Default)]
pub struct UnservedHeads(BTreeMap<Partition, PastHeads>);

/// Heads of one partition that are due before a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct PastHeads {
    pub(in crate::store) until: UnixMs,
    /// The number of these heads.
    pub(in crate::store) count: usize,
    /// The served ones among them, which a read has to show.
    pub(in crate::store) served: Vec<Head>,
}

impl UnservedHeads {
    /// Forgets everything: the next read shows all heads.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Forgets one partition.
    pub fn forget_partition(&mut self, p: Partition) {
        self.0.remove(&p);
    }

    pub(in crate::store) fn of(&self, p: Partition) -> Option<&PastHeads> {
        self.0.get(&p)
    }

    /// Takes note of the heads of a partition that are due before a moment. `is_served` tells which of them a
    /// read has to show.
    pub(in crate::store) fn learn(
        &mut self,
        p: Partition,
        heads: &[Head],
        until: UnixMs,
        is_served: impl Fn(&Head) -> bool,
    ) {
        let past = heads.iter().filter(|head| head.due < until);
        let (served, unserved): (Vec<&Head>, Vec<&Head>) = past.partition(|head| is_served(head));
        if unserved.len() < MIN_UNSERVED {
            self.0.remove(&p);
            return;
        }
        let count = served.len() + unserved.len();
        self.0.insert(
            p,
            PastHeads {
                until,
                count,
                served: served.into_iter().cloned().collect(),
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Partition = Partition(3);

    fn heads(routes: impl IntoIterator<Item = (&'static str, usize)>) -> Vec<Head> {
        let head = |(route, due): (&str, usize)| Head {
            partition: P,
            due_set: format!("{route}/{due}"),
            due: UnixMs(due as i64),
        };
        routes.into_iter().map(head).collect()
    }

    #[test]
    fn many_unserved_heads_are_counted_and_the_served_among_them_are_kept() {
        let mut unserved = UnservedHeads::default();
        let all = heads((0..MIN_UNSERVED).map(|n| ("stranger", n)).chain([
            ("ours", 5),
            ("ours", 90),
            ("stranger", 91),
        ]));
        unserved.learn(P, &all, UnixMs(90), |head| head.route() == "ours");
        let past = unserved.of(P).expect("many");
        assert_eq!((past.count, past.until), (MIN_UNSERVED + 1, UnixMs(90)));
        assert_eq!(past.served, heads([("ours", 5)]));
        assert_eq!(unserved.of(Partition(4)), None);
        unserved.learn(P, &all[1..], UnixMs(90), |head| head.route() == "ours");
        assert_eq!(unserved.of(P), None, "a few are read each time");
    }
}

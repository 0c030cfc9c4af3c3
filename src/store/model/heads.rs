//! What a look at the store sees, and what of it need not be read again at each look.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::{Partition, UnixMs};

/// What a look at some partitions saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Of each route and partition the earliest shelf; of what is open and due, the earliest shelves.
    pub heads: Vec<Head>,
    /// The partitions that answered.
    pub partitions: BTreeSet<Partition>,
    /// Where more of a route is due than is shown: from when on.
    pub beyond: BTreeMap<(Partition, String), UnixMs>,
}

/// The earliest bundle of one route in one time slice of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which slice of the store.
    pub partition: Partition,
    /// `route/slice`.
    pub shelf: String,
    /// Its first due time.
    pub due: UnixMs,
}

impl Head {
    /// The route, as text.
    pub fn route(&self) -> &str {
        self.shelf.split('/').next().unwrap_or_default()
    }

    /// The partition and the route.
    pub fn line(&self) -> (Partition, String) {
        (self.partition, self.route().to_owned())
    }
}

/// Fewer heads of unserved routes in a partition than this are read at each look.
const MANY: usize = 16;

/// Heads of routes that a caller does not serve. While nothing changes among them, a look reads none of them: it asks
/// how many heads are due before some moment, and reads those that are due later. Where that number has changed, or a
/// served head among them has left, the look reads all heads of the partition.
///
/// One change is not seen: an unserved head leaves and a served one of another route comes, both due before that
/// moment, between two looks. So a caller forgets what it knows every few seconds.
#[derive(Debug, Default)]
pub struct Unserved(BTreeMap<Partition, Past>);

/// Heads of one partition that are due before a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Past {
    pub(in crate::store) until: UnixMs,
    /// How many they are.
    pub(in crate::store) count: usize,
    /// Those of them that a look has to show.
    pub(in crate::store) served: Vec<Head>,
}

impl Unserved {
    /// Forgets everything: the next look reads all heads.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Forgets one partition.
    pub fn forget_partition(&mut self, p: Partition) {
        self.0.remove(&p);
    }

    pub(in crate::store) fn of(&self, p: Partition) -> Option<&Past> {
        self.0.get(&p)
    }

    /// Takes all heads of a partition that are due before a moment, and by `is_served` which of them a look has to
    /// show.
    pub(in crate::store) fn learn(
        &mut self,
        p: Partition,
        heads: &[Head],
        until: UnixMs,
        is_served: impl Fn(&Head) -> bool,
    ) {
        let past = heads.iter().filter(|head| head.due < until);
        let (served, unserved): (Vec<&Head>, Vec<&Head>) = past.partition(|head| is_served(head));
        if unserved.len() < MANY {
            self.0.remove(&p);
            return;
        }
        let count = served.len() + unserved.len();
        self.0.insert(p, Past { until, count, served: served.into_iter().cloned().collect() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: Partition = Partition(3);

    fn heads(routes: impl IntoIterator<Item = (&'static str, usize)>) -> Vec<Head> {
        let head = |(route, due): (&str, usize)| Head {
            partition: P,
            shelf: format!("{route}/{due}"),
            due: UnixMs(due as i64),
        };
        routes.into_iter().map(head).collect()
    }

    #[test]
    fn many_unserved_heads_are_counted_and_the_served_among_them_are_kept() {
        let mut unserved = Unserved::default();
        let all =
            heads((0..MANY).map(|n| ("stranger", n)).chain([("ours", 5), ("ours", 90), ("stranger", 91)]));
        unserved.learn(P, &all, UnixMs(90), |head| head.route() == "ours");
        let past = unserved.of(P).expect("many");
        assert_eq!((past.count, past.until), (MANY + 1, UnixMs(90)));
        assert_eq!(past.served, heads([("ours", 5)]));
        assert_eq!(unserved.of(Partition(4)), None);
        unserved.learn(P, &all[1..], UnixMs(90), |head| head.route() == "ours");
        assert_eq!(unserved.of(P), None, "a few are read each time");
    }
}

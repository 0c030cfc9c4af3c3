//! Queries outside the message path: counts per route, and how far each source was ever read.

use std::collections::BTreeMap;

use redis::Cmd;
use redis::cluster_routing::Slot;

use crate::domain::{Partition, ReadMark, RouteName, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::call::scripts;
use crate::store::connection::link::read;
use crate::store::model::bundle::partition_in;
use crate::store::model::dead_letter::queue_name;
use crate::store::{Counts, Store, StoreError};

/// Counts are below this, a petabyte: the sum over all partitions fits into 64 bits.
const COUNT_END: u64 = 1 << 50;

/// Fields of the hash `counts` that belong to one route.
const ROUTE_FIELDS: usize = 7;
/// Place of the number of dead letters among them, and of that of the invalid ones.
const DEAD_FIELDS: [usize; 2] = [3, 4];

/// Counts of some routes in each partition, as they were last read.
#[derive(Default)]
pub(in crate::store) struct LastCounts {
    /// The routes, sorted.
    routes: Vec<RouteName>,
    /// Values of the routes' fields, by partition. `None`: they were never read.
    values: Vec<Option<Vec<i64>>>,
}

impl LastCounts {
    /// Forgets all values, unless they are of these routes.
    fn keep_only(&mut self, routes: &BTreeMap<RouteName, Counts>, partitions: usize) {
        if !self.routes.iter().eq(routes.keys()) || self.values.len() != partitions {
            *self = Self {
                routes: routes.keys().cloned().collect(),
                values: vec![None; partitions],
            };
        }
    }

    /// The number of dead letters in one queue of a partition. `None` if it was never read.
    fn dead(&self, p: Partition, route: &RouteName, invalid: bool) -> Option<i64> {
        let at = self.routes.binary_search(route).ok()?;
        let values = self.values.get(usize::from(p.0))?.as_ref()?;
        values
            .get(at * ROUTE_FIELDS + DEAD_FIELDS[usize::from(invalid)])
            .copied()
    }
}

impl Store {
    /// The commands that read all counts of each partition, of whatever route.
    pub(in crate::store) fn all_counts(&self) -> Vec<(Slot, Cmd)> {
        let counts = self.0.partitions.all().map(|p| {
            let mut counts = redis::cmd("HGETALL");
            counts.arg(self.0.keys.of(p, "counts"));
            (Keys::slot(p), counts)
        });
        counts.collect()
    }

    /// Messages, bytes and dead letters of these routes, over all partitions: one trip a node. Costs the same however
    /// many other routes have something in the store. In a cluster, partitions of a node that is away keep the counts
    /// that were last read. `Err` if they were never read, or no node answers.
    pub async fn counts<'a>(
        &self,
        routes: impl IntoIterator<Item = &'a RouteName>,
    ) -> Result<BTreeMap<RouteName, Counts>, StoreError> {
        let mut counts: BTreeMap<RouteName, Counts> = routes
            .into_iter()
            .map(|route| (route.clone(), Counts::default()))
            .collect();
        if counts.is_empty() {
            return Ok(counts);
        }
        let fields: Vec<String> = counts
            .keys()
            .flat_map(|route| fields_of(route.as_str()))
            .collect();
        let commands = self.0.partitions.all().map(|p| {
            let mut read = redis::cmd("HMGET");
            read.arg(self.0.keys.of(p, "counts")).arg(&fields);
            (Keys::slot(p), read)
        });
        let answers = self.0.side.gather(commands.collect()).await;
        let nobody = answers.iter().all(Result::is_err);
        let mut last = self.0.last_counts.lock();
        last.keep_only(&counts, answers.len());
        for (answer, last) in answers.into_iter().zip(&mut last.values) {
            match answer {
                Ok(value) => *last = Some(numbers(read(value)?)),
                // Until a scrub has mended this partition, it does not get in the way of the others.
                Err(StoreError::Damaged(_)) => {}
                Err(_) if last.is_some() && !nobody => {}
                Err(why) => return Err(why),
            }
            let values = last.iter().flat_map(|values| values.chunks(ROUTE_FIELDS));
            counts
                .values_mut()
                .zip(values)
                .for_each(|(counts, values)| add(counts, values));
        }
        Ok(counts)
    }

    /// Reports whether a partition had no dead letter in one queue of a route when the counts were last read. If they
    /// never were, it may have any.
    pub(in crate::store) fn counted_no_dead(
        &self,
        p: Partition,
        route: &RouteName,
        invalid: bool,
    ) -> bool {
        self.0.last_counts.lock().dead(p, route, invalid) == Some(0)
    }

    /// How far a source was ever read. `None` if it was never read.
    pub async fn read_mark(&self, source: &str) -> Result<Option<ReadMark>, StoreError> {
        let home = self.home(source);
        let mut pipe = redis::pipe();
        pipe.cmd("HGET")
            .arg(self.0.keys.of(home, "sources"))
            .arg(source);
        let (mark,): (Option<String>,) = self.0.side.pipe(Keys::slot(home), &pipe).await?;
        // A malformed offset counts as none. It is raised again, and records read before are not flagged.
        Ok(mark.and_then(|mark| {
            let (offset, time) = mark.split_once(' ').unwrap_or((&mark, ""));
            let highest: i64 = offset.parse().ok()?;
            Some(ReadMark {
                until: highest.saturating_add(1),
                resolved: time.parse().ok().map(UnixMs),
            })
        }))
    }

    /// Raises the highest offset of a source, and never lowers it. `resolved` is the time of [`ReadMark`]. Returns the
    /// offset before.
    pub async fn raise_offset(
        &self,
        source: &str,
        offset: i64,
        resolved: Option<UnixMs>,
    ) -> Result<Option<i64>, StoreError> {
        let home = self.home(source);
        let link = self.0.writer.link();
        let connected = link.to(Keys::slot(home)).await?;
        let mut connection = connected.connection.clone();
        let key = self.0.keys.of(home, "sources");
        let before = scripts::RAISE_OFFSET
            .prepare_invoke()
            .key(key)
            .arg(source)
            .arg(offset)
            .arg(resolved.map_or(String::new(), |time| time.to_string()))
            .invoke_async(&mut connection)
            .await
            .map_err(|error| link.judge(&connected, &error))?;
        // A re-read must find the offset wherever it finds messages that were stored after it.
        link.await_durable(&connected).await?;
        link.still_counts(&connected)?;
        Ok(before)
    }

    /// The partition that keeps a source's highest offset.
    fn home(&self, source: &str) -> Partition {
        self.0.partitions.of_block(source, u64::MAX)
    }

    /// The partition of a message of a route: the one that its name hashes to, or the one that its `~` id
    /// names. An unknown message is looked for there too.
    pub fn home_of(&self, route: &RouteName, id: &str) -> Partition {
        let said = partition_in(id).filter(|p| p.0 < self.0.partitions.count());
        said.unwrap_or_else(|| self.0.partitions.of_name(route, id))
    }
}

/// The fields of a route in `counts`.
fn fields_of(route: &str) -> [String; ROUTE_FIELDS] {
    let invalid = queue_name(route, true);
    let kinds = [
        ("n", route),
        ("b", route),
        ("r", route),
        ("d", route),
        ("d", &invalid),
        ("x", route),
        ("x", &invalid),
    ];
    kinds.map(|(kind, queue)| format!("{kind}:{queue}"))
}

/// Parses the counts. A missing one is zero. A malformed one, or one that no store can hold, is zero until a scrub
/// counts anew.
fn numbers(values: Vec<Option<String>>) -> Vec<i64> {
    let mut numbers = Vec::with_capacity(values.len());
    for value in values {
        let number = value.and_then(|text| text.parse::<i64>().ok());
        let number = number.filter(|n| n.unsigned_abs() < COUNT_END);
        numbers.push(number.unwrap_or_default());
    }
    numbers
}

/// Adds the values of a route's fields in one partition to its counts.
fn add(counts: &mut Counts, values: &[i64]) {
    let &[
        messages,
        bytes,
        names,
        dead,
        invalid,
        dead_bytes,
        invalid_bytes,
    ] = values
    else {
        return;
    };
    counts.messages += messages;
    counts.bytes += bytes;
    counts.names += names;
    counts.dead += dead + invalid;
    counts.invalid += invalid;
    counts.dead_bytes += dead_bytes + invalid_bytes;
    counts.invalid_bytes += invalid_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_can_have_counted_counts_as_none_and_no_sum_overflows() {
        let texts = [
            "7",
            "-7",
            "9223372036854775807",
            "-9223372036854775808",
            "1e3",
            "",
            "99999999999999999999",
        ];
        assert_eq!(
            numbers(texts.map(|n| Some(n.to_owned())).into()),
            [7, -7, 0, 0, 0, 0, 0]
        );
        assert_eq!(numbers(vec![None]), [0]);
        let mut counts = Counts::default();
        let most = numbers(vec![Some("1125899906842623".to_owned()); ROUTE_FIELDS]);
        for _ in 0..4096 {
            add(&mut counts, &most);
        }
        assert!(counts.messages > 0 && counts.dead > counts.invalid && counts.invalid > 0);
    }

    #[test]
    fn what_was_read_of_other_routes_says_nothing() {
        let name = |name: &str| RouteName::new(name).expect("a name");
        let routes = |names: &[&str]| {
            names
                .iter()
                .map(|&one| (name(one), Counts::default()))
                .collect()
        };
        let mut last = LastCounts::default();
        assert_eq!(last.dead(Partition(0), &name("a"), false), None);
        last.keep_only(&routes(&["a", "b"]), 2);
        last.values[1] = Some((0..14).collect());
        assert_eq!(
            last.dead(Partition(0), &name("a"), false),
            None,
            "that partition was not read"
        );
        let dead = |last: &LastCounts, route: &str| {
            [false, true].map(|invalid| last.dead(Partition(1), &name(route), invalid))
        };
        assert_eq!(dead(&last, "a"), [Some(3), Some(4)]);
        assert_eq!(dead(&last, "b"), [Some(10), Some(11)]);
        assert_eq!(dead(&last, "c"), [None, None]);
        last.keep_only(&routes(&["a", "b"]), 2);
        assert_eq!(dead(&last, "b"), [Some(10), Some(11)]);
        last.keep_only(&routes(&["b"]), 2);
        assert_eq!(dead(&last, "b"), [None, None]);
    }
}

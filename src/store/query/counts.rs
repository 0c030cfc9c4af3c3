//! Queries outside the message path: counts per route, and the highest offset that was ever read of each source.

use std::collections::BTreeMap;

use redis::Cmd;
use redis::cluster_routing::Slot;

use crate::domain::{Partition, RouteName};
use crate::store::call::keys::Keys;
use crate::store::call::scripts;
use crate::store::connection::link::read;
use crate::store::model::bundle::place_in;
use crate::store::{Counts, Store, StoreError};

/// Counts are below this, a petabyte: the sum over all partitions fits into 64 bits.
const COUNT_END: u64 = 1 << 50;

/// A partition's counts by their fields, as they stand in Redis.
pub(in crate::store) type CountFields = Vec<(String, i64)>;

impl Store {
    /// The commands that read each partition's counts.
    pub(in crate::store) fn all_counts(&self) -> Vec<(Slot, Cmd)> {
        let counts = self.0.partitions.all().map(|p| {
            let mut counts = redis::cmd("HGETALL");
            counts.arg(self.0.keys.of(p, "counts"));
            (Keys::slot(p), counts)
        });
        counts.collect()
    }

    /// Messages, bytes and dead letters of every route that has any, over all partitions: one trip a node. In a
    /// cluster, partitions of a node that is away keep the counts that were last read. `Err` if they were never
    /// read, or no node answers.
    pub async fn counts(&self) -> Result<BTreeMap<String, Counts>, StoreError> {
        let answers = self.0.side.gather(self.all_counts()).await;
        let nobody = answers.iter().all(Result::is_err);
        let mut found: Vec<CountFields> = Vec::with_capacity(answers.len());
        for (answer, last) in answers.into_iter().zip(self.0.last_counts.lock().iter_mut()) {
            match (answer, &*last) {
                (Ok(value), _) => {
                    let fields = numbers(read(value)?);
                    *last = Some(fields.clone());
                    found.push(fields);
                }
                // Until a scrub has mended this partition, it does not get in the way of the others.
                (Err(StoreError::Damaged(_)), fields) => found.push(fields.clone().unwrap_or_default()),
                (Err(_), Some(fields)) if !nobody => found.push(fields.clone()),
                (Err(why), _) => return Err(why),
            }
        }
        let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
        for (field, n) in found.into_iter().flatten() {
            add(&mut counts, &field, n);
        }
        Ok(counts)
    }

    /// Reports whether a count of a partition was zero when it was last read. A partition that was never read
    /// may hold anything.
    pub(in crate::store) fn counted_none(&self, p: Partition, field: &str) -> bool {
        let last = self.0.last_counts.lock();
        let counts = last.get(usize::from(p.0)).and_then(Option::as_ref);
        counts.is_some_and(|fields| !fields.iter().any(|(name, n)| name == field && *n != 0))
    }

    /// The highest offset ever read of a source. `None` if it was never read.
    pub async fn highest_offset(&self, source: &str) -> Result<Option<i64>, StoreError> {
        let home = self.home(source);
        let mut pipe = redis::pipe();
        pipe.cmd("HGET").arg(self.0.keys.of(home, "sources")).arg(source);
        let (mark,): (Option<String>,) = self.0.side.pipe(Keys::slot(home), &pipe).await?;
        // A malformed offset counts as none. It is raised again, and records read before are not flagged.
        Ok(mark.and_then(|mark| mark.parse().ok()))
    }

    /// Raises the highest offset of a source, and never lowers it. Returns the offset before.
    pub async fn raise_offset(&self, source: &str, offset: i64) -> Result<Option<i64>, StoreError> {
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
        let said = place_in(route, id).map(|(p, _, _)| p).filter(|p| p.0 < self.0.partitions.count());
        said.unwrap_or_else(|| self.0.partitions.of_name(route, id))
    }
}

/// Parses the counts. A malformed one, or one that no store can hold, is zero until a scrub counts anew.
fn numbers(fields: Vec<(String, String)>) -> CountFields {
    let number = |text: String| text.parse::<i64>().ok().filter(|n| n.unsigned_abs() < COUNT_END);
    fields.into_iter().map(|(field, n)| (field, number(n).unwrap_or_default())).collect()
}

/// Adds one field of one partition's counts.
fn add(counts: &mut BTreeMap<String, Counts>, field: &str, n: i64) {
    // Fields without a route are not counts.
    let Some((kind, queue)) = field.split_once(':') else { return };
    let (route, invalid) = queue.split_once('/').map_or((queue, false), |(route, _)| (route, true));
    let of_route = counts.entry(route.to_owned()).or_default();
    match kind {
        "n" => of_route.messages += n,
        "b" => of_route.bytes += n,
        "r" => of_route.names += n,
        "d" => {
            of_route.dead += n;
            of_route.invalid += if invalid { n } else { 0 };
        }
        "x" => {
            of_route.dead_bytes += n;
            of_route.invalid_bytes += if invalid { n } else { 0 };
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_can_have_counted_counts_as_none_and_no_sum_overflows() {
        let field = |n: &str| ("n:orders".to_owned(), n.to_owned());
        let texts =
            ["7", "-7", "9223372036854775807", "-9223372036854775808", "1e3", "", "99999999999999999999"];
        let parsed: Vec<i64> = numbers(texts.map(field).into()).into_iter().map(|(_, n)| n).collect();
        assert_eq!(parsed, [7, -7, 0, 0, 0, 0, 0]);
        let mut counts = BTreeMap::new();
        for (field, n) in (0..4096).flat_map(|_| numbers(vec![field("1125899906842623")])) {
            add(&mut counts, &field, n);
        }
        assert!(counts["orders"].messages > 0);
    }
}

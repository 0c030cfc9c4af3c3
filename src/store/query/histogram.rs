//! How many messages fall due when, and the numbers of each partition. Both are read from the index and the
//! entries' ids alone, in small trips.

use super::browse::range;
use crate::domain::{Partition, RouteName, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::model::bundle::BundleId;
use crate::store::{DueHistogram, PartitionView, Store, StoreError};

/// Commands of one trip.
const TRIP_COMMANDS: usize = 16;
/// Most entries read of one due set, and of all due sets before the rest is estimated.
const DUE_SET_ENTRIES: usize = 1000;
const ENTRY_BUDGET: usize = 20_000;
/// Due sets of one partition in the window: a day's 84 slices of a dozen routes.
const WINDOW_DUE_SETS: usize = 1024;

const SECOND_MS: i64 = 1000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;

impl Store {
    /// Waiting messages, by when their bundles fall due: the next minute by second, the next hour by minute,
    /// the next day by hour. Partitions are read one after another until [`ENTRY_BUDGET`] entries are read. The
    /// rest is estimated from those. Waits while the store is away.
    pub async fn histogram(&self, route: Option<&RouteName>) -> Result<DueHistogram, StoreError> {
        let now = self.0.clock.now();
        let mut sums = HistogramSums::new(now);
        let count = usize::from(self.0.partitions.count());
        let begin = fastrand::usize(..count);
        let mut read = 0;
        let mut entries = 0;
        let mut whole = true;
        for step in 0..count {
            if entries >= ENTRY_BUDGET {
                break;
            }
            let p = Partition(((begin + step) % count) as u16);
            let (n, all) = self.sum_up(p, route, &mut sums).await?;
            entries += n;
            whole &= all;
            read += 1;
        }
        let scale = |sum: u64| sum * count as u64 / read.max(1) as u64;
        let scaled = |sums: &[u64]| sums.iter().copied().map(scale).collect();
        Ok(DueHistogram {
            now,
            exact: whole && read == count,
            overdue: scale(sums.overdue),
            minute: scaled(&sums.minute),
            hour: scaled(&sums.hour),
            day: scaled(&sums.day),
        })
    }

    /// Adds what waits in one partition. Returns how many entries were read, and whether they were all.
    async fn sum_up(
        &self,
        p: Partition,
        route: Option<&RouteName>,
        sums: &mut HistogramSums,
    ) -> Result<(usize, bool), StoreError> {
        let until = sums.now.0 + DAY_MS;
        let index = range(&self.0.keys.of(p, "idx"), "-inf".to_owned(), until, 0, WINDOW_DUE_SETS);
        let due_sets: Vec<(String, f64)> =
            self.trips(vec![(Keys::slot(p), index)], 1).await?.pop().unwrap_or_default();
        let mut read = 0;
        let mut whole = due_sets.len() < WINDOW_DUE_SETS;
        let of_route = |due_set: &str| {
            route.is_none_or(|r| due_set.split_once('/').is_some_and(|(s, _)| s == r.as_str()))
        };
        let commands = due_sets
            .iter()
            .filter(|(due_set, _)| of_route(due_set))
            .map(|(due_set, _)| {
                range(&self.0.keys.due(p, due_set), "-inf".to_owned(), until, 0, DUE_SET_ENTRIES)
            })
            .map(|command| (Keys::slot(p), command));
        let commands: Vec<_> = commands.collect();
        for trip in commands.chunks(TRIP_COMMANDS) {
            let lists: Vec<Vec<(String, f64)>> = self.trips(trip.to_vec(), TRIP_COMMANDS).await?;
            for list in lists {
                whole &= list.len() < DUE_SET_ENTRIES;
                read += list.len();
                for (id, due) in list {
                    let messages = BundleId::parse(&id).map_or(0, |id| id.count());
                    sums.add(due as i64, messages as u64);
                }
            }
        }
        Ok((read, whole))
    }

    /// The numbers of each partition: three small reads each.
    pub async fn partition_views(&self) -> Result<Vec<PartitionView>, StoreError> {
        let command = |name: &str, p, key| {
            let mut command = redis::cmd(name);
            command.arg(self.0.keys.of(p, key));
            (Keys::slot(p), command)
        };
        let all: Vec<Partition> = self.0.partitions.all().collect();
        let counts = all.iter().map(|&p| command("HGETALL", p, "counts")).collect();
        let counts: Vec<Vec<(String, i64)>> = self.trips(counts, TRIP_COMMANDS).await?;
        let claims = all.iter().map(|&p| command("ZCARD", p, "claims")).collect();
        let claims: Vec<u64> = self.trips(claims, TRIP_COMMANDS).await?;
        let heads = all.iter().map(|&p| {
            let (slot, mut head) = command("ZRANGE", p, "idx");
            head.arg(0).arg(0).arg("WITHSCORES");
            (slot, head)
        });
        let heads: Vec<Vec<(String, f64)>> = self.trips(heads.collect(), TRIP_COMMANDS).await?;
        let views =
            all.iter().zip(counts).zip(claims).zip(heads).map(|(((&partition, counts), claims), head)| {
                let sum =
                    |kind: &str| counts.iter().filter(|(f, _)| f.starts_with(kind)).map(|(_, n)| n).sum();
                PartitionView {
                    partition,
                    messages: sum("n:"),
                    bytes: sum("b:"),
                    dead: sum("d:"),
                    claims,
                    head: head.first().map(|(_, due)| UnixMs(*due as i64)),
                }
            });
        Ok(views.collect())
    }
}

/// The sums of each window, from now on.
struct HistogramSums {
    now: UnixMs,
    overdue: u64,
    minute: Vec<u64>,
    hour: Vec<u64>,
    day: Vec<u64>,
}

impl HistogramSums {
    fn new(now: UnixMs) -> Self {
        Self { now, overdue: 0, minute: vec![0; 60], hour: vec![0; 60], day: vec![0; 24] }
    }

    fn add(&mut self, due: i64, messages: u64) {
        let ahead = due - self.now.0;
        if ahead < 0 {
            self.overdue += messages;
            return;
        }
        for (sums, width) in
            [(&mut self.minute, SECOND_MS), (&mut self.hour, MINUTE_MS), (&mut self.day, HOUR_MS)]
        {
            if let Some(sum) = sums.get_mut((ahead / width) as usize) {
                *sum += messages;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_in_every_window_that_it_lies_in() {
        let mut sums = HistogramSums::new(UnixMs(1_000_000));
        for (ahead, messages) in
            [(-1, 1), (0, 2), (59_999, 4), (60_000, 8), (HOUR_MS, 16), (DAY_MS - 1, 32), (DAY_MS, 64)]
        {
            sums.add(1_000_000 + ahead, messages);
        }
        assert_eq!(sums.overdue, 1);
        assert_eq!((sums.minute[0], sums.minute[59], sums.minute.iter().sum::<u64>()), (2, 4, 6));
        assert_eq!((sums.hour[0], sums.hour[1], sums.hour.iter().sum::<u64>()), (6, 8, 14));
        assert_eq!((sums.day[0], sums.day[1], sums.day[23]), (14, 16, 32));
    }
}

//! How many messages fall due when, and the numbers of each partition. Both are read from the index and the
//! entries' ids alone, in small trips.

use redis::Value;

use super::browse::range;
use crate::domain::{Partition, RouteName, UnixMs};
use crate::store::call::keys::Keys;
use crate::store::connection::link;
use crate::store::model::bundle::{
    BundleId, first_message_due, is_of_growing, is_of_route, slice_of, slice_start,
};
use crate::store::{DueHistogram, DueMonth, PartitionView, Store, StoreError};

/// Commands of one trip.
const TRIP_COMMANDS: usize = 16;
/// Bitmaps that one command reads.
const GONE_FIELDS: usize = 200;
/// Most entries read of one due set, and of all due sets before the rest is estimated.
const DUE_SET_ENTRIES: usize = 1000;
const ENTRY_BUDGET: usize = 20_000;
/// Due sets of one partition that are read: a day's 84 slices of a dozen routes. Where there are more, each stands for
/// several.
const SAMPLED_DUE_SETS: usize = 1024;

const SECOND_MS: i64 = 1000;
const MINUTE_MS: i64 = 60 * SECOND_MS;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
/// Days of the month.
const MONTH_DAYS: usize = 30;

impl Store {
    /// Waiting messages, by when their bundles fall due: the next minute by second, the next hour by minute,
    /// the next day by hour. Waits while the store is away.
    pub async fn histogram(&self, route: Option<&RouteName>) -> Result<DueHistogram, StoreError> {
        let now = self.0.clock.now();
        let first_day = [DueSpan {
            after: None,
            until: now.0 + DAY_MS,
        }];
        let SampledSums { sums, scale, exact } = self.sampled_sums(now, route, &first_day).await?;
        let scaled = |sums: &[f64]| sums.iter().map(|sum| whole_number(sum * scale)).collect();
        Ok(DueHistogram {
            now,
            exact,
            overdue: whole_number(sums.overdue * scale),
            minute: scaled(&sums.minute),
            hour: scaled(&sums.hour),
            day: scaled(&sums.day),
        })
    }

    /// Waiting messages of the next 30 days, by day, but for the first one, which a histogram has by hour. It reads as
    /// much as a histogram, of what changes slowly.
    pub async fn month(&self, route: Option<&RouteName>) -> Result<DueMonth, StoreError> {
        let now = self.0.clock.now();
        let end_of = |day: usize| now.0 + day as i64 * DAY_MS;
        let days = 1..MONTH_DAYS;
        // Each day is sampled by itself: the last one as well as the first.
        let later_days: Vec<_> = days
            .map(|day| DueSpan {
                after: Some(end_of(day)),
                until: end_of(day + 1),
            })
            .collect();
        let SampledSums { sums, scale, exact } = self.sampled_sums(now, route, &later_days).await?;
        let later_days = sums
            .month
            .iter()
            .skip(1)
            .map(|sum| whole_number(sum * scale))
            .collect();
        Ok(DueMonth { exact, later_days })
    }

    /// Sums of what falls due in some spans. Partitions are read one after another until [`ENTRY_BUDGET`] entries are read.
    /// The rest is estimated from those.
    async fn sampled_sums(
        &self,
        now: UnixMs,
        route: Option<&RouteName>,
        spans: &[DueSpan],
    ) -> Result<SampledSums, StoreError> {
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
            let (n, all) = self.sum_up(p, route, spans, &mut sums).await?;
            entries += n;
            whole = whole && all;
            read += 1;
        }
        let scale = count as f64 / read.max(1) as f64;
        Ok(SampledSums {
            sums,
            scale,
            exact: whole && read == count,
        })
    }

    /// Adds what waits in one partition. Returns how many entries were read, and whether they were all.
    async fn sum_up(
        &self,
        p: Partition,
        route: Option<&RouteName>,
        spans: &[DueSpan],
        sums: &mut HistogramSums,
    ) -> Result<(usize, bool), StoreError> {
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
            return Ok((0, true));
        };
        let due_sets = self.sampled_due_sets(p, spans).await?;
        let mut read = 0;
        let mut whole = due_sets.iter().all(|due_set| due_set.stands_for <= 1.0);
        let due_sets: Vec<_> = due_sets
            .iter()
            .filter(|due_set| route.is_none_or(|route| is_of_route(&due_set.name, route.as_str())))
            .filter(|due_set| !is_of_growing(&due_set.name))
            .collect();
        for trip in due_sets.chunks(TRIP_COMMANDS) {
            let mut commands = Vec::with_capacity(trip.len());
            for due_set in trip {
                let key = self.0.keys.due(p, &due_set.name);
                let entries = range(&key, first.begin(), last.until, 0, DUE_SET_ENTRIES);
                commands.push((Keys::slot(p), entries));
            }
            let lists: Vec<Vec<(String, f64)>> = self.trips(commands, TRIP_COMMANDS).await?;
            for (due_set, list) in trip.iter().zip(lists) {
                whole &= list.len() < DUE_SET_ENTRIES;
                read += list.len();
                for (id, due) in list {
                    let messages = BundleId::parse(&id).map_or(0, |id| id.count());
                    sums.add(due as i64, messages as f64 * due_set.stands_for);
                }
            }
        }
        let (of_growing, all) = self.sum_up_growing(p, route, sums).await?;
        Ok((read + of_growing, whole && all))
    }

    /// The same for growing bundles, whenever they are due: all of one count where its span begins. Of many a random sample
    /// stands for all.
    async fn sum_up_growing(
        &self,
        p: Partition,
        route: Option<&RouteName>,
        sums: &mut HistogramSums,
    ) -> Result<(usize, bool), StoreError> {
        let (mut read, mut whole) = (0, true);
        for (_, due_set) in self.growing_due_sets(&[p], route).await? {
            let key = self.0.keys.due(p, &due_set);
            let mut count = redis::cmd("ZCARD");
            count.arg(&key);
            let mut sample = redis::cmd("ZRANDMEMBER");
            sample.arg(&key).arg(DUE_SET_ENTRIES).arg("WITHSCORES");
            let commands = [count, sample].map(|command| (Keys::slot(p), command));
            let answers: Vec<Value> = self.trips(commands.to_vec(), TRIP_COMMANDS).await?;
            let [count, sample] = &answers[..] else {
                continue;
            };
            let bundles: Vec<(String, f64)> = link::read(sample.clone())?;
            let count: f64 = link::read(count.clone())?;
            let stands_for = (count / bundles.len().max(1) as f64).max(1.0);
            read += bundles.len();
            whole &= bundles.len() < DUE_SET_ENTRIES;
            for some in bundles.chunks(GONE_FIELDS) {
                let mut gone = redis::cmd("HMGET");
                gone.arg(self.0.keys.of(p, "gone"));
                gone.arg(some.iter().map(|(id, _)| id).collect::<Vec<_>>());
                let gone: Vec<Vec<Option<String>>> =
                    self.trips(vec![(Keys::slot(p), gone)], 1).await?;
                for ((id, score), gone) in some.iter().zip(gone.into_iter().flatten()) {
                    let places = BundleId::parse(id).map_or(0, |id| id.count());
                    let gone = gone.map_or(0, |gone| gone.matches('1').count());
                    let messages = places.saturating_sub(gone) as f64 * stands_for;
                    sums.add(first_message_due(&due_set, *score as i64).0, messages);
                }
            }
        }
        Ok((read, whole))
    }

    /// The first due sets of each span in one partition, each with how many of its span it stands for.
    async fn sampled_due_sets(
        &self,
        p: Partition,
        spans: &[DueSpan],
    ) -> Result<Vec<SampledDueSet>, StoreError> {
        let most = SAMPLED_DUE_SETS / spans.len();
        let index = self.0.keys.of(p, "idx");
        // A due set that begins before all spans may reach into the first one.
        let begin = |at: usize| match spans[at].after {
            Some(after) if at == 0 => slice_start(slice_of(UnixMs(after))).to_string(),
            _ => spans[at].begin(),
        };
        let names = spans
            .iter()
            .enumerate()
            .map(|(at, span)| (Keys::slot(p), range(&index, begin(at), span.until, 0, most)));
        let names: Vec<Vec<(String, f64)>> = self.trips(names.collect(), TRIP_COMMANDS).await?;
        let full = spans.iter().zip(&names).enumerate();
        let full = full.filter(|(_, (_, names))| names.len() >= most);
        let counts = full.map(|(at, (span, _))| {
            let mut count = redis::cmd("ZCOUNT");
            count.arg(&index).arg(begin(at)).arg(span.until);
            (Keys::slot(p), count)
        });
        let counts: Vec<u64> = self.trips(counts.collect(), TRIP_COMMANDS).await?;
        let mut counts = counts.into_iter();
        let mut due_sets = Vec::new();
        for names in names {
            let count = if names.len() >= most {
                counts.next().unwrap_or_default()
            } else {
                0
            };
            let stands_for = (count as f64 / most as f64).max(1.0);
            due_sets.extend(
                names
                    .into_iter()
                    .map(|(name, _)| SampledDueSet { name, stands_for }),
            );
        }
        Ok(due_sets)
    }

    /// The numbers of each partition: three small reads each.
    pub async fn partition_views(&self) -> Result<Vec<PartitionView>, StoreError> {
        let command = |name: &str, p, key| {
            let mut command = redis::cmd(name);
            command.arg(self.0.keys.of(p, key));
            (Keys::slot(p), command)
        };
        let all: Vec<Partition> = self.0.partitions.all().collect();
        let counts = all
            .iter()
            .map(|&p| command("HGETALL", p, "counts"))
            .collect();
        let counts: Vec<Vec<(String, i64)>> = self.trips(counts, TRIP_COMMANDS).await?;
        let claims = all.iter().map(|&p| command("ZCARD", p, "claims")).collect();
        let claims: Vec<u64> = self.trips(claims, TRIP_COMMANDS).await?;
        // Growing bundles are in the one index alone, and may come before the others there.
        let heads = all.iter().flat_map(|&p| {
            ["idx", "heads"].map(|index| {
                let (slot, mut head) = command("ZRANGE", p, index);
                head.arg(0).arg(0).arg("WITHSCORES");
                (slot, head)
            })
        });
        let heads: Vec<Vec<(String, f64)>> = self.trips(heads.collect(), TRIP_COMMANDS).await?;
        let mut views = Vec::with_capacity(all.len());
        for (at, &partition) in all.iter().enumerate() {
            let counts = counts.get(at).map_or(&[][..], Vec::as_slice);
            let heads = heads.chunks(2).nth(at).unwrap_or_default();
            let dues = heads.iter().flatten();
            views.push(PartitionView {
                partition,
                messages: sum_of(counts, "n:"),
                bytes: sum_of(counts, "b:"),
                dead: sum_of(counts, "d:"),
                claims: claims.get(at).copied().unwrap_or_default(),
                head: dues
                    .map(|(due_set, score)| first_message_due(due_set, *score as i64))
                    .min(),
            });
        }
        Ok(views)
    }
}

/// The sum of the counts of one kind, over all routes.
fn sum_of(counts: &[(String, i64)], kind: &str) -> i64 {
    let of_kind = counts.iter().filter(|(field, _)| field.starts_with(kind));
    of_kind.map(|(_, count)| count).sum()
}

/// Due times that are read, Unix ms.
struct DueSpan {
    /// The end of the span before.
    after: Option<i64>,
    until: i64,
}

impl DueSpan {
    /// The lower end, as Redis reads it.
    fn begin(&self) -> String {
        self.after
            .map_or_else(|| "-inf".to_owned(), |after| format!("({after}"))
    }
}

/// A due set that is read.
struct SampledDueSet {
    name: String,
    /// Due sets of its span, itself among them, for which it is taken.
    stands_for: f64,
}

/// Sums over the partitions that were read.
struct SampledSums {
    sums: HistogramSums,
    /// Partitions of the store for each one that was read.
    scale: f64,
    /// Set if everything was read.
    exact: bool,
}

/// A number of messages. Estimates are rounded.
fn whole_number(estimate: f64) -> u64 {
    estimate.round() as u64
}

/// The sums of each window, from now on.
struct HistogramSums {
    now: UnixMs,
    overdue: f64,
    minute: [f64; 60],
    hour: [f64; 60],
    day: [f64; 24],
    month: [f64; MONTH_DAYS],
}

impl HistogramSums {
    fn new(now: UnixMs) -> Self {
        Self {
            now,
            overdue: 0.0,
            minute: [0.0; 60],
            hour: [0.0; 60],
            day: [0.0; 24],
            month: [0.0; MONTH_DAYS],
        }
    }

    fn add(&mut self, due: i64, messages: f64) {
        let ahead = due - self.now.0;
        if ahead < 0 {
            self.overdue += messages;
            return;
        }
        let Self {
            minute,
            hour,
            day,
            month,
            ..
        } = self;
        let windows: [(&mut [f64], i64); 4] = [
            (minute, SECOND_MS),
            (hour, MINUTE_MS),
            (day, HOUR_MS),
            (month, DAY_MS),
        ];
        for (sums, width) in windows {
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
        for (ahead, messages) in [
            (-1, 1.0),
            (0, 2.0),
            (59_999, 4.0),
            (60_000, 8.0),
            (HOUR_MS, 16.0),
            (DAY_MS - 1, 32.0),
            (DAY_MS, 64.0),
        ] {
            sums.add(1_000_000 + ahead, messages);
        }
        let whole = |sums: &[f64]| sums.iter().copied().map(whole_number).collect::<Vec<_>>();
        let minute = whole(&sums.minute);
        let hour = whole(&sums.hour);
        let day = whole(&sums.day);
        let month = whole(&sums.month);
        assert_eq!(whole_number(sums.overdue), 1);
        assert_eq!(
            (minute[0], minute[59], minute.iter().sum::<u64>()),
            (2, 4, 6)
        );
        assert_eq!((hour[0], hour[1], hour.iter().sum::<u64>()), (6, 8, 14));
        assert_eq!((day[0], day[1], day[23]), (14, 16, 32));
        assert_eq!((month[0], month[1], month.len()), (62, 64, 30));
    }
}

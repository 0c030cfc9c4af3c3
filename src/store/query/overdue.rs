//! The oldest overdue message of each route, and the memory of the masters.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::UnixMs;
use crate::health::{Overdue, RedisMemory};
use crate::store::call::keys::Keys;
use crate::store::connection::link::read;
use crate::store::{OldestOverdue, Store, StoreError};

/// Returned bundles of one partition that one read shows. The others are younger.
const BUNDLES_READ: usize = 256;
/// Longest wait for a master's report of its memory.
const INFO_DEADLINE: Duration = Duration::from_secs(2);

/// Age from which on a report of a timer shard is not used, microseconds.
const REPORT_AGE_US: i64 = 2_500_000;
/// The same of a report on what nobody has spread: a round of spreading takes that long where Redis is slow.
const UNSPREAD_AGE_US: i64 = 30_000_000;

/// The oldest overdue messages that each timer shard saw at its last read of all of its partitions.
#[derive(Debug, Default)]
pub(in crate::store) struct OverdueReports(Mutex<BTreeMap<(usize, ReportKind), ShardReport>>);

/// Where the messages of a report wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ReportKind {
    Heads,
    Unspread,
}

impl ReportKind {
    /// The age up to which such a report is used, microseconds.
    fn age_us(self) -> i64 {
        match self {
            Self::Heads => REPORT_AGE_US,
            Self::Unspread => UNSPREAD_AGE_US,
        }
    }
}

#[derive(Debug)]
struct ShardReport {
    at_us: i64,
    oldest: BTreeMap<String, Overdue>,
}

impl Store {
    /// Takes the report of a timer shard on all of its partitions: by route the oldest overdue message that waits.
    pub fn report_waiting(&self, shard: usize, oldest: BTreeMap<String, Overdue>) {
        self.report(shard, ReportKind::Heads, oldest);
    }

    /// The same for messages of growing bundles that nobody has spread in time.
    pub fn report_unspread(&self, shard: usize, oldest: BTreeMap<String, Overdue>) {
        self.report(shard, ReportKind::Unspread, oldest);
    }

    fn report(&self, shard: usize, kind: ReportKind, oldest: BTreeMap<String, Overdue>) {
        let at_us = self.0.clock.local().mono_us();
        self.0
            .waiting
            .0
            .lock()
            .insert((shard, kind), ShardReport { at_us, oldest });
    }

    /// By route, the oldest overdue message that waits in the store: among those never
    /// published, and among those put back. The former come from the reports of the timer shards. Partitions of
    /// a shard without a recent report are read here.
    pub async fn oldest_overdue(&self) -> Result<OldestOverdue, StoreError> {
        let now = self.0.clock.now();
        let mut waiting = BTreeMap::new();
        let mut unseen = Vec::new();
        {
            let now_us = self.0.clock.local().mono_us();
            let mut reports = self.0.waiting.0.lock();
            reports.retain(|(_, kind), report| now_us - report.at_us <= kind.age_us());
            for (route, oldest) in reports.values().flat_map(|report| &report.oldest) {
                earliest(&mut waiting, route, *oldest);
            }
            for p in self.0.partitions.all() {
                if !reports.contains_key(&(self.0.wake.shard_of(p), ReportKind::Heads)) {
                    unseen.push(p);
                }
            }
        }
        let heads = async {
            if unseen.is_empty() {
                Ok(Vec::new())
            } else {
                self.heads(&unseen, now).await
            }
        };
        let (heads, put_back) = tokio::join!(heads, self.put_back(now));
        for head in heads?.iter().filter(|head| head.due <= now) {
            let oldest = Overdue {
                asked: head.due,
                seen: now,
            };
            earliest(&mut waiting, head.route(), oldest);
        }
        Ok(OldestOverdue { waiting, put_back })
    }

    /// By route, the oldest message among the bundles that were put back.
    async fn put_back(&self, now: UnixMs) -> BTreeMap<String, Overdue> {
        let ranges = self.0.partitions.all().map(|p| {
            let mut range = redis::cmd("ZRANGE");
            range
                .arg(self.0.keys.put_back(p))
                .arg(0)
                .arg(BUNDLES_READ - 1)
                .arg("WITHSCORES");
            (Keys::slot(p), range)
        });
        let mut oldest = BTreeMap::new();
        for list in self.0.side.gather(ranges.collect()).await {
            // A scrub mends a key of another type. A node that is away reports itself.
            let Ok(list) = list.and_then(read::<Vec<(String, f64)>>) else {
                continue;
            };
            for (id, asked) in list {
                let route = id.split('/').next().unwrap_or_default();
                let message = Overdue {
                    asked: UnixMs(asked as i64),
                    seen: now,
                };
                earliest(&mut oldest, route, message);
            }
        }
        oldest
    }

    /// The memory of the fullest master, by its own report. Masters that are away are left out.
    pub async fn redis_memory(&self) -> Result<RedisMemory, StoreError> {
        let mut fullest: Option<RedisMemory> = None;
        for connected in self.0.side.each() {
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            let mut connection = connected.connection.clone();
            let info_text =
                tokio::time::timeout(INFO_DEADLINE, info.query_async::<String>(&mut connection))
                    .await;
            let info_text =
                info_text.map_err(|_| StoreError::Unavailable("no answer in time".to_owned()))?;
            let info_text = info_text.map_err(|error| self.0.side.judge(&connected, &error))?;
            let memory = RedisMemory {
                used: field(&info_text, "used_memory:"),
                limit: field(&info_text, "maxmemory:"),
            };
            if fullest
                .as_ref()
                .is_none_or(|fullest| memory.share() > fullest.share())
            {
                fullest = Some(memory);
            }
        }
        fullest.ok_or_else(|| StoreError::Unavailable("no master can be reached".to_owned()))
    }
}

fn earliest(oldest: &mut BTreeMap<String, Overdue>, route: &str, message: Overdue) {
    let first = oldest.entry(route.to_owned()).or_insert(message);
    if message.asked < first.asked {
        *first = message;
    }
}

/// A number of `INFO`. 0 if it is missing.
fn field(info: &str, name: &str) -> u64 {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_is_the_one_with_the_largest_share_of_its_limit() {
        let info =
            "# Memory\r\nused_memory:1048576\r\nused_memory_human:1.00M\r\nmaxmemory:4194304\r\n";
        let memory = RedisMemory {
            used: field(info, "used_memory:"),
            limit: field(info, "maxmemory:"),
        };
        assert_eq!(
            memory,
            RedisMemory {
                used: 1 << 20,
                limit: 4 << 20
            }
        );
        let without = RedisMemory {
            used: 8 << 20,
            limit: 0,
        };
        assert!(memory.share() > without.share());
        assert!(RedisMemory { used: 2, limit: 4 }.share() > memory.share());
    }
}

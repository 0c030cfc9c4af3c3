//! Counts messages and bytes, and corrects the counts.
//!
//! The error of a count is its value minus what exists. No transition changes it, because transitions change
//! both sides. So it may be corrected at any time, once, by as much as a recount showed. If nothing moved
//! during the recount, the error is exact. If something moved, three times in a row, the error is only trusted
//! where it is larger than all that moved in that time. So lost counts come back in a partition that never
//! rests, to within what moved. The rest is corrected when it rests. The number of dead letters is exact at any
//! time.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, Value};

use super::call_answers::CallProgress;
use super::due_sets::{DueSet, pages};
use super::findings::Findings;
use super::{PAGE_ENTRIES, SCRUB_ENTRIES, SetPosition};
use crate::domain::Partition;
use crate::store::call::numbered::{ScriptArg, ScriptCall};
use crate::store::call::reply::integer;
use crate::store::call::scripts;
use crate::store::connection::link::read;
use crate::store::model::bundle::BundleId;
use crate::store::{DeadId, ScrubReport, Store, StoreError};

/// Attempts to count while nothing moves.
const RECOUNT_ATTEMPTS: usize = 3;
/// Growing bundles that one trip counts: some 64 KiB each.
const GROWING_AT_ONCE: usize = 8;
/// Values of the hash `counts` by their fields.
type Counts = BTreeMap<String, i64>;

/// The bundles, dead letters and names that exist, counted.
#[derive(Default)]
struct Counted {
    counts: Counts,
    /// Of each kind of count ("n:", "b:", "x:", "r:"), the most that one bundle, dead letter or name has. Nothing is known of
    /// a kind of which all that was listed had left when it was read.
    largest: BTreeMap<&'static str, i64>,
}

/// Result of a recount beside which something moved.
struct Attempt {
    error: Counts,
    /// Most messages or bytes that moved meanwhile, by kind of count. A kind of which nothing was seen is not in it, and has
    /// no bound.
    moved: BTreeMap<&'static str, i64>,
}

impl Store {
    /// Counts what exists, and corrects the counts. A partition that is larger than one scrub should read is
    /// counted once in as many scrubs as it has parts. It is counted at once if something was lost or counts
    /// are plainly missing.
    pub(super) async fn recount(
        &self,
        p: Partition,
        due_sets: &[DueSet],
        queues: &BTreeSet<String>,
        report: &mut ScrubReport,
    ) -> Result<(), StoreError> {
        let registered = self.registered().await;
        let mut before = self.progress(p, registered.as_ref(), report).await?;
        let stored = self.stored(p).await?;
        let urgent = is_missing(&stored, due_sets, queues)
            || !report.lost.is_empty()
            || !report.dead_lost.is_empty();
        if !self.is_counted_now(p, due_sets, &stored, urgent) {
            return Ok(());
        }
        let mut stored = stored;
        let mut attempts = Vec::new();
        for _ in 0..RECOUNT_ATTEMPTS {
            let counted = self.count(p, queues).await?;
            let after = self.progress(p, registered.as_ref(), report).await?;
            let stored_after = self.stored(p).await?;
            let error = error_of(&counted.counts, &stored, &stored_after);
            let rested = before == after && stored == stored_after;
            if rested {
                report.counts = self.correct(p, &after, queues, error, report).await?;
                return Ok(());
            }
            attempts.push(Attempt {
                error,
                moved: counted.most_of(moves(&stored, &stored_after)),
            });
            before = after;
            stored = stored_after;
        }
        let far = far_in_all(&attempts);
        let some = !far.is_empty();
        let corrected = self.correct(p, &before, queues, far, report).await?;
        report.counts = corrected.filter(|&n| some || n > 0);
        Ok(())
    }

    /// Reports whether a partition is to be counted now: a small one always, a large one after as many scrubs
    /// as it has parts.
    fn is_counted_now(
        &self,
        p: Partition,
        due_sets: &[DueSet],
        stored: &BTreeMap<String, String>,
        urgent: bool,
    ) -> bool {
        let beside = stored
            .iter()
            .filter(|(field, _)| field.starts_with("d:") || field.starts_with("r:"));
        let beside: usize = beside
            .map(|(_, n)| n.parse::<usize>().unwrap_or(0))
            .fold(0, usize::saturating_add);
        let bundles: usize = due_sets.iter().map(|due_set| due_set.bundles).sum();
        let parts = bundles.saturating_add(beside) / SCRUB_ENTRIES;
        let mut now = true;
        self.save(p, |places| {
            // Large partitions are not all counted at once after a start.
            let left = places.counting.unwrap_or_else(|| {
                if parts == 0 {
                    0
                } else {
                    fastrand::usize(..=parts)
                }
            });
            now = urgent || parts == 0 || left == 0;
            places.counting = Some(if now { parts } else { left.min(parts) - 1 });
        });
        now
    }

    async fn stored(&self, p: Partition) -> Result<BTreeMap<String, String>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.0.keys.of(p, "counts"));
        let (stored,): (BTreeMap<String, String>,) = self.ask(p, &pipe).await?;
        Ok(stored)
    }

    /// Counts what the counts should be: messages and bytes of bundles, bytes of dead letters, and delivered names.
    async fn count(&self, p: Partition, queues: &BTreeSet<String>) -> Result<Counted, StoreError> {
        let mut counted = Counted::default();
        let claims = self.0.keys.of(p, "claims");
        // Claims first: a bundle that is claimed meanwhile may be missed, but is not counted twice.
        let mut claimed: BTreeSet<BundleId> = BTreeSet::new();
        for at in (0..).step_by(PAGE_ENTRIES) {
            let members = self.members_at(p, &claims, at, PAGE_ENTRIES).await?;
            let ids: Vec<BundleId> = members
                .iter()
                .filter_map(|id| BundleId::parse(id))
                .collect();
            self.count_bundles(p, &ids, &mut counted).await?;
            claimed.extend(ids);
            if members.len() < PAGE_ENTRIES {
                break;
            }
        }
        let due_sets = self
            .survey(p, &mut Findings::default(), &mut ScrubReport::default())
            .await?;
        for page in pages(&due_sets, &SetPosition::default(), PAGE_ENTRIES) {
            let members = self
                .page(p, &due_sets, &page)
                .await?
                .into_iter()
                .flat_map(|(_, members)| members);
            let ids = members
                .filter_map(|id| BundleId::parse(&id))
                .filter(|id| !claimed.contains(id));
            self.count_bundles(p, &ids.collect::<Vec<_>>(), &mut counted)
                .await?;
        }
        for queue in queues {
            for at in (0..).step_by(PAGE_ENTRIES) {
                let members = self
                    .members_at(p, &self.0.keys.queue(p, queue), at, PAGE_ENTRIES)
                    .await?;
                let ids: Vec<DeadId> = members.iter().filter_map(|id| DeadId::parse(id)).collect();
                if !ids.is_empty() {
                    let mut pipe = Pipeline::with_capacity(ids.len());
                    for id in &ids {
                        pipe.cmd("STRLEN").arg(self.0.keys.dead(id));
                    }
                    let lengths: Vec<i64> = self.ask(p, &pipe).await?;
                    for length in lengths {
                        counted.add("x:", queue, length);
                    }
                }
                if members.len() < PAGE_ENTRIES {
                    break;
                }
            }
        }
        for at in (0..).step_by(PAGE_ENTRIES) {
            let names = self
                .members_at(p, &self.0.keys.delivered(p), at, PAGE_ENTRIES)
                .await?;
            for name in &names {
                let route = name.split('/').next().unwrap_or_default();
                counted.add("r:", route, 1);
            }
            if names.len() < PAGE_ENTRIES {
                break;
            }
        }
        Ok(counted)
    }

    async fn count_bundles(
        &self,
        p: Partition,
        ids: &[BundleId],
        counted: &mut Counted,
    ) -> Result<(), StoreError> {
        // The content of a growing bundle is read to count its bytes.
        let (growing, others): (Vec<BundleId>, Vec<BundleId>) =
            ids.iter().cloned().partition(BundleId::is_growing);
        for some in growing.chunks(GROWING_AT_ONCE).chain([&others[..]]) {
            self.count_some_bundles(p, some, counted).await?;
        }
        Ok(())
    }

    async fn count_some_bundles(
        &self,
        p: Partition,
        ids: &[BundleId],
        counted: &mut Counted,
    ) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut pipe = Pipeline::with_capacity(ids.len() * 2);
        for id in ids {
            let key = self.0.keys.blob(p, id);
            if id.is_growing() {
                pipe.cmd("LRANGE").arg(key).arg(0).arg(-1);
            } else {
                pipe.cmd("STRLEN").arg(key);
            }
            pipe.cmd("HGET")
                .arg(self.0.keys.of(p, "gone"))
                .arg(id.as_str());
        }
        let found: Vec<Value> = self.ask(p, &pipe).await?;
        for (id, pair) in ids.iter().zip(found.chunks(2)) {
            let gone = match &pair[1] {
                Value::BulkString(bits) => String::from_utf8_lossy(bits).matches('1').count(),
                _ => 0,
            };
            counted.add("n:", id.route(), id.count().saturating_sub(gone) as i64);
            // One that has left may have had all of its messages.
            counted.saw("n:", id.count() as i64);
            let bytes = match &pair[0] {
                Value::Array(elements) => {
                    let elements = elements.iter().cloned().map(read::<Vec<u8>>);
                    let lengths = elements.map(|element| Ok(element?.len() as i64));
                    lengths.sum::<Result<i64, StoreError>>()?
                }
                length => integer(length)?,
            };
            counted.add("b:", id.route(), bytes);
        }
        Ok(())
    }

    /// Has the counts corrected by these errors. Returns how many were wrong. `None` if somebody else corrected
    /// them meanwhile.
    async fn correct(
        &self,
        p: Partition,
        progress: &CallProgress,
        queues: &BTreeSet<String>,
        by: Counts,
        report: &ScrubReport,
    ) -> Result<Option<u32>, StoreError> {
        let mut keys = self.0.keys.fixed(p);
        keys.extend(queues.iter().map(|queue| self.0.keys.queue(p, queue)));
        let mut args: Vec<ScriptArg> = vec![
            "set".into(),
            progress.corrections.into(),
            queues.len().into(),
            by.len().into(),
        ];
        args.extend(queues.iter().map(|queue| ScriptArg::from(queue.as_str())));
        for (field, n) in by {
            args.extend::<[ScriptArg; 2]>([field.into(), n.into()]);
        }
        let call = ScriptCall {
            script: &scripts::RECOUNT,
            op: "recount",
            keys,
            args,
            blobs: Vec::new(),
        };
        let mended = integer(&self.0.settles.run_unnumbered(p, &call).await?)?;
        let before = report.counts.unwrap_or(0);
        Ok(u32::try_from(mended).ok().map(|mended| mended + before))
    }
}

impl Counted {
    fn add(&mut self, kind: &'static str, of: &str, n: i64) {
        *self.counts.entry(format!("{kind}{of}")).or_default() += n;
        self.saw(kind, n);
    }

    /// Notes what one bundle, dead letter or name has. One that has nothing had left when it was read.
    fn saw(&mut self, kind: &'static str, n: i64) {
        if n > 0 {
            let largest = self.largest.entry(kind).or_default();
            *largest = n.max(*largest);
        }
    }

    /// The most that so many bundles, dead letters and names have, by kind of count: of the kinds that were seen.
    fn most_of(&self, moves: i64) -> BTreeMap<&'static str, i64> {
        self.largest
            .iter()
            .map(|(&kind, largest)| (kind, largest.saturating_mul(moves)))
            .collect()
    }
}

/// Reports whether counts are plainly missing beside what exists.
fn is_missing(
    stored: &BTreeMap<String, String>,
    due_sets: &[DueSet],
    queues: &BTreeSet<String>,
) -> bool {
    let route = |due_set: &DueSet| {
        due_set
            .name
            .split('/')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let routes: BTreeSet<String> = due_sets
        .iter()
        .filter(|due_set| due_set.bundles > 0)
        .map(route)
        .collect();
    routes
        .iter()
        .any(|route| !stored.contains_key(&format!("n:{route}")))
        || queues
            .iter()
            .any(|queue| !stored.contains_key(&format!("d:{queue}")))
}

/// The error of each count: the recount against the values before and after. The script itself sees those of
/// dead letters. A malformed count is always corrected, by what was counted.
fn error_of(
    counted: &Counts,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Counts {
    let number = |stored: &BTreeMap<String, String>, field: &str| {
        stored
            .get(field)
            .and_then(|n| n.parse::<i64>().ok())
            .unwrap_or(0)
    };
    let fields: BTreeSet<&String> = before
        .keys()
        .chain(after.keys())
        .chain(counted.keys())
        .filter(|field| {
            ["n:", "b:", "x:", "r:"]
                .iter()
                .any(|kind| field.starts_with(kind))
        })
        .collect();
    let mut errors = Counts::new();
    for field in fields {
        let one = number(before, field);
        let other = number(after, field);
        let stands = counted.get(field).copied().unwrap_or(0);
        let error = stands - stands.clamp(one.min(other), one.max(other));
        let wrong_type = after.get(field).is_some_and(|n| n.parse::<i64>().is_err());
        if error != 0 || wrong_type {
            errors.insert(field.clone(), error);
        }
    }
    errors
}

/// How many bundles, dead letters and names came, changed or left between two readings of the counts. Nobody knows where
/// the count itself was lost.
fn moves(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> i64 {
    let read = |stored: &BTreeMap<String, String>| {
        stored
            .get("moves")
            .map_or(Some(0), |n| n.parse::<i64>().ok())
    };
    let moves = read(before)
        .zip(read(after))
        .and_then(|(before, after)| after.checked_sub(before));
    moves.filter(|&moves| moves >= 0).unwrap_or(i64::MAX)
}

/// The errors that are larger in every attempt than all that moved, each by its smallest value.
fn far_in_all(attempts: &[Attempt]) -> Counts {
    let Some(first) = attempts.first() else {
        return Counts::new();
    };
    let mut far = Counts::new();
    for (field, &error) in &first.error {
        let seen = attempts.iter().map(|attempt| {
            let error = attempt.error.get(field).copied().unwrap_or(0);
            let moved = attempt.moved.get(&field[..2]).copied().unwrap_or(i64::MAX);
            (error.abs() > moved).then_some(error)
        });
        let Some(seen) = seen.collect::<Option<Vec<i64>>>() else {
            continue;
        };
        if seen.iter().all(|n| n.signum() == error.signum()) {
            far.extend(
                seen.into_iter()
                    .min_by_key(|n| n.abs())
                    .map(|n| (field.clone(), n)),
            );
        }
    }
    far
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(n: i64) -> Counts {
        [("n:r".to_owned(), n)].into()
    }

    fn stored(n: &str) -> BTreeMap<String, String> {
        [
            ("n:r".to_owned(), n.to_owned()),
            ("moves".to_owned(), "7".to_owned()),
        ]
        .into()
    }

    #[test]
    fn what_the_counts_said_meanwhile_is_no_error() {
        assert_eq!(
            error_of(&counted(5), &stored("3"), &stored("8")),
            Counts::new()
        );
        assert_eq!(
            error_of(&counted(5), &stored("8"), &stored("3")),
            Counts::new()
        );
        assert_eq!(
            error_of(&counted(5), &stored("7"), &stored("8")),
            counted(-2)
        );
        assert_eq!(
            error_of(&counted(5), &BTreeMap::new(), &BTreeMap::new()),
            counted(5)
        );
        assert_eq!(
            error_of(&Counts::new(), &stored("4"), &stored("4")),
            counted(-4),
            "nothing stands"
        );
        assert_eq!(
            error_of(&Counts::new(), &stored("?"), &stored("?")),
            counted(0),
            "spoilt"
        );
    }

    #[test]
    fn beside_what_moves_only_what_is_larger_each_time_is_corrected_by_the_least() {
        let of = |all: &[(i64, i64)]| {
            let attempt = |&(error, moved)| Attempt {
                error: counted(error),
                moved: [("n:", moved)].into(),
            };
            far_in_all(&all.iter().map(attempt).collect::<Vec<_>>())
        };
        assert_eq!(of(&[(5000, 600), (5200, 700), (4900, 600)]), counted(4900));
        assert_eq!(of(&[(-5000, 0), (-5200, 0), (-4900, 0)]), counted(-4900));
        assert_eq!(
            of(&[(5000, 600), (-5200, 600), (4900, 600)]),
            Counts::new(),
            "both too many and too few"
        );
        assert_eq!(
            of(&[(5000, 600), (900, 900), (4900, 600)]),
            Counts::new(),
            "no more than moved"
        );
        assert_eq!(of(&[]), Counts::new());
    }

    /// Each time one bundle stands and another one is listed that has left when it is read.
    #[test]
    fn where_all_that_was_listed_had_left_nothing_is_trusted() {
        let attempt = || {
            let mut all = Counted::default();
            all.add("n:", "r", 2);
            all.add("b:", "r", 0);
            let bytes: BTreeMap<String, String> = [("b:r".to_owned(), "120".to_owned())].into();
            Attempt {
                error: error_of(&all.counts, &bytes, &bytes),
                moved: all.most_of(2),
            }
        };
        assert_eq!(attempt().error.get("b:r"), Some(&-120));
        assert_eq!(
            far_in_all(&[attempt(), attempt(), attempt()]).get("b:r"),
            None
        );
    }

    #[test]
    fn what_moved_has_at_most_as_much_each_as_the_largest_of_its_kind() {
        let mut all = Counted::default();
        all.add("n:", "r", 2);
        all.add("n:", "r", 3);
        all.add("b:", "r", 700);
        all.add("x:", "r/invalid", 1 << 20);
        all.add("r:", "r", 1);
        assert_eq!(all.counts["n:r"], 5);
        let at = |n: &str| {
            stored("3")
                .into_iter()
                .chain([("moves".to_owned(), n.to_owned())])
                .collect()
        };
        assert_eq!(
            (moves(&at("7"), &at("17")), moves(&at("17"), &at("7"))),
            (10, i64::MAX),
            "lost meanwhile"
        );
        assert_eq!(
            all.most_of(10),
            [("n:", 30), ("b:", 7000), ("x:", 10 << 20), ("r:", 10)].into()
        );
    }
}

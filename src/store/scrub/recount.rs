//! Counting what stands, and correcting the counts by it.
//!
//! The counts' error is what they say less what stands; no transition changes it. So it may be corrected at any time,
//! by as much as a count showed, once: what others do meanwhile changes both sides. If nothing moved while it was
//! counted the error is exact. If something did, again and again, it is only trusted where it is far larger than
//! what moves in that time can be: lost counts come back in a partition that never rests, within what moved; the rest
//! is corrected when it does. How many dead letters there are is exact at any time.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, Value};

use super::call_answers::Progress;
use super::due_sets::{Shelf, pages};
use super::findings::Finds;
use super::{ENTRIES, PAGE, Place};
use crate::domain::Partition;
use crate::store::call::numbered::{Arg, Call};
use crate::store::call::reply::integer;
use crate::store::call::scripts;
use crate::store::model::bundle::BundleId;
use crate::store::{AuditReport, DeadId, Store, StoreError};

/// Tries to count while nothing moves.
const COUNTS: usize = 3;
/// What moves while a partition is counted is less than so many messages or bytes, or than this part of what stands.
const FAR: (i64, i64) = (1000, 1 << 20);
const FAR_PART: i64 = 8;

/// Counts by their fields.
type Counted = BTreeMap<String, i64>;

impl Store {
    /// Counts what stands, and corrects the counts. What is larger than one audit should look at is counted as many
    /// audits later as it would have taken, or at once if something was lost or the counts are plainly not there.
    pub(super) async fn recount(
        &self,
        p: Partition,
        shelves: &[Shelf],
        graves: &BTreeSet<String>,
        report: &mut AuditReport,
    ) -> Result<(), StoreError> {
        let living = self.living().await;
        let mut before = self.progress(p, living.as_ref(), report).await?;
        let said = self.said(p).await?;
        let urgent =
            is_missing(&said, shelves, graves) || !report.lost.is_empty() || !report.dead_lost.is_empty();
        if !self.is_counted_now(p, shelves, &said, urgent) {
            return Ok(());
        }
        let (mut said, mut errors) = (said, Vec::new());
        for _ in 0..COUNTS {
            let counted = self.count(p, graves).await?;
            let after = self.progress(p, living.as_ref(), report).await?;
            let said_after = self.said(p).await?;
            let error = error_of(&counted, &said, &said_after);
            let rested = before == after && said == said_after;
            if rested {
                report.counts = self.correct(p, &after, graves, error, report).await?;
                return Ok(());
            }
            errors.push((error, counted));
            (before, said) = (after, said_after);
        }
        let far = far_in_all(&errors);
        let some = !far.is_empty();
        let corrected = self.correct(p, &before, graves, far, report).await?;
        report.counts = corrected.filter(|&n| some || n > 0);
        Ok(())
    }

    /// Whether a partition's turn to be counted has come: a small one's always, a large one's after as many audits as
    /// it has parts.
    fn is_counted_now(
        &self,
        p: Partition,
        shelves: &[Shelf],
        said: &BTreeMap<String, String>,
        urgent: bool,
    ) -> bool {
        let dead = said.iter().filter(|(field, _)| field.starts_with("d:"));
        let dead: usize = dead.map(|(_, n)| n.parse::<usize>().unwrap_or(0)).sum();
        let parts = (shelves.iter().map(|shelf| shelf.bundles).sum::<usize>() + dead) / ENTRIES;
        let mut now = true;
        self.save(p, |places| {
            // Not all of them at once after a start.
            let left =
                places.counting.unwrap_or_else(|| if parts == 0 { 0 } else { fastrand::usize(..=parts) });
            now = urgent || parts == 0 || left == 0;
            places.counting = Some(if now { parts } else { left.min(parts) - 1 });
        });
        now
    }

    async fn said(&self, p: Partition) -> Result<BTreeMap<String, String>, StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("HGETALL").arg(self.0.keys.of(p, "counts"));
        let (said,): (BTreeMap<String, String>,) = self.ask(p, &pipe).await?;
        Ok(said)
    }

    /// What the counts should be: messages and bytes of bundles, and bytes of dead letters.
    async fn count(&self, p: Partition, graves: &BTreeSet<String>) -> Result<Counted, StoreError> {
        let mut counted = Counted::new();
        let claims = self.0.keys.of(p, "claims");
        // Claims first: what is claimed meanwhile is missed at worst, and not counted twice.
        let mut claimed: BTreeSet<BundleId> = BTreeSet::new();
        for at in (0..).step_by(PAGE) {
            let members = self.members_at(p, &claims, at, PAGE).await?;
            let ids: Vec<BundleId> = members.iter().filter_map(|id| BundleId::parse(id)).collect();
            self.count_bundles(p, &ids, &mut counted).await?;
            claimed.extend(ids);
            if members.len() < PAGE {
                break;
            }
        }
        let shelves = self.survey(p, &mut Finds::default(), &mut AuditReport::default()).await?;
        for page in pages(&shelves, &Place::default(), PAGE) {
            let members = self.page(p, &shelves, &page).await?.into_iter().flat_map(|(_, members)| members);
            let ids = members.filter_map(|id| BundleId::parse(&id)).filter(|id| !claimed.contains(id));
            self.count_bundles(p, &ids.collect::<Vec<_>>(), &mut counted).await?;
        }
        for grave in graves {
            for at in (0..).step_by(PAGE) {
                let members = self.members_at(p, &self.0.keys.grave(p, grave), at, PAGE).await?;
                let ids: Vec<DeadId> = members.iter().filter_map(|id| DeadId::parse(id)).collect();
                if !ids.is_empty() {
                    let mut pipe = Pipeline::with_capacity(ids.len());
                    for id in &ids {
                        pipe.cmd("STRLEN").arg(self.0.keys.dead(id));
                    }
                    let lengths: Vec<i64> = self.ask(p, &pipe).await?;
                    *counted.entry(format!("x:{grave}")).or_default() += lengths.iter().sum::<i64>();
                }
                if members.len() < PAGE {
                    break;
                }
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
        if ids.is_empty() {
            return Ok(());
        }
        let mut pipe = Pipeline::with_capacity(ids.len() * 2);
        for id in ids {
            pipe.cmd("STRLEN").arg(self.0.keys.blob(p, id));
            pipe.cmd("HGET").arg(self.0.keys.of(p, "gone")).arg(id.as_str());
        }
        let found: Vec<Value> = self.ask(p, &pipe).await?;
        for (id, pair) in ids.iter().zip(found.chunks(2)) {
            let gone = match &pair[1] {
                Value::BulkString(bits) => String::from_utf8_lossy(bits).matches('1').count(),
                _ => 0,
            };
            *counted.entry(format!("n:{}", id.route())).or_default() +=
                id.count().saturating_sub(gone) as i64;
            *counted.entry(format!("b:{}", id.route())).or_default() += integer(&pair[0])?;
        }
        Ok(())
    }

    /// Has the counts corrected by these; how many were wrong, `None` if another corrected them meanwhile.
    async fn correct(
        &self,
        p: Partition,
        progress: &Progress,
        graves: &BTreeSet<String>,
        by: Counted,
        report: &AuditReport,
    ) -> Result<Option<u32>, StoreError> {
        let mut keys = self.0.keys.fixed(p);
        keys.extend(graves.iter().map(|grave| self.0.keys.grave(p, grave)));
        let mut args: Vec<Arg> =
            vec!["set".into(), progress.corrections.into(), graves.len().into(), by.len().into()];
        args.extend(graves.iter().map(|grave| Arg::from(grave.as_str())));
        for (field, n) in by {
            args.extend::<[Arg; 2]>([field.into(), n.into()]);
        }
        let call = Call { script: &scripts::RECOUNT, op: "recount", keys, args, blobs: Vec::new() };
        let mended = integer(&self.0.settles.run_unnumbered(p, &call).await?)?;
        let before = report.counts.unwrap_or(0);
        Ok(u32::try_from(mended).ok().map(|mended| mended + before))
    }
}

/// Whether counts are plainly missing beside what stands.
fn is_missing(said: &BTreeMap<String, String>, shelves: &[Shelf], graves: &BTreeSet<String>) -> bool {
    let route = |shelf: &Shelf| shelf.name.split('/').next().unwrap_or_default().to_owned();
    let routes: BTreeSet<String> = shelves.iter().filter(|shelf| shelf.bundles > 0).map(route).collect();
    routes.iter().any(|route| !said.contains_key(&format!("n:{route}")))
        || graves.iter().any(|grave| !said.contains_key(&format!("d:{grave}")))
}

/// By how much each count is wrong: what was counted against what the counts said before and after. Those of dead
/// letters the script sees for itself. A count that is no number is there to be corrected, by what was counted.
fn error_of(
    counted: &Counted,
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> Counted {
    let number = |said: &BTreeMap<String, String>, field: &str| {
        said.get(field).and_then(|n| n.parse::<i64>().ok()).unwrap_or(0)
    };
    let ours = |field: &&String| ["n:", "b:", "x:"].iter().any(|kind| field.starts_with(kind));
    let fields: BTreeSet<&String> =
        before.keys().chain(after.keys()).chain(counted.keys()).filter(ours).collect();
    let mut errors = Counted::new();
    for field in fields {
        let (one, other) = (number(before, field), number(after, field));
        let stands = counted.get(field).copied().unwrap_or(0);
        let error = stands - stands.clamp(one.min(other), one.max(other));
        let spoilt = after.get(field).is_some_and(|n| n.parse::<i64>().is_err());
        if error != 0 || spoilt {
            errors.insert(field.clone(), error);
        }
    }
    errors
}

/// What is far too wrong to have moved, each time that it was counted, by the least of it.
fn far_in_all(errors: &[(Counted, Counted)]) -> Counted {
    let Some((first, _)) = errors.first() else { return Counted::new() };
    let mut far = Counted::new();
    for field in first.keys() {
        let least = if field.starts_with("n:") { FAR.0 } else { FAR.1 };
        let seen = errors.iter().map(|(error, counted)| {
            let (error, stands) =
                (error.get(field).copied().unwrap_or(0), counted.get(field).copied().unwrap_or(0));
            (error.abs() > least.max(stands / FAR_PART)).then_some(error)
        });
        let Some(seen) = seen.collect::<Option<Vec<i64>>>() else { continue };
        if seen.iter().all(|n| n.signum() == seen[0].signum()) {
            far.extend(seen.into_iter().min_by_key(|n| n.abs()).map(|n| (field.clone(), n)));
        }
    }
    far
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(n: i64) -> Counted {
        [("n:r".to_owned(), n)].into()
    }

    fn said(n: &str) -> BTreeMap<String, String> {
        [("n:r".to_owned(), n.to_owned()), ("moves".to_owned(), "7".to_owned())].into()
    }

    #[test]
    fn what_the_counts_said_meanwhile_is_no_error() {
        assert_eq!(error_of(&counted(5), &said("3"), &said("8")), Counted::new());
        assert_eq!(error_of(&counted(5), &said("8"), &said("3")), Counted::new());
        assert_eq!(error_of(&counted(5), &said("7"), &said("8")), counted(-2));
        assert_eq!(error_of(&counted(5), &BTreeMap::new(), &BTreeMap::new()), counted(5));
        assert_eq!(error_of(&Counted::new(), &said("4"), &said("4")), counted(-4), "nothing stands");
        assert_eq!(error_of(&Counted::new(), &said("?"), &said("?")), counted(0), "spoilt");
    }

    #[test]
    fn beside_what_moves_only_what_is_far_wrong_each_time_is_corrected_by_the_least() {
        let of = |all: &[(i64, i64)]| {
            let all: Vec<_> = all.iter().map(|&(error, stands)| (counted(error), counted(stands))).collect();
            far_in_all(&all)
        };
        assert_eq!(of(&[(5000, 6000), (5200, 6000), (4900, 6000)]), counted(4900));
        assert_eq!(of(&[(-5000, 0), (-5200, 0), (-4900, 0)]), counted(-4900));
        assert_eq!(of(&[(5000, 6000), (-5200, 6000), (4900, 6000)]), Counted::new());
        assert_eq!(of(&[(5000, 6000), (900, 6000), (4900, 6000)]), Counted::new(), "less than may move");
        assert_eq!(of(&[(5000, 60_000), (5200, 60_000), (4900, 60_000)]), Counted::new(), "an eighth may");
        assert_eq!(of(&[]), Counted::new());
    }
}

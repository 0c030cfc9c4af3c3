//! Report of a run, made from its ledger.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use super::accounting::{CRC, Delivery, ID, Id, Ledger, Outcome, Stamp, checksum};

/// A lateness beyond this counts as this: without bounds a histogram does not grow for what it saturates.
const HIGHEST_MS: u64 = 86_400_000;

/// The accounts of one run. `Display` prints the identity and the faults.
#[derive(Debug, Default)]
pub struct Report {
    /// Attempts to produce: all, and by how they ended.
    pub attempts: usize,
    /// Confirmed to their producer.
    pub ok: usize,
    /// Refused.
    pub fail: usize,
    /// Unknown.
    pub info: usize,
    /// Deliveries of messages of ours, repeats included.
    pub deliveries: usize,
    /// Confirmed ones that arrived.
    pub delivered: usize,
    /// Confirmed ones that were parked (dead letters) instead.
    pub parked: usize,
    /// Confirmed ones that are still in the store.
    pub stored: usize,
    /// Confirmed ones that are nowhere.
    pub lost: Vec<Id>,
    /// Messages that arrived more than once, and how often.
    pub repeated: BTreeMap<Id, usize>,
    /// Messages that arrived, and were parked or are still stored as well.
    pub both: Vec<Id>,
    /// Messages that arrived before they were due: where, when (Unix ms) and how many ms too early.
    pub early: Vec<(Id, String, i64, i64)>,
    /// Messages that arrived at another target, and at which.
    pub misrouted: Vec<(Id, String)>,
    /// Messages that arrived changed: the id as far as it could be read, and the difference.
    pub corrupt: Vec<(String, &'static str)>,
    /// Messages that arrived and were never produced.
    pub unexpected: Vec<Id>,
    /// Messages whose producer was told no, and that arrived.
    pub aborted: Vec<Id>,
    /// Messages of unknown fate that arrived: fine.
    pub recovered: usize,
    /// Lateness of first deliveries, ms: p50, p99, max. Printed, never judged.
    pub lateness_ms: (u64, u64, u64),
}

impl Report {
    pub(super) fn of(ledger: &Ledger) -> Self {
        let mut report = Self {
            attempts: ledger.attempts.len(),
            ..Self::default()
        };
        let mut arrived: BTreeMap<&Id, Vec<i64>> = BTreeMap::new();
        for delivery in &ledger.deliveries {
            if let Some((stamp, _)) = report.judge(ledger, delivery) {
                arrived
                    .entry(&stamp.id)
                    .or_default()
                    .push(delivery.received_ms);
            }
        }
        report.fates(ledger, &arrived);
        report.lateness(ledger, &arrived);
        report
    }

    /// Judges one delivery by what its producer noted; `None` if it is nobody's.
    fn judge<'a>(
        &mut self,
        ledger: &'a Ledger,
        delivery: &Delivery,
    ) -> Option<&'a (Stamp, Outcome)> {
        let Some(read) = Stamp::read(&delivery.body) else {
            self.corrupt.push((
                String::from_utf8_lossy(header(delivery, ID)).into_owned(),
                "body",
            ));
            return None;
        };
        let Some(attempt) = ledger.attempts.get(&read.id) else {
            self.unexpected.push(read.id);
            return None;
        };
        self.deliveries += 1;
        let (stamp, _) = attempt;
        let id = &stamp.id;
        if delivery.received_ms < stamp.due_ms {
            let at = delivery.received_ms;
            let by = stamp.due_ms - delivery.received_ms;
            self.early
                .push((id.clone(), delivery.target.clone(), at, by));
        }
        if delivery.target != stamp.target {
            self.misrouted.push((id.clone(), delivery.target.clone()));
        }
        if let Some(difference) = difference(stamp, &read, delivery) {
            self.corrupt.push((id.to_string(), difference));
        }
        Some(attempt)
    }

    fn fates(&mut self, ledger: &Ledger, arrived: &BTreeMap<&Id, Vec<i64>>) {
        for (id, (_, outcome)) in &ledger.attempts {
            let here = arrived.contains_key(id);
            let parked = ledger.parked.contains(id);
            let stored = ledger.stored.contains(id);
            match outcome {
                Outcome::Ok => {
                    self.ok += 1;
                    match (here, parked, stored) {
                        (true, _, _) => self.delivered += 1,
                        (false, true, _) => self.parked += 1,
                        (false, false, true) => self.stored += 1,
                        (false, false, false) => self.lost.push(id.clone()),
                    }
                }
                Outcome::Fail => {
                    self.fail += 1;
                    self.aborted.extend(here.then(|| id.clone()));
                }
                Outcome::Info => {
                    self.info += 1;
                    self.recovered += usize::from(here);
                }
            }
            self.both
                .extend((here && (parked || stored)).then(|| id.clone()));
        }
        let repeated = arrived.iter().filter(|(_, times)| times.len() > 1);
        self.repeated = repeated
            .map(|(id, times)| ((*id).clone(), times.len()))
            .collect();
    }

    fn lateness(&mut self, ledger: &Ledger, arrived: &BTreeMap<&Id, Vec<i64>>) {
        let mut histogram =
            Histogram::<u64>::new_with_bounds(1, HIGHEST_MS, 3).expect("three digits");
        for (id, times) in arrived {
            let first = times.iter().min().copied().unwrap_or_default();
            let late = (first - ledger.attempts[*id].0.due_ms).max(0) as u64;
            histogram.record(late).expect("it grows with its values");
        }
        self.lateness_ms = (
            histogram.value_at_quantile(0.5),
            histogram.value_at_quantile(0.99),
            histogram.max(),
        );
    }

    /// Deliveries beyond the first of each message.
    pub fn duplicates(&self) -> usize {
        self.repeated.values().map(|count| count - 1).sum()
    }

    /// The identity: what went in is what came out, is parked, stored or lost. Each side is counted by
    /// itself, so an error of the checker shows here.
    pub fn identity(&self) -> Result<(), String> {
        let sides = [
            (
                "attempts = ok + fail + info",
                self.attempts,
                self.ok + self.fail + self.info,
            ),
            (
                "ok = delivered + parked + stored + lost",
                self.ok,
                self.delivered + self.parked + self.stored + self.lost.len(),
            ),
            (
                "deliveries = delivered + recovered + aborted + duplicates",
                self.deliveries,
                self.delivered + self.recovered + self.aborted.len() + self.duplicates(),
            ),
        ];
        match sides.iter().find(|(_, left, right)| left != right) {
            None => Ok(()),
            Some((text, left, right)) => {
                Err(format!("{text} does not hold: {left} is not {right}"))
            }
        }
    }

    /// Everything that must not be, one line each; empty = all is accounted for. Duplicates are allowed
    /// up to `explained`, the relay's own count of publishes that it knows may be repeats.
    pub fn faults(&self, explained: usize) -> Vec<String> {
        let mut faults: Vec<_> = self.identity().err().into_iter().collect();
        let mut fault = |what: &str, ids: Vec<String>| {
            if !ids.is_empty() {
                let first: Vec<_> = ids.iter().take(10).map(String::as_str).collect();
                faults.push(format!("{what}: {} ({})", ids.len(), first.join(", ")));
            }
        };
        fault("lost", self.lost.iter().map(Id::to_string).collect());
        let early = self.early.iter();
        fault(
            "early",
            early
                .map(|(id, to, at, by)| format!("{id} to {to} at {at} by {by} ms"))
                .collect(),
        );
        fault(
            "misrouted",
            self.misrouted
                .iter()
                .map(|(id, to)| format!("{id} to {to}"))
                .collect(),
        );
        fault(
            "corrupt",
            self.corrupt
                .iter()
                .map(|(id, what)| format!("{id}: {what}"))
                .collect(),
        );
        fault(
            "unexpected",
            self.unexpected.iter().map(Id::to_string).collect(),
        );
        fault(
            "aborted, yet there",
            self.aborted.iter().map(Id::to_string).collect(),
        );
        fault(
            "delivered, yet kept",
            self.both.iter().map(Id::to_string).collect(),
        );
        if self.duplicates() > explained {
            let ids = self
                .repeated
                .iter()
                .map(|(id, count)| format!("{id} x{count}"))
                .collect();
            fault(
                &format!(
                    "duplicates {}, explained {explained}; repeated",
                    self.duplicates()
                ),
                ids,
            );
        }
        faults
    }

    /// Prints the accounts, and panics if anything is not accounted for.
    pub fn assert_accounted(&self, explained: usize) {
        println!("{self}");
        let faults = self.faults(explained);
        assert!(
            faults.is_empty(),
            "not accounted for:\n{}",
            faults.join("\n")
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            attempts,
            ok,
            fail,
            info,
            deliveries,
            delivered,
            parked,
            stored,
            recovered,
            ..
        } = self;
        writeln!(
            f,
            "attempts {attempts} = ok {ok} + fail {fail} + info {info}"
        )?;
        writeln!(
            f,
            "ok {ok} = delivered {delivered} + parked {parked} + stored {stored} + lost {}",
            self.lost.len()
        )?;
        writeln!(
            f,
            "deliveries {deliveries} = delivered {delivered} + recovered {recovered} + aborted {} + duplicates {}",
            self.aborted.len(),
            self.duplicates()
        )?;
        writeln!(
            f,
            "early {}, misrouted {}, corrupt {}, unexpected {}, delivered yet kept {}",
            self.early.len(),
            self.misrouted.len(),
            self.corrupt.len(),
            self.unexpected.len(),
            self.both.len()
        )?;
        let (p50, p99, max) = self.lateness_ms;
        write!(
            f,
            "lateness of first deliveries, ms: p50 {p50}, p99 {p99}, max {max}"
        )
    }
}

fn header<'a>(delivery: &'a Delivery, name: &str) -> &'a [u8] {
    let found = delivery.headers.iter().find(|(n, _)| n == name);
    found
        .and_then(|(_, value)| value.as_deref())
        .unwrap_or_default()
}

/// Difference from the message as produced, if there is one.
fn difference(stamp: &Stamp, read: &Stamp, delivery: &Delivery) -> Option<&'static str> {
    if read != stamp {
        Some("stamp")
    } else if header(delivery, ID) != stamp.id.to_string().as_bytes() {
        Some("id header")
    } else if header(delivery, CRC) != checksum(&delivery.body, &delivery.headers).as_bytes() {
        Some("checksum")
    } else if stamp.key.is_some() && stamp.key != delivery.key {
        Some("key")
    } else {
        None
    }
}

//! Marks of a run's messages, and the tally of the messages that arrived. Pure.

use hdrhistogram::Histogram;

use crate::domain::UnixMs;

/// The header that tells a bench's messages from all others: run, number, due time.
pub(super) const MARK_HEADER: &str = "postdate-bench";

/// Greatest lateness that is told apart, microseconds: an hour.
const MAX_LATENESS_US: u64 = 3_600_000_000;
/// Upper limits of the histogram's rows, microseconds: 1, 2, 5 and so on from 0.1 ms to a minute.
const ROW_LIMITS_US: [u64; 18] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 60_000_000,
];

/// Mark of one message: the value of its [`MARK_HEADER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageMark<'a> {
    /// Its run.
    pub(super) run: &'a str,
    /// Its number in the run, from 0.
    pub(super) number: u64,
    /// Its due time.
    pub(super) due: UnixMs,
}

impl<'a> MessageMark<'a> {
    /// The text of the mark.
    pub(super) fn text(&self) -> String {
        format!("{} {} {}", self.run, self.number, self.due.0)
    }

    /// Reads a mark; `None` if no bench has written the text.
    pub(super) fn read(text: &'a [u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let run = words.next()?;
        let number = words.next()?.parse().ok()?;
        let due = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Self {
            run,
            number,
            due: UnixMs(due),
        })
    }
}

/// Tally of one run's arrivals.
pub(super) struct ArrivalTally {
    run: String,
    /// Numbers that have arrived, a bit each.
    seen: Vec<u64>,
    /// Lateness of the first arrival of each, microseconds; an early one counts as 0.
    pub(super) late: Histogram<u64>,
    /// Messages that arrived, each counted once.
    pub(super) received: u64,
    /// Arrivals of messages that had arrived before.
    pub(super) again: u64,
    /// Messages that arrived before they were due.
    pub(super) early: u64,
    /// Greatest earliness, microseconds.
    pub(super) earliest_us: u64,
    /// Arrival of the first and of the last message, wall clock, microseconds.
    pub(super) span_us: Option<(i64, i64)>,
}

impl ArrivalTally {
    pub(super) fn new(run: &str) -> anyhow::Result<Self> {
        Ok(Self {
            run: run.to_owned(),
            seen: Vec::new(),
            late: Histogram::new_with_bounds(1, MAX_LATENESS_US, 3)?,
            received: 0,
            again: 0,
            early: 0,
            earliest_us: 0,
            span_us: None,
        })
    }

    /// Takes an arrival. A mark of another run is ignored, and so is a number that is not among the `sent` ones.
    pub(super) fn arrive(&mut self, mark: &[u8], at_us: i64, sent: u64) {
        let Some(mark) =
            MessageMark::read(mark).filter(|mark| mark.run == self.run && mark.number < sent)
        else {
            return;
        };
        let word = (mark.number / 64) as usize;
        let bit = 1 << (mark.number % 64);
        if self.seen.len() <= word {
            self.seen.resize(word + 1, 0);
        }
        if self.seen[word] & bit != 0 {
            self.again += 1;
            return;
        }
        self.seen[word] |= bit;
        self.received += 1;
        let late_us = at_us - mark.due.0 * 1000;
        if late_us < 0 {
            self.early += 1;
            self.earliest_us = self.earliest_us.max(late_us.unsigned_abs());
        }
        self.late.saturating_record(late_us.max(0) as u64);
        let (first, last) = self.span_us.unwrap_or((at_us, at_us));
        self.span_us = Some((first.min(at_us), last.max(at_us)));
    }

    /// The messages a second, from the first arrival to the last.
    pub(super) fn per_second(&self) -> f64 {
        let us = self.span_us.map_or(0, |(first, last)| last - first);
        if us == 0 {
            0.0
        } else {
            self.received.saturating_sub(1) as f64 * 1e6 / us as f64
        }
    }

    /// The histogram of lateness: each row's upper limit in microseconds (`None`: beyond all limits) and its messages,
    /// without the empty rows at both ends.
    pub(super) fn rows(&self) -> Vec<(Option<u64>, u64)> {
        let mut low = 0;
        let mut rows: Vec<(Option<u64>, u64)> = Vec::new();
        for limit in ROW_LIMITS_US {
            let count = self
                .late
                .iter_recorded()
                .filter(|v| (low..limit).contains(&v.value_iterated_to()));
            rows.push((
                Some(limit),
                count.map(|v| v.count_since_last_iteration()).sum(),
            ));
            low = limit;
        }
        let beyond = self.late.len() - rows.iter().map(|(_, count)| count).sum::<u64>();
        rows.push((None, beyond));
        let first = rows
            .iter()
            .position(|(_, count)| *count > 0)
            .unwrap_or(rows.len());
        let last = rows
            .iter()
            .rposition(|(_, count)| *count > 0)
            .map_or(0, |last| last + 1);
        rows.drain(..last).skip(first).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(run: &str, number: u64, due_ms: i64) -> Vec<u8> {
        MessageMark {
            run,
            number,
            due: UnixMs(due_ms),
        }
        .text()
        .into_bytes()
    }

    #[test]
    fn a_mark_comes_back_as_it_was_and_nothing_else_is_one() {
        let text = mark("k3", 7, 1_000);
        assert_eq!(
            MessageMark::read(&text),
            Some(MessageMark {
                run: "k3",
                number: 7,
                due: UnixMs(1_000)
            })
        );
        for other in ["", "k3", "k3 7", "k3 7 x", "k3 -7 1000", "k3 7 1000 more"] {
            assert_eq!(MessageMark::read(other.as_bytes()), None, "{other}");
        }
        assert_eq!(MessageMark::read(&[0xff, b' ', b'1', b' ', b'2']), None);
    }

    #[test]
    fn each_message_counts_once_and_others_not_at_all() {
        let mut tally = ArrivalTally::new("mine").expect("three digits");
        tally.arrive(&mark("mine", 0, 1_000), 1_000_400, 3);
        tally.arrive(&mark("mine", 2, 1_000), 1_003_000, 3);
        tally.arrive(&mark("mine", 1, 2_000), 1_998_000, 3);
        tally.arrive(&mark("mine", 0, 1_000), 1_900_000, 3);
        tally.arrive(&mark("other", 0, 1_000), 1_000_400, 3);
        tally.arrive(&mark("mine", 3, 1_000), 1_000_400, 3);
        assert_eq!((tally.received, tally.again), (3, 1));
        assert_eq!((tally.early, tally.earliest_us), (1, 2_000));
        assert_eq!(tally.span_us, Some((1_000_400, 1_998_000)));
        assert!(
            (tally.per_second() - 2.0 / 0.9976).abs() < 0.01,
            "{}",
            tally.per_second()
        );
        // Early counts as on time; no row is left out between.
        let rows = tally.rows();
        let ends = (rows.first().copied(), rows.last().copied());
        assert_eq!(ends, (Some((Some(100), 1)), Some((Some(5_000), 1))));
        assert_eq!(rows.iter().map(|(_, count)| count).sum::<u64>(), 3);
        assert_eq!(rows.len(), 6);
    }

    #[test]
    fn what_is_later_than_every_row_has_one_of_its_own() {
        let mut tally = ArrivalTally::new("r").expect("three digits");
        tally.arrive(&mark("r", 0, 0), 90_000_000, 1);
        assert_eq!(tally.rows(), [(None, 1)]);
        assert_eq!(ArrivalTally::new("r").expect("three digits").rows(), []);
    }
}

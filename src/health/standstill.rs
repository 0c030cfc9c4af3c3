//! Standstill of records that were read from a source: neither stored nor published nor dropped. Pure.

use std::collections::BTreeMap;

use crate::domain::{Text, duration};

/// Time for which a record is the oldest of its partition until it counts as standing still, microseconds.
const STANDSTILL_US: i64 = 3_000_000;

/// By topic and partition of one source: the oldest unresolved record, and since when it is the oldest, monotonic microseconds.
#[derive(Debug, Default)]
pub struct Standstill(BTreeMap<(Text, i32), (u64, i64)>);

impl Standstill {
    /// Takes the oldest unresolved record of each partition, as it is now. Answers a sentence about the standstill, if
    /// there is one.
    pub fn update(&mut self, oldest: &BTreeMap<(Text, i32), u64>, now_us: i64) -> Option<String> {
        self.0
            .retain(|partition, (record, _)| oldest.get(partition) == Some(record));
        for (partition, &record) in oldest {
            self.0.entry(partition.clone()).or_insert((record, now_us));
        }
        let since_us = self.0.values().map(|(_, since_us)| *since_us).min()?;
        let stands_us = now_us - since_us;
        (stands_us >= STANDSTILL_US).then(|| {
            let span = duration::words(stands_us / 1_000_000 * 1_000);
            format!("a record that was read {span} ago is neither stored nor published yet")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(standstill: &mut Standstill, oldest: &[(i32, u64)], now_us: i64) -> Option<String> {
        let of_topic = |&(partition, record)| ((Text::from("orders"), partition), record);
        standstill.update(&oldest.iter().map(of_topic).collect(), now_us)
    }

    #[test]
    fn a_record_that_stays_the_oldest_for_three_seconds_stands_still_whatever_the_other_partitions_do()
     {
        let mut standstill = Standstill::default();
        for (now_s, oldest, expected) in [
            (0, &[(0, 7), (1, 1)][..], None),
            (2, &[(0, 7), (1, 2)], None),
            (3, &[(0, 7), (1, 3)], Some(3)),
            (9, &[(0, 7), (1, 9)], Some(9)),
            (10, &[(0, 8), (1, 9)], None),
            (11, &[(0, 9)], None),
            (20, &[], None),
            (21, &[(0, 9)], None),
        ] {
            let said = update(&mut standstill, oldest, now_s * 1_000_000);
            let words = expected.map(|s| format!("a record that was read {s} s ago"));
            assert_eq!(said.is_some(), words.is_some(), "at {now_s} s: {said:?}");
            assert!(
                said.unwrap_or_default()
                    .starts_with(&words.unwrap_or_default()),
                "at {now_s} s"
            );
        }
    }
}

//! Judges which partitions stand although their log goes on: at records that the client library cannot open (a batch that is
//! too large once decompressed, of an unknown codec, damaged, or cut short), or behind a transaction that is open.
//!
//! The client library asks for such a batch again twice a second, for ever, and the partition stands. Its report names
//! the offset of the batch and neither topic nor partition, and of a batch that is cut short there is no report at all:
//! it is taken for a partial answer. Therefore a partition stands if its log goes on, its fetch position does not move,
//! no record comes, and the client library has reported something or has counted partial answers meanwhile.
//!
//! A batch with a wrong checksum (only with `check.crcs`) or of an unknown format is passed over if a good batch came
//! with it. The next record then lies behind a gap that begins at the offset of the report.

use rdkafka::error::RDKafkaErrorCode;

/// Shortest standstill that counts while the client library reports records that it cannot open: three of its tries.
const STANDSTILL_US: i64 = 1_500_000;
/// Shortest standstill that counts without a report. Partial answers are usual where much is read, and open transactions
/// where producers use them, but for a partition that gets nothing for so long.
const SILENT_STANDSTILL_US: i64 = 3_000_000;
/// How long a report counts: the client library tries again after half a second, and waits half a second for an answer.
const REPORT_FRESH_US: i64 = 2_500_000;

/// The reason why a batch cannot be opened of which the client library says nothing.
pub(super) const CUT_SHORT: &str = "the batch is cut short";

/// The client library's reports about records that it cannot open, over all partitions of a consumer.
#[derive(Debug, Default)]
pub(super) struct DecodeReports {
    /// The last report, in the client library's words.
    last: String,
    /// Monotonic microseconds of the last report.
    last_us: Option<i64>,
    /// Base offset of the batch of the last report, until the next record comes.
    batch: Option<i64>,
    /// Partial answers of all brokers, as of the last statistics.
    partial_answers: u64,
}

/// The client library's word about records that it cannot open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    Nothing,
    PartialAnswers,
    Reported,
}

impl DecodeReports {
    pub(super) fn note(&mut self, reason: &str, now_us: i64) {
        reason.trim_end_matches('.').clone_into(&mut self.last);
        self.last_us = Some(now_us);
        self.batch = batch_offset(reason);
    }

    /// The base offset of the batch that was reported since the last record.
    pub(super) fn take_batch(&mut self) -> Option<i64> {
        self.batch.take()
    }

    /// The evidence since the last call. `partial_answers` is the client library's count.
    pub(super) fn evidence(&mut self, partial_answers: u64, now_us: i64) -> Evidence {
        let rose = partial_answers > std::mem::replace(&mut self.partial_answers, partial_answers);
        if self
            .last_us
            .is_some_and(|last_us| now_us - last_us < REPORT_FRESH_US)
        {
            Evidence::Reported
        } else if rose {
            Evidence::PartialAnswers
        } else {
            Evidence::Nothing
        }
    }

    /// The sentence about a standstill that the evidence allows.
    pub(super) fn why(&self, evidence: Evidence) -> &str {
        if evidence == Evidence::Reported {
            &self.last
        } else {
            CUT_SHORT
        }
    }
}

/// The offset that a report names: `... at offset 7 (...`, `... of message at 7 of ...`.
pub(super) fn batch_offset(reason: &str) -> Option<i64> {
    let number = |marker: &str| {
        let (_, rest) = reason.split_once(marker)?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    number("at offset ").or_else(|| number("of message at "))
}

/// Reports whether an error of the client library is about records that it cannot open. An answer above
/// `receive.message.max.bytes` is reported as a failure of the connection.
pub(super) fn is_decode_error(code: RDKafkaErrorCode, reason: &str) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::BadMessage
            | Code::BadCompression
            | Code::InvalidMessage
            | Code::NotImplemented
            | Code::MessageSizeTooLarge
            | Code::CriticalSystemResource
    ) || reason.contains("Invalid frame size")
        || reason.contains("Invalid response size")
}

/// The reading of one partition, as the statistics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FetchView {
    /// The next offset that the client library fetches.
    pub(super) fetch: i64,
    /// One past the last record that came.
    pub(super) next: i64,
    /// One past the last record that can be read: the log's end, or the first record of an open transaction.
    pub(super) stable: i64,
    /// The log's end.
    pub(super) high: i64,
}

/// A standstill of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standstill {
    /// The records at this offset cannot be opened: the next one that is expected.
    Undecodable { offset: i64 },
    /// A transaction is open from this offset on, with so many records in it and behind it.
    OpenTransaction { offset: i64, behind: i64 },
}

impl Standstill {
    /// The values of `reason` in `ingress_paused`.
    pub(super) const REASONS: [&str; 2] = ["undecodable", "open_transaction"];

    /// The reason in `ingress_paused`.
    pub(super) fn reason(self) -> &'static str {
        let [undecodable, open_transaction] = Self::REASONS;
        match self {
            Self::Undecodable { .. } => undecodable,
            Self::OpenTransaction { .. } => open_transaction,
        }
    }

    fn is_alike(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

impl std::fmt::Display for Standstill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Undecodable { offset } => {
                write!(f, "stands at offset {offset}, which cannot be opened")
            }
            Self::OpenTransaction { offset, behind } => write!(
                f,
                "stands at offset {offset} until a producer ends its transaction, with {behind} records in it and behind it"
            ),
        }
    }
}

/// A change of a partition's standstill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandstillChange {
    Begins(Standstill),
    /// The partition is read on, or it stands for another cause now.
    Ends(Standstill),
}

/// Watches whether one partition stands. Pure: moments are arguments.
#[derive(Debug, Default)]
pub(super) struct StandstillWatch {
    /// Fetch position and next record, as of the last move.
    seen: Option<(i64, i64)>,
    since_us: i64,
    standing: Option<Standstill>,
}

impl StandstillWatch {
    pub(super) fn standing(&self) -> Option<Standstill> {
        self.standing
    }

    pub(super) fn update(
        &mut self,
        view: FetchView,
        evidence: Evidence,
        now_us: i64,
    ) -> Option<StandstillChange> {
        let FetchView {
            fetch,
            next,
            stable,
            high,
        } = view;
        let standstill = if fetch < stable {
            Standstill::Undecodable {
                offset: fetch.max(next),
            }
        } else {
            Standstill::OpenTransaction {
                offset: stable,
                behind: high - stable,
            }
        };
        let has_moved = self.seen != Some((fetch, next));
        let is_other = self.standing.is_some_and(|was| !was.is_alike(standstill));
        if has_moved || is_other || high.max(stable) <= fetch {
            self.seen = Some((fetch, next));
            self.since_us = now_us;
            return self.standing.take().map(StandstillChange::Ends);
        }
        let at_least_us = match (standstill, evidence) {
            (Standstill::Undecodable { .. }, Evidence::Nothing) => {
                self.since_us = now_us;
                return None;
            }
            (Standstill::Undecodable { .. }, Evidence::Reported) => STANDSTILL_US,
            (Standstill::Undecodable { .. }, Evidence::PartialAnswers)
            | (Standstill::OpenTransaction { .. }, _) => SILENT_STANDSTILL_US,
        };
        if self.standing.is_none() && now_us - self.since_us < at_least_us {
            return None;
        }
        let is_new = self.standing.replace(standstill).is_none();
        is_new.then_some(StandstillChange::Begins(standstill))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: i64 = 1_000_000;

    fn view(fetch: i64, next: i64, stable: i64) -> FetchView {
        FetchView {
            fetch,
            next,
            stable,
            high: stable,
        }
    }

    fn begins(offset: i64) -> StandstillChange {
        StandstillChange::Begins(Standstill::Undecodable { offset })
    }

    #[test]
    fn a_partition_stands_only_behind_the_end_without_a_move_and_with_evidence() {
        let mut watch = StandstillWatch::default();
        let ended = Some(StandstillChange::Ends(Standstill::Undecodable {
            offset: 5,
        }));
        for (at_s, view, evidence, expected) in [
            (0, view(5, 5, 9), Evidence::Reported, None),
            (1, view(5, 5, 9), Evidence::Reported, None),
            (2, view(5, 5, 9), Evidence::Reported, Some(begins(5))),
            (3, view(5, 5, 12), Evidence::Nothing, None),
            (4, view(6, 5, 12), Evidence::Reported, ended),
            (5, view(6, 6, 12), Evidence::Reported, None),
            (9, view(12, 12, 12), Evidence::Reported, None),
            (20, view(12, 12, 12), Evidence::Reported, None),
            // A slow broker, and nothing reported.
            (21, view(12, 12, 14), Evidence::Nothing, None),
            (30, view(12, 12, 14), Evidence::Nothing, None),
            (31, view(12, 12, 14), Evidence::PartialAnswers, None),
            (32, view(12, 12, 14), Evidence::PartialAnswers, None),
            (
                33,
                view(12, 12, 14),
                Evidence::PartialAnswers,
                Some(begins(12)),
            ),
        ] {
            assert_eq!(
                watch.update(view, evidence, at_s * SECOND_US),
                expected,
                "at {at_s} s"
            );
        }
        assert_eq!(
            watch.standing(),
            Some(Standstill::Undecodable { offset: 12 })
        );
    }

    #[test]
    fn a_partition_stands_behind_a_transaction_that_stays_open_while_all_before_it_is_read() {
        let mut watch = StandstillWatch::default();
        let open = |behind| Standstill::OpenTransaction { offset: 7, behind };
        for (at_s, (fetch, stable, high), expected) in [
            // Transactions come and go, and records with them.
            (0, (5, 5, 9), None),
            (2, (6, 6, 9), None),
            (4, (7, 7, 12), None),
            (6, (7, 7, 20), None),
            (7, (7, 7, 30), Some(StandstillChange::Begins(open(23)))),
            (8, (7, 7, 40), None),
            (9, (7, 40, 40), Some(StandstillChange::Ends(open(33)))),
            (20, (40, 40, 40), None),
            (21, (40, 40, 41), None),
            (22, (41, 41, 41), None),
            // What can be read and does not come has another cause, which needs evidence.
            (23, (41, 50, 60), None),
            (60, (41, 50, 60), None),
        ] {
            let view = FetchView {
                fetch,
                next: fetch,
                stable,
                high,
            };
            let change = watch.update(view, Evidence::Nothing, at_s * SECOND_US);
            assert_eq!(change, expected, "at {at_s} s");
        }
    }

    #[test]
    fn the_offset_of_a_report_is_found() {
        for (reason, expected) in [
            (
                "Decompression (codec 0x4) of message at 17 of 3693 bytes failed: Local: x",
                Some(17),
            ),
            (
                "MessageSet at offset 3 (73 bytes) failed CRC32C check (original 0x0 != calculated 0x1)",
                Some(3),
            ),
            (
                "Unsupported Message(Set) MagicByte 9 at offset 12",
                Some(12),
            ),
            ("Fetch from broker 1 failed: Broker: x", None),
        ] {
            assert_eq!(batch_offset(reason), expected, "{reason}");
        }
    }
}

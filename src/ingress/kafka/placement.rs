//! Where reading of a partition begins. Pure: answers of brokers and of the store are arguments.
//!
//! A committed position is believed only if the log can hold it. One beyond the log's end is of records that are not
//! there any more: a broker was restored from a copy, or a replica that lagged became the leader. A position that is gone
//! says nothing. Reading then begins at the records of the time at which the group was, and a little before, never at all
//! that retention holds. That time is kept in the commit's metadata and beside the store's mark. If it is not known,
//! reading begins at the oldest record.

use super::assignment::OffsetRange;
use crate::domain::{ReadMark, UnixMs};

/// Reading again begins so long before the last resolved record: the timestamps of a log are not in perfect order.
pub(super) const REREAD_MARGIN_MS: i64 = 600_000;
/// Most records that are read again without an operator's word.
pub(super) const REREAD_LIMIT: i64 = 100_000;
/// The first word of the metadata of Postdate's commits.
const METADATA_MARK: &str = "postdate";

/// The two ends of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogEnds {
    /// The oldest record.
    pub(super) begin: i64,
    /// The end for a reader of committed transactions.
    pub(super) end: i64,
}

/// A committed position, with what its metadata says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommittedPosition {
    pub(super) offset: i64,
    /// The time of the last record before it.
    pub(super) resolved: Option<UnixMs>,
    /// Reading waits for an operator's word. The position is where it would begin without one.
    pub(super) is_held: bool,
}

impl CommittedPosition {
    /// Reads the metadata of a commit. Metadata of others says nothing.
    pub(super) fn read(offset: i64, metadata: &str) -> Self {
        let mut position = Self {
            offset,
            resolved: None,
            is_held: false,
        };
        let mut words = metadata.split(' ');
        if words.next() != Some(METADATA_MARK) {
            return position;
        }
        for word in words {
            match word.split_once('=') {
                Some(("resolved", ms)) => position.resolved = ms.parse().ok().map(UnixMs),
                None if word == "held" => position.is_held = true,
                _ => {}
            }
        }
        position
    }

    /// The metadata of the commit.
    pub(super) fn metadata(&self) -> String {
        let resolved = self
            .resolved
            .map(|time| format!(" resolved={time}"))
            .unwrap_or_default();
        let held = if self.is_held { " held" } else { "" };
        format!("{METADATA_MARK}{resolved}{held}")
    }
}

/// Why a partition needs a start position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementCause {
    /// The group has given the partition to this consumer.
    Given,
    /// While it was read, its commit vanished or was moved back.
    CommitChanged,
    /// While it was read, the client library went back to this offset: the log was cut, or is another one.
    WentBack(i64),
    /// An operator says to begin at this offset.
    Told(i64),
}

/// The decision where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// At this offset, before which the last record was of this time, if that is known.
    Start(i64, Option<UnixMs>),
    /// At the end of this range: its records were deleted before they were read.
    Overtaken(OffsetRange),
    /// No position is believed: about where this mark was.
    Reread(ReadMark),
}

/// Decides where to begin. `read` is what is remembered of the partition apart from its commit. `fresh` is where a partition
/// begins that nobody has read ever, if not at its oldest record.
pub(super) fn place(
    cause: PlacementCause,
    committed: Option<CommittedPosition>,
    ends: LogEnds,
    read: Option<ReadMark>,
    fresh: Option<i64>,
) -> Placement {
    let LogEnds { begin, end } = ends;
    let remembered = read.unwrap_or(ReadMark {
        until: begin,
        resolved: None,
    });
    match (cause, committed) {
        (PlacementCause::Told(offset), _) => Placement::Start(offset.clamp(begin, end), None),
        // The client library found the very point, by the log's leader epochs.
        (PlacementCause::WentBack(offset), _) if begin < offset && offset <= end => {
            Placement::Start(offset, None)
        }
        // The client library began anew, because the log does not have its position.
        (PlacementCause::WentBack(_), _) => Placement::Reread(remembered),
        (_, Some(committed)) if committed.is_held || committed.offset > end => {
            Placement::Reread(ReadMark {
                until: committed.offset.max(end),
                resolved: committed.resolved.or(remembered.resolved),
            })
        }
        (_, Some(committed)) if committed.offset < begin => Placement::Overtaken(OffsetRange {
            from: committed.offset,
            to: begin,
        }),
        (_, Some(committed)) => Placement::Start(committed.offset, committed.resolved),
        (_, None) if read.is_none() => {
            Placement::Start(fresh.unwrap_or(begin).clamp(begin, end), None)
        }
        (_, None) => Placement::Reread(remembered),
    }
}

/// Records that are read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reread {
    /// The first of them.
    pub(super) start: i64,
    /// Most of them that were read before.
    pub(super) count: i64,
}

/// The first records of two times, each the log's end if there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedOffsets {
    /// The first record of [`REREAD_MARGIN_MS`] before the last resolved one, or later.
    pub(super) margin: i64,
    /// The first record that is younger than the last resolved one. A topic made anew begins with it.
    pub(super) younger: i64,
}

/// What is read again where no position is believed. Without a time it is all that was read before.
pub(super) fn reread(mark: ReadMark, ends: LogEnds, found: Option<TimedOffsets>) -> Reread {
    let (start, until) = match found {
        Some(TimedOffsets { margin, younger }) => (margin, younger.min(mark.until)),
        None => (ends.begin, mark.until),
    };
    let start = start.clamp(ends.begin, ends.end);
    Reread {
        start,
        count: (until.min(ends.end) - start).max(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: LogEnds = LogEnds { begin: 10, end: 20 };

    fn mark(until: i64, resolved: Option<i64>) -> ReadMark {
        ReadMark {
            until,
            resolved: resolved.map(UnixMs),
        }
    }

    #[test]
    fn a_position_is_believed_only_if_the_log_can_hold_it() {
        use Placement::{Overtaken, Reread, Start};
        use PlacementCause::{CommitChanged, Given, Told, WentBack};
        let at = |offset| Some(CommittedPosition::read(offset, "postdate resolved=7"));
        let foreign = |offset| Some(CommittedPosition::read(offset, "mirror"));
        let held = Some(CommittedPosition::read(12, "postdate resolved=7 held"));
        let read = Some(mark(18, Some(5)));
        for (cause, committed, read, expected) in [
            (Given, at(10), None, Start(10, Some(UnixMs(7)))),
            (Given, at(15), read, Start(15, Some(UnixMs(7)))),
            (Given, at(20), None, Start(20, Some(UnixMs(7)))),
            (
                Given,
                at(7),
                None,
                Overtaken(OffsetRange { from: 7, to: 10 }),
            ),
            (Given, at(23), None, Reread(mark(23, Some(7)))),
            (Given, at(23), read, Reread(mark(23, Some(7)))),
            (Given, foreign(23), None, Reread(mark(23, None))),
            (Given, foreign(23), read, Reread(mark(23, Some(5)))),
            (Given, foreign(15), read, Start(15, None)),
            (Given, held, None, Reread(mark(20, Some(7)))),
            // Nobody has read it ever, or the commit is lost.
            (Given, None, None, Start(10, None)),
            (Given, None, read, Reread(mark(18, Some(5)))),
            (CommitChanged, None, read, Reread(mark(18, Some(5)))),
            (CommitChanged, at(12), read, Start(12, Some(UnixMs(7)))),
            (WentBack(15), at(18), read, Start(15, None)),
            (WentBack(10), at(18), read, Reread(mark(18, Some(5)))),
            (WentBack(10), None, read, Reread(mark(18, Some(5)))),
            (Told(12), at(23), read, Start(12, None)),
            (Told(12), held, read, Start(12, None)),
            (Told(20), None, None, Start(20, None)),
            (Told(3), at(23), None, Start(10, None)),
        ] {
            assert_eq!(
                place(cause, committed, ENDS, read, None),
                expected,
                "{cause:?} {committed:?} {read:?}"
            );
        }
    }

    #[test]
    fn only_a_partition_that_nobody_has_read_begins_where_the_route_says() {
        use PlacementCause::{CommitChanged, Given};
        let at = Some(CommittedPosition::read(15, "postdate resolved=7"));
        let read = Some(mark(18, Some(5)));
        for (cause, committed, read, fresh, expected) in [
            (Given, None, None, Some(17), Placement::Start(17, None)),
            (Given, None, None, Some(3), Placement::Start(10, None)),
            (Given, None, None, Some(99), Placement::Start(20, None)),
            (
                Given,
                None,
                read,
                Some(17),
                Placement::Reread(mark(18, Some(5))),
            ),
            (
                Given,
                at,
                None,
                Some(17),
                Placement::Start(15, Some(UnixMs(7))),
            ),
            (
                CommitChanged,
                None,
                read,
                Some(17),
                Placement::Reread(mark(18, Some(5))),
            ),
        ] {
            let found = place(cause, committed, ENDS, read, fresh);
            assert_eq!(
                found, expected,
                "{cause:?} {committed:?} {read:?} {fresh:?}"
            );
        }
    }

    #[test]
    fn what_is_read_again_are_the_records_of_the_last_minutes_that_were_read_before() {
        for (until, found, start, count) in [
            // Beyond the end, or gone: the log is the one that was read.
            (23, Some((17, 20)), 17, 3),
            (23, Some((10, 20)), 10, 10),
            // Records came since.
            (23, Some((14, 18)), 14, 4),
            // Made anew: no record is as old as the last one that was read.
            (5_000, Some((10, 10)), 10, 0),
            (12, Some((10, 20)), 10, 2),
            // Emptied.
            (23, Some((20, 20)), 20, 0),
            (23, None, 10, 10),
            (15, None, 10, 5),
            (3, None, 10, 0),
        ] {
            let found = found.map(|(margin, younger)| TimedOffsets { margin, younger });
            assert_eq!(
                reread(mark(until, Some(7)), ENDS, found),
                Reread { start, count },
                "{until} {found:?}"
            );
        }
    }

    #[test]
    fn the_metadata_of_a_commit_is_read_as_it_was_written_and_that_of_others_says_nothing() {
        for (resolved, is_held) in [
            (None, false),
            (Some(UnixMs(7)), false),
            (Some(UnixMs(7)), true),
        ] {
            let written = CommittedPosition {
                offset: 3,
                resolved,
                is_held,
            };
            assert_eq!(CommittedPosition::read(3, &written.metadata()), written);
        }
        for foreign in [
            "",
            "resolved=7 held",
            "postdate2 held",
            "postdate resolved=x later",
        ] {
            let position = CommittedPosition::read(3, foreign);
            assert_eq!(
                (position.resolved, position.is_held),
                (None, false),
                "{foreign}"
            );
        }
    }
}

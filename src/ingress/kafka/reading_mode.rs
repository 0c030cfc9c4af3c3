//! How much a group's client fetches at a time. Pure: moments are arguments.
//!
//! The client library opens a whole answer before a record of it can be seen, and nobody can tell before how large the
//! answer is then. A process therefore begins with answers that are small on the wire. They cost flow, so a client that
//! is behind is made anew with the usual sizes, once it has read enough of which little expands.

use super::assignment::WINDOW_BYTES;
use crate::broker::kafka::FetchSizes;

/// Opened bytes after which what was read is judged: one large record is no rule.
const JUDGED_BYTES: u64 = 1 << 20;
/// Longest time in which so much must come. Less is a trickle, which needs no usual sizes.
const WINDOW_US: i64 = 10_000_000;
/// Opened bytes for each byte on the wire, from which on a topic expands: an answer of the usual size is 160 MiB then.
const EXPANDS: u64 = 20;
/// The same, up to which little expands. What lies between the two changes nothing.
const EXPANDS_LITTLE: u64 = 10;
/// Opened bytes of one partition in one answer, above which it expands, unless as much came over the wire: what its window
/// holds. Much that is read beside it hides it from the rule above.
const LARGE_PART_BYTES: u64 = WINDOW_BYTES as u64;
/// Shortest time between records that expand and the usual mode.
const EXPANSION_PAUSE_US: i64 = 60_000_000;

/// What a client has fetched since it was made, and what is left to fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FetchCounts {
    /// Bytes of all answers, as they are on the wire.
    pub(super) wire: u64,
    /// Bytes of keys and bodies, opened.
    pub(super) opened: u64,
    pub(super) records: u64,
    /// Most bytes that one partition's part of an answer had, opened, since the last counts.
    pub(super) largest_part: u64,
    /// Records that can be read and are not fetched yet.
    pub(super) unread: u64,
}

/// The mode in which a group is read. A process begins with the careful one. What it has learnt outlives its clients.
#[derive(Debug)]
pub(super) struct ReadingMode {
    mode: Mode,
    /// Counts at the beginning of the window.
    before: FetchCounts,
    since_us: i64,
}

#[derive(Debug)]
enum Mode {
    Careful {
        last_expanded_us: Option<i64>,
    },
    Usual,
    /// The operator sets how much is fetched.
    Only,
}

impl ReadingMode {
    /// `has_own_sizes`: the operator sets how much is fetched, so there is one mode.
    pub(super) fn new(has_own_sizes: bool) -> Self {
        let mode = if has_own_sizes {
            Mode::Only
        } else {
            Mode::Careful {
                last_expanded_us: None,
            }
        };
        Self {
            mode,
            before: FetchCounts::default(),
            since_us: 0,
        }
    }

    /// What a client of this mode fetches.
    pub(super) fn sizes(&self) -> FetchSizes {
        match self.mode {
            Mode::Careful { .. } => FetchSizes::Careful,
            Mode::Usual | Mode::Only => FetchSizes::Usual,
        }
    }

    /// Begins with a new client, whose counts are zero.
    pub(super) fn begin(&mut self, now_us: i64) {
        self.before = FetchCounts::default();
        self.since_us = now_us;
    }

    /// Notes the counts of the client. Reports whether the mode must change.
    pub(super) fn note(&mut self, counts: FetchCounts, now_us: i64) -> bool {
        let opened = counts.opened.saturating_sub(self.before.opened);
        let is_enough = opened >= JUDGED_BYTES;
        if !is_enough && now_us - self.since_us < WINDOW_US {
            return false;
        }
        let wire = counts.wire.saturating_sub(self.before.wire);
        let records = counts.records.saturating_sub(self.before.records);
        self.before = counts;
        self.since_us = now_us;
        if !is_enough {
            return false;
        }
        let is_large = counts.largest_part > wire.max(LARGE_PART_BYTES);
        let expands = is_large || opened > wire.saturating_mul(EXPANDS);
        match &mut self.mode {
            Mode::Careful { last_expanded_us } => {
                if expands {
                    *last_expanded_us = Some(now_us);
                }
                let is_quiet =
                    last_expanded_us.is_none_or(|last_us| now_us - last_us >= EXPANSION_PAUSE_US);
                let expands_little = opened <= wire.saturating_mul(EXPANDS_LITTLE);
                let is_behind = counts.unread >= records;
                is_quiet && expands_little && is_behind
            }
            Mode::Usual => expands,
            Mode::Only => false,
        }
    }

    /// Changes the mode. The client must be made anew.
    pub(super) fn change(&mut self, now_us: i64) {
        self.mode = match self.mode {
            Mode::Careful { .. } => Mode::Usual,
            Mode::Usual => Mode::Careful {
                last_expanded_us: Some(now_us),
            },
            Mode::Only => Mode::Only,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: i64 = 1_000_000;

    /// Counts of a client, a second after the other.
    struct Reader {
        mode: ReadingMode,
        counts: FetchCounts,
        now_us: i64,
    }

    impl Reader {
        fn new(has_own_sizes: bool) -> Self {
            Self {
                mode: ReadingMode::new(has_own_sizes),
                counts: FetchCounts::default(),
                now_us: 0,
            }
        }

        /// Reads for a second, and leaves so many records unread. Reports whether the mode must change.
        fn read(&mut self, wire: u64, opened: u64, unread: u64) -> bool {
            self.now_us += SECOND_US;
            self.counts.wire += wire;
            self.counts.opened += opened;
            self.counts.records += opened >> 10;
            self.counts.unread = unread;
            self.mode.note(self.counts, self.now_us)
        }

        fn change(&mut self) {
            self.mode.change(self.now_us);
            self.begin();
        }

        fn begin(&mut self) {
            self.counts = FetchCounts::default();
            self.mode.begin(self.now_us);
        }
    }

    const MIB: u64 = 1 << 20;
    const MANY: u64 = 1 << 30;

    #[test]
    fn a_group_is_read_carefully_until_it_is_behind_and_little_expands() {
        for (wire, opened, unread, expected) in [
            (MIB, MIB, MANY, true),
            (MIB / 10 + 1, MIB, MANY, true),
            (MIB, 4 * MIB, 4096, true),
            // All that is there is read.
            (MIB, 4 * MIB, 4095, false),
            (MIB, MIB, 0, false),
            // It expands, or nearly.
            (MIB / 11, MIB, MANY, false),
            (100, 200 * MIB, MANY, false),
            // Too little to judge.
            (MIB, MIB - 1, MANY, false),
        ] {
            let mut reader = Reader::new(false);
            assert_eq!(reader.mode.sizes(), FetchSizes::Careful);
            let changes = reader.read(wire, opened, unread);
            assert_eq!(changes, expected, "{wire} {opened} {unread}");
        }
    }

    #[test]
    fn a_trickle_stays_careful_and_a_long_way_does_not() {
        let mut reader = Reader::new(false);
        for _ in 0..1000 {
            assert!(!reader.read(MIB / 12, MIB / 12, MANY));
        }
        let changes = (0..10).any(|_| reader.read(MIB / 9, MIB / 9, MANY));
        assert!(changes, "an answer of 24 KiB each 200 ms");
    }

    #[test]
    fn what_expands_is_read_carefully_for_a_minute_at_least() {
        let mut reader = Reader::new(false);
        assert!(reader.read(MIB, MIB, MANY));
        reader.change();
        assert_eq!(reader.mode.sizes(), FetchSizes::Usual);
        assert!(!reader.read(100 * MIB, 100 * MIB, MANY));
        assert!(!reader.read(MIB, 20 * MIB, MANY));
        assert!(!reader.read(10, MIB - 1, 0), "too little to judge");
        assert!(reader.read(10, 50 * MIB, 0));
        reader.change();
        assert_eq!(reader.mode.sizes(), FetchSizes::Careful);
        for _ in 0..30 {
            assert!(!reader.read(MIB, MIB, MANY));
        }
        assert!(!reader.read(10, 200 * MIB, MANY), "it expands again");
        for second in 1..60 {
            assert!(!reader.read(MIB, MIB, MANY), "after {second} s");
        }
        assert!(reader.read(MIB, MIB, MANY), "after a minute");
    }

    #[test]
    fn one_partition_that_expands_is_noticed_beside_others() {
        let part = LARGE_PART_BYTES + 1;
        for (wire, largest_part, expected) in [
            (10 * MIB, part, true),
            (10 * MIB, part - 1, false),
            // A large record, as it is on the wire.
            (part, part, false),
            (part, part + 1, true),
        ] {
            let mut reader = Reader::new(false);
            assert!(reader.read(MIB, MIB, MANY));
            reader.change();
            reader.counts.largest_part = largest_part;
            let changes = reader.read(wire, wire + largest_part, MANY);
            assert_eq!(changes, expected, "{wire} {largest_part}");
        }
    }

    #[test]
    fn what_was_learnt_of_a_group_outlives_a_client() {
        let mut reader = Reader::new(false);
        assert!(reader.read(MIB, MIB, MANY));
        reader.change();
        assert!(!reader.read(MIB, MIB, MANY));
        reader.begin();
        assert_eq!(reader.mode.sizes(), FetchSizes::Usual);
        assert!(reader.read(10, 50 * MIB, MANY), "counts begin anew");
        reader.change();
        reader.begin();
        assert_eq!(reader.mode.sizes(), FetchSizes::Careful);
        assert!(!reader.read(MIB, MIB, MANY));
    }

    #[test]
    fn the_sizes_of_an_operator_are_the_only_ones() {
        let mut reader = Reader::new(true);
        assert_eq!(reader.mode.sizes(), FetchSizes::Usual);
        assert!(!reader.read(10, 200 * MIB, MANY) && !reader.read(MIB, MIB, MANY));
        assert_eq!(reader.mode.sizes(), FetchSizes::Usual);
    }
}

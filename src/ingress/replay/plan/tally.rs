//! What a replay finds, counted.

/// Numbers of records by their result. Each record counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayTally {
    /// Records that were read.
    pub read: u64,
    /// Messages to be stored, including those that are due already.
    pub stored: u64,
    /// Messages to be stored that are due already, and leave at once.
    pub overdue: u64,
    /// Messages to be cancelled in the store.
    pub cancelled: u64,
    /// Messages to be rescheduled in the store.
    pub rescheduled: u64,
    /// Invalid messages to be kept as dead letters.
    pub dead: u64,
    /// Messages that the store has: waiting, in flight or dead.
    pub there: u64,
    /// Messages that were cancelled, replaced or repeated later in the topic, and commands whose message is
    /// planned or gone.
    pub settled: u64,
    /// Messages that fell due before `due_after`.
    pub before: u64,
    /// Records later than `until`.
    pub later: u64,
    /// Messages without a delay, and invalid ones that are not kept: they never were in the store.
    pub passing: u64,
}

impl ReplayTally {
    /// The number of steps to carry out.
    pub fn steps(&self) -> u64 {
        self.stored + self.cancelled + self.rescheduled + self.dead
    }
}

impl std::ops::AddAssign for ReplayTally {
    fn add_assign(&mut self, more: Self) {
        self.read += more.read;
        self.stored += more.stored;
        self.overdue += more.overdue;
        self.cancelled += more.cancelled;
        self.rescheduled += more.rescheduled;
        self.dead += more.dead;
        self.there += more.there;
        self.settled += more.settled;
        self.before += more.before;
        self.later += more.later;
        self.passing += more.passing;
    }
}

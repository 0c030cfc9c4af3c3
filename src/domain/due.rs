//! Moments: Unix milliseconds, and readings of the monotonic clock.

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// The moment this many milliseconds later. Saturates at the ends of time.
    #[must_use]
    pub fn plus(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to this moment; negative if `earlier` is later.
    pub fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A reading of the monotonic clock: microseconds since the start of the process. Never mixed with Unix time or with a
/// duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MonoUs(pub i64);

impl MonoUs {
    /// The reading this many microseconds later.
    #[must_use]
    pub fn plus(self, us: i64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds from `earlier` to this reading; negative if `earlier` is later.
    pub fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::fmt::Display for UnixMs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

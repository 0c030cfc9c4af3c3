//! Planted faults, one at a time, that the accounting harness must catch: they prove the harness.
//!
//! With the feature `mutants` the environment variable `POSTDATE_MUTANT` names the one that a process has.
//! Without the feature, as in every release build, the answer is a constant no and costs nothing.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` plants faults: it is not for release builds");

/// A planted fault. `tests/mutants` says by which accounts each is caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// One message in ten is settled without having been published.
    Drop,
    /// Every message is handed over 50 ms early.
    Early,
    /// A source is acknowledged before the store has answered.
    AckBeforeStore,
    /// A message is settled when it is handed over, whatever its broker says.
    SettleBeforeConfirm,
    /// Messages go to another route's target.
    WrongTarget,
    /// A claim that expired counts as a first one: what it published is repeated without a cause.
    ForgetExpiry,
    /// A returned message counts as delivered, for the broker has acknowledged it.
    IgnoreReturned,
    /// A publish whose confirm never came counts as confirmed.
    UnknownIsConfirmed,
}

/// Whether this process has this fault.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn is(_: Mutant) -> bool {
    false
}

/// Whether this is one of the messages that [`Mutant::Drop`] loses.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn drops() -> bool {
    false
}

#[cfg(feature = "mutants")]
pub use planted::{drops, is};

#[cfg(feature = "mutants")]
mod planted {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Mutant;

    static CHOSEN: LazyLock<Option<Mutant>> = LazyLock::new(chosen);

    #[allow(clippy::disallowed_methods)] // no configuration: no user ever sets it
    fn chosen() -> Option<Mutant> {
        let name = std::env::var("POSTDATE_MUTANT").ok()?;
        let mutant = match name.as_str() {
            "drop" => Mutant::Drop,
            "early" => Mutant::Early,
            "ack_before_store" => Mutant::AckBeforeStore,
            "settle_before_confirm" => Mutant::SettleBeforeConfirm,
            "wrong_target" => Mutant::WrongTarget,
            "forget_expiry" => Mutant::ForgetExpiry,
            "ignore_returned" => Mutant::IgnoreReturned,
            "unknown_is_confirmed" => Mutant::UnknownIsConfirmed,
            other => panic!("POSTDATE_MUTANT: there is no mutant {other}"),
        };
        tracing::warn!(mutant = name, "this process has a planted fault");
        Some(mutant)
    }

    /// Whether this process has this fault. Panics, and the process ends, if there is none of its name.
    pub fn is(mutant: Mutant) -> bool {
        *CHOSEN == Some(mutant)
    }

    /// Whether this is one of the messages that [`Mutant::Drop`] loses.
    pub fn drops() -> bool {
        static HANDED: AtomicU32 = AtomicU32::new(0);
        is(Mutant::Drop) && HANDED.fetch_add(1, Ordering::Relaxed) % 10 == 9
    }
}

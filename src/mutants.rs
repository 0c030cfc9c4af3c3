//! Planted faults, one at a time, that the accounting harness must catch: they prove the harness.
//!
//! With the feature `mutants` the environment variable `POSTDATE_MUTANT` names the one that a process has.
//! Without the feature, as in every release build, the answer is a constant no and costs nothing.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` plants faults: it is not for release builds");

/// A planted fault. `tests/mutants` and `tests/chaos/mutants.rs` say by which accounts each is caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// One message in ten is settled without having been published.
    Drop,
    /// Every message is handed over a second early: more than a busy machine makes it late.
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
    /// What was claimed is published whenever it is due, whoever has the claim by then.
    NoFencing,
    /// Claims that expired are looked for at the start, and never again.
    SweepAtStartOnly,
    /// A claim forgets what of its bundle is gone: who claims it next publishes what was cancelled.
    GoneClearedByClaim,
    /// A claim holds for whoever says so until its deadline, whatever token it has.
    DeadlineAsToken,
    /// No tier waits for more than the master's answer.
    NoWait,
    /// Any loss of Redis's clock against this one, however slow, counts as a step.
    DriftIsAStep,
    /// Claims are read whatever their bytes.
    UnboundedClaims,
    /// A call to Redis may take as long as a small one, whatever its bytes.
    FixedDeadlines,
    /// A queue is subscribed to while its route's ingress waits, and its deliveries are held all that time.
    SubscribeWhileWaiting,
    /// A partition that was paused when it was taken away stays paused when it comes back.
    StayPaused,
    /// What a broker says of a batch for one record's content is believed of each of its records.
    BlameBatch,
    /// A message that waits for a Kafka target that is away counts as refused, again and again.
    OutageCounts,
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

/// Whether every replica is to serve everything, as if it were alone: no fault, for ownership is only efficiency.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn ownership_is_off() -> bool {
    false
}

/// Whether the claimer of this process's first timer shard is to hang, as soon as it has begun.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn shard_hangs() -> bool {
    false
}

/// The text of a script, without a fault.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn script(text: &str) -> std::borrow::Cow<'_, str> {
    std::borrow::Cow::Borrowed(text)
}

#[cfg(feature = "mutants")]
pub use planted::{drops, is, ownership_is_off, redis_clock, script, shard_hangs, wall_clock};

#[cfg(feature = "mutants")]
mod planted {
    use std::borrow::Cow;
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
            "no_fencing" => Mutant::NoFencing,
            "sweep_at_start_only" => Mutant::SweepAtStartOnly,
            "gone_cleared_by_claim" => Mutant::GoneClearedByClaim,
            "no_wait" => Mutant::NoWait,
            "deadline_as_token" => Mutant::DeadlineAsToken,
            "drift_is_a_step" => Mutant::DriftIsAStep,
            "unbounded_claims" => Mutant::UnboundedClaims,
            "fixed_deadlines" => Mutant::FixedDeadlines,
            "subscribe_while_waiting" => Mutant::SubscribeWhileWaiting,
            "stay_paused" => Mutant::StayPaused,
            "blame_batch" => Mutant::BlameBatch,
            "outage_counts" => Mutant::OutageCounts,
            other => panic!("POSTDATE_MUTANT: there is no mutant {other}"),
        };
        tracing::warn!(mutant = name, "this process has a planted fault");
        Some(mutant)
    }

    /// Whether this process has this fault. Panics, and the process ends, if there is none of its name.
    pub fn is(mutant: Mutant) -> bool {
        *CHOSEN == Some(mutant)
    }

    #[allow(clippy::disallowed_methods)] // no configuration: no user ever sets it
    fn said(name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    /// Whether every replica is to serve everything: `POSTDATE_OWNERSHIP=off`.
    pub fn ownership_is_off() -> bool {
        static OFF: LazyLock<bool> =
            LazyLock::new(|| said("POSTDATE_OWNERSHIP").is_some_and(|text| text == "off"));
        *OFF
    }

    /// Whether the claimer of this process's first timer shard is to hang: `POSTDATE_HANG=shard`.
    pub fn shard_hangs() -> bool {
        static HANGS: LazyLock<bool> =
            LazyLock::new(|| said("POSTDATE_HANG").is_some_and(|text| text == "shard"));
        *HANGS
    }

    /// The file that says by how many milliseconds this process's wall clock is wrong: `POSTDATE_WALL_CLOCK`.
    pub fn wall_clock() -> Option<std::path::PathBuf> {
        said("POSTDATE_WALL_CLOCK").map(Into::into)
    }

    /// The key in Redis that says by how many seconds Redis's clock is wrong: `POSTDATE_REDIS_CLOCK`.
    pub fn redis_clock() -> Option<String> {
        said("POSTDATE_REDIS_CLOCK")
    }

    /// Whether this is one of the messages that [`Mutant::Drop`] loses.
    pub fn drops() -> bool {
        static HANDED: AtomicU32 = AtomicU32::new(0);
        is(Mutant::Drop) && HANDED.fetch_add(1, Ordering::Relaxed) % 10 == 9
    }

    /// Where a claim has read what is gone.
    const READ_GONE: &str = "local gone = fields(GONE, ids)\n";
    /// Where a token is compared with the one that holds the claim.
    const TOKEN_CHECK: &str = "if space and string.sub(entry, 1, space - 1) == token then";

    /// The text of a script with the fault of this process, if it is one of the scripts'.
    pub fn script(text: &str) -> Cow<'_, str> {
        let (from, to) = match *CHOSEN {
            Some(Mutant::GoneClearedByClaim) => {
                (READ_GONE, format!("{READ_GONE}redis.call('HDEL', GONE, unpack(ids))\n"))
            }
            Some(Mutant::DeadlineAsToken) => {
                // Two claims can share a deadline; who says it is as good as the holder.
                (TOKEN_CHECK, "if space then".to_owned())
            }
            _ => return Cow::Borrowed(text),
        };
        Cow::Owned(text.replace(from, &to))
    }

    #[test]
    fn the_scripts_hold_what_is_replaced_in_them() {
        assert_eq!(include_str!("store/call/scripts/claim.lua").matches(READ_GONE).count(), 1);
        assert_eq!(include_str!("store/call/scripts/prelude.lua").matches(TOKEN_CHECK).count(), 1);
    }
}

//! Planted faults, one at a time. The accounting of the tests must catch each: that proves the accounting.
//!
//! With the feature `mutants` the environment variable `POSTDATE_MUTANT` names the fault of a process. Without the
//! feature, as in every release build, every question here is a constant `false` and costs nothing.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` plants faults: it is not for release builds");

/// A planted fault. `tests/mutants` and `tests/chaos/mutants.rs` name the accounts that catch each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Settles one message in ten without publishing it.
    Drop,
    /// Publishes every message 50 ms early.
    Early,
    /// Acknowledges a source before the store has answered.
    AckBeforeStore,
    /// Settles a message when it is submitted, whatever its broker answers.
    SettleBeforeConfirm,
    /// Publishes messages to the target of another route.
    WrongTarget,
    /// Counts a claim after an expired one as the first: its messages are published again without a cause.
    ForgetExpiry,
    /// Counts a returned message as delivered, because the broker has acknowledged it.
    IgnoreReturned,
    /// Counts a publish without an answer as confirmed.
    UnknownIsConfirmed,
    /// Publishes a claimed message when it is due, even if another replica has the claim by then.
    NoFencing,
    /// Looks for expired claims at the start, and never again.
    SweepAtStartOnly,
    /// Forgets on a claim which messages of the bundle are gone: the next claim publishes cancelled messages.
    GoneClearedByClaim,
    /// Accepts any token for a claim until its deadline.
    DeadlineAsToken,
    /// Waits in every durability tier for the answer of the master only.
    NoWait,
    /// Counts every lag of Redis's clock behind this one as a step, however slow it grew.
    DriftIsAStep,
    /// Reads claims without a limit on their bytes.
    UnboundedClaims,
    /// Gives every call to Redis the deadline of a small one, whatever its bytes.
    FixedDeadlines,
    /// Subscribes to a queue while the ingress of its route waits, and keeps the deliveries in memory all that time.
    SubscribeWhileWaiting,
    /// Leaves a Kafka partition paused that was paused when it was taken away, once it comes back.
    StayPaused,
    /// Gives every record of a batch the refusal that the broker gave for the content of one.
    BlameBatch,
    /// Counts a message as refused, again and again, while its Kafka target is away.
    OutageCounts,
    /// Counts a message as refused, again and again, while its Kafka partition has no leader.
    LeaderlessCounts,
    /// Publishes the headers `CC` and `BCC`, whatever the route says.
    CopiesPass,
    /// Counts claims by their bytes in Redis, not by what they take when they are opened.
    CompressedBudget,
    /// Lets routes store as many bytes as they like.
    NoByteQuota,
    /// Judges no publish to RabbitMQ before all that were published before it are answered.
    VerdictsInOrder,
    /// Never thinks of a delivery that its queue may drop it.
    NeverWorn,
    /// Takes a new master of the store for the one before it.
    ForgetMaster,
}

/// Reports whether this process has this fault.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn is(_: Mutant) -> bool {
    false
}

/// Reports whether this message is one that [`Mutant::Drop`] loses.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn drops() -> bool {
    false
}

/// Reports whether every replica serves all partitions, as if it were alone. This is no fault: shared partitions are
/// only less efficient.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn ownership_is_off() -> bool {
    false
}

/// Reports whether the claimer of the first timer shard hangs from its start on.
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

    static CHOSEN_MUTANT: LazyLock<Option<Mutant>> = LazyLock::new(chosen);

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
            "leaderless_counts" => Mutant::LeaderlessCounts,
            "copies_pass" => Mutant::CopiesPass,
            "compressed_budget" => Mutant::CompressedBudget,
            "no_byte_quota" => Mutant::NoByteQuota,
            "verdicts_in_order" => Mutant::VerdictsInOrder,
            "never_worn" => Mutant::NeverWorn,
            "forget_master" => Mutant::ForgetMaster,
            other => panic!("POSTDATE_MUTANT: there is no mutant {other}"),
        };
        tracing::warn!(mutant = name, "this process has a planted fault");
        Some(mutant)
    }

    /// Reports whether this process has this fault. Panics, which ends the process, if `POSTDATE_MUTANT` names none.
    pub fn is(mutant: Mutant) -> bool {
        *CHOSEN_MUTANT == Some(mutant)
    }

    #[allow(clippy::disallowed_methods)] // no configuration: no user ever sets it
    fn env_variable(name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    /// Reports whether every replica serves all partitions: `POSTDATE_OWNERSHIP=off`.
    pub fn ownership_is_off() -> bool {
        static IS_OFF: LazyLock<bool> =
            LazyLock::new(|| env_variable("POSTDATE_OWNERSHIP").is_some_and(|text| text == "off"));
        *IS_OFF
    }

    /// Reports whether the claimer of the first timer shard hangs: `POSTDATE_HANG=shard`.
    pub fn shard_hangs() -> bool {
        static IS_HANGING: LazyLock<bool> =
            LazyLock::new(|| env_variable("POSTDATE_HANG").is_some_and(|text| text == "shard"));
        *IS_HANGING
    }

    /// The file with the error of this process's wall clock, in milliseconds: `POSTDATE_WALL_CLOCK`.
    pub fn wall_clock() -> Option<std::path::PathBuf> {
        env_variable("POSTDATE_WALL_CLOCK").map(Into::into)
    }

    /// The key in Redis with the error of Redis's clock, in seconds: `POSTDATE_STORE_CLOCK`.
    pub fn redis_clock() -> Option<String> {
        env_variable("POSTDATE_STORE_CLOCK")
    }

    /// Reports whether this message is one that [`Mutant::Drop`] loses.
    pub fn drops() -> bool {
        static SETTLED_COUNT: AtomicU32 = AtomicU32::new(0);
        is(Mutant::Drop) && SETTLED_COUNT.fetch_add(1, Ordering::Relaxed) % 10 == 9
    }

    /// The line after which `claim.lua` knows which messages are gone.
    const READ_GONE: &str = "local gone = fields(GONE, ids)\n";
    /// The line that compares a token with the token of the claim.
    const TOKEN_CHECK: &str = "if space and string.sub(entry, 1, space - 1) == token then";

    /// The text of a script, with the fault of this process if that is a fault of scripts.
    pub fn script(text: &str) -> Cow<'_, str> {
        let (from, to) = match *CHOSEN_MUTANT {
            Some(Mutant::GoneClearedByClaim) => (
                READ_GONE,
                format!("{READ_GONE}redis.call('HDEL', GONE, unpack(ids))\n"),
            ),
            Some(Mutant::DeadlineAsToken) => {
                // Two claims can share a deadline, so a caller who names it passes as the owner of either.
                (TOKEN_CHECK, "if space then".to_owned())
            }
            _ => return Cow::Borrowed(text),
        };
        Cow::Owned(text.replace(from, &to))
    }

    #[test]
    fn the_scripts_hold_what_is_replaced_in_them() {
        assert_eq!(
            include_str!("store/call/scripts/claim.lua")
                .matches(READ_GONE)
                .count(),
            1
        );
        assert_eq!(
            include_str!("store/call/scripts/prelude.lua")
                .matches(TOKEN_CHECK)
                .count(),
            1
        );
    }
}

//! Why a message may be published a second time: the causes of possible duplicates, and the rule that names one. What
//! each cause means stands in docs/guarantees.md, under "Duplicates and their causes".

use super::entry::{Entry, Flags};

/// Why a publish may be a repeat: `redelivered_total{cause}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is its contract name
pub enum RepeatCause {
    ClaimExpired,
    ConfirmUnknown,
    SourceReread,
    SourceRedelivery,
    StoreRollback,
}

impl RepeatCause {
    /// All causes, for metrics.
    pub const ALL: [Self; 5] = [
        Self::ClaimExpired,
        Self::ConfirmUnknown,
        Self::SourceReread,
        Self::SourceRedelivery,
        Self::StoreRollback,
    ];

    /// The name in the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClaimExpired => "claim_expired",
            Self::ConfirmUnknown => "confirm_unknown",
            Self::SourceReread => "source_reread",
            Self::SourceRedelivery => "source_redelivery",
            Self::StoreRollback => "store_rollback",
        }
    }
}

impl Entry {
    /// The reason why the next publish may repeat an earlier one. `expiries` counts the claims on its bundle that
    /// ended without an answer.
    pub fn repeat_cause(&self, expiries: u32) -> Option<RepeatCause> {
        let flags = self.flags;
        if flags.has(Flags::CONFIRM_UNKNOWN) {
            Some(RepeatCause::ConfirmUnknown)
        } else if expiries > 0 || flags.has(Flags::CLAIM_EXPIRED) {
            Some(RepeatCause::ClaimExpired)
        } else if flags.has(Flags::STORE_ROLLBACK) {
            Some(RepeatCause::StoreRollback)
        } else if flags.has(Flags::SOURCE_REREAD) {
            Some(RepeatCause::SourceReread)
        } else if flags.has(Flags::SOURCE_REDELIVERY) {
            Some(RepeatCause::SourceRedelivery)
        } else {
            None
        }
    }
}

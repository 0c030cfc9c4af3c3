//! Errors of the store, by what a caller does about them.

/// Why a call was not answered, or not as it should be.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// Redis is away, loading, read-only, or did not answer in time. The call may have been applied. Try the
    /// same call again: it is applied once.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Redis is at `maxmemory`. Nothing was applied. A call that frees memory still works.
    #[error("the store is full: {0}")]
    Full(String),
    /// A key has a type that Postdate never gave it, or an answer has an unexpected shape. Nothing was applied.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// A later call of the same caller overtook this one, or the store has forgotten or lost its number. Nothing was applied
    /// by this attempt; one before it may have been.
    #[error("the call was overtaken by a later one")]
    Overtaken,
}

/// Why the store refuses to be used at all.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct PreflightError(pub String);

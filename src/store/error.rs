//! What can go wrong with the store, by what a caller does about it.

/// Why a call was not answered, or not as it should be.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// Redis is away, loading, read-only, or did not answer in time. The call may have been applied.
    /// Try the same call again: it is applied once.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Redis is at `maxmemory`. Nothing was applied. What frees memory still works.
    #[error("the store is full: {0}")]
    Full(String),
    /// A key has a type that Postdate never gave it, or an answer has not the shape it should have.
    /// Nothing was applied.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The call was overtaken by a later one of the same lane. Nothing was applied.
    #[error("the call was overtaken by a later one")]
    Overtaken,
}

/// Why the store refuses to be used at all.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct PreflightError(pub String);

impl StoreError {
    /// Sorts a client error by what is to be done about it.
    pub(super) fn of(error: &redis::RedisError) -> Self {
        let code = error.code().unwrap_or_default();
        let text = error.to_string();
        match code {
            "OOM" => Self::Full(text),
            // Inside MULTI every command is refused at `maxmemory`, and EXEC says only that.
            "EXECABORT" if text.contains("OOM") => Self::Full(text),
            // A key that is not ours, or a script that fails of itself: asking again would fail again.
            "WRONGTYPE" | "ERR" => Self::Damaged(text),
            _ => Self::Unavailable(text),
        }
    }
}

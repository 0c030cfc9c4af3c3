//! Reads answers of scripts: `{seconds, microseconds, rolled_back, answer}`.

use redis::Value;

use crate::store::StoreError;

/// The answer of a script.
pub(in crate::store) struct ScriptReply {
    /// Redis's time, Unix microseconds.
    pub(in crate::store) time_us: i64,
    /// Set if the store is behind what it had answered before.
    pub(in crate::store) rolled_back: bool,
    /// The script's own answer.
    pub(in crate::store) answer: Value,
}

impl ScriptReply {
    pub(in crate::store) fn read(value: Value) -> Result<Self, StoreError> {
        let Value::Array(parts) = value else {
            return Err(shape("a script's answer"));
        };
        let [seconds, micros, rolled_back, answer] =
            <[Value; 4]>::try_from(parts).map_err(|_| shape("a script's answer"))?;
        let time_us = integer(&seconds)? * 1_000_000 + integer(&micros)?;
        Ok(Self {
            time_us,
            rolled_back: integer(&rolled_back)? == 1,
            answer,
        })
    }
}

pub(in crate::store) fn shape(what: &str) -> StoreError {
    StoreError::Damaged(format!("{what} has an unexpected shape"))
}

pub(in crate::store) fn text(value: &Value) -> Result<String, StoreError> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).map_err(|_| shape("a text")),
        Value::SimpleString(text) => Ok(text.clone()),
        Value::Int(n) => Ok(n.to_string()),
        _ => Err(shape("a text")),
    }
}

/// The sequence number that a script's answer says to be given already, if it says so: the call is to be made anew, with a
/// higher one.
pub(in crate::store) fn behind(answer: &str) -> Result<Option<u64>, StoreError> {
    let Some(given) = answer.strip_prefix("BEHIND ") else {
        return Ok(None);
    };
    let given = given.parse().map_err(|_| shape("a sequence number"))?;
    Ok(Some(given))
}

pub(in crate::store) fn integer(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(n) => Ok(*n),
        Value::BulkString(bytes) => {
            // Redis writes scores as `1.79e12` only beyond 2^53. These scores are whole milliseconds.
            std::str::from_utf8(bytes)
                .ok()
                .and_then(|t| t.parse().ok())
                .ok_or_else(|| shape("a number"))
        }
        _ => Err(shape("a number")),
    }
}

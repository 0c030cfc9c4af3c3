//! What each key takes: noted by the readers of the sections, for the schema and for names that were misspelt.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Kind of values that a key takes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyKind {
    /// A text.
    Text,
    /// A duration with a unit.
    Duration,
    /// A size with a unit.
    Size,
    /// A whole number.
    Integer(RangeInclusive<u64>),
    /// True or false.
    Truth,
    /// One of these words.
    Choice(Vec<&'static str>),
    /// A list of texts.
    Texts,
    /// Properties of a client library by their names.
    Properties,
    /// A table.
    Section,
}

/// Kinds of every key that was read, by the path of the key.
pub(super) type KeyKinds = BTreeMap<Vec<String>, Vec<KeyKind>>;

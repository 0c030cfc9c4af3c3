//! Bounds that several rooms share. Each is a decision about memory or about fairness.

/// Failures that a message remembers, the newest.
pub const HISTORY: usize = 8;
/// Longest error text kept beside a failure or a dead letter, in bytes.
pub const ERROR_TEXT: usize = 200;
/// Most messages in one bundle.
pub const BUNDLE_MESSAGES: usize = 500;
/// Names that one call of the store takes, but for those of one bundle: each costs a script some microseconds.
pub const CALL_NAMES: usize = 500;
/// Most bytes of records in one bundle; a larger message is its own bundle.
pub const BUNDLE_BYTES: usize = 64 * 1024;
/// Deepest nesting of AMQP tables and arrays in headers, a plain value being 0. What is deeper is invalid
/// (`bad_headers`): a bundle that held it could not be read again.
pub const HEADER_DEPTH: usize = 128;
/// Longest id in bytes.
pub const ID_BYTES: usize = 256;
/// Claims of one message that may expire before it is dead (`crashes`).
pub const MAX_EXPIRIES: u32 = 50;
/// Expiries after which a bundle is taken apart into bundles of one.
pub const SPLIT_EXPIRIES: u32 = 2;

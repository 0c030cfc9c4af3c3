//! Bounds that several rooms share. Each is a decision about memory or about fairness.

/// Number of failures that a message remembers, the newest.
pub const MAX_HISTORY: usize = 8;
/// Longest error text kept with a failure or a dead letter, bytes.
pub const MAX_ERROR_BYTES: usize = 200;
/// Most messages in one bundle.
pub const BUNDLE_MESSAGES: usize = 500;
/// Names that one call of the store takes, unless a single bundle has more. Each costs a script some microseconds.
pub const MAX_CALL_NAMES: usize = 500;
/// Most bytes of records in one bundle. A larger message is a bundle of its own.
pub const BUNDLE_BYTES: usize = 64 * 1024;
/// Deepest nesting of AMQP tables and arrays in headers; a plain value is 0. A message with deeper headers is invalid
/// (`bad_headers`), because its bundle could not be read again.
pub const MAX_HEADER_DEPTH: usize = 128;
/// Longest id, bytes.
pub const MAX_ID_BYTES: usize = 256;
/// Number of claims on a bundle that may expire before it is dead (`crashes`). Each takes a whole claim time, so kills in quick
/// succession never add up to it.
pub const MAX_EXPIRIES: u32 = 50;
/// Number of expired claims after which a bundle is split into single messages.
pub const SPLIT_EXPIRIES: u32 = 2;

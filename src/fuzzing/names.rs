//! Names and members as they stand in Redis.

use crate::domain::testing;
use crate::store::fuzzing::read_names;

/// Any text in the place of a name, a member or a report is read as one that the store could have written, or as none.
///
/// # Panics
/// If it is read as something else.
pub fn store_names(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        read_names(&testing::route().name, text);
    }
}

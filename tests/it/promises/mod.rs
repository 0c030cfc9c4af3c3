//! The promises of `docs/guarantees.md`, one file each, with the tests that show them best from outside. Each file's first
//! lines say where else its promise is tested.

mod in_order;
mod never_early;
mod never_lost;
mod no_unexplained_duplicate;

//! The commands.

pub mod client;

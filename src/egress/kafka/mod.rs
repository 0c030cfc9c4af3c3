//! To come.

pub mod mapping;

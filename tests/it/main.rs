//! Tests on real servers, one binary so that they share them.

#[path = "../support/mod.rs"]
mod support;

mod store;
